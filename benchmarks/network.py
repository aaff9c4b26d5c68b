"""`make bench-network`: a fully verified step of ten million parameters by eight processes, against averaging that checks nothing;
with every code in which it may travel.

All on the loopback of one machine, one contender after the other, twice. Rewrites benchmarks/results-network.md.
hivemind needs an environment of its own: `python -m venv /tmp/hivemind-venv`, then there `pip install torch==2.13.0` and
`pip install hivemind==1.1.12`. Without it, its row stays empty.
"""

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import torch

from benchmarks.network_peers import Laps, bare_transport, gloo, whole_peer
from benchmarks.processes import started
from troth.clip.blocks import Code
from troth.crypto import derive
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.options import ManifestOptions
from troth.options import CodeName
from troth.workshop.swarm_peers import SwarmPlan, founders_of

PEERS, SIZE, ROUNDS, TURNS = 8, 10_000_000, 14, 2
WARM_UP = 8  # rounds, or steps: buffers grow until the models of the last steps have their places
TASK = f"benchmarks/flat_task.py:dimension={SIZE}"
HIVEMIND = Path(os.environ.get("HIVEMIND_VENV", "/tmp/hivemind-venv"))

Step = tuple[int, float, float, int, Laps]  # number, seconds, processor of the network's thread, bytes sent, the rest

_PHASES = {
    "before: announce commit": "cut the gradient and hash it",
    "before: announce clip": "check received parts, CenteredClip, hash the aggregate",
    "scatter": "scatter: send parts, take in others'",
    "gather": "gather: send the aggregate, take in and hash the others'",
    "before: announce reveal": "check the aggregates",
    "before: announce report": "projections, report",
    "before: announce accuse": "check reports about the own part (V1); the validator's audit",
    "update": "optimizer",
    "before: gradient": "digest of model and optimizer; journal and checkpoint, without the model",
}
_ANNOUNCE = "announcements: sign, verify, journal"
_REST = "the rest"


def main() -> None:
    turns: list[dict[str, float]] = []
    steps: dict[str, list[list[Step]]] = {}
    for turn in range(TURNS):
        print(f"turn {turn + 1} of {TURNS}", flush=True)
        averaging, (bare, processor) = {"gloo": _gloo()}, _bare()
        steps = {code: _troth(code) for code in Code.known}
        ours = {code: _step_time(told) for code, told in steps.items()}
        turns.append({**averaging, "bare": bare, **ours, **_hivemind()})
        print(turns[-1], flush=True)
    best = {name: min(turn[name] for turn in turns if name in turn) for name in turns[0]}
    report = _report(best, turns, steps, processor)
    Path(__file__).with_name("results-network.md").write_text(report, encoding="utf-8")
    print(report)


# Contenders


def _gloo() -> float:
    with tempfile.TemporaryDirectory() as folder, started("benchmarks.network_peers") as start:
        barrier = get_context("forkserver").Barrier(PEERS)
        pipes = [start(gloo, rank, PEERS, SIZE, ROUNDS, f"{folder}/meet", barrier) for rank in range(PEERS)]
        return _round_time([pipe.recv() for pipe in pipes])


def _bare() -> tuple[float, float]:
    """Seconds of a round, and processor seconds of a peer."""
    with started("benchmarks.network_peers") as start:
        barrier = get_context("forkserver").Barrier(PEERS)
        pipes = [start(bare_transport, rank, PEERS, SIZE, ROUNDS, barrier) for rank in range(PEERS)]
        addresses = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(addresses)
        rounds = [pipe.recv() for pipe in pipes]
        processor = statistics.median(worked for each in rounds for _, worked in each[WARM_UP:])
        return _round_time([[seconds for seconds, _ in each] for each in rounds]), processor


def _troth(code: str) -> list[list[Step]]:
    """What every peer told of every step, but for the first ones, and the last, with which the model is saved."""
    plan = SwarmPlan(peers=PEERS, seed=1)
    options = ManifestOptions(steps=ROUNDS + 1, code=cast("CodeName", code), delta_s=5.0, compute_s=60.0, bulk_s=60.0)
    manifest = dataclasses.replace(
        build_manifest(TASK, founders_of(plan), options).manifest, nonce=derive(0, "benchmark")
    )
    raw = manifest.to_toml().encode()
    told: list[list[Step]] = []
    with tempfile.TemporaryDirectory() as folder, started("benchmarks.network_peers") as start:
        pipes = [
            start(whole_peer, raw, bytes(derive(plan.seed, "identity", number)), f"{folder}/peer{number}")
            for number in range(PEERS)
        ]
        for number, pipe in enumerate(pipes):
            try:
                told.append([step for step in iter(pipe.recv, None) if WARM_UP < step[0] <= ROUNDS])
            except EOFError:
                raise SystemExit(Path(f"{folder}/peer{number}.log").read_text(encoding="utf-8")) from None
    return told


def _hivemind() -> dict[str, float]:
    python = HIVEMIND / "bin" / "python"
    if not python.exists():
        return {}
    script = Path(__file__).with_name("hivemind_averager.py")
    ran = subprocess.run(
        [python, script, str(PEERS), str(SIZE), str(ROUNDS)], capture_output=True, text=True, timeout=600, check=False
    )
    try:
        rounds = [one for one in json.loads(ran.stdout.splitlines()[-1])[WARM_UP:] if one[2] == PEERS]
    except (IndexError, ValueError):
        print(f"hivemind did not run: {ran.stderr[-2000:]}", file=sys.stderr)
        return {}
    return {
        "hivemind": statistics.median(one[1] for one in rounds),
        "matchmaking": statistics.median(one[0] for one in rounds),
    }


# Figures


def _round_time(times: list[list[float]]) -> float:
    """The slowest process of each round; the median round."""
    slowest: list[float] = [max(each) for each in zip(*times, strict=True)]
    return statistics.median(slowest[WARM_UP:])


def _step_time(steps: list[list[Step]]) -> float:
    return statistics.median(step[1] for each in steps for step in each)


def _sent(steps: list[list[Step]]) -> float:
    """Bytes for each parameter that an average peer sends in an average step."""
    return statistics.mean(step[3] for each in steps for step in each) / SIZE


def _phases(steps: list[list[Step]]) -> list[tuple[str, float, float]]:
    """Of an average peer in an average step: wall clock and processor by what it was spent on, the network's thread last."""
    count = sum(map(len, steps))
    spent: dict[str, list[float]] = {}
    network = 0.0
    for each in steps:
        for step in each:
            network += step[2]
            for lap, (wall, processor) in step[4].items():
                name = _ANNOUNCE if lap.startswith("announce") else _PHASES.get(lap, _REST)
                total = spent.setdefault(name, [0.0, 0.0])
                total[0] += wall
                total[1] += processor
    rows = [(name, *spent.get(name, (0.0, 0.0))) for name in (*_PHASES.values(), _ANNOUNCE, _REST)]
    rows.append(("the network's thread, beside all that", 0.0, network))
    return [(name, wall / count, processor / count) for name, wall, processor in rows]


def _report(
    best: dict[str, float], turns: list[dict[str, float]], steps: dict[str, list[list[Step]]], bare: float
) -> str:
    plain, coded = "float32", "int8"
    ours = best[plain]
    rows = [
        ("gloo all_reduce: no encryption, nothing checked", best["gloo"]),
        ("our transport over TLS, plain mean: nothing checked", best["bare"]),
        ("**a Troth step: everything**", ours),
        ("**the same with `--code int8`**", best[coded]),
    ]
    if "hivemind" in best:
        rows += [
            ("hivemind's DecentralizedAverager, float32, without matchmaking", best["hivemind"]),
            ("the same with matchmaking", best["hivemind"] + best["matchmaking"]),
        ]
    phases = {code: _phases(steps[code]) for code in (plain, coded)}
    processor = {code: sum(row[2] for row in phases[code]) for code in phases}
    text = [
        "# A step on the network",
        "",
        f"Written by `make bench-network` on {platform.machine()}, {os.cpu_count()} cores with a load of {os.getloadavg()[2]:.0f} in the last minutes, "
        f"PyTorch {torch.__version__}. {SIZE:,} parameters, float32 unless said otherwise, "
        f"{PEERS} processes over the loopback. A Troth step is all of it: commitments, scatter, CenteredClip, gather, projections, reports, V1 and V2, one "
        "validator's audit, all announcements signed and agreed on, the optimizer, the state's digest, the signed record, the journal. Gradients cost nothing "
        "here, and no model is saved in these steps. The others only average.",
        "",
        f"The median of {ROUNDS - WARM_UP} rounds, and the better of {TURNS} turns in which everybody ran once.",
        "",
        "| what | seconds | Troth's step takes |",
        "| --- | --- | --- |",
        *(
            f"| {what} | {seconds:.2f} | "
            + (
                ""
                if seconds == ours
                else f"{ours / seconds:.2f} × that"
                if seconds < ours
                else f"1/{seconds / ours:.1f} of that"
            )
            + " |"
            for what, seconds in rows
        ),
        "",
        "All turns: " + "; ".join(", ".join(f"{name} {s:.2f}" for name, s in turn.items()) for turn in turns) + ".",
        "",
        f"Processor time of a peer: {processor[plain] * 1e3:.0f} ms in a Troth step, {processor[coded] * 1e3:.0f} ms with int8, {bare * 1e3:.0f} ms in a round of "
        f"the transport alone. Bytes sent for each parameter, in messages: {_sent(steps[plain]):.2f} and {_sent(steps[coded]):.2f}; of a plain butterfly of {PEERS} "
        f"peers {8 * (PEERS - 1) / PEERS:g} (a validator sends no gradient).",
        "",
        f"Where the time goes, for an average peer of the last turn, in float32 and int8. {PEERS} peers share {os.cpu_count()} cores, so a second of processor time for "
        f"each of them is {PEERS / (os.cpu_count() or 1):g} s of the step; wall clock includes waiting for others.",
        "",
        "| phase | wall clock, ms | processor, ms | int8: wall clock, ms | processor, ms |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {_ms(wall)} | {_ms(cpu)} | {_ms(coded_wall)} | {_ms(coded_cpu)} |"
            for (name, wall, cpu), (_, coded_wall, coded_cpu) in zip(phases[plain], phases[coded], strict=True)
        ),
        "| together | "
        + " | ".join(f"{_ms(sum(row[1] for row in phases[code]))} | {_ms(processor[code])}" for code in phases)
        + " |",
        "",
    ]
    return "\n".join(text)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds else ""


if __name__ == "__main__":
    main()
