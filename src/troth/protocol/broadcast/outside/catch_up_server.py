"""A member's service to absent peers: requests for records, observers, and rejoin requests (SPEC B2, B3)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from troth.crypto import Digest, PeerId, Slot, signed_bytes
from troth.protocol.core.rejoin import is_request
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import (
    ChunkShown,
    ChunkWanted,
    Frame,
    RejoinRequest,
    StateIndex,
    StateWanted,
    SyncShown,
    SyncWanted,
)
from troth.protocol.wire.messages import Phase, SignedRejoin
from troth.protocol.wire.primitives import Primitives

MOST_AHEAD = 8  # steps ahead for which a rejoin request is taken: more than one for links slower than steps (SPEC B3)
_MOST_STATES = 16  # states kept for observers: a slow link takes longer than a quick step
_STATES_BYTES = 1 << 26  # most bytes of these; two states are kept in any case
_SERVED_BYTES = 1 << 25  # of chunks and indexes that an observer gets in a step …
_ALL_SERVED_BYTES = 1 << 26  # … and all observers together: more would hold up the step
_MOST_STRANGERS = 8  # that get records in a step


Asked = SyncWanted | StateWanted | ChunkWanted | RejoinRequest  # of a member, by peers that are out


@dataclass(frozen=True)
class Asking:
    """A peer's request for records."""

    key: PeerId  # of the peer now
    since: int  # first step whose record it needs


class Served:
    """A model or an aggregate that observers may ask for, chunk by chunk. Its index takes a read of all of it, so it is made when
    somebody asks."""

    def __init__(self, index: Callable[[], bytes], chunk: Callable[[int], memoryview | None]) -> None:
        self._index = index
        self.chunk = chunk

    @cached_property
    def index(self) -> bytes:
        return self._index()


class CatchUpServer:
    """Takes requests of absent peers, and serves observers. Each seat counts once, under whatever keys."""

    def __init__(self, send: Callable[[PeerId, Slot, Frame], None], tools: Primitives) -> None:
        self._send = send
        self._tools = tools
        self.roster = Roster(())  # of the step that this member is in, or of the next
        self.asking: dict[PeerId, Asking] = {}  # by the seat's old key
        self.strangers: dict[PeerId, Asking] = {}  # at the door: they get records, and no more
        self.observers: frozenset[PeerId] = frozenset()  # in this step
        self._states: dict[Digest, Served] = {}  # for observers: the model at the start of the last steps
        self._aggregates: Mapping[Digest, Served] = {}  # of the last steps
        self._served: Counter[PeerId] = Counter()  # bytes that observers got in this step
        self._rejoins: dict[int, dict[PeerId, SignedRejoin]] = defaultdict(dict)  # by step and the seat's old key

    def hear(self, sender: PeerId, slot: Slot, frame: Asked, step: int) -> None:
        """Take a request; `step` is the one that this member is in."""
        match frame:
            case SyncWanted():
                seated = frame.member in self.roster.may_ask
                crowded = len(self.strangers) >= _MOST_STRANGERS  # and then no signature is looked at
                if slot.step != frame.since or (crowded and not seated) or not self._signs_for(sender, slot, frame):
                    return
                if seated:
                    self.asking[PeerId(frame.member)] = Asking(sender, frame.since)
                else:
                    self.strangers[sender] = Asking(sender, frame.since)
            case StateWanted():
                self._show_index(sender, slot, Digest(frame.digest))
            case ChunkWanted():
                self._show_chunk(sender, slot, frame)
            case RejoinRequest():
                rejoin = SignedRejoin(frame.member, sender, frame.signature)
                if step < slot.step <= step + MOST_AHEAD and is_request(slot, rejoin, self.roster, self._tools):
                    self._rejoins[slot.step][PeerId(frame.member)] = rejoin

    def _signs_for(self, sender: PeerId, slot: Slot, frame: SyncWanted) -> bool:
        """Whether the seat's old key signed a delegation to the sender's key (SPEC B1). A stranger speaks for itself."""
        stranger = self.roster.door.probation and sender == frame.member
        if not (frame.member in self.roster.may_ask or stranger) or slot.phase != Phase.REJOIN:
            return False
        if not (0 <= slot.attempt < 1 << 16 and 0 <= slot.incarnation < 1 << 32):
            return False
        signed = signed_bytes(slot, PeerId(frame.member), Digest(sender))
        return self._tools.verify(PeerId(frame.member), signed, frame.signature)

    def _show_index(self, sender: PeerId, slot: Slot, digest: Digest) -> None:
        served = self._of(digest)
        if sender in self.observers and served is not None and not self._is_spent(sender):
            self._served[sender] += len(served.index)
            self._send(sender, slot, StateIndex(digest, served.index))

    def _show_chunk(self, sender: PeerId, slot: Slot, frame: ChunkWanted) -> None:
        """Send a chunk, within what serving may cost in a step; beyond it an empty one, so that others are asked."""
        served = self._of(Digest(frame.digest))
        if sender not in self.observers or served is None:
            return
        chunk = served.chunk(frame.number)
        if chunk is None:
            return
        spent = self._is_spent(sender)
        self._served[sender] += 0 if spent else len(chunk)
        self._send(sender, slot, ChunkShown(frame.digest, frame.number, memoryview(b"") if spent else chunk))

    def _of(self, digest: Digest) -> Served | None:
        return self._states.get(digest) or self._aggregates.get(digest)

    def _is_spent(self, sender: PeerId) -> bool:
        return self._served[sender] >= _SERVED_BYTES or self._served.total() >= _ALL_SERVED_BYTES

    @property
    def wanted(self) -> bool:
        """Whether a peer asks for records, or observes: it needs steps to come back."""
        return bool(self.asking or self.observers)

    def rejoins(self, step: int) -> list[SignedRejoin]:
        return [rejoin for _, rejoin in sorted(self._rejoins.get(step, {}).items())]

    def admits(self, peer: PeerId) -> bool:
        """Whether the peer observes or has requested to rejoin: it may be a member sooner than this peer knows."""
        return peer in self.observers or any(
            peer == rejoin.key for rejoins in self._rejoins.values() for rejoin in rejoins.values()
        )

    def watch(self, peers: Collection[PeerId]) -> None:
        """Set the observers, between two steps: these hear everything from here on."""
        self.asking.clear()
        self._served.clear()
        self.observers = frozenset(peers)

    def show(
        self,
        slot: Slot,
        shown: Mapping[PeerId, SyncShown],
        aggregates: Mapping[Digest, Served],
        state: tuple[Digest, Served, int] | None = None,
    ) -> None:
        """Send observers the records that they lack, as soon as the last one is certified; they may ask for the aggregates of
        the last steps, and for the model, where that record names its content; its length in bytes comes with it."""
        self._aggregates = aggregates
        if state is not None:
            self._keep_state(*state)
        for peer, frame in shown.items():
            self._send(peer, slot, frame)

    def _keep_state(self, digest: Digest, state: Served, length: int) -> None:
        if digest in self._states:  # in a member that waits it may stay the same for long
            return
        self._states = {**self._states, digest: state}
        most = max(2, min(_MOST_STATES, _STATES_BYTES // max(1, length)))
        while len(self._states) > most:
            del self._states[next(iter(self._states))]

    def forget_states(self) -> None:
        """Nobody observes any more."""
        self._states.clear()
        self._aggregates = {}

    def forget(self, step: int) -> None:
        for old in [old for old in self._rejoins if old < step]:
            del self._rejoins[old]
