"""`troth swarm`: real processes on this machine, some of them liars."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import Json, Trust, agree
from troth.cli.join import say_now
from troth.cli.progress import caught_row, print_rows, training_rows
from troth.cli.watch import HOST, Page, PageHost, PageOptions, PagePort

if TYPE_CHECKING:
    from troth.evidence.file_format import RunSummary
    from troth.network.manifest.manifest import Manifest
    from troth.workshop.swarm import Swarm
    from troth.workshop.swarm_peers import SwarmPlan, Trace


def swarm(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            help="A run.toml to rehearse: its task and numbers, with peers of this machine in place of its founders."
        ),
    ] = None,
    peers: Annotated[int, typer.Option(help="How many processes.")] = 8,
    byzantine: Annotated[int, typer.Option(help="How many of them lie.")] = 0,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="What liars do: see 'troth attacks'; or your own my_attack.py. Repeat it, and the liars share them out."
        ),
    ] = None,
    behaviour: Annotated[
        list[str] | None,
        typer.Option(help="What all liars do on the wire besides, for instance equivocate. Repeatable."),
    ] = None,
    attack_start: Annotated[int, typer.Option(help="The first step under attack.")] = 10,
    attack_every: Annotated[int, typer.Option(help="Attack in every so many steps.")] = 1,
    task: Annotated[str, typer.Option(help="What to train, without a manifest: see 'troth tasks'.")] = "digits",
    steps: Annotated[int | None, typer.Option(help="How many steps. Default: the manifest's or the task's.")] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="sgd, adamw or lamb; options as in sgd:momentum=0.9. Default: the manifest's or the task's."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate. Default: the manifest's or the task's.")] = None,
    tau: Annotated[float | None, typer.Option(help="Clipping radius. Default: the manifest's or the task's.")] = None,
    delta: Annotated[float, typer.Option(help="Seconds that a message may take, without a manifest.")] = 2.0,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Measure the model every so many steps.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Threads that each process computes with.")] = 1,
    seed: Annotated[int, typer.Option(help="Keys, coins, liars and the first model follow from it.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for logs, summary, picture and evidence.")] = Path("runs/swarm"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another swarm left there.")] = False,
    trust: Trust = None,
    page: Page = False,
    page_port: PagePort = None,
    page_host: PageHost = HOST,
    json: Json = False,
) -> None:
    """Start real peers over loopback, follow them live, and collect what they agreed on.

    Every peer is a process of its own with its own folder: log.txt, journal, checkpoints, evidence, model. The same seed without
    accidents gives the same records as 'troth simulate' would (tests hold the two together).

    It starts no strangers. If the manifest's door is open (troth new --probation), come in as one from another terminal while
    the swarm trains: troth join runs/swarm/run.toml --identity NEW.key. For strangers that lie: troth simulate --strangers.
    """
    started = time.monotonic()
    typer.echo("Starting …", err=True)
    import torch

    from troth.files import claimed, write_text
    from troth.network.manifest.consent import code_to_run, remember
    from troth.network.manifest.manifest import Manifest
    from troth.workshop.lab.plots import plot_runs
    from troth.workshop.swarm_peers import SwarmPlan, rehearsal

    torch.set_num_threads(threads)
    attacks, behaviours = tuple(attack or ("sign-flip",)), tuple(behaviour or ())
    plan = SwarmPlan(peers, byzantine, attacks, behaviours, attack_start, attack_every, seed=seed)
    base = None if manifest is None else Manifest.load(manifest)
    if base is not None:
        agree(base, trust)
    run = rehearsal(plan, task, base=base, steps=steps, optimizer=optimizer, rate=rate, tau=tau, delta_s=delta)
    if (warning := _beyond(plan, run)) is not None:
        typer.echo(f"warning: {warning}", err=True)
    if base is None and (code := code_to_run(run)) is not None:
        remember(code)  # its user named the file here; 'troth verify' and 'troth audit' of this swarm will run it again
    show = PageOptions(page, page_host, page_port)
    with claimed(out, {}, overwrite=overwrite) as folder, show.of(folder, new=True):
        finished, summary = play(plan, run, folder, evaluate_every=evaluate_every, threads=threads)
    write_text(folder / "summary.json", summary.to_json())
    liars = f"{byzantine} of {peers} processes lie" if byzantine else f"{peers} processes"
    plot_runs([("troth", summary)], folder / "curve.png", f"{run.task}, {liars}")
    if json:
        typer.echo(summary.to_json(), nl=False)
    else:
        _print(finished, summary, folder, time.monotonic() - started)
    details = summary.details
    if not details["agreement"] or details["stalled"] or details["diverged_at"] is not None:
        raise typer.Exit(1)


def _beyond(plan: "SwarmPlan", run: "Manifest") -> str | None:
    """What to expect of more liars than the manifest withstands."""
    most = run.parameters.byzantine
    if plan.byzantine <= most:
        return None
    return (
        f"{plan.byzantine} liars, and the manifest withstands {most} (protocol.byzantine): nothing is promised, honest peers "
        "may be banned, and the run may stop or contradict itself"
    )


def play(
    plan: "SwarmPlan", run: "Manifest", folder: Path, *, evaluate_every: int = 10, threads: int = 1
) -> "tuple[Swarm, RunSummary]":
    """Run a swarm until its last honest peer has ended; Ctrl-C stops all of them."""
    from troth.workshop.swarm import Swarm
    from troth.workshop.swarm_peers import clear

    clear(folder, plan.peers)
    problem = run.problem(run.make_task())
    before = problem.evaluate(problem.initial(run.model_seed))
    try:
        with Swarm(plan, run, folder, evaluate_every=evaluate_every, threads=threads) as processes:
            processes.follow(_Screen(processes).show)
            return processes, processes.summary(before)
    except KeyboardInterrupt:
        say_now(f"stopped; all processes have ended. Their logs are {folder}/peer*/log.txt")
        sys.exit(130)


class _Screen:
    """One view of all processes: the steps of the first honest peer, and the notes of all honest peers."""

    def __init__(self, processes: "Swarm") -> None:
        from troth.network.node.telling import Narrator

        self._swarm = processes
        self._step = 0
        self._narrator = Narrator(say_now)

    def show(self, trace: "Trace") -> None:
        from troth.workshop.swarm_peers import ChildEnded, ChildNote, ChildStepped

        match trace:
            case ChildNote(peer, text) if peer in self._swarm.honest:
                self._narrator.note(f"peer{peer}: {text}")
            case ChildEnded(peer, how) if how != "done" and peer in self._swarm.honest:
                say_now(f"peer{peer} ended: {how} (see {self._swarm.out / f'peer{peer}' / 'log.txt'})")
            case ChildStepped(peer, event) if peer in self._swarm.honest and event.step > self._step:
                self._step = event.step
                self._narrator.stepped(event)


def _print(processes: "Swarm", summary: "RunSummary", folder: Path, seconds: float) -> None:
    from troth.training.weights import how_to_load

    details, rows = summary.details, [*training_rows(summary), caught_row(summary)]
    rows.append(("agreement", "all honest peers hold the same model" if details["agreement"] else "BROKEN"))
    if (beyond := _beyond(processes.plan, processes.manifest)) is not None:
        rows.append(("guarantee", f"none: {beyond}"))
    if details["stalled"]:
        rows.append(("stopped", details["stalled"]))
    if details["banned"]:
        check = f"troth verify FILE --run {folder / 'run.toml'}"
        rows.append(("evidence", f"{processes.evidence_folder()} (check one with: {check})"))
    if (model := processes.model_file()) is not None:
        rows += [("model", str(model)), ("load it", how_to_load(model))]
    rows += [
        ("logs", f"{folder}/peer*/log.txt"),
        ("summary", str(folder / "summary.json")),
        ("time", f"{seconds:.0f} s"),
    ]
    print_rows(rows)
