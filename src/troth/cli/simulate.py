"""`troth simulate`: one training run on this machine, with liars."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from troth.evidence import RunSummary
    from troth.simulation import Scenario


# The run
_Task = Annotated[str, typer.Option(help="What to train: see 'troth tasks'; or your own my_task.py.")]
_Peers = Annotated[int, typer.Option(help="How many peers, the liars included.")]
_Steps = Annotated[int | None, typer.Option(help="How many steps. Default: the task's.")]
_Seed = Annotated[int, typer.Option(help="Everything random follows from it.")]
_Device = Annotated[str, typer.Option(help="cpu or cuda.")]
_OneByOne = Annotated[bool, typer.Option("--one-by-one", help="Compute gradients peer by peer instead of in one call.")]

# Liars
_Byzantine = Annotated[int, typer.Option(help="How many of them lie; 0 is the run without attack.")]
_Attack = Annotated[
    list[str] | None,
    typer.Option(
        help="How they lie: see 'troth attacks'; with options: sign-flip:scale=10. Given several times, the liars are "
        "dealt among the attacks evenly.",
        show_default="sign-flip",
    ),
]
_AttackStart = Annotated[int, typer.Option(help="First step of the attack.")]
_AttackEvery = Annotated[int, typer.Option(help="Attack at every k-th step from then on.")]
_AttackProbability = Annotated[float, typer.Option(help="Attack with this probability at each of them.")]
_AttackStop = Annotated[int | None, typer.Option(help="The attack ends before this step.")]

# The defence
_Defence = Annotated[
    str, typer.Option(help="troth (the protocol), or a rule with a trusted server: see 'troth defences'.")
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

# Hardware
_Hardware = Annotated[int, typer.Option(help="Simulate so many classes of hardware, which compute other bits.")]
_HardwareDeviation = Annotated[
    float | None,
    typer.Option(help="How much gradients differ between classes: audits allow for it. 'troth doctor' measures it."),
]

# Training
_Optimizer = Annotated[
    str | None, typer.Option(help="sgd or adamw; options as in sgd:momentum=0.9. Default: the task's.")
]
_Rate = Annotated[float | None, typer.Option(help="Learning rate. Default: the task's.")]
_Schedule = Annotated[str, typer.Option(help="Learning rate over time: constant, cosine or linear.")]
_Warmup = Annotated[int, typer.Option(help="Steps over which the learning rate rises to its value.")]
_EvaluateEvery = Annotated[int, typer.Option(help="Evaluate the model every k steps.")]

# Results
_Out = Annotated[
    Path | None, typer.Option(help="Folder for summary, picture and evidence. Default: runs/<name of the run>.")
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
    hardware: _Hardware = 1,
    hardware_deviation: _HardwareDeviation = None,
    drop_outs: _DropOuts = 0,
    steps: _Steps = None,
    seed: _Seed = 0,
    optimizer: _Optimizer = None,
    rate: _Rate = None,
    schedule: _Schedule = "cosine",
    warmup: _Warmup = 0,
    evaluate_every: _EvaluateEvery = 10,
    device: _Device = "cpu",
    one_by_one: _OneByOne = False,
    out: _Out = None,
    overwrite: _Overwrite = False,
    json: _Json = False,
) -> None:
    """Train among liars on this machine: see them caught, or see what they do to the model.

    Example: troth simulate --byzantine 7 --attack sign-flip
    """
    from troth.cli.fields import as_options
    from troth.simulation import ALSO, Scenario

    with as_options(Scenario.__dataclass_fields__, {"deviation": "hardware-deviation"}):
        scenario = Scenario(
            task=task,
            peers=peers,
            byzantine=byzantine,
            attack=ALSO.join(attack or ["sign-flip"]),
            attack_start=attack_start,
            attack_every=attack_every,
            attack_probability=attack_probability,
            attack_stop=attack_stop,
            defence=defence,
            validators=validators,
            beyond_guarantee=beyond_guarantee,
            tau=tau,
            tau_auto=tau_auto,
            hardware=hardware,
            deviation=hardware_deviation,
            drop_outs=drop_outs,
            steps=steps,
            seed=seed,
            optimizer=optimizer,
            rate=rate,
            schedule=schedule,
            warmup=warmup,
            evaluate_every=evaluate_every,
            device=device,
            one_by_one=one_by_one,
        )
    _run(scenario, out, overwrite=overwrite, json=json)


def _run(scenario: "Scenario", out: Path | None, *, overwrite: bool, json: bool) -> None:
    """Train, write summary, picture and evidence, and print the result."""
    from troth.cli.live import Live
    from troth.cli.output import claim, write_evidence
    from troth.evidence import slug
    from troth.files import write_text
    from troth.lab import plot_runs
    from troth.simulation import simulate as run
    from troth.training import make_task

    scenario = scenario.resolved(make_task(scenario.task))
    config = scenario.as_dict()
    folder = claim(out or Path("runs") / slug(config), config, overwrite=overwrite)
    with Live(scenario.defence, scenario.total_steps, scenario.peers, beyond=scenario.beyond_guarantee) as live:
        finished = run(scenario, live.step)
    summary = finished.summary
    write_evidence(folder, finished.evidence)
    write_text(folder / "summary.json", summary.to_json())
    plot_runs([(scenario.defence, summary)], folder / "accuracy.png", _title(summary))
    if json:
        typer.echo(summary.to_json(), nl=False)
    else:
        _print_table(summary, folder)


def _title(summary: "RunSummary") -> str:
    liars = f"{len(summary.byzantine)} of {summary.peers} peers lie" if summary.byzantine else f"{summary.peers} peers"
    beyond = " (beyond the guarantee)" if summary.config["beyond_guarantee"] else ""
    return f"{summary.config['task']}, {liars}{beyond}, {summary.defence}"


def _print_table(summary: "RunSummary", folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("task", f"{summary.config['task']} ({summary.details['parameters']:,} parameters)")
    table.add_row("peers", f"{summary.peers}, of which lie: {summary.byzantine or 'none'}")
    table.add_row(
        "attack", f"{summary.attack} in {summary.details['attacked_steps']} steps" if summary.attack else "none"
    )
    table.add_row("defence", summary.defence)
    table.add_row("steps", str(summary.steps))
    for name, value in summary.metrics.items():
        table.add_row(name, f"{value:.1%}" if name == "accuracy" else f"{value:.4g}")
    if summary.details["diverged_at"] is not None:
        table.add_row("diverged", f"at step {summary.details['diverged_at']}: the model is ruined")
    if "banned" in summary.details:
        _add_protocol_rows(table, summary, folder)
    table.add_row("summary", str(folder / "summary.json"))
    table.add_row("picture", str(folder / "accuracy.png"))
    Console(soft_wrap=True, highlight=False).print(table)


def _add_protocol_rows(table: "Table", summary: "RunSummary", folder: Path) -> None:
    details, liars = summary.details, len(summary.byzantine)
    banned = [ban["peer"] for ban in details["banned"]]
    table.add_row(
        "banned", f"{len(set(banned) & set(summary.byzantine))} of {liars} liars, {details['honest_banned']} honest"
    )
    if details["absent"]:
        table.add_row("absent", f"{len(details['absent'])} left without a ban: {details['absent']}")
    if details["stalled"] is not None:
        table.add_row("stopped", f"{details['stalled']} to decide anything: a minority must not go on alone")
    table.add_row("audits", f"{details['audits']}, of which led to a trial: {details['trials']}")
    table.add_row("agreement", "all honest peers hold the same model" if details["agreement"] else "BROKEN")
    table.add_row("announced", f"{details['announced_bytes_per_step']:,} bytes a step received by a peer")
    if summary.config["beyond_guarantee"]:
        table.add_row("guarantee", "none: this run was asked to go beyond it")
    elif summary.peers < 4:
        why = "a single peer trusts itself" if summary.peers == 1 else f"{summary.peers} peers can spare no validator"
        table.add_row("guarantee", f"none against lies: {why} (from 4 peers on one of them may lie)")
    if banned:
        check = f"troth verify FILE --run {folder / 'evidence' / 'run'}"
        table.add_row("evidence", f"{folder / 'evidence'} (check one with: {check})")
