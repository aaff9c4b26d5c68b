"""`make bench-memory`: peak memory of a peer, in gradients beyond model and optimizer.

Four peers as `troth join` runs them, each in a process of its own, over TLS on this machine; SGD with momentum, so model and
optimizer are two vectors. Rewrites benchmarks/results-memory.md. `python -m benchmarks.memory 10000000` for another size.
"""

import dataclasses
import os
import platform
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import own_manifest
from troth.crypto import Identity, Seed, Slot, derive
from troth.events.kinds import Stepped
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.node.node import Node, PeerFactory
from troth.network.node.options import NodeOptions
from troth.protocol.core.channel import Channel, ForwardingChannel
from troth.protocol.core.records import MOST_OWED, StepRecord
from troth.protocol.core.roles import PendingAudits
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.wire.messages import Phase
from troth.training.work import Training
from troth.workshop.swarm_peers import SwarmPlan, founders_of

PEERS, STEPS, SIZE = 4, 6, 100_000_000
STATE = 2  # vectors: model and momentum
BOUND = 6  # gradients beyond these
_TINY = 1 << 19  # parameters of the run whose peaks are the baseline: little, and in the way of large ones
_EVERY_S = 0.01
_MB = 1 << 20

Peaks = dict[str, float]  # by phase: MB of memory that this process held


# A peer


class _Sampler(threading.Thread):
    """Reads how much memory this process holds, again and again, and what it was doing then."""

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.phase = "start"
        self.peaks: Peaks = defaultdict(float)

    def run(self) -> None:
        while True:
            self.peaks[self.phase] = max(self.peaks[self.phase], _status("VmRSS"))
            time.sleep(_EVERY_S)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))


class _MarkedChannel(ForwardingChannel):
    """Tells the sampler what the protocol waits for, and what it computes in between."""

    def __init__(self, channel: Channel, sampler: _Sampler) -> None:
        super().__init__(channel)
        self._sampler = sampler

    async def announce(self, slot: Slot, *arguments: Any) -> Any:
        return await self._marked(Phase(slot.phase).name.lower(), super().announce(slot, *arguments))

    async def exchange(self, slot: Slot, blobs: Any, view: Any) -> Any:
        return await self._marked(type(blobs).__name__.lower(), super().exchange(slot, blobs, view))

    async def _marked(self, name: str, call: Any) -> Any:
        self._sampler.phase = name
        result = await call
        self._sampler.phase = f"after {name}"
        return result


class _Factory(PeerFactory):
    def __init__(self, sampler: _Sampler) -> None:
        self._sampler = sampler

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        return replace(ports, outside=lambda channel, _key: _MarkedChannel(channel, self._sampler))


class _Reporter:
    def __init__(self, sampler: _Sampler) -> None:
        self._sampler = sampler

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        print(f"step {event.step + 1}: {event.seconds or 0:.1f} s, {event.own_audits} audits", flush=True)
        self._sampler.phase = "gradient"

    def note(self, text: str) -> None:
        print(text, flush=True)


def _peer(raw: bytes, secret: bytes, folder: str, parent: Connection) -> None:
    """A `Node`, and at its end the peaks of its memory: the kernel's own, and those that were seen by phase."""
    log = os.open(Path(folder).with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    sampler = _Sampler()
    sampler.start()
    _let_everyone_audit()
    manifest, identity = own_manifest(raw), Identity.from_secret(Seed(secret))
    founder = manifest.founder(identity.peer)
    assert founder is not None
    options = NodeOptions(Path(folder), listen=founder.address, evaluate_every=1 << 30)
    Node(manifest, identity, options, _Reporter(sampler), _Factory(sampler)).live()
    parent.send((_status("VmHWM"), dict(sampler.peaks)))


def _let_everyone_audit() -> None:
    """Make every step one of those in which all contribute and everyone audits (SPEC R6): they need most memory."""
    usual = PendingAudits.after

    def everyone(record: StepRecord) -> PendingAudits:
        return dataclasses.replace(usual(record), everyone=True)

    PendingAudits.after = everyone  # type: ignore[method-assign]


# All of them


def _run(size: int) -> tuple[list[float], Peaks]:
    """Every peer's peak, and the largest by phase."""
    plan = SwarmPlan(peers=PEERS, seed=1)
    options = ManifestOptions(steps=STEPS, delta_s=20.0, compute_s=300.0, bulk_s=300.0)
    task = f"benchmarks/flat_task.py:dimension={size}"
    manifest = build_manifest(task, founders_of(plan), options).manifest
    raw = dataclasses.replace(manifest, nonce=derive(0, "benchmark")).to_toml().encode()
    context, processes, pipes = get_context("spawn"), list[BaseProcess](), list[Connection]()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        try:
            for number in range(PEERS):
                mine, theirs = context.Pipe()
                secret = bytes(derive(plan.seed, "identity", number))
                process: BaseProcess = context.Process(
                    target=_peer, args=(raw, secret, f"{folder}/peer{number}", theirs), daemon=True
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(mine)
            told = []
            for number, pipe in enumerate(pipes):
                try:
                    told.append(pipe.recv())
                except EOFError:
                    raise SystemExit(Path(f"{folder}/peer{number}.log").read_text(encoding="utf-8")) from None
            print(Path(f"{folder}/peer0.log").read_text(encoding="utf-8"), flush=True)
        finally:
            for process in processes:
                process.join(60)
                if process.is_alive():
                    process.kill()
                    process.join()
    phases = {phase for _, peaks in told for phase in peaks}
    return [peak for peak, _ in told], {phase: max(peaks.get(phase, 0.0) for _, peaks in told) for phase in phases}


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else SIZE
    tiny, _ = _run(_TINY)
    peaks, phases = _run(size)
    report = _report(size, max(tiny), peaks, phases)
    print(report)
    if size == SIZE:
        Path(__file__).with_name("results-memory.md").write_text(report, encoding="utf-8")


def _report(size: int, baseline: float, peaks: list[float], phases: Peaks) -> str:
    gradient = 4 * size / _MB

    def beyond(peak: float) -> float:
        return (peak - baseline) / gradient - STATE

    most = max(map(beyond, peaks))
    text = [
        "# Memory of a peer",
        "",
        f"Written by `make bench-memory` on {platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}. {PEERS} peers with {size:,} float32 "
        f"parameters, SGD with momentum, {STEPS} steps in which all contribute and everyone audits (SPEC R6: the heaviest), the closing step, checkpoints and the model "
        f"at the end; each peer a process of its own, over TLS. A gradient is {gradient:.0f} MB. The peak is the kernel's (`VmHWM`: everything resident, mapped files included), less {baseline:.0f} MB "
        f"that the same process takes with {_TINY:,} parameters, less model and optimizer.",
        "",
        "| peer | peak, MB | beyond model and optimizer, in gradients |",
        "| --- | --- | --- |",
        *(f"| {number} | {peak:.0f} | {beyond(peak):.2f} |" for number, peak in enumerate(peaks)),
        "",
        f"The most is {most:.2f} gradients; the bound is {BOUND}: {'held' if most <= BOUND else 'broken'}.",
        "",
        *_arithmetic(),
        "",
        "By what the peer was doing, as far as samples every ten milliseconds saw it:",
        "",
        "| phase | most, in gradients beyond model and optimizer |",
        "| --- | --- |",
        *(f"| {phase} | {beyond(peak):.2f} |" for phase, peak in sorted(phases.items(), key=lambda item: -item[1])),
        "",
    ]
    return "\n".join(text)


def _arithmetic() -> list[str]:
    """What a peer with SGD needs for larger models: vectors of 4·D bytes, counted."""
    resting, aggregates, checkpoints = 18, 18 + MOST_OWED, (3 + MOST_OWED) * STATE
    rows = [(size, 4 * size / 1e9) for size in (10**8, 10**9)]
    return [
        f"In vectors of 4·D bytes a peer needs {STATE} + {BOUND} of memory, whatever the number of peers, and on disk {checkpoints} for "
        f"{3 + MOST_OWED} checkpoints, at most {aggregates} for aggregates since the last saved model (three checkpoints and {MOST_OWED} aggregates fewer while no audit is owed), and {resting} for the states and aggregates that audits and evidence may still need:",
        "",
        "| parameters | memory, at most | disk, at most |",
        "| --- | --- | --- |",
        *(
            f"| {size:,} | {(STATE + BOUND) * gb:.1f} GB | {(resting + aggregates + checkpoints) * gb:.0f} GB |"
            for size, gb in rows
        ),
    ]


if __name__ == "__main__":
    main()
