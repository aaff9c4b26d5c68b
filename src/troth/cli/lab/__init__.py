"""`troth lab`: experiments. Attacks against defences, in sweeps described by a file, and their reports."""

import typer

from troth.cli.lab.recipes import recipes
from troth.cli.lab.report import report
from troth.cli.lab.run import run

lab = typer.Typer(
    help="Experiments: every attack against every defence, prior work's tables, your own.",
    epilog="Start with: troth lab recipes",
    rich_markup_mode=None,
    add_completion=False,
)
lab.command()(run)
lab.command()(report)
lab.command()(recipes)


@lab.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
