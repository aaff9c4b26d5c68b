"""`troth lab`: experiments. Attacks against defences, in sweeps described by a file, and their reports."""

import math
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import Command, UsageError
from troth.cli.progress import Tally
from troth.errors import printable
from troth.specs import pick

if TYPE_CHECKING:
    from troth.workshop.lab.results import Store
    from troth.workshop.lab.run import Performed, Results, SweepProgress
    from troth.workshop.lab.sweep import SweepJob, SweepPlan


# `troth lab recipes`: the sweeps that come with Troth.


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one, to begin your own sweep with.")] = None,
) -> None:
    """List the sweeps that come with Troth, or print one of them.

    Example: troth lab recipes matrix > my.toml
    """
    from troth.workshop.lab.recipes import find_sweep
    from troth.workshop.lab.recipes import recipes as files

    there = files()
    if name is not None:
        typer.echo(pick(there, name, "recipe").read_text(encoding="utf-8"), nl=False)
        return
    width = max(map(len, there))
    for recipe in there:
        sweep = find_sweep(recipe)
        runs = len(sweep.seeds) * sum(math.prod(map(len, group.axes.values())) for group in sweep.groups)
        data = ", needs --data" if sweep.needs_data else ""
        typer.echo(f"{recipe:<{width}}  {sweep.title} ({runs} runs{data})")
    typer.echo(f"\nRun one: troth lab run {Path(next(iter(there))).name}")


# `troth lab report`: what a sweep found, as a page, pictures and tables.


_PRINTED = ("expected.md", "paired.md")  # tables that answer what a sweep asks


def report(
    results: Annotated[
        Path, typer.Argument(help="Folder of results, as 'troth lab run' made it; or a folder of such.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report. Default: that of the results.")] = None,
) -> None:
    """Write one page that needs nothing else (report.html), pictures (PNG) and tables (CSV, Markdown).

    Of an unfinished sweep it shows what is there, and says so.

    Example: troth lab report results/matrix
    """
    from troth.workshop.lab.report import write_report

    written = write_report(results, out)
    typer.echo(written.summary)
    for path in written.tables:
        if path.name in _PRINTED:
            typer.echo("\n" + path.read_text(encoding="utf-8"))
    typer.echo(f"report   {written.page}")
    for name, files in (("tables", written.tables), ("figures", written.figures)):
        if files:
            typer.echo(f"{name:<8} {files[0].parent}")


# `troth lab run`: a sweep, on all cores, a GPU or a Ray cluster.


_SHOWN = 5  # failed runs that are named in the end


def run(
    sweep: Annotated[str, typer.Argument(help="A sweep's file, or the name of one that comes with Troth.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: results/<name>.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the datasets, for sweeps that read one.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only runs with this label: defence=krum. Several of one axis add up, of other axes narrow."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time. Default: one for each core; one on a GPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, in place of what the sweep says.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so long. The same command goes on.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (extra: troth[ray]).")] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster. Default: one on this machine, for this sweep.")
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="The sweep has changed: keep the runs that it still has, set others aside.")
    ] = False,
) -> None:
    """Run all that a sweep describes and that is not in its folder yet.

    A sweep is a TOML file: what is fixed, what varies (axes), and the seeds; 'troth lab recipes matrix' prints one. Each run is
    kept as soon as it is there (results.jsonl): after Ctrl-C, SIGTERM, a crash or --minutes, the same command makes those that
    are missing, and ends with the same results, bit for bit.

    Then: troth lab report results/NAME

    Example: troth lab run matrix
    """
    typer.echo("Checking all runs …", err=True)
    from troth.workshop.lab.recipes import find_sweep
    from troth.workshop.lab.run import run_sweep

    found = find_sweep(sweep)
    plan = found.plan(data=data, override={} if device is None else {"device": device})
    wanted = plan.only(_labels(only or []))
    at_once, folder = _at_once(workers, wanted), out or Path("results") / found.name
    perform = partial(run_sweep, found, plan, folder, _engine(engine, ray_address), at_once=at_once, only=wanted)
    if minutes is not None and minutes <= 0:
        raise UsageError(f"--minutes must be positive, got {minutes:g}")
    with Tally(found.name, len(wanted.jobs()), minutes=minutes) as tally:
        show = _on_run(tally, wanted, at_once)
        try:
            store = perform(extend=extend, until=tally.until, on_run=show)
        except KeyboardInterrupt:
            tally.say(f"interrupted: what was done is in {folder}; the same command goes on")
            # Not Typer's exit: with this code it would say that nothing was written.
            sys.exit(128 + signal.SIGINT)
    _print_end(store, wanted, plan)


def _on_run(
    tally: Tally, wanted: "SweepPlan", at_once: int
) -> "Callable[[SweepProgress, SweepJob | None, Performed | None], None]":
    """Show how far a sweep is, and say which runs failed."""
    from troth.workshop.lab.sweep import in_words

    labels = {cell.job.key: cell.labels for cell in wanted.cells}

    def show(progress: "SweepProgress", job: "SweepJob | None", performed: "Performed | None") -> None:
        if job is not None and performed is not None and performed.failed:
            tally.say(printable(f"{in_words(labels[job.key])} failed: {performed.found['error']}"))
        done, of = progress.kept + progress.done, progress.kept + progress.of
        kept = f" ({progress.kept} from before)" if progress.kept else ""
        failed = f", {progress.failed} failed" if progress.failed else ""
        tally.show(done, f"{done} of {of} runs{kept}{failed}, {at_once} at a time")

    return show


def _labels(only: list[str]) -> dict[str, list[str]]:
    wanted: dict[str, list[str]] = {}
    for text in only:
        axis, equals, label = text.partition("=")
        if not equals:
            raise UsageError(f"--only takes axis=label, got '{text}'")
        wanted.setdefault(axis.strip(), []).append(label.strip())
    return wanted


def _at_once(workers: int | None, plan: "SweepPlan") -> int:
    on_gpu = any(cell.config.get("device") == "cuda" for cell in plan.cells)
    return workers or (1 if on_gpu else os.cpu_count() or 1)


def _engine(name: str, address: str | None) -> "Callable[..., Results]":
    from troth.workshop.lab.run import ENGINES

    chosen = pick(ENGINES, name, "engine")
    if address is not None and name != "ray":
        raise UsageError("--ray-address is for --engine ray")
    return chosen if address is None else partial(chosen, address=address)


def _print_end(store: "Store", wanted: "SweepPlan", plan: "SweepPlan") -> None:
    from troth.workshop.lab.sweep import in_words

    for labels, why in plan.skipped:
        typer.echo(printable(f"left out: {in_words(labels)}: {why}"))
    left, failed = len(store.missing & {cell.job.key for cell in wanted.cells}), store.failed
    for line in failed[:_SHOWN]:
        typer.echo(printable(f"failed: {in_words(line['labels'])}: {line['error']}"))
    typer.echo(f"results  {store.folder / 'results.jsonl'}")
    if left:
        typer.echo(f"{left} runs are left: the same command goes on")
    if failed:
        typer.echo(f"{len(failed)} runs failed: the same command tries them again")
        raise typer.Exit(1)
    typer.echo(f"report   troth lab report {store.folder}")


lab = typer.Typer(
    help="Experiments: every attack against every defence, prior work's tables, your own.",
    epilog="Start with: troth lab recipes",
    rich_markup_mode=None,
    add_completion=False,
)
for command in (run, report, recipes):
    lab.command(cls=Command)(command)


@lab.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
