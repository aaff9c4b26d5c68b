"""`troth doctor`: whether peers with other hardware than this machine can train a task together, and at what price."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from troth.cli.fields import Json, UsageError

if TYPE_CHECKING:
    from troth.training.measurement import Measurement, Spread

_MOST_PEERS = 1024
_MOST = 0.01  # h above which liars may hide more than a twentieth of a gradient, for ever: one class is better then


def doctor(
    task: Annotated[str, typer.Option(help="What to measure: see 'troth tasks'; or your own my_task.py.")] = "digits",
    peers: Annotated[int, typer.Option(min=2, max=_MOST_PEERS, help="Into how many parts a gradient is split.")] = 16,
    seeds: Annotated[int, typer.Option(help="How many gradients to compare at each of five points of the run.")] = 100,
    steps: Annotated[int | None, typer.Option(help="Length of the training run. Default: the task's.")] = None,
    threads: Annotated[
        int, typer.Option(help="Threads to compute with, as in 'troth join'; 0: as many as PyTorch likes.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Where to compute gradients: cpu or cuda.")] = "cpu",
    local_steps: Annotated[int, typer.Option(min=1, help="The run's: then a walk of so many tells the class.")] = 1,
    json: Json = False,
) -> None:
    """Measure how far other hardware would be from this machine's gradients, and what that means for audits.

    Peers that compute the same bits form a class, and audit each other exactly: any lie is seen. Bits depend on
    hardware, threads and batching, so in a run of several classes audits must allow for a deviation h, and a liar may
    hide in it. This command computes the gradients of a training run in all the ways this machine knows, and recommends
    h, or one class where h would be too large.

    Example: troth doctor --task digits
    """
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    from troth.api.steps import use_threads
    from troth.cli.progress import Bar
    from troth.protocol.wire.primitives import Primitives
    from troth.training import Problem, check_pure, make_optimizer, make_task
    from troth.training.hardware import describe
    from troth.training.measurement import measure
    from troth.training.work import TrainingWork

    use_threads(threads)
    _check_device(device)
    chosen = make_task(task)
    steps = chosen.steps if steps is None else steps
    with Bar("measuring", None, TaskProgressColumn(), TimeRemainingColumn(compact=True)) as bar:

        def show(done: int, total: int) -> None:
            bar.update(done, f"measuring: {done / total:.0%}", total=total)

        problem = Problem(chosen, device=device, lanes_for=peers)
        check_pure(chosen, problem)  # a task that is not pure differs from itself, and the figures would mean nothing
        found = measure(problem, peers=peers, seeds=seeds, steps=steps, on_progress=show)
    parts = problem, make_optimizer(chosen.optimizer), (chosen.rate,), Primitives()
    facts = {
        "task": task,
        "parameters": problem.size,
        "peers": peers,
        "steps": steps,
        "local_steps": local_steps,
        "class": TrainingWork(*parts, local_steps=local_steps).hardware_class().hex(),
        "machine": describe(problem),
    }
    if json:
        typer.echo(_as_json(facts, found), nl=False)
    else:
        _print(facts, found)


def _check_device(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device is cpu or cuda, got '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch sees no CUDA device here")


def _as_json(facts: dict[str, Any], found: "Measurement") -> str:
    import dataclasses
    import json
    from math import inf

    def row(spread: "Spread") -> dict[str, Any]:
        # JSON has no infinity: null stands for it.
        values = {**dataclasses.asdict(spread), "same_bits": spread.same_bits}
        return {name: None if value == inf else value for name, value in values.items()}

    numbers = {
        **facts,
        "ways": [row(spread) for spread in found.ways],
        "jumps": {**row(found.jumps), "stands_for_audits": found.stands_for},
        "plain_ms": found.plain_ms,
        "noise": found.noise,
        "deviation": None if found.deviation == inf else found.deviation,
        "one_class": found.deviation > _MOST,
    }
    return json.dumps(numbers, indent=2, allow_nan=False) + "\n"


def _print(facts: dict[str, Any], found: "Measurement") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{facts['task']}: {facts['parameters']:,} parameters in {facts['peers']} parts, {facts['steps']} steps"
    )
    console.print(f"This machine's class: {facts['class'][:8]}. Peers that see the same here compute the same bits.")
    console.print(f"{facts['machine']}\n")
    table = Table("computed with", "same bits", "median", "largest", "ms", "times", box=None, pad_edge=False)
    for way in found.ways:
        table.add_row(way.name, _same(way), *_figures(way, found))
    table.add_row("jumps, provoked", "", *_figures(found.jumps, found))
    console.print(table)
    console.print(
        f"\nHow far off, as a share of the gradient, in the worst of its parts; {found.jumps.comparisons} gradients each. Jumps"
        f"\n(a ReLU that flips) are provoked by stronger rounding: theirs stand for {found.stands_for:,} audits."
        f"\nLast: milliseconds for one gradient, and how many times the {found.plain_ms:.3g} ms of a peer's own way."
    )
    console.print()
    for line in advice(found, facts["peers"]):
        console.print(line)
    if facts["local_steps"] > 1:
        console.print("With local steps: one class only, whatever h is.")


def _same(way: "Spread") -> str:
    if way.same_bits or not way.same:
        return "yes" if way.same_bits else "no"
    return f"{way.same} of {way.comparisons}"


def _figures(way: "Spread", found: "Measurement") -> tuple[str, ...]:
    distances = f"{way.median:.1e}", f"{way.largest:.1e}"
    if way.ms is None or not found.plain_ms:
        return distances
    return *distances, f"{way.ms:.3g}", f"{way.ms / found.plain_ms:.2g}"


def advice(found: "Measurement", peers: int) -> list[str]:
    """Say in plain words what the measurement means."""
    from troth.protocol.core.run import most_byzantine
    from troth.protocol.step.audits import ACCUSE

    exact = "In a run of one class audits are exact: nothing can be hidden."
    h = rounded_up(found.deviation)
    if ACCUSE * h >= 1:
        return [
            "No deviation h will do: honest peers of other classes may differ by half a gradient and more now and then.",
            exact,
            "Recommended: one class only. Let every peer compare the class that 'troth doctor' shows.",
        ]
    liars = most_byzantine(peers, 1)
    who = f"{liars} {'liar' if liars == 1 else 'liars'} of {peers}"
    lines = [
        f"Needed deviation: h = {h:g}.",
        f"With several classes a liar could hide a shift of up to 5h = {ACCUSE * h:.2g} of a gradient's length in every part.",
        f"{who} (δ = {liars / peers:.2f}) can keep the gradient from falling below about δ·5h·σ = "
        f"{liars / peers * ACCUSE * h * found.noise:.2g}, where the noise of one peer's gradient is σ = {found.noise:.2g}.",
        exact,
    ]
    if found.deviation > _MOST:
        return [*lines, f"Recommended: one class only, since h is above {_MOST:g}."]
    return [*lines, f"Recommended: one class if you can; otherwise several with --hardware-deviation {h:g}."]


def rounded_up(number: float) -> float:
    """Round to two digits, never down: less than was measured would convict honest peers."""
    from decimal import ROUND_CEILING, Context, Decimal

    return float(Context(prec=2, rounding=ROUND_CEILING).plus(Decimal(number)))
