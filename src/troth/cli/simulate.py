"""`troth simulate`: one training run on this machine, with liars."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from troth.api.steps import use_threads
from troth.cli.fields import Json, Threads, takes
from troth.cli.progress import Live, Rows, caught_row, print_rows, training_rows
from troth.cli.watch import HOST, Page, PageHost, PageOptions, PagePort
from troth.evidence.file_format import RunSummary, slug
from troth.files import claimed
from troth.specs import file_of
from troth.training.weights import write_model
from troth.workshop.lab.results import MODEL, EventWriter, save_results
from troth.workshop.simulation import Scenario, Started, StepReport, start

_UNUSED_SHARDS = (
    "none: under troth all peers draw from all data, so that each can recompute what another did; "
    "a rule with a trusted server uses the task's shards (--defence centered-clip)"
)


@takes(Scenario)
def simulate(
    options: dict[str, Any],
    threads: Threads = 1,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(min=1, help="Write the model every k steps too, to evaluate: checkpoints/step-….safetensors."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/<name of the run>.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the results of another run in --out.")
    ] = False,
    page: Page = False,
    page_port: PagePort = None,
    page_host: PageHost = HOST,
    json: Json = False,
) -> None:
    """Train among liars on this machine: see them caught, or see what they do to the model.

    The folder of results holds summary.json (options, metrics, bans), curve.csv (a row a step: metrics, batch loss, peers,
    bans), curve.png (their picture), model.safetensors (the model, complete), and evidence/ (a file for each ban).

    Exit code 1: the run ended before its last step, since it diverged or too few peers were left; the results are written all
    the same.

    Example: troth simulate --byzantine 7 --attack sign-flip
    """
    with redirect_stdout(sys.stderr):
        use_threads(threads)
        run = start(Scenario(**options))
    config, show = run.scenario.config(), PageOptions(page, page_host, page_port)
    with claimed(out or Path("runs") / slug(config), config, overwrite=overwrite) as folder, show.of(folder, new=True):
        reports = _train(run, folder, checkpoint_every)
        finished = run.finish()
        save_results(folder, finished, reports)
    if json:
        typer.echo(finished.summary.to_json(), nl=False)
    else:
        _print_results(finished.summary, folder)
    if finished.ended_early:
        raise typer.Exit(1)


def _train(run: Started, folder: Path, checkpoint_every: int | None) -> list[StepReport]:
    """Make all steps, live, with a checkpoint every so often and at the end."""
    scenario, reports = run.scenario, []
    folder = folder / "checkpoints"
    old = set(folder.glob("step-*.safetensors"))
    live = Live(scenario.defence_name, scenario.total_steps, scenario.peers, beyond=scenario.beyond_guarantee)
    events = EventWriter(folder.parent, run.began)
    if run.unused_shards:
        typer.echo(f"shards: {_UNUSED_SHARDS}", err=True)
    with live, events, redirect_stdout(sys.stderr):  # what a user's own file prints is not our output
        for report in run:
            live.step(report)
            events.step(report)
            reports.append(report)
            if checkpoint_every and (report.step % checkpoint_every == 0 or report.step == scenario.total_steps):
                path = folder / f"step-{report.step:09}.safetensors"
                path.parent.mkdir(exist_ok=True)
                write_model(path, run.problem.state_dict(run.parameters_D))
                old.discard(path)
        live.end(run.ended_early)
        events.ended_early = run.ended_early
    for path in old:  # of an earlier run; not before this one has succeeded
        path.unlink()
    return reports


def _print_results(summary: RunSummary, folder: Path) -> None:
    details = summary.details
    rows = [
        ("task", f"{summary.config['task']} ({details['parameters']:,} parameters)"),
        ("peers", f"{summary.peers}, of which lie: {summary.byzantine or 'none'}"),
        ("attack", f"{summary.attack} in {details['attacked_steps']} steps" if summary.attack else "none"),
        ("defence", summary.defence),
        *training_rows(summary),
    ]
    if details.get("unused_shards"):
        rows.append(("shards", _UNUSED_SHARDS))
    if "not_finite" in details:
        rows.append(("not finite", f"{details['not_finite']} gradients of honest peers, which count as zero"))
    rows += _protocol_rows(summary, folder) if "banned" in details else _server_rows(summary)
    print_rows(
        [
            *rows,
            ("summary", str(folder / "summary.json")),
            ("curve", f"{folder / 'curve.csv'}, drawn in {folder / 'curve.png'}"),
            ("model", str(folder / MODEL)),
            ("to load it", f'module.load_state_dict(safetensors.torch.load_file("{folder / MODEL}"))'),
        ]
    )


def _server_rows(summary: RunSummary) -> Rows:
    """Whom a rule dropped, and whether there were more liars than its guarantee covers."""
    details, rows = summary.details, []
    if "removed" in details:
        removed = {int(peer) for peer in details["removed"]}
        liars = set(summary.byzantine)
        rows.append(("removed", f"{len(removed & liars)} of {len(liars)} liars, {len(removed - liars)} honest"))
    if "assumed_byzantine" in details:
        most = details["assumed_byzantine"]
        covered = f"{summary.defence} withstands at most {most} liars among {summary.peers}"
        rows.append(("guarantee", f"none: {covered}, and ran as if there were {most}"))
    return rows


def _protocol_rows(summary: RunSummary, folder: Path) -> Rows:
    details = summary.details
    rows = [caught_row(summary)]
    if "door" in details:
        rows += _door_rows(details["door"])
    if details["absent"]:
        rows.append(("absent", f"{len(details['absent'])} left without a ban: {details['absent']}"))
    if details["stalled"] is not None:
        rows.append(("stopped", f"{details['stalled']} to decide anything: a minority must not go on alone"))
    rows += [
        ("audits", f"{details['audits']}, of which led to a trial: {details['trials']}"),
        ("agreement", "all honest peers hold the same model" if details["agreement"] else "BROKEN"),
        ("announced", f"{details['announced_bytes_per_step']:,} bytes a step received by a peer"),
    ]
    if summary.config["beyond_guarantee"]:
        rows.append(("guarantee", "none: this run was asked to go beyond it"))
    elif summary.peers < 4:
        why = "a single peer trusts itself" if summary.peers == 1 else f"{summary.peers} peers can spare no validator"
        rows.append(("guarantee", f"none against lies: {why} (from 4 peers on one of them may lie)"))
    if details["banned"]:
        own = f" --task {task}" if file_of(task := str(summary.config["task"])) is not None else ""
        check = f"troth verify FILE --run {folder / 'evidence' / 'run'}{own}"
        rows.append(("evidence", f"{folder / 'evidence'} (check one with: {check})"))
    return rows


def _door_rows(door: dict[str, Any]) -> Rows:
    """A row for each kind of strangers that came."""
    return [
        (
            "strangers",
            f"{came['strangers']}: of {came['names']}, {came['seated']} had a slot, {came['admitted']} were admitted, "
            f"{came['banned']} banned; members in the end: {came['members']}",
        )
        for came in door["came"]
    ]
