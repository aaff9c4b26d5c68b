"""`make bench-overlap`: a verified step of eight peers on lines with delay, against the same gradient and a plain butterfly.

Each peer has a network namespace of its own, and a frame takes 50 ms from any to any. Namespaces need root and iproute2; delay is made
by the cables of tests/nettest. Rewrites benchmarks/results-overlap.md.
"""

import dataclasses
import json
import math
import os
import platform
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.network_peers import Laps
from benchmarks.overlap_peers import GRADIENT_S, butterfly_peer, troth_peer
from benchmarks.processes import started
from troth.crypto import derive
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.options import ManifestOptions
from troth.workshop.swarm_peers import SwarmPlan, founders_of

PEERS, SIZE, DELAY_S = 8, 1_000_000, 0.05
STEPS, WARM_UP, TURNS = 14, 4, 2
MTU = 65_000  # few frames: the process that delays them shares the processor with all peers
PORT = 7000
TASK = f"benchmarks/flat_task.py:dimension={SIZE}"


class Step(NamedTuple):
    """One step of one peer: its number, when it ended, attempts, and what the time was spent on."""

    number: int
    ended: float
    attempts: int
    laps: Laps


class Turn(NamedTuple):
    """Seconds of a step, by contender; the laps of an average peer that looks ahead, and of one that does not."""

    load: float  # average of the machine before it began: work of others
    seconds: dict[str, float]
    ahead: dict[str, float]
    plain: dict[str, float]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that no namespace is left behind
    turns = []
    with lines() as namespaces:
        for turn in range(TURNS):
            load = os.getloadavg()[0]
            butterfly = _butterfly(namespaces)
            plain, ahead = (_troth(namespaces, looks_ahead=looks_ahead) for looks_ahead in (False, True))
            seconds = {"butterfly": butterfly, "plain": _step_time(plain), "ahead": _step_time(ahead)}
            turns.append(Turn(load, seconds, _spent(ahead), _spent(plain)))
            print(f"turn {turn + 1} of {TURNS}: {seconds}, load before {load:.1f}", flush=True)
    report = _report(turns)
    Path(__file__).with_name("results-overlap.md").write_text(report, encoding="utf-8")
    print(report)


# Lines


@contextmanager
def lines(rate: float = math.inf, mtu: int = MTU) -> Iterator[list[str]]:
    """A namespace for each peer, joined by cables that take half of the delay each, through a bridge; gone afterwards. `rate`:
    bytes a second that each of them sends, and gets, at most."""
    name = f"troth-{os.getpid()}-{secrets.token_hex(3)}"
    hub, spaces = f"{name}-hub", [f"{name}-p{k}" for k in range(PEERS)]
    with ExitStack() as undo:
        for space in (hub, *spaces):
            _do("ip", "netns", "add", space)
            undo.callback(_do, "ip", "netns", "delete", space)
            _do("ip", "-n", space, "link", "set", "lo", "up")
        _do("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        cables = [
            {"ends": [[space, "eth0"], [hub, f"p{k}"]], "delay_s": DELAY_S / 2, "jitter_s": 0.0, "rate": rate}
            for k, space in enumerate(spaces)
        ]
        command = [sys.executable, "-m", "tests.nettest.cable", json.dumps(cables)]
        cabling = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        undo.callback(cabling.wait)
        undo.callback(cabling.kill)
        assert cabling.stdout is not None
        if "ready" not in cabling.stdout.readline():
            raise SystemExit("no cables: /dev/net/tun is needed")
        for k, space in enumerate(spaces):
            _do("ip", "-n", hub, "link", "set", f"p{k}", "mtu", str(mtu), "master", "br0", "up")
            _do("ip", "-n", space, "address", "add", f"{host(k)}/24", "dev", "eth0")
            _do("ip", "-n", space, "link", "set", "eth0", "mtu", str(mtu), "up")
        _do("ip", "-n", hub, "link", "set", "br0", "up")
        yield spaces


def host(k: int) -> str:
    return f"10.78.0.{k + 1}"


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20.0, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()} (this needs root and iproute2)")


# Contenders


def _butterfly(namespaces: list[str]) -> float:
    """Seconds of a gradient and a plain butterfly: the slowest peer of each round, the median round."""
    with started("benchmarks.overlap_peers") as start:
        barrier = get_context("forkserver").Barrier(PEERS)
        pipes = [
            start(butterfly_peer, space, rank, PEERS, SIZE, STEPS, f"{host(rank)}:{PORT}", barrier)
            for rank, space in enumerate(namespaces)
        ]
        addresses = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(addresses)
        times = [pipe.recv() for pipe in pipes]
    slowest: list[float] = [max(seconds for seconds, _ in each) for each in zip(*times, strict=True)]
    return statistics.median(slowest[WARM_UP:])


def _troth(namespaces: list[str], *, looks_ahead: bool) -> list[list[Step]]:
    """The steps of each peer, without the first ones, and without the last, with which the model is saved."""
    plan = SwarmPlan(peers=PEERS, seed=1)
    founders = [dataclasses.replace(one, address=f"{host(k)}:{PORT}") for k, one in enumerate(founders_of(plan))]
    options = ManifestOptions(steps=STEPS + 1, delta_s=2.0, compute_s=20.0, bulk_s=20.0)
    manifest = dataclasses.replace(build_manifest(TASK, founders, options).manifest, nonce=derive(0, "benchmark"))
    raw = manifest.to_toml().encode()
    told: list[list[Step]] = []
    with tempfile.TemporaryDirectory() as folder, started("benchmarks.overlap_peers") as start:
        secret = [bytes(derive(plan.seed, "identity", number)) for number in range(PEERS)]
        pipes = [
            start(troth_peer, space, raw, secret[number], f"{folder}/peer{number}", looks_ahead)
            for number, space in enumerate(namespaces)
        ]
        for number, pipe in enumerate(pipes):
            try:
                steps = [Step(*step) for step in iter(pipe.recv, None)]
            except EOFError:
                raise SystemExit(Path(f"{folder}/peer{number}.log").read_text(encoding="utf-8")) from None
            told.append([step for step in steps if WARM_UP <= step.number <= STEPS])
    assert all(step.attempts == 1 for each in told for step in each), "a step was repeated: somebody was late"
    return told


# Figures


def _step_time(steps: list[list[Step]]) -> float:
    """Seconds from one end of a step to the next, when the last peer is there: the median."""
    ends = [max(step.ended for step in each) for each in zip(*steps, strict=True)]
    took: list[float] = [after - before for before, after in pairwise(ends)]
    return statistics.median(took)


def _spent(steps: list[list[Step]]) -> dict[str, float]:
    """Seconds of an average step of an average peer, by what it waited for or computed."""
    spent: dict[str, float] = {}
    for each in steps:
        for step in each:
            for lap, (wall, _) in step.laps.items():
                spent[lap] = spent.get(lap, 0.0) + wall / (len(steps) * len(each))
    return spent


def _report(turns: list[Turn]) -> str:
    best = {name: min(turn.seconds[name] for turn in turns) for name in turns[0].seconds}
    ratios = ", ".join(
        f"{turn.seconds['ahead'] / turn.seconds['butterfly']:.2f} (load average before it: {turn.load:.1f})"
        for turn in turns
    )
    floor, plain_floor = GRADIENT_S + 6 * DELAY_S, GRADIENT_S + 2 * DELAY_S
    laps = [
        name for name in turns[-1].plain if turns[-1].plain[name] >= 0.005 or turns[-1].ahead.get(name, 0.0) >= 0.005
    ]
    text = [
        "# Gradients beside the protocol",
        "",
        f"Written by `make bench-overlap` on {platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}. {PEERS} peers in network namespaces, "
        f"{DELAY_S * 1e3:.0f} ms one way between any two, {SIZE:,} float32 parameters. A gradient takes {GRADIENT_S:g} s off the processor; an audit takes as "
        "long, and one member makes one in every step. A step is all of it: everything signed, agreed on, checked and recorded. The butterfly is our own "
        "transport over the same lines, scatter and gather of a plain mean after the same gradient, and nothing checked.",
        "",
        f"The median of {STEPS - WARM_UP} steps, and the better of {TURNS} turns in which everybody ran once.",
        "",
        "| what | seconds | of gradient and butterfly |",
        "| --- | --- | --- |",
        f"| gradient and plain butterfly | {best['butterfly']:.2f} | |",
        f"| a Troth step, gradients computed when they are asked for | {best['plain']:.2f} | {best['plain'] / best['butterfly']:.2f} |",
        f"| **a Troth step, gradients and audits begun as soon as their inputs are known** | {best['ahead']:.2f} | {best['ahead'] / best['butterfly']:.2f} |",
        "",
        f"By turn: {ratios}. All peers and the cables share the processor with whatever else runs on the machine.",
        "",
        f"Six message delays lie between two gradients (Commit and Clip are agreed on in two each, parts and aggregates travel), and two in the butterfly: with "
        f"computing and sending for nothing {floor:.2f} s against {plain_floor:.2f} s, which is {floor / plain_floor:.2f}.",
        "",
        "Where the time goes, for an average peer of the last turn, in milliseconds; a line is what a peer waited for, or (before) what it computed until then.",
        "",
        "| phase | when asked | ahead |",
        "| --- | --- | --- |",
        *(f"| {lap} | {turns[-1].plain[lap] * 1e3:.0f} | {turns[-1].ahead.get(lap, 0.0) * 1e3:.0f} |" for lap in laps),
        "",
    ]
    return "\n".join(text)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
