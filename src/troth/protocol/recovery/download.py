"""Fetching a state or an aggregate in chunks from several members: none is trusted, and none is waited for (SPEC J1, J2)."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Collected
from troth.protocol.wire.frames import Answer, ChunkShown, ChunkWanted, StateIndex, StateWanted, SyncShown
from troth.protocol.wire.messages import Malformed

T = TypeVar("T")
_INDEXES_AT_ONCE = 2  # members that are asked for the index at once
_CHUNKS_AT_ONCE = 4  # that one member is asked for before it has answered
_LATER = 2.0  # a chunk is late after so many times what the slowest of its donor took
_PATIENCE_IN_BULKS = 4  # time without a right chunk after which this attempt ends, in units of bulk


class KeptChunks(Protocol):
    """Chunks of a state that outlast this process; they are checked again whenever they are read."""

    @property
    def begun(self) -> Digest | None:
        """The state of which chunks are kept, if there is one."""
        ...

    def begin(self, digest: Digest, index: bytes) -> None:
        """Keep chunks of the state with this digest, and of no other."""
        ...

    def put(self, digest: Digest, number: int, chunk: memoryview) -> None: ...

    def index(self, digest: Digest) -> bytes | None:
        """The index of a state of which chunks are kept."""
        ...

    def chunks(self, digest: Digest, lengths: Mapping[int, int]) -> Iterable[tuple[int, memoryview]]:
        """Those of these chunks, given with their lengths, that may be here; some perhaps never came, or have changed since."""
        ...


class NoKeptChunks:
    """Nothing outlasts this process."""

    begun: Digest | None = None

    def begin(self, digest: Digest, index: bytes) -> None: ...

    def put(self, digest: Digest, number: int, chunk: memoryview) -> None: ...

    def index(self, digest: Digest) -> bytes | None:
        return None

    def chunks(self, digest: Digest, lengths: Mapping[int, int]) -> Iterable[tuple[int, memoryview]]:
        return ()


NO_KEPT_CHUNKS = NoKeptChunks()


@dataclass(frozen=True)
class Fetched:
    """How far a download is, in bytes."""

    here: int
    of: int
    donors: int = 0  # members that hand it out


@dataclass
class _Donor:
    """A member that has shown the right index."""

    asked: dict[int, float] = field(default_factory=dict)  # chunks that it was asked for, and when
    late: dict[int, float] = field(default_factory=dict)  # too long ago: others are asked, but these count too
    slower: float = 0.0  # seconds after which a chunk of its is late, if that is more than for others
    most: int = _CHUNKS_AT_ONCE
    rests_until: float = 0.0  # it said that it hands out no more for now, or it is late
    spent: bool = False  # it said so: in its next step it hands out more


class Download(Generic[T]):
    """One state or aggregate that is being fetched. What has come stays here, so another attempt goes on where this one ended;
    what is kept beside outlasts the process."""

    def __init__(
        self,
        digest: Digest,
        collect: Callable[[bytes], Collected[T] | Malformed],
        kept: KeptChunks = NO_KEPT_CHUNKS,
        told: Callable[[Fetched], None] = lambda _fetched: None,
    ) -> None:
        self.digest = digest
        self._collect = collect  # begins with the index, if it is the right one
        self._kept = kept
        self._told = told
        self._index = b""  # the right one
        self._bytes = 0  # of all chunks …
        self._here = 0  # … and of those that have come
        self.found = False  # a member showed the right index, in the last attempt
        self._collected: Collected[T] | None = None
        self._donors: dict[PeerId, _Donor] = {}
        self._liars: set[PeerId] = set()  # that sent a wrong index or chunk
        self._delay = 0.0  # after which a chunk is late
        self._pause = 0.0  # before somebody who hands out no more is asked again

    async def run(
        self, channel: BroadcastChannel, slot: Slot, backers: Sequence[PeerId], hear: Callable[[PeerId, Answer], None]
    ) -> T | None:
        """Fetch from these members, the first ones first; None if they have handed out nothing new for too long. Other answers
        go to `hear`."""
        delta, bulk = channel.pacing.bounds.delta, channel.pacing.bounds.bulk
        self.recall()
        if self._collected is not None and not self._collected.missing:
            return self._collected.state()
        self._donors, self._delay, self._pause, self.found = {}, 2 * delta + bulk, delta, False
        unasked = deque(peer for peer in backers if peer not in self._liars)
        asks_again = until = channel.now()
        while unasked or channel.now() < until:
            now = channel.now()
            # Those asked first may be gone, or slow, or have handed out what they may; and several are faster than one.
            if unasked and (now >= asks_again or self._all_rest(now)):
                some = [unasked.popleft() for _ in range(min(_INDEXES_AT_ONCE, len(unasked)))]
                channel.outlet.send_each(slot, some, StateWanted(self.digest))
                asks_again = now + (delta if self._donors else self._delay)
                until = now + 2 * delta + _PATIENCE_IN_BULKS * bulk
            for donor, number in self._wanted(now):
                channel.outlet.send(donor, slot, ChunkWanted(self.digest, number))
            wake = min(until, asks_again) if unasked else until
            heard = await channel.hear_outside(min(wake, self._next_deadline(now, wake)))
            if heard is None:
                continue
            sender, frame = heard
            if isinstance(frame, SyncShown):
                self._ask_again(sender)
            if not isinstance(frame, StateIndex | ChunkShown):
                hear(sender, frame)
            elif sender in backers and self._take(sender, frame, channel.now()):
                until = channel.now() + 2 * delta + _PATIENCE_IN_BULKS * bulk
            if self._collected is not None and not self._collected.missing:
                return self._collected.state()
        return None

    @property
    def missing(self) -> int | None:
        """Bytes that are still to come; None if that is not known."""
        return None if self._collected is None else self._bytes - self._here

    def recall(self) -> None:
        """Take what was kept of an earlier process's download. Each chunk is checked as if a stranger had sent it."""
        raw = self._kept.index(self.digest) if self._collected is None else None
        collected = None if raw is None else self._collect(raw)
        if raw is None or collected is None or isinstance(collected, Malformed):
            return
        self._begin(raw, collected)
        wanted = {number: collected.length(number) for number in sorted(collected.missing)}
        for number, chunk in self._kept.chunks(self.digest, wanted):
            self._here += len(chunk) if collected.put(number, chunk) else 0

    def _begin(self, index: bytes, collected: Collected[T]) -> None:
        self._index, self._collected = index, collected
        self._bytes, self._here = sum(map(collected.length, collected.missing)), 0

    def _take(self, sender: PeerId, frame: StateIndex | ChunkShown, now: float) -> bool:
        """Take an answer; tell whether it brought this peer nearer to the state."""
        if sender in self._liars or frame.digest != self.digest:
            return False
        if isinstance(frame, StateIndex):
            return self._take_index(sender, frame)
        donor = self._donors.get(sender)
        asked = None if donor is None else donor.asked.pop(frame.number, donor.late.pop(frame.number, None))
        if donor is None or self._collected is None or asked is None:
            return False  # nobody asked for it
        donor.slower = max(donor.slower, _LATER * (now - asked))
        if not len(frame.blob):
            donor.rests_until, donor.spent = now + self._pause, True
            return False
        missing = frame.number in self._collected.missing
        if not self._collected.put(frame.number, frame.blob):
            self._drop(sender)
            return False
        if missing:
            self._kept.put(self.digest, frame.number, frame.blob)
            self._here += len(frame.blob)
            self._told(Fetched(self._here, self._bytes, len(self._donors)))
        return missing

    def _take_index(self, sender: PeerId, frame: StateIndex) -> bool:
        if sender in self._donors:
            return False
        first = self._collected is None
        if first or frame.index != self._index:
            collected = self._collect(frame.index)
            if isinstance(collected, Malformed):
                self._drop(sender)
                return False
            if first:
                self._begin(frame.index, collected)
                self._kept.begin(self.digest, frame.index)
        self._donors[sender], self.found = _Donor(), True
        return first

    def _ask_again(self, sender: PeerId) -> None:
        """Ask a member again that has handed out all that it may in a step: it shows its records at the beginning of the next."""
        donor = self._donors.get(sender)
        if donor is not None and donor.spent:
            donor.rests_until, donor.spent = 0.0, False

    def _drop(self, liar: PeerId) -> None:
        self._liars.add(liar)
        self._donors.pop(liar, None)

    def _all_rest(self, now: float) -> bool:
        """Whether nobody hands out anything for now."""
        return bool(self._donors) and all(donor.rests_until > now for donor in self._donors.values())

    def _due(self, donor: _Donor) -> float:
        """Seconds after which a chunk is late. A slow link is not a silent donor, or every chunk on it would be asked for again;
        but a donor that chokes has taught only itself."""
        return max(self._delay, donor.slower)

    def _next_deadline(self, now: float, latest: float) -> float:
        """When a chunk is late, or somebody may be asked again."""
        donors = self._donors.values()
        late = min((when + self._due(donor) for donor in donors for when in donor.asked.values()), default=latest)
        return min([late, *(donor.rests_until for donor in donors if donor.rests_until > now)])

    def _wanted(self, now: float) -> list[tuple[PeerId, int]]:
        """Chunks to ask for, and whom. One that is late is asked of others; when every chunk is asked for, idle members are
        asked for those that others have not sent yet."""
        if self._collected is None:
            return []
        for donor in self._donors.values():
            late = [number for number, when in donor.asked.items() if when + self._due(donor) <= now]
            donor.late |= {number: donor.asked.pop(number) for number in late}
            if late:
                donor.most, donor.rests_until, donor.spent = 1, now + self._delay, False
        able = {p: d for p, d in self._donors.items() if len(d.asked) < d.most and d.rests_until <= now}
        if not able:  # as after most frames
            return []
        under_way = {number for donor in self._donors.values() for number in donor.asked}
        free = deque(sorted(set(self._collected.missing) - under_way))
        spare = deque(sorted(under_way))
        wanted = []
        for peer, donor in able.items():
            while len(donor.asked) < donor.most and (free or spare):
                number = free.popleft() if free else spare.popleft()
                if number not in donor.asked:
                    donor.asked[number] = now
                    wanted.append((peer, number))
        return wanted
