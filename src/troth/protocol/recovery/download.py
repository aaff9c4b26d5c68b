"""Fetching a state or an aggregate in chunks from several members: none is trusted, and none is waited for (SPEC J1, J2)."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Collected
from troth.protocol.wire.frames import Answer, ChunkShown, ChunkWanted, StateIndex, StateWanted
from troth.protocol.wire.messages import Malformed

T = TypeVar("T")
_INDEXES_AT_ONCE = 2  # members that are asked for the index at once
_CHUNKS_AT_ONCE = 4  # that one member is asked for before it has answered
_PATIENCE_IN_BULKS = 4  # time without a right chunk after which this attempt ends, in units of bulk


@dataclass
class _Donor:
    """A member that has shown the right index."""

    asked: dict[int, float] = field(default_factory=dict)  # chunks that it was asked for, and when that is too long ago
    most: int = _CHUNKS_AT_ONCE
    rests_until: float = 0.0  # it said that it hands out no more for now


class Download(Generic[T]):
    """One state or aggregate that is being fetched. What has come stays here, so another attempt goes on where this one ended."""

    def __init__(self, digest: Digest, collect: Callable[[bytes], Collected[T] | Malformed]) -> None:
        self.digest = digest
        self._collect = collect  # begins with the index, if it is the right one
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
        listener, delta, bulk = channel.listener, channel.pacing.bounds.delta, channel.pacing.bounds.bulk
        self._donors, self._delay, self._pause = {}, 2 * delta + bulk, delta
        unasked = deque(peer for peer in backers if peer not in self._liars)
        asks_again = until = listener.now()
        while unasked or listener.now() < until:
            now = listener.now()
            if unasked and now >= asks_again:  # those asked first may be gone, or slow, and several are faster than one
                some = [unasked.popleft() for _ in range(min(_INDEXES_AT_ONCE, len(unasked)))]
                channel.outlet.send_each(slot, some, StateWanted(self.digest))
                asks_again = now + (delta if self._donors else self._delay)
                until = now + 2 * delta + _PATIENCE_IN_BULKS * bulk
            for donor, number in self._wanted(now):
                channel.outlet.send(donor, slot, ChunkWanted(self.digest, number))
            wake = min(until, asks_again) if unasked else until
            heard = await listener.hear_outside(min(wake, self._next_deadline(now, wake)))
            if heard is None:
                continue
            sender, frame = heard
            if not isinstance(frame, StateIndex | ChunkShown):
                hear(sender, frame)
            elif sender in backers and self._take(sender, frame, listener.now()):
                until = listener.now() + 2 * delta + _PATIENCE_IN_BULKS * bulk
            if self._collected is not None and not self._collected.missing:
                return self._collected.state()
        return None

    def _take(self, sender: PeerId, frame: StateIndex | ChunkShown, now: float) -> bool:
        """Take an answer; tell whether it brought this peer nearer to the state."""
        if sender in self._liars or frame.digest != self.digest:
            return False
        if isinstance(frame, StateIndex):
            return self._take_index(sender, frame)
        donor = self._donors.get(sender)
        if donor is None or self._collected is None or donor.asked.pop(frame.number, None) is None:
            return False  # nobody asked for it
        if not len(frame.blob):
            donor.rests_until = now + self._pause
            return False
        missing = frame.number in self._collected.missing
        if not self._collected.put(frame.number, frame.blob):
            self._drop(sender)
            return False
        return missing

    def _take_index(self, sender: PeerId, frame: StateIndex) -> bool:
        if sender in self._donors:
            return False
        collected = self._collect(frame.index)
        if isinstance(collected, Malformed):
            self._drop(sender)
            return False
        self._donors[sender] = _Donor()
        first, self._collected = self._collected is None, self._collected or collected
        return first

    def _drop(self, liar: PeerId) -> None:
        self._liars.add(liar)
        self._donors.pop(liar, None)

    def _next_deadline(self, now: float, latest: float) -> float:
        """When a chunk is late, or somebody may be asked again."""
        donors = self._donors.values()
        late = min((when for donor in donors for when in donor.asked.values()), default=latest)
        return min([late, *(donor.rests_until for donor in donors if donor.rests_until > now)])

    def _wanted(self, now: float) -> list[tuple[PeerId, int]]:
        """Chunks to ask for, and whom. One that is late is asked of others; when every chunk is asked for, idle members are
        asked for those that others have not sent yet."""
        if self._collected is None:
            return []
        for donor in self._donors.values():
            late = [number for number, due in donor.asked.items() if due <= now]
            for number in late:
                del donor.asked[number]
            if late:
                donor.most, donor.rests_until = 1, now + self._delay
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
                    donor.asked[number] = now + self._delay
                    wanted.append((peer, number))
        return wanted
