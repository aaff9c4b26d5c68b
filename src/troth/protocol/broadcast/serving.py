"""A member's service to absent peers, observers and returners (SPEC B2, B3), and to strangers at the door (SPEC J4)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, ItemsView, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.core.door import best_tickets, has_work, ticket_hash
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import is_request
from troth.protocol.wire.frames import (
    ChunkShown,
    ChunkWanted,
    Frame,
    HistoryWanted,
    Knock,
    ProbeShown,
    RejoinRequest,
    StateIndex,
    StateWanted,
    SyncShown,
    SyncWanted,
    TicketShown,
    TipWanted,
)
from troth.protocol.wire.messages import Phase, Probe, SignedRejoin, Ticket
from troth.protocol.wire.primitives import Primitives

MOST_AHEAD = 8  # steps ahead for which a rejoin request is taken: more than one for links slower than steps (SPEC B3)
_MOST_STATES = 16  # states kept for observers: a slow link takes longer than a quick step
_STATES_BYTES = 1 << 26  # most bytes of these; two states are kept in any case
_MOST_FETCHED = 4  # states kept beside these, since an observer is fetching them …
_FETCHED_FOR = 16  # … for so many steps
_SERVED_BYTES = 1 << 23  # of chunks and indexes that an observer gets in a step; of a large model more, …
_SERVED_PER_NUMBER = 8  # … so that all members together hand out two aggregates in the time in which the run makes one
_INDEXES = 8  # that an observer gets in a step in any case: without one it cannot ask for chunks in the next
_OBSERVERS_AT_ONCE = 4  # what all observers together get, in units of that: more would hold up the step
_MOST_STRANGERS = 8  # that get records in a step
_MOST_ASKING = 8  # strangers at the door that are answered in a step
_MOST_REFUSED = 1024  # senders of wrong tickets that are remembered

V = TypeVar("V")
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


Archive = Callable[[Digest], Served | None]  # older aggregates by their digest, on disk


@dataclass
class _KeptState:
    """A state for observers."""

    served: Served
    step: int  # in which it was shown first
    fetching: set[PeerId] = field(default_factory=set)  # observers that last asked for this one


class CatchUpServer:
    """Takes requests of absent peers, and serves observers. Each seat counts once, under whatever keys."""

    def __init__(self, send: Callable[[PeerId, Slot, Frame], None], tools: Primitives, secret: bytes = b"") -> None:
        self._send = send
        self._tools = tools
        self.roster = Roster(())  # of the step that this member is in, or of the next
        self.asking: dict[PeerId, Asking] = {}  # by the seat's old key
        self.strangers = FewOfMany[Asking](_MOST_STRANGERS, secret)  # at the door: they get records, and no more
        self.observers: frozenset[PeerId] = frozenset()  # in this step
        self._states: dict[Digest, _KeptState] = {}  # for observers: the model at the start of the last steps
        self._aggregates: Mapping[Digest, Served] = {}  # of the last steps
        self._archive: Archive = lambda _aggregate: None
        self._most_served = _SERVED_BYTES  # to one observer in a step
        self._served: Counter[PeerId] = Counter()  # bytes that observers got in this step …
        self._indexes: Counter[PeerId] = Counter()  # that they got in this step
        self._served_before: frozenset[PeerId] = frozenset()  # … and those that asked in the last one
        self._rejoins: dict[int, dict[PeerId, SignedRejoin]] = defaultdict(dict)  # by step and the seat's old key

    def hear(self, sender: PeerId, slot: Slot, frame: Asked, step: int) -> None:
        """Take a request; `step` is the one that this member is in."""
        match frame:
            case SyncWanted():
                seated = frame.member in self.roster.may_ask
                drawn = sender not in self.strangers and self.strangers.admits(sender)
                heard = seated or drawn  # else no signature is looked at
                known = self.asking.get(PeerId(frame.member)) == Asking(sender, frame.since)
                if slot.step != frame.since or not heard or known or not self._signs_for(sender, slot, frame):
                    return
                if seated:
                    self.asking[PeerId(frame.member)] = Asking(sender, frame.since)
                else:
                    self.strangers.put(sender, Asking(sender, frame.since))
            case StateWanted():
                self._show_index(sender, slot, Digest(frame.digest))
            case ChunkWanted():
                self._show_chunk(sender, slot, frame)
            case RejoinRequest():
                rejoin = SignedRejoin(frame.member, sender, frame.signature, frame.accepted)
                if not step < slot.step <= step + MOST_AHEAD or rejoin in self._rejoins.get(slot.step, {}).values():
                    return
                if is_request(slot, rejoin, self.roster, self._tools):
                    self._rejoins[slot.step][PeerId(frame.member)] = rejoin

    def _signs_for(self, sender: PeerId, slot: Slot, frame: SyncWanted) -> bool:
        """Whether the seat's old key signed a delegation to the sender's key (SPEC B1). A stranger speaks for itself: its
        connection has proved the key."""
        if slot.phase != Phase.REJOIN:
            return False
        if frame.member not in self.roster.may_ask:
            return self.roster.door.probation > 0 and sender == frame.member
        if not (0 <= slot.attempt < 1 << 16 and 0 <= slot.incarnation < 1 << 32):
            return False
        signed = signed_bytes(slot, PeerId(frame.member), Digest(sender))
        return self._tools.verify(PeerId(frame.member), signed, frame.signature)

    def _show_index(self, sender: PeerId, slot: Slot, digest: Digest) -> None:
        served = self._of(sender, digest)
        if served is not None and (self._indexes[sender] < _INDEXES or not self._is_spent(sender)):
            self._indexes[sender] += 1
            self._served[sender] += len(served.index)
            self._send(sender, slot, StateIndex(digest, served.index))

    def _show_chunk(self, sender: PeerId, slot: Slot, frame: ChunkWanted) -> None:
        """Send a chunk, within what serving may cost in a step; beyond it an empty one, so that others are asked."""
        served = self._of(sender, Digest(frame.digest))
        if served is None:
            return
        chunk = memoryview(b"") if self._is_spent(sender) else served.chunk(frame.number)
        if chunk is None:
            return
        self._served[sender] += len(chunk)
        self._send(sender, slot, ChunkShown(frame.digest, frame.number, chunk))

    def _of(self, sender: PeerId, digest: Digest) -> Served | None:
        """What an observer may ask for by this digest. A state that it asks for is kept for a while (SPEC J1)."""
        if sender not in self.observers:
            return None
        kept = self._states.get(digest)
        if kept is None:
            return self._aggregates.get(digest) or self._archive(digest)
        if sender not in kept.fetching:
            for other in self._states.values():
                other.fetching.discard(sender)
            kept.fetching.add(sender)
        return kept.served

    def _is_spent(self, sender: PeerId) -> bool:
        """Whether serving this observer has cost enough in this step. Those that asked in the last step share alike, or some
        of them could be first in every step and leave nothing to others."""
        self._served[sender] += 0  # it asks, and has its share in the next step
        one = self._most_served
        most = _OBSERVERS_AT_ONCE * one
        share = min(one, most // len(self._served_before | {sender}))
        return self._served[sender] >= share or self._served.total() >= most

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

    def watch(self, peers: Collection[PeerId], size: int = 0) -> None:
        """Set the observers, between two steps: these hear everything from here on. `size` is that of the model, in numbers."""
        self.asking.clear()
        self._served_before = frozenset(self._served)
        self._served.clear()
        self._indexes.clear()
        self._most_served = max(_SERVED_BYTES, _SERVED_PER_NUMBER * size // max(1, len(self.roster.members)))
        self.observers = frozenset(peers)

    def show(
        self,
        slot: Slot,
        shown: Mapping[PeerId, SyncShown],
        aggregates: Mapping[Digest, Served],
        archive: Archive = lambda _aggregate: None,
        state: tuple[Digest, Served, int] | None = None,
    ) -> None:
        """Send observers the records that they lack, as soon as the last one is certified; they may ask for the aggregates of
        the last steps, and for the model, where that record names its content; its length in bytes comes with it."""
        self._aggregates, self._archive = aggregates, archive
        if state is not None:
            self._keep_state(*state, slot.step)
        for peer, frame in shown.items():
            self._send(peer, slot, frame)

    def _keep_state(self, digest: Digest, state: Served, length: int, step: int) -> None:
        """Keep the last ones, and for a while those that observers are fetching: else one whose download takes longer than some
        steps would begin anew for ever."""
        if digest in self._states:  # in a member that waits it may stay the same for long
            return
        states = {**self._states, digest: _KeptState(state, step)}
        most = max(2, min(_MOST_STATES, _STATES_BYTES // max(1, length)))
        last = list(states)[-most:]
        fetched = [d for d, one in states.items() if d not in last and one.fetching & self.observers]
        young = [d for d in fetched if step - states[d].step <= _FETCHED_FOR]
        kept = {*last, *young[-_MOST_FETCHED:]}
        self._states = {d: one for d, one in states.items() if d in kept}

    def forget_states(self) -> None:
        """Nobody observes any more."""
        self._states.clear()
        self._aggregates = {}

    def forget(self, step: int) -> None:
        for old in [old for old in self._rejoins if old < step]:
            del self._rejoins[old]


class Doorkeeper:
    """A member's ear at the door: the best tickets for the next draw, and one commitment of each candidate for this step and the
    next (SPEC J4, J5). Bounded, whoever knocks."""

    def __init__(self, tools: Primitives, secret: bytes = b"") -> None:
        self._tools = tools
        self._run = Digest(bytes(32))
        self._roster = Roster(())
        self._tickets: list[
            tuple[int, Ticket]
        ] = []  # by their hashes, the smallest first; their signatures were checked
        self._refused: set[PeerId] = (
            set()
        )  # senders of tickets with work in them that their keys did not sign, for this draw
        self.histories = FewOfMany[HistoryWanted](_MOST_ASKING, secret)  # asked for, by strangers
        self.tips = FewOfMany[TipWanted](_MOST_ASKING, secret)
        self._probes: dict[int, dict[PeerId, Probe]] = defaultdict(dict)  # by step and candidate

    def stand(self, run: Digest, roster: Roster) -> None:
        """Stand at the door of the step that this roster begins: tickets for another draw are worth nothing there."""
        if (run, roster.door.seed) != (self._run, self._roster.door.seed):
            self._tickets = []
            self._refused.clear()
        known = roster.known
        self._tickets = [one for one in self._tickets if one[1].key not in known]
        self._run, self._roster = run, roster

    def hear(self, sender: PeerId, slot: Slot, frame: Knock, step: int) -> None:
        """Take a frame; `step` is the one that this member is in."""
        if not self._roster.door.probation:
            return
        match frame:
            case HistoryWanted():
                self.histories.put(sender, frame)
            case TipWanted():
                self.tips.put(sender, frame)
            case TicketShown(ticket=ticket):
                if slot.run == self._run and sender not in self._refused:
                    self._hear_ticket(sender, ticket)
            case ProbeShown(probe=probe):
                if step <= slot.step <= step + 1 and sender == probe.key and sender in self._roster.door.keys:
                    self._probes[slot.step].setdefault(sender, probe)

    def _hear_ticket(self, sender: PeerId, ticket: Ticket) -> None:
        """Keep a ticket if it is among the best. Strangers may repeat themselves, and make tickets up, as often as they like: a
        hash shows the work, another one the rank; a signature is looked at only if the ticket would be kept, and a sender has
        one wrong one in each draw [M4]."""
        run, door = self._run, self._roster.door
        if not has_work(run, door, ticket):
            return
        rank = ticket_hash(run, door.seed, ticket)
        others = [one for one in self._tickets if one[1].key != ticket.key]
        mine = [one for one in self._tickets if one[1].key == ticket.key]
        beaten = mine or others[door.slots - 1 :]  # one of these goes if it is kept
        if beaten and rank >= beaten[0][0]:
            return
        if best_tickets(run, door, [ticket], self._roster.known, self._tools):
            self._tickets = sorted([*others, (rank, ticket)], key=itemgetter(0))[: door.slots]
        elif len(self._refused) < _MOST_REFUSED:
            self._refused.add(sender)

    @property
    def tickets(self) -> list[Ticket]:
        return [ticket for _, ticket in self._tickets]

    def probes(self, step: int) -> list[Probe]:
        return list(self._probes.get(step, {}).values())

    def forget(self, step: int) -> None:
        for old in [old for old in self._probes if old < step]:
            del self._probes[old]


class FewOfMany(Generic[V]):
    """The wishes of a few that asked in a step: drawn by a hash that nobody else can compute, so to ask first, or often, gains
    nothing. The draw is another one once it is cleared."""

    def __init__(self, most: int, secret: bytes = b"") -> None:
        self._most = most
        self._secret = secret
        self._round = 0
        self._wants: dict[PeerId, V] = {}
        self._ranks: dict[PeerId, bytes] = {}  # of the same

    def admits(self, asker: PeerId) -> bool:
        """Whether it would be among them, as far as others have asked."""
        ranks = self._ranks
        return asker in ranks or len(ranks) < self._most or self.rank(asker) < max(ranks.values())

    def put(self, asker: PeerId, wanted: V) -> None:
        """Note what it wants, if it is among them; the last one in the draw makes room."""
        if self.admits(asker):
            self._wants[asker], self._ranks[asker] = wanted, self.rank(asker)
            if len(self._wants) > self._most:
                last = max(self._ranks, key=self._ranks.__getitem__)
                del self._wants[last], self._ranks[last]

    def rank(self, asker: PeerId) -> bytes:
        """Its place in this draw: the smallest ones are answered."""
        return tagged_hash("troth/few/1", self._secret, self._round.to_bytes(8, "big"), asker)

    def items(self) -> ItemsView[PeerId, V]:
        return self._wants.items()

    def clear(self) -> None:
        self._wants.clear()
        self._ranks.clear()
        self._round += 1

    def __len__(self) -> int:
        return len(self._wants)

    def __contains__(self, asker: PeerId) -> bool:
        return asker in self._wants
