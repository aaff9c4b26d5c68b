"""The command line: one file per command. Heavy imports happen inside commands, so that `troth --help` is instant."""

import os
import sys
import warnings
from typing import NoReturn

import typer
from typer import Typer

from troth.cli.audit import audit
from troth.cli.chaos import chaos
from troth.cli.demo import demo
from troth.cli.doctor import doctor
from troth.cli.export import export, invite
from troth.cli.join import join
from troth.cli.key import key
from troth.cli.lab import lab
from troth.cli.lists import attacks, defences, example, tasks
from troth.cli.new import new
from troth.cli.simulate import simulate
from troth.cli.swarm import swarm
from troth.cli.verify import verify
from troth.cli.watch.report import report
from troth.cli.watch.status import status
from troth.cli.watch.watch import watch
from troth.errors import OperatorError, printable
from troth.version import __version__

_INTERRUPTED = 130

app = Typer(
    name="troth",
    help="Train one neural network together with people you do not trust.",
    epilog="Start with: troth demo",
    add_completion=True,
    rich_markup_mode=None,  # plain help: importing rich would double the time it takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(simulate)
app.add_typer(key, name="key")
app.command()(new)
app.command()(join)
app.command()(export)
app.command()(invite)
app.command()(swarm)
app.command()(watch)
app.command()(status)
app.command()(report)
app.command()(verify)
app.command()(audit)
app.command()(doctor)
app.command()(chaos)
app.add_typer(lab, name="lab")
app.command()(attacks)
app.command()(defences)
app.command()(tasks)
app.command()(example)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"troth {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every operator's mistake ends in one line on standard error and exit code 2."""
    command = typer.main.get_command(app)
    if arguments is None and not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' advice to programmers; `python -W default -m troth` shows it
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = command.main(args=given or ["--help"], prog_name="troth", standalone_mode=False) or 0
    except OperatorError as error:
        _fail(str(error))
    except typer.Abort:
        _interrupted()
    except KeyboardInterrupt:
        _interrupted()
    except Exception as error:
        # Typer's own complaints about options, recognised by their attributes, since the class moved between versions.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            _fail(error.format_message().replace("\n", " "))
        if _about_a_key_file(error):
            _fail(str(error))
        from troth.plugins import blamed

        where = blamed(error)  # a user's own task, attack or rule
        if where is None or os.environ.get("TROTH_TRACEBACK"):
            raise
        _fail(f"{where} (with TROTH_TRACEBACK=1 in the environment the whole traceback is shown)")
    if code == _INTERRUPTED:  # some versions of Typer turn Ctrl-C into an exit code
        _interrupted()
    sys.exit(code)


def _about_a_key_file(error: Exception) -> bool:
    """Tell an unusable key file: an operator's mistake, though `troth.crypto`, which imports nothing of ours, cannot say so."""
    from troth.crypto import KeyFileError

    return isinstance(error, KeyFileError)


def _fail(message: str) -> NoReturn:
    # Messages quote files, names and errors that strangers wrote.
    print(f"troth: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _interrupted() -> NoReturn:
    print("troth: interrupted; nothing was written for the unfinished run", file=sys.stderr)
    sys.exit(_INTERRUPTED)
