"""`make bench-slow-lines`: how long eight peers on slow lines take to the same loss, with and without codes and local steps.

    python -m benchmarks.slow_lines TEXT [--out FOLDER] [--only int8-16 --device cuda]

Curves come from simulations, best on a GPU; seconds of a step and bytes from real peers, each in a network namespace of its
own, on lines with a rate and a delay. What FOLDER holds already is not measured again. Namespaces need root and iproute2. Rewrites
benchmarks/results-slow-lines.md.
"""

import argparse
import dataclasses
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch

from benchmarks.marked import table
from benchmarks.overlap import DELAY_S, PEERS, PORT, host, lines
from benchmarks.overlap_peers import swarm_peer
from benchmarks.processes import started
from troth.crypto import derive
from troth.events.kinds import Stepped
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.swarm import Seen
from troth.workshop.swarm_peers import SwarmPlan, Trace, founders_of

SEED, BATCH, LENGTH = 1, 1, 64
LOSSES, MOST_GRADIENTS = (2.5, 2.25, 2.05), 2000  # held-out nats a byte; of each peer
MBITS = (20, 100)  # a second, each way
MTU = 16_000  # few frames: the process that carries them shares the processor with all peers
WARM_UP, STEPS = 2, 8  # steps on a line that do not count yet; and all
FACTOR, MOST_BYTES = (
    10,
    {1: 3.1, 16: 0.2},
)  # what it is to be: times faster; bytes of int8 there and back, by local steps
HELD_OUT = str(Path(__file__).with_name("held_out.py"))


class Way(NamedTuple):
    """How gradients travel."""

    code: Literal["float32", "int8"]
    local_steps: int
    rate: float
    warm_up: int  # steps in which the learning rate rises
    outer: float  # factor of the rate of the common step
    evaluate_every: int

    @property
    def name(self) -> str:
        return f"{self.code}-{self.local_steps}"


WAYS = (
    Way("float32", 1, 5e-4, 16, 1.0, 25),
    Way("int8", 1, 5e-4, 16, 1.0, 25),
    Way("int8", 4, 2.5e-4, 8, 1.0, 10),
    Way("int8", 16, 2.5e-4, 4, 0.5, 3),
)


class Curve(msgspec.Struct):
    """A run until its held-out loss is small enough, or its time is over: losses after so many steps, and where it ran."""

    held_out: dict[int, float]
    machine: str


class Lap(msgspec.Struct):
    """Steps of real peers on a line."""

    seconds: list[float]  # of the steps that count, until the last peer is there
    phases: dict[str, float]  # seconds until each announcement has ended, of an average peer in an average step
    sent: float  # bytes a parameter and gradient, with their framing
    received: float
    run: str
    losses: list[float]  # batch losses of all steps, from the first on
    parameters: int
    load: float  # average of the machine before it began: work of others


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_lines")
    parser.add_argument("text", type=Path, help="what is learned: plain, .gz or .xz")
    parser.add_argument("--out", type=Path, default=Path("runs/slow-lines"), help="folder of what was measured")
    parser.add_argument(
        "--only", default="", help="measure one thing, such as int8-16 or int8-16-20; or page: write what is there"
    )
    parser.add_argument("--device", default="cpu", help="that computes the curves: cpu or cuda")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that no namespace is left behind
    given.out.mkdir(parents=True, exist_ok=True)
    for name, measure in _measurements(
        f"char-transformer:data={given.text.resolve()},batch_size={BATCH},length={LENGTH}", given.device
    ):
        file = given.out / f"{name}.json"
        if given.only in ("", name) and not file.exists():
            part = file.with_suffix(".part")  # of a curve, if it is broken off
            for so_far in measure():
                part.write_bytes(msgspec.json.encode(so_far))
            part.rename(file)
            print(f"{name}: {file.read_text(encoding='utf-8')}", flush=True)
    if given.only in ("", "page"):
        report = _report(given.text.name, given.out)
        Path(__file__).with_name("results-slow-lines.md").write_text(report, encoding="utf-8")
        print(report)


def _measurements(task: str, device: str) -> Iterator[tuple[str, Callable[[], Iterable[Curve | Lap]]]]:
    for way in WAYS:
        yield way.name, partial(_curve, task, way, device)
    for mbit in MBITS:
        for way in WAYS:
            yield f"{way.name}-{mbit}", partial(_lap, task, mbit, way)


def _curve(task: str, way: Way, device: str) -> Iterator[Curve]:
    scenario = Scenario(
        task=task,
        peers=PEERS,
        seed=SEED,
        steps=MOST_GRADIENTS // way.local_steps,
        rate=way.rate,
        schedule="constant",
        warmup=way.warm_up,
        outer=way.outer,
        code=way.code,
        local_steps=way.local_steps,
        evaluate_every=way.evaluate_every,
        metrics=HELD_OUT,
        device=device,
    )
    curve = Curve({}, torch.cuda.get_device_name() if device == "cuda" else platform.machine())
    for step in ProtocolSimulation(scenario).steps():
        if step.metrics is not None:
            done = step.step + 1
            curve.held_out[done] = step.metrics[HELD_OUT]
            print(f"{way.name}: {curve.held_out[done]:.3f} after {done} steps", flush=True)
            yield curve
            if curve.held_out[done] <= LOSSES[-1]:
                return


def _manifest(task: str, way: Way) -> Manifest:
    """Of the run on the line; the same every time."""
    plan = SwarmPlan(peers=PEERS, seed=SEED)
    founders = [dataclasses.replace(one, address=f"{host(k)}:{PORT}") for k, one in enumerate(founders_of(plan))]
    options = ManifestOptions(
        steps=STEPS + 2,  # with the last one the model is saved; nobody waits for that here
        seed=SEED,
        code=way.code,
        local_steps=way.local_steps,
        rate=way.rate,
        schedule="constant",
        warmup=way.warm_up,
        outer=way.outer,
        delta_s=5.0,
        compute_s=60.0,
        bulk_s=60.0,
    )
    return dataclasses.replace(build_manifest(task, founders, options).manifest, nonce=derive(SEED, "run"))


# Real peers


def _lap(task: str, mbit: int, way: Way) -> Iterator[Lap]:
    load, manifest = os.getloadavg()[0], _manifest(task, way)
    with lines(mbit * 1e6 / 8, MTU) as spaces, tempfile.TemporaryDirectory() as out:
        told = _trained(spaces, msgspec.json.encode(SwarmPlan(PEERS, seed=SEED)), manifest.to_toml().encode(), out)
    assert all(one.attempts == 1 and one.members == PEERS for each in told for one in each.values()), (
        "somebody was late"
    )
    kept = range(WARM_UP, STEPS)
    yield Lap(
        seconds=[_end(told, step) - _end(told, step - 1) for step in kept],
        phases=_phases([each[step] for each in told for step in kept]),
        sent=statistics.mean(each[STEPS - 1].sent_per_parameter or 0.0 for each in told),
        received=statistics.mean(each[STEPS - 1].received_per_parameter or 0.0 for each in told),
        run=manifest.run.id.hex(),
        losses=[_loss(told, step) for step in range(STEPS)],
        parameters=manifest.parameters.size,
        load=load,
    )


def _trained(spaces: list[str], plan: bytes, manifest: bytes, out: str) -> list[dict[int, Stepped]]:
    """The events of each peer, by step, until all have made the steps that count."""
    seen, decoder = Seen(), msgspec.msgpack.Decoder[Trace](Trace)
    with started("benchmarks.overlap_peers", patience_s=0.0) as start:
        pipes = [start(swarm_peer, space, plan, manifest, out, number) for number, space in enumerate(spaces)]
        while sum(STEPS - 1 in told for told in seen.events.values()) < PEERS:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                seen.take(decoder.decode(pipe.recv_bytes()))
            if seen.ended:
                raise SystemExit(f"a peer ended early: {seen.ended}")
    return [seen.events[number] for number in range(PEERS)]


Told = Sequence[Mapping[int, Stepped]]  # events of each peer, by step


def _end(told: Told, step: int) -> float:
    """When the last peer was there."""
    return max(each[step].at or 0.0 for each in told)


def _loss(told: Told, step: int) -> float:
    """Of an average contributor, on its batch."""
    validators = told[0][step].validators
    losses = [each[step].loss for number, each in enumerate(told) if f"peer{number}" not in validators]
    return statistics.mean(loss for loss in losses if loss is not None)


def _phases(steps: Sequence[Stepped]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for step in steps:
        for phase in step.phases:
            spent[phase.phase] = spent.get(phase.phase, 0.0) + (phase.ended - phase.began) / len(steps)
        spent["the rest"] = spent.get("the rest", 0.0) + ((step.seconds or 0.0) - step.phases[-1].ended) / len(steps)
    return spent


# Page

_PHASES = {
    "commit": "gradients, until all have committed to them",
    "clip": "parts there, CenteredClip, until all have announced aggregates",
    "reveal": "aggregates back",
    "report": "reports",
    "accuse": "the validator's audit, accusations",
}


def _report(text: str, out: Path) -> str:
    curves = {
        way: msgspec.json.decode(file.read_bytes(), type=Curve)
        for way in WAYS
        if (file := out / f"{way.name}.json").exists()
    }
    laps = {
        (mbit, way): msgspec.json.decode(file.read_bytes(), type=Lap)
        for mbit in MBITS
        for way in WAYS
        if (file := out / f"{way.name}-{mbit}.json").exists()
    }
    cores = os.cpu_count() or 1
    return "\n".join(
        [
            "# The same loss on slow lines",
            "",
            f"Written by `make bench-slow-lines`, piece by piece (`--only`), on {platform.machine()}, {cores} cores, PyTorch {torch.__version__}. {PEERS} peers, nobody lies; "
            f"`char-transformer:batch_size={BATCH},length={LENGTH}` on {text}, {laps[MBITS[0], WAYS[0]].parameters:,} parameters, AdamW at a constant rate after its warm-up.",
            "",
            f"Seconds and bytes are those of {STEPS - WARM_UP} steps, after {WARM_UP} others, of real peers: processes in network namespaces, on lines with "
            f"{DELAY_S * 1e3:.0f} ms from any to any and so many Mbit/s for each of them in each direction. Wall time to the same loss = steps to the loss × seconds "
            f"of a step; the steps are those of simulations ({', '.join(sorted({c.machine for c in curves.values()}))}), until the loss on 4 kB of held-out text is that small, in nats a byte. {_sameness(laps)}",
            "",
            f"Each peer has {cores / PEERS:g} of a core, so that gradients weigh more here than on {PEERS} machines. Seconds of a gradient are no seconds to a loss: "
            "those of a walk may be worth less than those that are exchanged.",
            "",
            *_times(curves, laps),
            "## Bytes",
            "",
            "For each parameter and gradient, with all framing, of an average peer. There and back is what a peer sends: its gradient there, the aggregate of its "
            "part back. It receives as much.",
            "",
            table(
                ("way", "sent:", "received:", "is to be at most:"),
                [_bytes(way, lap) for (mbit, way), lap in laps.items() if mbit == MBITS[0]],
            ),
            "## Losses of these steps",
            "",
            f"Mean over the batches of all contributors, at the common model, in nats a byte: {PEERS - 1} × {BATCH * LENGTH} bytes, so they scatter.",
            "",
            table(
                ("way", "gradients of a peer:", "step by step"),
                [
                    (_title(way), STEPS * way.local_steps, ", ".join(f"{loss:.2f}" for loss in lap.losses))
                    for (mbit, way), lap in laps.items()
                    if mbit == MBITS[0]
                ],
            ),
            "## Where the seconds go",
            "",
            "Of an average peer in an average step. The last column is computed: bytes sent over the rate, and nothing else.",
            "",
            table(
                (
                    "Mbit/s:",
                    "way",
                    *(f"{phase}:" for phase in _PHASES.values()),
                    "the rest:",
                    "the line alone (computed):",
                ),
                [_spent(mbit, way, lap) for (mbit, way), lap in laps.items()],
            ),
            "Load average before each: " + ", ".join(f"{lap.load:.1f}" for lap in laps.values()) + ".",
            "",
        ]
    )


def _sameness(laps: Mapping[tuple[int, Way], Lap]) -> str:
    """How far batch losses of the same run are apart on different lines."""
    apart = [
        abs(one - other)
        for first, second in combinations(MBITS, 2)
        for way in WAYS
        if (first, way) in laps and (second, way) in laps and laps[first, way].run == laps[second, way].run
        for one, other in zip(laps[first, way].losses, laps[second, way].losses, strict=True)
    ]
    if not apart:
        return ""
    return f"In {len(apart)} steps of the same run, batch losses of two lines differ by at most {max(apart):g}."


def _times(curves: Mapping[Way, Curve], laps: Mapping[tuple[int, Way], Lap]) -> Iterator[str]:
    for mbit in sorted({mbit for mbit, _ in laps}):
        took = {way: statistics.mean(laps[mbit, way].seconds) for way in WAYS if (mbit, way) in laps}
        whole = {
            (way, loss): steps * took[way]
            for way in took
            for loss in LOSSES
            if (steps := _steps(curves.get(way), loss)) is not None
        }
        yield from (f"## {mbit} Mbit/s", "")
        yield table(
            (
                "way",
                "seconds a step:",
                "a gradient:",
                "float32 takes for it:",
                *(f"to {loss:g} nats, hours:" for loss in LOSSES),
            ),
            [
                (
                    _title(way),
                    f"{seconds:.1f}",
                    f"{seconds / way.local_steps:.1f}",
                    f"{took[WAYS[0]] * way.local_steps / seconds:.1f} ×",
                    *(_to_the_loss(way, loss, whole) for loss in LOSSES),
                )
                for way, seconds in took.items()
            ],
        )
        if mbit == MBITS[0]:
            best = max((whole[WAYS[0], loss] / spent for (_, loss), spent in whole.items()), default=0.0)
            yield f"The goal was the same loss {FACTOR} times faster: {'met' if best >= FACTOR else f'missed, {best:.1f} times'}.\n"
    yield from ("## Steps to the same loss", "")
    yield table(
        ("way", *(f"{loss:g} nats:" for loss in LOSSES), "last:"),
        [
            (_title(way), *(_steps(curve, loss) or "–" for loss in LOSSES), _last(curve))
            for way, curve in curves.items()
        ],
    )


def _to_the_loss(way: Way, loss: float, whole: Mapping[tuple[Way, float], float]) -> str:
    if (way, loss) not in whole:
        return "–"
    return f"{whole[way, loss] / 3600:.2f} ({whole[WAYS[0], loss] / whole[way, loss]:.1f} × faster)"


def _steps(curve: Curve | None, loss: float) -> int | None:
    """The first step after which the held-out loss was small enough, of those where it was measured."""
    return next((step for step, found in sorted(curve.held_out.items()) if found <= loss), None) if curve else None


def _last(curve: Curve) -> str:
    step, loss = max(curve.held_out.items())
    return f"{loss:.3f} after {step}"


def _title(way: Way) -> str:
    outer = "" if way.outer == 1 else f", `--outer {way.outer:g}`"
    return f"{way.code}, H = {way.local_steps}, rate {way.rate:g}{outer}"


def _bytes(way: Way, lap: Lap) -> tuple[str, ...]:
    most = MOST_BYTES.get(way.local_steps) if way.code == "int8" else None
    return (
        f"{way.code}, H = {way.local_steps}",
        f"{lap.sent:.3f}",
        f"{lap.received:.3f}",
        "" if most is None else f"{most}",
    )


def _spent(mbit: int, way: Way, lap: Lap) -> tuple[str, ...]:
    spent = [*(lap.phases.get(phase, 0.0) for phase in _PHASES), lap.phases["the rest"]]
    line = lap.sent * lap.parameters * way.local_steps / (mbit * 1e6 / 8)
    return (f"{mbit}", f"{way.code}, H = {way.local_steps}", *(f"{seconds:.1f}" for seconds in (*spent, line)))


if __name__ == "__main__":
    main()
