"""Options of commands: those that a dataclass declares, and those that several commands have; errors that name them; and the
question before a program of whoever wrote a manifest is run here."""

import functools
import inspect
import os
import pwd
import re
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from troth.errors import OperatorError, one_word, printable
from troth.options import Declared, declared

if TYPE_CHECKING:
    from troth.network.manifest.consent import TaskCode
    from troth.network.manifest.manifest import Manifest


class UsageError(OperatorError):
    """Options, files or folders that a command cannot use; the message says why, and names the way out."""


class Command(TyperCommand):
    """A command whose errors name its options: the library has fields in backticks, and `metrics_port` is --metrics-port here."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OperatorError as error:
            shown: dict[str, str] = {}
            for one in self.params:
                is_option = one.opts[0].startswith("-")
                flag = one.opts[0] if is_option else one.metavar or str(one.name).upper()
                shown |= {str(one.name): flag, flag.lstrip("-").replace("-", "_"): flag}
            raise OperatorError(with_options(str(error), shown)) from error


def with_options(text: str, shown: Mapping[str, str]) -> str:
    """A text with options in place of the fields that it has in backticks."""
    return re.sub(r"`(\w+)`", lambda found: shown.get(found[1], found[0]), text)


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that a dataclass declares, in place of its parameter `options`.

    The command gets a dictionary, by field, of those that were typed: all others have the dataclass's defaults."""
    offered = [one for one in declared(kind) if one.option is not None]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        given = [_parameter(one) for one in offered]
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        replaced = [[context, *given] if name == "options" else [parameter] for name, parameter in own.items()]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for some in replaced for one in some]

        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            options = {one.name: _value(one, values.pop(one.name)) for one in offered}
            typed = {name: value for name, value in options.items() if _is_typed(context, name)}
            command(options=typed, **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(one: Declared) -> inspect.Parameter:
    """An option as Typer wants it: a plain type and a default."""
    assert one.option is not None
    default: Any = one.default
    if one.choices:
        enum: Any = StrEnum
        plain: Any = enum(one.name, [(choice.upper(), choice) for choice in one.choices])
        default = plain(one.default)
    elif list in one.kinds:
        plain, default = list[str] | None, None
    else:
        (plain,) = one.kinds
        plain = plain if one.default is not None else plain | None
    shown = one.option.shown or True
    info = typer.Option(f"--{one.flag}", help=one.option.help, show_default=shown)
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[plain, info]
    )


def _value(one: Declared, value: Any) -> Any:
    if list in one.kinds:
        return tuple(value or ())
    return value.value if isinstance(value, StrEnum) else value


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is None or source.name != "DEFAULT"


Threads = Annotated[int, typer.Option(help="Threads to compute with; 0: as many as PyTorch likes.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else, on standard output.")]
OwnTask = Annotated[
    str | None,
    typer.Option(help="The run's task, if its file is not beside run.toml; it is run, so only if you trust it."),
]
Trust = Annotated[
    str | None,
    typer.Option(
        metavar="SHA256",
        help="Run the manifest's own code, if this is its SHA-256, without a question. Needed once, where nobody can be asked.",
    ),
]

_MOST_SHOWN = 40  # files; a package may have thousands


def agree(manifest: "Manifest", trust: str | None) -> None:
    """Ask, on a terminal, whether the manifest's code may be run, unless it is Troth's own or was agreed to before.

    Elsewhere `--trust` answers; without it, `ConsentError` names it."""
    from troth.network.manifest.consent import consent, remember, require_consent, trust_file

    code = consent(manifest, trust)
    if code is None:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        require_consent(manifest, None)
    _show(manifest, code)
    if not typer.confirm("Run it?", err=True):
        typer.echo("Nothing was run.", err=True)
        raise typer.Exit(2)
    if remember(code):
        typer.echo(f"Noted in {trust_file()}: these bytes are not asked about again.", err=True)


def _show(manifest: "Manifest", code: "TaskCode") -> None:
    """Everything that is needed to decide. Names are a stranger's."""
    lines = [
        "",
        f"The task of the run “{manifest.name}” is {one_word(manifest.task)}.",
        f"That runs {code.what}, which is not part of Troth: it is a program, chosen by whoever wrote the manifest.",
        "",
    ]
    shown = code.files[:_MOST_SHOWN]
    names = [one_word(file.name) for file in shown]
    width = max(map(len, names))
    lines += [
        f"    {name:<{width}}  {file.size:>9,} bytes  SHA-256 {file.digest.hex()}"
        for name, file in zip(names, shown, strict=True)
    ]
    if len(code.files) > len(shown):
        lines.append(f"    … and {len(code.files) - len(shown):,} more")
    if len(code.files) > 1:
        lines.append(f"    all of these together: {code.digest}")
    lines += [
        "",
        f"It runs as {_user()}, and nothing confines it: it may do all that {_user()} may. It can read, change and delete files,",
        "use the network, start programs, and read the key that is in memory while you take part.",
        f"Read it first{_where(manifest, code)}. If you have not, or do not know who wrote it, say no.",
        "",
    ]
    typer.echo("\n".join(lines), err=True)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _where(manifest: "Manifest", code: "TaskCode") -> str:
    return "" if code.pinned is None else f" (in {printable(str(manifest.folder.resolve()))})"
