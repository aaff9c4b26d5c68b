"""`make bench-hostile`: ten thousand hostile connections within a minute against one of four peers that train meanwhile.

A third send garbage, a third connect and say nothing, a third finish a TLS handshake under a key that nobody knows (half of these
say hello in the right form, half are silent). They come from random addresses of 127.0.0.0/8, so that no address stands out.
Rewrites benchmarks/results-hostile.md; the exit status says whether all bars held.
"""

import asyncio
import itertools
import os
import platform
import random
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from troth.crypto.identity import Identity
from troth.network.manifest.manifest import Manifest
from troth.network.neighbour import VERSION, Hello, encode_session_message
from troth.network.transport.framing import HEADER, ChunkKind
from troth.network.transport.tcp import client_context
from troth.workshop.swarm import Swarm
from troth.workshop.swarm_peers import ChildStepped, SwarmPlan, Trace, folder_of, rehearsal

CONNECTIONS, FLOOD_S = 10_000, 60.0
QUIET_S = 20.0  # before and after the flood
AGAIN_S = 15.0  # a second crowd, as dense: memory that the first one left behind has to be enough for it
SETTLE_S = 20.0  # for what the flood left behind to be gone: the longest deadline of a connection, and some
VICTIM, PEERS = 0, 4
KEYS = 64  # of strangers, made beforehand: making one costs more than connecting with it
MOST_GARBAGE_BYTES = 16 * 1024
RUN_STEPS = 100_000  # more than there is time for

MOST_SLOWDOWN = 2.0
MOST_GROWTH_MB = 50.0
MOST_LEFT_MB = 10.0  # after the flood, against before
MOST_DESCRIPTORS = 400  # 64 handshakes, 256 connections, and what a peer has open anyway
MOST_LEFT_DESCRIPTORS = 4
MOST_LINES = 1024


@dataclass(frozen=True)
class Period:
    """What was seen of the victim and of everybody's steps in one stretch of time."""

    name: str
    steps: int  # of the peer that made the fewest
    median_s: float  # of a step, over all peers
    slowest_s: float
    memory_mb: float  # the victim's: most
    memory_at_end_mb: float
    descriptors: int  # most
    descriptors_at_end: int
    processor: float  # share of one core that the victim took


@dataclass
class Victim:
    """A process, looked at from outside while this is in use."""

    pid: int
    memory_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @contextmanager
    def watched(self, every_s: float = 0.1) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.wait(every_s):
                self.memory_mb.append(_resident_mb(self.pid))
                self.descriptors.append(len(os.listdir(f"/proc/{self.pid}/fd")))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        periods, crowd, lines, trouble = _measure(Path(folder))
    report, held = _report(periods, crowd, lines, trouble)
    Path(__file__).with_name("results-hostile.md").write_text(report, encoding="utf-8")
    print(report)
    return 0 if held else 1


def _measure(out: Path) -> tuple[list[Period], Counter[str], list[str], list[str]]:
    plan = SwarmPlan(peers=PEERS, seed=1)
    with Swarm(plan, rehearsal(plan, steps=RUN_STEPS), out) as swarm:
        if not swarm.follow(until=lambda seen: all(len(seen.events.get(n, ())) >= 5 for n in range(PEERS)), most_s=60):
            raise SystemExit(f"the swarm does not start: {swarm.seen.notes}")
        pid = swarm.pid(VICTIM)
        assert pid is not None
        log = folder_of(out, VICTIM) / "log.txt"
        periods = [_period("before", swarm, pid, QUIET_S)]
        lines_before = len(_other_lines(log))
        crowd = Crowd(swarm.manifest, FLOOD_S)
        periods.append(_period("during", swarm, pid, FLOOD_S, crowd.start))
        came = crowd.ended()
        swarm.follow(most_s=SETTLE_S)
        periods.append(_period("after", swarm, pid, QUIET_S))
        crowd = Crowd(swarm.manifest, AGAIN_S)
        periods.append(_period("again", swarm, pid, AGAIN_S, crowd.start))
        crowd.ended()
        lines = _other_lines(log)[lines_before:]
        news = [one for each in swarm.seen.events.values() for one in each.values()]
        trouble = [f"{note.peer}: {note.text}" for note in swarm.seen.notes if "founders are here" not in note.text]
        trouble += [f"{number}: {ended.how}" for number, ended in swarm.seen.ended.items()]
        trouble += [f"step {one.step}: {one.attempts} attempts" for one in news if one.attempts > 1]
        trouble += [f"step {one.step}: {', '.join(one.left)} left" for one in news if one.left or one.banned]
        if not swarm.agreement:
            trouble.append("no agreement")
    return periods, came, lines, trouble


def _period(name: str, swarm: Swarm, pid: int, seconds: float, start: Callable[[], None] = lambda: None) -> Period:
    times: dict[int, list[float]] = {number: [] for number in range(PEERS)}

    def hear(told: Trace) -> None:
        if isinstance(told, ChildStepped):
            times[told.peer].append(told.event.seconds or 0.0)

    victim, cpu = Victim(pid), _processor_s(pid)
    start()
    began = time.monotonic()
    with victim.watched():
        swarm.follow(hear, most_s=seconds)
    every = list(itertools.chain(*times.values()))
    return Period(
        name=name,
        steps=min(map(len, times.values())),
        median_s=statistics.median(every) if every else float("inf"),
        slowest_s=max(every, default=float("inf")),
        memory_mb=max(victim.memory_mb),
        memory_at_end_mb=statistics.median(victim.memory_mb[-10:]),
        descriptors=max(victim.descriptors),
        descriptors_at_end=int(statistics.median(victim.descriptors[-10:])),
        processor=(_processor_s(pid) - cpu) / (time.monotonic() - began),
    )


# Outside


class Crowd:
    """The strangers, in a process of their own. They share the machine's cores with the peers: that is in the figures, too."""

    def __init__(self, manifest: Manifest, seconds: float) -> None:
        founder = next(f for f in manifest.founders if f.name == f"peer{VICTIM}")
        assert founder.endpoint is not None
        hello = Hello(VERSION, manifest.run.id, dict(manifest.digests()), bytes(32), None, bytes(32))
        context = get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(
            target=_crowd, args=(founder.endpoint, _framed(hello), seconds, theirs), daemon=True
        )
        self._process.start()
        assert self._mine.recv() == "ready"

    def start(self) -> None:
        self._mine.send("go")

    def ended(self) -> Counter[str]:
        counts: Counter[str] = self._mine.recv()
        self._process.join()
        return counts


def _crowd(where: tuple[str, int], hello: bytes, seconds: float, parent: Connection) -> None:
    slots = [client_context(Identity.generate()) for _ in range(KEYS)]
    parent.send("ready")
    parent.recv()
    parent.send(asyncio.run(_flood(where, hello, seconds, slots)))


async def _flood(where: tuple[str, int], hello: bytes, seconds: float, slots: list[ssl.SSLContext]) -> Counter[str]:
    """Evenly over the time; whoever is not hung up on stays until the end."""
    counts: Counter[str] = Counter()
    draw, began = random.Random(0), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(CONNECTIONS * seconds / FLOOD_S)):
            ahead = began + number * FLOOD_S / CONNECTIONS - time.monotonic()
            await asyncio.sleep(max(0.0, ahead))
            kind = ("garbage", "half-open", "stranger")[number % 3]
            address = f"127.{draw.randrange(256)}.{draw.randrange(256)}.{draw.randrange(1, 255)}"
            said = draw.randbytes(draw.randrange(1, MOST_GARBAGE_BYTES)) if kind == "garbage" else b""
            tls = slots[number % KEYS] if kind == "stranger" else None
            said = hello if kind == "stranger" and number % 2 else said
            group.create_task(_stranger(counts, kind, address, where, said, tls, began + seconds))
        counts["seconds to begin all"] = round(time.monotonic() - began)
    return counts


async def _stranger(
    counts: Counter[str],
    kind: str,
    address: str,
    where: tuple[str, int],
    said: bytes,
    tls: ssl.SSLContext | None,
    until: float,
) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    writer: asyncio.StreamWriter | None = None
    handed_over = False  # to asyncio, which closes it
    try:
        sock.bind((address, 0))
        async with asyncio.timeout(max(1.0, until - time.monotonic())):
            await asyncio.get_running_loop().sock_connect(sock, where)
            counts[f"{kind}: connected"] += 1
            handed_over = True
            reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname="" if tls else None)
            counts[f"{kind}: handshakes"] += tls is not None
            writer.write(said)
            while await reader.read(65536):
                pass
        counts[f"{kind}: hung up on"] += 1
    except TimeoutError:
        counts[f"{kind}: still there at the end" if writer else f"{kind}: not let in until the end"] += 1
    except OSError:
        counts[f"{kind}: hung up on"] += 1
    finally:
        if writer is not None:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        if not handed_over:
            sock.close()


def _framed(hello: Hello) -> bytes:
    body = b"\x00" + encode_session_message(hello)
    return HEADER.pack(ChunkKind.CONTROL, len(body), len(body)) + body


# What a process uses


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _other_lines(log: Path) -> list[str]:
    """Those that are not about steps."""
    return [
        line for line in log.read_text(encoding="utf-8").splitlines() if not line.partition(" ")[2].startswith("step ")
    ]


# The page


def _report(periods: list[Period], crowd: Counter[str], lines: list[str], trouble: list[str]) -> tuple[str, bool]:
    before, during, after, again = periods
    growth, left = during.memory_mb - before.memory_mb, after.memory_at_end_mb - before.memory_at_end_mb
    bars = [
        (
            f"a step takes at most {MOST_SLOWDOWN:g} times as long",
            f"{during.median_s / before.median_s:.2f} times",
            during.median_s <= MOST_SLOWDOWN * before.median_s,
        ),
        (f"memory grows by less than {MOST_GROWTH_MB:g} MB", f"{growth:.1f} MB", growth < MOST_GROWTH_MB),
        (f"and comes back to within {MOST_LEFT_MB:g} MB", f"{left:+.1f} MB", left < MOST_LEFT_MB),
        (
            f"a second crowd takes less than {MOST_LEFT_MB:g} MB on top of the first",
            f"{again.memory_mb - during.memory_mb:+.1f} MB",
            again.memory_mb - during.memory_mb < MOST_LEFT_MB,
        ),
        (
            f"at most {MOST_DESCRIPTORS} file descriptors",
            str(during.descriptors),
            during.descriptors <= MOST_DESCRIPTORS,
        ),
        (
            f"and back to within {MOST_LEFT_DESCRIPTORS}",
            f"{after.descriptors_at_end - before.descriptors_at_end:+d}",
            after.descriptors_at_end - before.descriptors_at_end <= MOST_LEFT_DESCRIPTORS,
        ),
        (
            "every peer goes on; nobody is absent, banned or in a second attempt",
            "; ".join(trouble[:5]) or "nothing happened",
            not trouble and during.steps > 0,
        ),
        (f"the log grows by at most {MOST_LINES} lines", str(len(lines)), len(lines) <= MOST_LINES),
    ]
    came = sum(count for what, count in crowd.items() if what.endswith(": connected"))
    text = [
        "# Hostile connections",
        "",
        f"Written by `make bench-hostile` on {platform.machine()}, {os.cpu_count()} cores. {PEERS} peers train digits, each in a process of its "
        f"own, over TLS on the loopback; {CONNECTIONS:,} connections within {FLOOD_S:g} s go to one of them, from random addresses of "
        "127.0.0.0/8. The strangers run on the same cores.",
        "",
        "| | steps | median step, ms | slowest, ms | memory, MB: most, at end | descriptors: most, at end | of one core |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {p.name} | {p.steps} | {p.median_s * 1e3:.0f} | {p.slowest_s * 1e3:.0f} "
            f"| {p.memory_mb:.1f}, {p.memory_at_end_mb:.1f} | {p.descriptors}, {p.descriptors_at_end} | {p.processor:.0%} |"
            for p in periods
        ),
        "",
        "Memory, descriptors and the share of a core are the attacked peer's; steps are those of the peer that made the fewest, and times are "
        "taken over all peers.",
        "",
        "| bar | measured | |",
        "| --- | --- | --- |",
        *(f"| {bar} | {measured} | {'held' if held else '**missed**'} |" for bar, measured, held in bars),
        "",
        f"Of the strangers, {came:,} got a TCP connection:",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {what} | {count:,} |" for what, count in sorted(crowd.items())),
        "",
    ]
    return "\n".join(text), all(held for _, _, held in bars)


if __name__ == "__main__":
    sys.exit(main())
