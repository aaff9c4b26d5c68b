"""Peers of one run, followed through what they write."""

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.nettest.peer import Peer, found_run
from troth.crypto import Identity
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions

_LOOK_EVERY_S = 0.2
_TAIL = 12  # lines of each log, when something took too long


class Company:
    """p0, p1, … of one run, the founders first; use it as a context manager: whatever happens, no process is left behind."""

    def __init__(
        self, home: Path, addresses: Sequence[str], options: ManifestOptions, task: str = "digits", strangers: int = 0
    ) -> None:
        self.home = home
        self.count = len(addresses) + strangers
        self.manifest: Manifest = found_run(home, {f"p{k}": where for k, where in enumerate(addresses)}, task, options)
        self.peers = [Peer(f"p{k}", home) for k in range(self.count)]
        for stranger in self.peers[len(addresses) :]:
            Identity.generate().save(home / f"{stranger.name}.key")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        for peer in self.peers:
            peer.start()

    def kill(self) -> None:
        for peer in self.peers:
            peer.kill()

    # Its results

    def until(self, holds: Callable[[], bool], most_s: float, what: str, wrong: Sequence[Peer] = ()) -> None:
        """Wait for that. If it takes too long, or a peer ends that should not (`wrong` may), the ends of all logs are shown."""
        deadline = time.monotonic() + most_s
        while not holds():
            bad = [peer for peer in self.peers if peer.code not in (None, 0, -9) and peer not in wrong]
            ended = [f"{peer.name} exited with {peer.code}" for peer in bad]
            if ended or time.monotonic() > deadline:
                why = ", ".join(ended) or f"not within {most_s:g} s"
                raise AssertionError(f"{what}: {why}\n{self.last_words()}")
            time.sleep(_LOOK_EVERY_S)

    def until_all_have_ended(self, most_s: float) -> None:
        self.until(lambda: all(peer.code == 0 for peer in self.peers), most_s, "the end of the run")

    def last_words(self) -> str:
        return "\n".join(
            f"--- {peer.name}, step {peer.step}\n" + "\n".join(peer.log.splitlines()[-_TAIL:]) for peer in self.peers
        )

    def seen_as(self, kind: str, by: Iterable[Peer] | None = None) -> set[str]:
        """Names of the peers that anybody saw `banned`, `left` or `returned`."""
        saw: set[str] = set()
        for peer in by or self.peers:
            for event in peer.events():
                saw |= {entry if isinstance(entry, str) else entry["peer"] for entry in event.get(kind, ())}
        return saw

    def check_agreement(self) -> None:
        """No two peers hold different records of a step; a record names model, members and randomness."""
        held: dict[int, dict[str, list[str]]] = {}
        for peer in self.peers:
            for step, record in peer.records().items():
                held.setdefault(step, {}).setdefault(record, []).append(peer.name)
        forks = {step: list(records.values()) for step, records in held.items() if len(records) > 1}
        assert not forks, f"different records of the same step, and who holds them: {forks}"
        assert not self.seen_as("banned"), f"honest peers were banned: {self.seen_as('banned')}\n{self.last_words()}"

    def check_end(self) -> None:
        """Everyone has ended well, with one model."""
        assert {peer.name: peer.code for peer in self.peers} == dict.fromkeys((peer.name for peer in self.peers), 0)
        assert len({peer.model for peer in self.peers}) == 1
        for peer in self.peers:
            peer.check_journal()
        self.check_agreement()

    def seconds_a_step(self, k: int = 0, since: int = 1) -> float:
        """The median."""
        seconds = sorted(event["seconds"] for event in self.peers[k].events() if event["step"] >= since)
        return float(seconds[len(seconds) // 2]) if seconds else float("nan")


def on_loopback(count: int) -> list[str]:
    """Addresses of this machine that are free now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]  # all at once, so that they differ
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]


def all_at(peers: Iterable[Peer], step: int) -> bool:
    return all(peer.step >= step for peer in peers)
