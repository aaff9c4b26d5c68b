"""A state from several members at once: lying, slow and silent ones cost time, not the state (SPEC J1)."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.protocol.returning_members import IDENTITIES, rejoin_slot
from troth.crypto import Digest, PeerId
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.recovery.download import Download, Fetched
from troth.protocol.wire.frames import ChunkShown, ChunkWanted, Packet, StateIndex, StateWanted, SyncShown
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.virtual_time import VirtualLink, VirtualTime

CHUNKS = [hashlib.sha256(bytes([number])).digest() for number in range(60)]
DIGEST = Digest(hashlib.sha256(b"".join(CHUNKS)).digest())
ME, *DONORS = [identity.peer for identity in IDENTITIES[:6]]
BOUNDS = Timeouts()
Answers = Callable[[int, float], bytes | None]  # of a donor: number of the chunk and the time, what it sends


class _Chunks:
    """A state of sixty small chunks."""

    def __init__(self) -> None:
        self.missing = set(range(len(CHUNKS)))

    def length(self, number: int) -> int:
        return len(CHUNKS[number])

    def put(self, number: int, chunk: memoryview) -> bool:
        right = bytes(chunk) == CHUNKS[number]
        self.missing -= {number} if right else set()
        return right

    def state(self) -> str:
        return "state"


def _collect(index: bytes) -> _Chunks | Malformed:
    return _Chunks() if index == b"index" else Malformed("another index")


def honest(number: int, _now: float) -> bytes | None:
    return CHUNKS[number]


def silent(_number: int, _now: float) -> bytes | None:
    return None


def lying(_number: int, _now: float) -> bytes | None:
    return bytes(32)


def later(_number: int, _now: float) -> bytes | None:
    return b""


def killed_half_way(number: int, now: float) -> bytes | None:
    return CHUNKS[number] if now < 1.0 else None


class Scene:
    """Donors that answer in their own ways, and a peer that downloads from them, once or more often."""

    def __init__(self, *donors: Answers, index: bytes = b"index", step_s: float = 10_000.0) -> None:
        self.sent: Counter[PeerId] = Counter()  # chunks that a donor was asked for
        self.seconds = 0.0
        self._donors = dict(zip(DONORS, donors, strict=False))
        self._index = index
        self._step_s = step_s  # after which donors show their records again, as in every step

    def download(self, download: "Download[Any]") -> object:
        time: VirtualTime[object] = VirtualTime(lambda *_: (0.1,))

        async def asks() -> object:
            link = time.link(ME)
            channel = BroadcastChannel(IDENTITIES[0], link, BOUNDS, Primitives(), observing=True)
            found = await download.run(channel, rejoin_slot(3), list(self._donors), lambda *_: None)
            self.seconds = link.now()
            return found

        members = {
            ME: asks(),
            **{peer: self._answers(peer, time.link(peer), how) for peer, how in self._donors.items()},
        }
        time.run(members, most_events=100_000, until=[ME])
        return time.results[ME]

    async def _answers(self, me: PeerId, link: VirtualLink, how: Answers) -> object:
        step = self._step_s
        while link.now() < 10_000.0:
            heard = await link.receive(step)
            if heard is None:
                step += self._step_s
                link.send(ME, Packet(rejoin_slot(3), SyncShown(())))
                continue
            sender, packet = heard
            if isinstance(packet.frame, StateWanted):
                link.send(sender, Packet(rejoin_slot(3), StateIndex(DIGEST, self._index)))
            elif isinstance(packet.frame, ChunkWanted):
                self.sent[me] += 1
                chunk = how(packet.frame.number, link.now())
                if chunk is not None:
                    link.send(
                        sender, Packet(rejoin_slot(3), ChunkShown(DIGEST, packet.frame.number, memoryview(chunk)))
                    )
        return None


def fresh() -> Download[str]:
    return Download(DIGEST, _collect)


def test_honest_members_share_the_work() -> None:
    """[J1] Nobody sends more than twice what would be fair; several are faster than one."""
    alone, together = Scene(honest), Scene(honest, honest, honest, honest)
    assert alone.download(fresh()) == together.download(fresh()) == "state"
    assert sum(together.sent.values()) < 1.3 * len(CHUNKS)
    assert max(together.sent.values()) <= 2 * len(CHUNKS) / 4 + 4
    assert together.seconds < 0.7 * alone.seconds


@pytest.mark.parametrize("other", [silent, lying, later, killed_half_way])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_one_honest_member_is_enough(other: Answers, count: int) -> None:
    """[J1] Whoever is asked first."""
    scene = Scene(*[other] * count, honest)
    assert scene.download(fresh()) == "state"
    assert scene.seconds < 3 * (2 * BOUNDS.delta + BOUNDS.bulk) + 10.0
    if other is lying:
        assert max(scene.sent[peer] for peer in DONORS[:count]) <= 4, "a liar is not asked again"


def test_a_member_that_has_handed_out_its_share_is_asked_again_in_its_next_step() -> None:
    """[J1] And not a delta later: where that is longer than a step, a newcomer would catch up no faster than the run moves."""
    step_s, handed_out = BOUNDS.delta / 2, Counter[int]()

    def two_a_step(number: int, now: float) -> bytes | None:
        handed_out[int(now / step_s)] += 1
        return CHUNKS[number] if handed_out[int(now / step_s)] <= 2 else b""

    scene = Scene(two_a_step, step_s=step_s)
    assert scene.download(fresh()) == "state"
    assert scene.seconds < 1.2 * step_s * len(CHUNKS) / 2


@pytest.mark.parametrize("other", [silent, lying, later])
def test_without_an_honest_member_it_ends(other: Answers) -> None:
    """[J1] And says so, in bounded time."""
    scene = Scene(other, other)
    assert scene.download(fresh()) is None
    assert scene.seconds <= 4 * (2 * BOUNDS.delta + 4 * BOUNDS.bulk)


def test_a_wrong_index_is_nobodys() -> None:
    scene = Scene(honest, honest, index=b"another")
    assert scene.download(fresh()) is None
    assert scene.sent.total() == 0


def test_another_attempt_goes_on_where_the_last_one_ended() -> None:
    """[J1] What has come is not asked for again."""
    download = fresh()
    first = Scene(killed_half_way)
    assert first.download(download) is None
    came = first.sent[DONORS[0]]
    assert 10 < came < len(CHUNKS)
    second = Scene(honest)
    assert second.download(download) == "state"
    assert second.sent[DONORS[0]] <= len(CHUNKS) - came + 8


class _Disk:
    """Chunks that outlast a process."""

    def __init__(self) -> None:
        self.begun: Digest | None = None
        self.kept: dict[int, bytes] = {}

    def begin(self, digest: Digest, index: bytes) -> None:
        self.begun, self.kept = digest, {}

    def put(self, digest: Digest, number: int, chunk: memoryview) -> None:
        self.kept[number] = bytes(chunk)

    def index(self, digest: Digest) -> bytes | None:
        return b"index" if digest == self.begun else None

    def chunks(self, digest: Digest, lengths: Mapping[int, int]) -> Iterable[tuple[int, memoryview]]:
        return [(number, memoryview(chunk)) for number, chunk in self.kept.items() if number in lengths]


def test_another_process_goes_on_where_the_last_one_ended() -> None:
    """[J1] With what is on disk, of which each chunk is checked: one that has changed there is fetched again."""
    disk, told = _Disk(), list[Fetched]()
    first = Scene(killed_half_way)
    assert first.download(Download(DIGEST, _collect, disk)) is None
    came = len(disk.kept)
    assert 10 < came < len(CHUNKS)
    disk.kept[min(disk.kept)] = bytes(32)
    second = Scene(honest)
    assert second.download(Download(DIGEST, _collect, disk, told.append)) == "state"
    assert second.sent[DONORS[0]] <= len(CHUNKS) - came + 1 + 8
    assert [one.here for one in told] == [32 * (came - 1 + k) for k in range(1, len(CHUNKS) - came + 2)]
    assert {(one.of, one.donors) for one in told} == {(32 * len(CHUNKS), 1)}
    third = Scene(silent)
    assert third.download(Download(DIGEST, _collect, disk)) == "state", "all of it is here"
    assert third.sent.total() == 0
