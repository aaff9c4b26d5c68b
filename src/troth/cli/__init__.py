"""The command line: a table of commands. Each is imported when it is asked for: `troth --help` is instant, and a member of a run
imports nothing that lies or simulates."""

import os
import sys
import warnings
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer import Typer
from typer.core import TyperCommand, TyperGroup

from troth.cli.fields import Command
from troth.errors import OperatorError, printable
from troth.version import __version__

_INTERRUPTED = 130
_COMMANDS = {  # by name: where it is, and what it does
    "demo": ("troth.cli.demo:demo", "Real processes learn to read digits together; some of them lie."),
    "simulate": ("troth.cli.simulate:simulate", "Train among liars on this machine, in one process."),
    "key": ("troth.cli.key:key", "Make, show and keep the key that you take part with."),
    "new": ("troth.cli.new:new", "Write down what the members of a run agree on."),
    "join": ("troth.cli.join:join", "Join a run and train until it ends."),
    "export": ("troth.cli.export:export", "Write the model of a checkpoint as a state_dict."),
    "invite": ("troth.cli.export:invite", "Print an invitation, by which a newcomer knows the run."),
    "swarm": ("troth.cli.swarm:swarm", "Start real peers over loopback, and follow them live."),
    "watch": ("troth.cli.watch:watch", "See a run of this machine on a web page."),
    "status": ("troth.cli.watch:status", "Say in a line how each member of this machine does."),
    "report": ("troth.cli.watch:report", "Write the page of a run as one HTML file."),
    "verify": ("troth.cli.verify:verify", "Check evidence of bans, and models, of a run that you know."),
    "audit": ("troth.cli.audit:audit", "Check a whole run that you did not take part in, offline."),
    "doctor": ("troth.cli.doctor:doctor", "Measure how far other hardware would be from this machine."),
    "chaos": ("troth.cli.chaos:chaos", "Try to break the protocol, in thousands of small worlds."),
    "lab": ("troth.cli.lab:lab", "Experiments: every attack against every defence, your own."),
    "attacks": ("troth.cli.lists:attacks", "List the attacks, with their options."),
    "defences": ("troth.cli.lists:defences", "List the defences."),
    "tasks": ("troth.cli.lists:tasks", "List the tasks, with their options, or check one."),
    "example": ("troth.cli.lists:example", "Print a file to begin your own attack, rule, task or metric with."),
}


def load(name: str) -> Any:
    """Import a command."""
    module, _, attribute = _COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, Typer):
        return typer.main.get_command(found)
    alone = Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Command)(found)
    return typer.main.get_command(alone)


class _Commands(TyperGroup):
    """The commands; each is a name and a line until it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=line, rich_markup_mode=None) for name, (_, line) in _COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load(name), rest


app = Typer(
    name="troth",
    cls=_Commands,
    help="Train one neural network together with people you do not trust.",
    epilog="Start with: troth demo",
    add_completion=True,
    rich_markup_mode=None,  # plain help: importing rich would double the time it takes
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
        from troth.crypto import KeyFileError
        from troth.plugins import blamed

        if isinstance(error, KeyFileError):  # `troth.crypto` imports nothing of ours, so it is no OperatorError
            _fail(str(error))
        where = blamed(error)  # a user's own task, attack or rule
        if where is None or os.environ.get("TROTH_TRACEBACK"):
            raise
        _fail(f"{where} (with TROTH_TRACEBACK=1 in the environment the whole traceback is shown)")
    if code == _INTERRUPTED:  # some versions of Typer turn Ctrl-C into an exit code
        _interrupted()
    sys.exit(code)


def _fail(message: str) -> NoReturn:
    # Messages quote files, names and errors that strangers wrote.
    print(f"troth: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _interrupted() -> NoReturn:
    print("troth: interrupted; nothing was written for the unfinished run", file=sys.stderr)
    sys.exit(_INTERRUPTED)
