"""The processes that `benchmarks.network` times: a whole peer, the bare transport, gloo."""

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.processes import own_manifest
from troth.crypto import Identity, PeerId, Seed, Slot, stream
from troth.crypto.streams import derive
from troth.events.kinds import Stepped
from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.network.node.node import Node, PeerFactory
from troth.network.node.options import NodeOptions
from troth.network.transport.base import Lane, TransportLimits
from troth.network.transport.tcp import TcpTransport
from troth.protocol.core.channel import Channel, ForwardingChannel
from troth.protocol.core.records import StepRecord
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.work import Training, TrainingWork

# D coordinates

MB = 1 << 20
Laps = dict[str, tuple[float, float]]  # wall clock and processor, by what they were spent on


# A whole peer


@dataclass
class Stopwatch:
    """Wall clock and processor time of the protocol's thread and its helpers, by what they were spent on."""

    spent: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    network_clock: int | None = None

    def __post_init__(self) -> None:
        self._at = self._read()

    def _read(self) -> tuple[float, float]:
        return time.monotonic(), time.process_time() - self.network_s

    @property
    def network_s(self) -> float:
        if self.network_clock is None:
            for thread in threading.enumerate():
                if thread.name == "network" and thread.ident is not None:
                    self.network_clock = time.pthread_getcpuclockid(thread.ident)
        return time.clock_gettime(self.network_clock) if self.network_clock is not None else 0.0

    def lap(self, what: str) -> None:
        """Everything since the last lap was that."""
        wall, processor = self._read()
        spent = self.spent[what]
        spent[0] += wall - self._at[0]
        spent[1] += processor - self._at[1]
        self._at = wall, processor

    def take(self) -> dict[str, tuple[float, float]]:
        taken = {what: (wall, processor) for what, (wall, processor) in self.spent.items()}
        self.spent.clear()
        return taken


class TimedChannel(ForwardingChannel):
    """Takes the time of every call that waits, and of what comes before it."""

    def __init__(self, channel: Channel, watch: Stopwatch) -> None:
        super().__init__(channel)
        self._watch = watch

    async def announce(self, slot: Slot, *arguments: Any) -> Any:
        return await self._timed(f"announce {Phase(slot.phase).name.lower()}", super().announce, slot, *arguments)

    async def exchange(self, slot: Slot, blobs: Any, view: Any) -> Any:
        return await self._timed(type(blobs).__name__.lower(), super().exchange, slot, blobs, view)

    async def _timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._watch.lap(f"before: {name}")
        result = await call(*arguments)
        self._watch.lap(name)
        return result


class FreeWork(TrainingWork):
    """Gradients are slices of one table of noise, so they cost nothing, and an auditor finds the same."""

    watch: Stopwatch
    table_D: Tensor

    def gradient_now(self, training: Training, seed: Seed) -> Tensor:
        start = int.from_bytes(seed[:2], "big")
        return self.table_D[start : start + len(training.parameters_D)]

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        self.watch.lap("before: gradient")
        return self.gradient_now(training, seed)

    def update(self, training: Training, aggregate_D: Tensor, step: int) -> Training:
        self.watch.lap("before: update")
        updated = super().update(training, aggregate_D, step)
        self.watch.lap("update")
        return updated


class _TimedFactory(PeerFactory):
    def __init__(self, watch: Stopwatch, size: int) -> None:
        self._watch = watch
        self._size = size

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        work = FreeWork(problem, manifest.make_optimizer(), manifest.rates(), tools)
        work.watch = self._watch
        noise_D = stream(0, "benchmark", "noise").uniform(self._size + (1 << 16)) - 0.5
        work.table_D = torch.from_numpy(noise_D).float() / self._size**0.5
        return work

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work)  # there is nothing to begin, and the stopwatch is the protocol's

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        return replace(ports, outside=lambda channel, _key: TimedChannel(channel, self._watch))


@dataclass
class _Reporter:
    parent: Connection
    watch: Stopwatch
    network_s: float = 0.0
    sent_bytes: int = 0

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        self.watch.lap("before: told")
        network = self.watch.network_s
        sent = event.sent_bytes - self.sent_bytes
        self.parent.send((event.step + 1, event.seconds, network - self.network_s, sent, self.watch.take()))
        self.network_s, self.sent_bytes = network, event.sent_bytes

    def note(self, text: str) -> None:
        print(text, flush=True)


def whole_peer(raw: bytes, secret: bytes, folder: str, parent: Connection) -> None:
    """A `Node` as `troth join` runs it, with free gradients."""
    log = os.open(Path(folder).with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    manifest, identity, watch = own_manifest(raw), Identity.from_secret(Seed(secret)), Stopwatch()
    founder = manifest.founder(identity.peer)
    assert founder is not None
    options = NodeOptions(Path(folder), listen=founder.address, evaluate_every=1 << 30)
    node = Node(manifest, identity, options, _Reporter(parent, watch), _TimedFactory(watch, manifest.parameters.size))
    node.live()
    parent.send(None)


# The same bytes, and nothing checked


def bare_transport(rank: int, peers: int, size: int, rounds: int, barrier: Any, parent: Connection) -> None:
    """Scatter, average, gather over TcpTransport: no signatures, no digests, no robust rule."""
    torch.set_num_threads(1)
    parent.send(asyncio.run(bare(rank, peers, size, rounds, barrier, parent)))


async def bare(
    rank: int,
    peers: int,
    size: int,
    rounds: int,
    barrier: Any,
    parent: Connection,
    listen: str = "127.0.0.1:0",
    gradient_s: float = 0.0,  # that each round begins with, off the processor
) -> list[tuple[float, float]]:
    """Seconds and processor seconds of every round."""
    identities = [Identity.from_secret(derive(0, "benchmark", number)) for number in range(peers)]
    limits = TransportLimits(most_control_bytes=MB, most_bulk_bytes=4 * size, most_queued_bytes=8 * size + MB)
    transport = TcpTransport(identities[rank], limits)
    parent.send(await transport.listen(listen))
    addresses = parent.recv()
    lines = {n: await transport.dial(addresses[n], identities[n].peer) for n in range(rank)}
    numbers: dict[PeerId, int] = {identity.peer: number for number, identity in enumerate(identities)}
    while len(lines) < peers - 1:
        line = await transport.accept()
        lines[numbers[line.peer]] = line
    for line in lines.values():
        line.recognise(known=True)
    bounds = [size * number // peers for number in range(peers + 1)]
    vector_D = np.ones(size, dtype=np.float32)
    parts = [vector_D[a:b] for a, b in pairwise(bounds)]
    times = []
    for _ in range(rounds):
        await asyncio.to_thread(barrier.wait)
        began, worked = time.monotonic(), time.process_time()
        await asyncio.sleep(gradient_s)
        for number, line in lines.items():
            line.send(Lane.BULK, parts[number].data.cast("B"))
        mine_D = parts[rank].copy()
        for line in lines.values():
            mine_D += np.frombuffer(await _next(line), dtype=np.float32)
        mine_D /= peers
        for line in lines.values():
            line.send(Lane.BULK, mine_D.data.cast("B"))
        pieces = {rank: mine_D}
        for number, line in lines.items():
            pieces[number] = np.frombuffer(await _next(line), dtype=np.float32)
        result_D = np.concatenate([pieces[number] for number in range(peers)])
        times.append((time.monotonic() - began, time.process_time() - worked))
        assert result_D[0] == result_D[-1] == 1.0
    await asyncio.to_thread(barrier.wait)
    await transport.close()
    return times


async def _next(line: Any) -> bytes:
    heard = await line.receive()
    assert heard is not None, "a line broke"
    message: bytes = heard[1]
    return message


def gloo(rank: int, peers: int, size: int, rounds: int, file: str, barrier: Any, parent: Connection) -> None:
    import torch.distributed as distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=peers)
    vector_D = torch.ones(size)
    times = []
    for _ in range(rounds):
        barrier.wait()
        began = time.monotonic()
        distributed.all_reduce(vector_D)
        vector_D /= peers
        times.append(time.monotonic() - began)
    parent.send(times)
    barrier.wait()
    distributed.destroy_process_group()
