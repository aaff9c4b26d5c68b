"""`troth simulate`: one training run on this machine, with liars."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from troth.cli.watch.page import HOST, Page, PageHost, PageOptions, PagePort
from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.evidence import RunSummary
    from troth.simulation import Started, StepReport


class SimulateError(OperatorError):
    """An option of the command that makes no sense; the message names it."""


_UNUSED_SHARDS = (
    "none: under troth all peers draw from all data, so that each can recompute what another did; "
    "a rule with a trusted server uses the task's shards (--defence centered-clip)"
)

# The run
_Task = Annotated[str, typer.Option(help="What to train: see 'troth tasks'; or your own my_task.py.")]
_Peers = Annotated[int, typer.Option(help="How many peers, the liars included.")]
_Steps = Annotated[int | None, typer.Option(help="How many steps. Default: the task's.")]
_Seed = Annotated[int, typer.Option(help="Everything random follows from it.")]
_Start = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Begin from this instead: a model of the task's form or a checkpoint, as safetensors, or a folder with one.",
    ),
]
_Device = Annotated[str, typer.Option(help="cpu or cuda.")]
_Threads = Annotated[int, typer.Option(help="Threads to compute with; 0: as many as PyTorch likes.")]
_OneByOne = Annotated[bool, typer.Option("--one-by-one", help="Compute gradients peer by peer instead of in one call.")]

# Liars
_Byzantine = Annotated[int, typer.Option(help="How many of them lie; 0 is the run without attack.")]
_Attack = Annotated[
    list[str] | None,
    typer.Option(
        help="How they lie: see 'troth attacks'; with options: sign-flip:scale=10; or your own my_attack.py. Given "
        "several times, the liars are dealt among the attacks evenly.",
        show_default="sign-flip",
    ),
]
_AttackStart = Annotated[int, typer.Option(help="First step of the attack.")]
_AttackEvery = Annotated[int, typer.Option(help="Attack at every k-th step from then on.")]
_AttackProbability = Annotated[float, typer.Option(help="Attack with this probability at each of them.")]
_AttackStop = Annotated[int | None, typer.Option(help="The attack ends before this step.")]

# The defence
_Defence = Annotated[
    str,
    typer.Option(
        help="troth (the protocol), or a rule with a trusted server: see 'troth defences'; or your own my_rule.py."
    ),
]
_Validators = Annotated[int, typer.Option(help="How many peers audit instead of contributing, each step.")]
_BeyondGuarantee = Annotated[
    bool, typer.Option("--beyond-guarantee", help="Allow more liars than the guarantee covers.")
]
_Tau = Annotated[float | None, typer.Option(help="Clipping radius. Default: the task's.")]
_TauAuto = Annotated[
    float | None,
    typer.Option(help="Let the radius follow this share (at most 0.5) of the usual distance from the aggregate."),
]
_DropOuts = Annotated[int, typer.Option(help="So many honest peers vanish, each at a random moment.")]

# Strangers
_Probation = Annotated[
    int, typer.Option(help="Open the door: strangers work so many steps, and are checked, before they are members.")
]
_Slots = Annotated[int, typer.Option(help="How many strangers are on probation at a time.")]
_Strangers = Annotated[
    list[str] | None,
    typer.Option(
        help="Who comes to the door: honest, zeros, noise, old, copies, turns, leaves or names, as 'troth attacks' explains; "
        "with options: noise:at=20,count=3. Can be given several times.",
        show_default="nobody",
    ),
]

# Workers of a trusted server
_Momentum = Annotated[
    float, typer.Option(help="Workers send m ← βm + g instead of gradients, with this β. Not with the defence troth.")
]
_MomentumAverage = Annotated[
    bool, typer.Option("--momentum-average", help="They send m ← βm + (1−β)g: gradients' average, not their sum.")
]

# Hardware
_Machines = Annotated[
    list[str] | None,
    typer.Option(
        help="Classes of hardware: with cpu:peers=4 the last four peers compute on the CPU, whatever --device is; options "
        "threads and float64. Can be given several times.",
        show_default="none",
    ),
]
_HardwareDeviation = Annotated[
    float | None,
    typer.Option(help="How much gradients differ between classes: audits allow for it. 'troth doctor' measures it."),
]

# Training
_Optimizer = Annotated[
    str | None, typer.Option(help="sgd, adamw or lamb; options as in sgd:momentum=0.9. Default: the task's.")
]
_Rate = Annotated[float | None, typer.Option(help="Learning rate. Default: the task's.")]
_Schedule = Annotated[str, typer.Option(help="Learning rate over time: constant, cosine, linear, step or restarts.")]
_Warmup = Annotated[int, typer.Option(help="Steps over which the learning rate rises to its value.")]
_EvaluateEvery = Annotated[int, typer.Option(help="Evaluate the model every k steps.")]
_Metric = Annotated[
    list[str] | None,
    typer.Option(
        help="A metric beside the task's own: backdoor (how many images with the trigger are taken for its target), or your own "
        "my_metric.py. Can be given several times.",
        show_default="none",
    ),
]

# Results
_Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/<name of the run>.")]
_CheckpointEvery = Annotated[
    int | None, typer.Option(help="Write the model every k steps too, to evaluate: checkpoints/step-….safetensors.")
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of another run in --out.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the summary, and nothing else, on standard output.")]


def simulate(
    task: _Task = "digits",
    peers: _Peers = 16,
    byzantine: _Byzantine = 0,
    attack: _Attack = None,
    attack_start: _AttackStart = 50,
    attack_every: _AttackEvery = 1,
    attack_probability: _AttackProbability = 1.0,
    attack_stop: _AttackStop = None,
    defence: _Defence = "troth",
    validators: _Validators = 1,
    beyond_guarantee: _BeyondGuarantee = False,
    tau: _Tau = None,
    tau_auto: _TauAuto = None,
    machines: _Machines = None,
    hardware_deviation: _HardwareDeviation = None,
    drop_outs: _DropOuts = 0,
    probation: _Probation = 0,
    slots: _Slots = 4,
    strangers: _Strangers = None,
    momentum: _Momentum = 0.0,
    momentum_average: _MomentumAverage = False,
    steps: _Steps = None,
    seed: _Seed = 0,
    optimizer: _Optimizer = None,
    rate: _Rate = None,
    schedule: _Schedule = "cosine",
    warmup: _Warmup = 0,
    evaluate_every: _EvaluateEvery = 10,
    metric: _Metric = None,
    start: _Start = None,
    device: _Device = "cpu",
    threads: _Threads = 1,
    one_by_one: _OneByOne = False,
    checkpoint_every: _CheckpointEvery = None,
    out: _Out = None,
    overwrite: _Overwrite = False,
    page: Page = False,
    page_port: PagePort = None,
    page_host: PageHost = HOST,
    json: _Json = False,
) -> None:
    """Train among liars on this machine: see them caught, or see what they do to the model.

    The folder of results holds summary.json (options, metrics, bans), curve.csv (a row a step: metrics, batch loss, peers,
    bans), curve.png (their picture), model.safetensors (the model, complete), and evidence/ (a file for each ban).

    Exit code 1: the run ended before its last step, since it diverged or too few peers were left; the results are written all
    the same.

    Example: troth simulate --byzantine 7 --attack sign-flip
    """
    from troth.cli.fields import as_options, use_threads
    from troth.simulation import Scenario
    from troth.simulation import start as start_run

    if checkpoint_every is not None and checkpoint_every < 1:
        raise SimulateError(f"--checkpoint-every must be at least 1, got {checkpoint_every}")
    use_threads(threads)
    with (
        as_options(
            Scenario.__dataclass_fields__,
            {"deviation": "hardware-deviation", "initial_state": "from", "metrics": "metric"},
        ),
        redirect_stdout(sys.stderr),
    ):
        scenario = Scenario(
            task=task,
            peers=peers,
            byzantine=byzantine,
            attack=tuple(attack or ("sign-flip",)),
            attack_start=attack_start,
            attack_every=attack_every,
            attack_probability=attack_probability,
            attack_stop=attack_stop,
            defence=defence,
            validators=validators,
            beyond_guarantee=beyond_guarantee,
            tau=tau,
            tau_auto=tau_auto,
            machines=tuple(machines or ()),
            deviation=hardware_deviation,
            drop_outs=drop_outs,
            probation=probation,
            slots=slots,
            strangers=tuple(strangers or ()),
            momentum=momentum,
            momentum_average=momentum_average,
            steps=steps,
            seed=seed,
            optimizer=optimizer,
            rate=rate,
            schedule=schedule,
            warmup=warmup,
            evaluate_every=evaluate_every,
            metrics=tuple(metric or ()),
            device=device,
            one_by_one=one_by_one,
            initial_state=start,
        )
        run = start_run(scenario)
    _run(run, out, checkpoint_every, PageOptions(page, page_host, page_port), overwrite=overwrite, json=json)


def _run(
    run: "Started", out: Path | None, checkpoint_every: int | None, page: PageOptions, *, overwrite: bool, json: bool
) -> None:
    """Train, write the results, and print them."""
    from troth.cli.output import claimed
    from troth.evidence import slug
    from troth.lab.results import save_results

    scenario = run.scenario
    config = scenario.config()
    with claimed(out or Path("runs") / slug(config), config, overwrite=overwrite) as folder, page.of(folder, new=True):
        reports = _train(run, folder, checkpoint_every)
        finished = run.finish()
        save_results(folder, finished, reports)
    summary = finished.summary
    if json:
        typer.echo(summary.to_json(), nl=False)
    else:
        _print_results(summary, folder)
    if finished.ended_early:
        raise typer.Exit(1)


def _train(run: "Started", folder: Path, checkpoint_every: int | None) -> "list[StepReport]":
    """Make all steps, live, with a checkpoint every so often and at the end."""
    from troth.cli.progress import Live
    from troth.lab.results import EventWriter
    from troth.training.weights import write_model

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


def _print_results(summary: "RunSummary", folder: Path) -> None:
    """Print a line for each result; none is cut or wrapped, so that paths can be copied."""
    from troth.lab.results import MODEL

    details = summary.details
    rows = [
        ("task", f"{summary.config['task']} ({details['parameters']:,} parameters)"),
        ("peers", f"{summary.peers}, of which lie: {summary.byzantine or 'none'}"),
        ("attack", f"{summary.attack} in {details['attacked_steps']} steps" if summary.attack else "none"),
        ("defence", summary.defence),
        ("steps", str(summary.steps)),
    ]
    rows += [
        (name, f"{value:.1%}" if name == "accuracy" else f"{value:.4g}") for name, value in summary.metrics.items()
    ]
    if details["diverged_at"] is not None:
        rows.append(("diverged", f"at step {details['diverged_at']}: the model is ruined"))
    if details.get("unused_shards"):
        rows.append(("shards", _UNUSED_SHARDS))
    if "not_finite" in details:
        rows.append(("not finite", f"{details['not_finite']} gradients of honest peers, which count as zero"))
    rows += _protocol_rows(summary, folder) if "banned" in details else _server_rows(summary)
    rows += [
        ("summary", str(folder / "summary.json")),
        ("curve", f"{folder / 'curve.csv'}, drawn in {folder / 'curve.png'}"),
        ("model", str(folder / MODEL)),
        ("to load it", f'module.load_state_dict(safetensors.torch.load_file("{folder / MODEL}"))'),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")


def _server_rows(summary: "RunSummary") -> list[tuple[str, str]]:
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


def _protocol_rows(summary: "RunSummary", folder: Path) -> list[tuple[str, str]]:
    from troth.specs import file_of

    details, liars = summary.details, len(summary.byzantine)
    banned = [ban["peer"] for ban in details["banned"]]
    caught = len(set(banned) & set(summary.byzantine))
    rows = [("banned", f"{caught} of {liars} liars, {details['honest_banned']} honest")]
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
    if banned:
        own = f" --task {task}" if file_of(task := str(summary.config["task"])) is not None else ""
        check = f"troth verify FILE --run {folder / 'evidence' / 'run'}{own}"
        rows.append(("evidence", f"{folder / 'evidence'} (check one with: {check})"))
    return rows


def _door_rows(door: dict[str, Any]) -> list[tuple[str, str]]:
    """A row for each kind of strangers that came."""
    return [
        (
            "strangers",
            f"{came['strangers']}: of {came['names']}, {came['seated']} had a slot, {came['admitted']} were admitted, "
            f"{came['banned']} banned; members in the end: {came['members']}",
        )
        for came in door["came"]
    ]
