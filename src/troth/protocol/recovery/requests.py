"""Requests of absent peers and strangers for records and for a seat, and how a member answers them (SPEC B2, B3, J3, J4)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.serving import Archive, Served
from troth.protocol.core.door import Door, best_nonce, has_work, signed_ticket
from troth.protocol.core.records import Returned
from troth.protocol.core.run import CannotGoOnError, LeftOutError, Parameters, Run
from troth.protocol.core.state import Peer, State, signed_request
from troth.protocol.history import step_of
from troth.protocol.recovery.following import confirmed, shown_history, tip_bytes
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.recovery.models import KeptAggregates
from troth.protocol.wire.frames import (
    MOST_CERTIFIED_RECORDS,
    CertifiedRecord,
    RejoinRequest,
    SyncShown,
    SyncWanted,
    TicketShown,
    TipSigned,
)
from troth.protocol.wire.messages import Phase, Ticket

T = TypeVar("T")


@dataclass(frozen=True)
class Requests:
    """Sends the requests of one seat, signed with the key that the others know."""

    run: Run
    seat: Identity  # the key that the others know this peer by
    key: Identity  # of this peer now: the same, or a successor key

    def ask(self, channel: BroadcastChannel, peers: Iterable[PeerId], since: int) -> None:
        """Ask for the records since this step, and to observe from now on."""
        slot = Slot(self.run.id, since, Phase.REJOIN)
        delegation = self.seat.sign(signed_bytes(slot, self.seat.peer, Digest(self.key.peer)))
        channel.outlet.send_each(slot, peers, SyncWanted(since, self.seat.peer, delegation))

    def rejoin(self, channel: BroadcastChannel, state: State[T], ahead: int) -> bool:
        """Request to rejoin after each of the next `ahead` steps that allow it; return whether there is one (SPEC B3)."""
        roster, seat = state.roster, self.seat
        since, back = roster.absent_since(seat.peer), Returned(seat.peer, self.key.peer)
        steps = [k for k in range(state.step + 1, state.step + 1 + ahead) if roster.may_return(back, k)]
        if since is None or not steps:
            return False
        for step in steps:
            slot = Slot(self.run.id, step, Phase.REJOIN, incarnation=state.incarnation)
            signed = signed_request(slot, seat, self.key, since)
            request = RejoinRequest(signed.member, signed.signature, signed.accepted)
            channel.outlet.send_each(slot, roster.members, request)
        return True


# A stranger at the door: it follows the records and shows tickets, until it has a slot (SPEC J3, J4).


_PATIENCE = 2  # time before asking again, in units of the least delta
_ASKING = 400  # times that members are asked without an answer


class DoorClosedError(CannotGoOnError):
    """The run takes nobody in, or not this key."""


class Tickets:
    """The search for a ticket: the smaller its number, the better its chance."""

    def __init__(self, run: Digest, key: Identity, address: str) -> None:
        self._run = run
        self._key = key
        self._address = address
        self._nonce = 0
        self._seed: Digest | None = None
        self._best: tuple[Digest, Ticket] | None = None  # its hash, and the ticket

    def search(self, door: Door, hashes: int) -> Ticket | None:
        """The best ticket for this draw after so many more hashes; None if none has enough work in it yet."""
        if door.seed != self._seed:
            self._seed, self._best = door.seed, None
        nonces = range(self._nonce, self._nonce + hashes)
        self._nonce += hashes
        found, nonce = best_nonce(self._run, door.seed, self._key.peer, self._address, nonces)
        if self._best is None or found < self._best[0]:
            self._best = found, signed_ticket(self._run, door.seed, self._key, nonce, self._address)
        return self._best[1] if has_work(self._run, door, self._best[1]) else None


@dataclass(eq=False)
class Knocking(Generic[T]):
    """One stay before the door, over one channel."""

    _peer: Peer[T]
    _requests: Requests
    _ledger: Ledger[T]
    _channel: BroadcastChannel
    _address: str
    _hashes: int

    def __post_init__(self) -> None:
        self._tickets = Tickets(self._peer.run.id, self._peer.identity, self._address)

    async def run(self) -> None:
        """Follow the records until this peer is a candidate, or a member already. Raises if the run will not have it."""
        ledger, channel, me, unanswered = self._ledger, self._channel, self._peer.me, 0
        while me not in {*ledger.state.roster.door.keys, *ledger.state.roster.members}:
            roster = ledger.state.roster
            if ledger.over:
                raise DoorClosedError("the run is over: it ended before this peer had a place")
            if not roster.door.probation:
                raise DoorClosedError("this run takes in nobody but its founders")
            if me in roster.known:
                raise DoorClosedError("this key was banned or expelled, or is another's successor: come with a new one")
            if unanswered >= _ASKING:
                raise LeftOutError("no member showed records that continue this peer's")
            self._channel.stand_outside(frozenset({*self._peer.run.founders, *roster.members}))
            self._ask()
            until, unanswered = channel.now() + _PATIENCE * channel.pacing.bounds.delta, unanswered + 1
            while channel.now() < until:
                heard = await channel.hear_outside(until)
                shown = ledger.examine(heard[1]) if heard is not None and isinstance(heard[1], SyncShown) else None
                if shown is not None:
                    ledger.stand_at_tip(shown)
                    unanswered = 0
                    break

    def _ask(self) -> None:
        state, outlet = self._ledger.state, self._channel.outlet
        self._requests.ask(self._channel, state.roster.members, state.step)
        ticket = self._tickets.search(state.roster.door, self._hashes)
        if ticket is not None:
            slot = Slot(self._peer.run.id, state.step, Phase.REJOIN)
            outlet.send_each(slot, state.roster.members, TicketShown(ticket))


# A member's service to observers: for some steps they hear every decision, and get the records that they lack (SPEC B2).


_RECORDS = 64  # of those that it lacks that a stranger gets at once
Changed = Callable[[int], Sequence[CertifiedRecord]]
OBSERVING = 20  # steps that a peer may observe (SPEC B7): two are enough, if its link is quick and nothing goes wrong


@dataclass(frozen=True)
class _Observer:
    """A peer that observes, and what it needs."""

    member: PeerId  # old key of its seat
    first: int  # step that it observes
    since: int  # first step whose record it needs


def _from(certified: Sequence[CertifiedRecord], place: int) -> tuple[CertifiedRecord, ...]:
    """What goes into one answer: of a long pause there are more, and whoever follows these asks for the rest."""
    first = max(0, place)
    return tuple(certified[first : first + MOST_CERTIFIED_RECORDS])


class Observers(Generic[T]):
    """Peers that hear every decision from this member."""

    def __init__(self, ledger: Ledger[T], parameters: Parameters, changes: Changed, archive: Archive) -> None:
        self._ledger = ledger
        self._size = parameters.size  # D
        self._changes = changes  # records that changed the members, from a step on
        self._archive = archive
        self._aggregates = KeptAggregates(parameters)
        self._observers: dict[PeerId, _Observer] = {}

    def admit(self, channel: BroadcastChannel) -> None:
        """Admit absent peers that asked, between two steps: they observe from here on, for some steps."""
        state, oldest = self._ledger.state, self._ledger.oldest
        for member, asking in channel.catch_up.asking.items():
            if oldest <= asking.since <= state.step:
                older = [key for key, observer in self._observers.items() if observer.member == member]
                for key in older:
                    del self._observers[key]
                self._observers[asking.key] = _Observer(member, state.step, asking.since)
        self._observers = {
            peer: observer
            for peer, observer in sorted(self._observers.items())
            if state.step < observer.first + OBSERVING and oldest <= observer.since and self._is_absent(peer, observer)
        }
        channel.catch_up.watch(self._observers.keys(), self._size)

    def _is_absent(self, peer: PeerId, observer: _Observer) -> bool:
        state = self._ledger.state
        may = observer.member in state.roster.may_ask and peer not in state.roster.members
        return observer.first == state.step or may

    def _show_strangers(self, channel: BroadcastChannel, slot: Slot, *, waits: bool) -> None:
        """Send strangers at the door the records that they lack, some at a time (SPEC J3)."""
        certified, oldest = self._ledger.certified, self._ledger.oldest
        for key, asking in channel.catch_up.strangers.items():
            if asking.since >= oldest:
                first = asking.since - oldest
                shown = SyncShown(certified[first : first + _RECORDS], waits, channel.signed_slots.begun)
                channel.outlet.send(key, slot, shown)
        channel.catch_up.strangers.clear()

    def _answer_strangers(self, channel: BroadcastChannel, peer: Peer[T]) -> None:
        """Show strangers how the run came to where it is, and sign that it is here (SPEC J8)."""
        door, certified, state = channel.doorkeeper, self._ledger.certified, self._ledger.state
        tip = certified[-1] if certified and step_of(certified[-1]) == state.step - 1 else None
        standing = state.common if tip else None
        slot = Slot(peer.run.id, state.step, Phase.REJOIN)
        for key, asked in door.histories.items():
            changes = [one for one in self._changes(asked.since) if step_of(one) < state.step - 1]
            channel.outlet.send(key, slot, shown_history(changes, tip, standing))
        for key, wanted in door.tips.items():
            if not peer.observing and confirmed(certified, self._ledger.oldest, wanted, peer.tools):
                about = Slot(peer.run.id, wanted.step, Phase.REJOIN)
                signed = peer.identity.sign(tip_bytes(about, peer.me, wanted.nonce, Digest(wanted.digest)))
                channel.outlet.send(key, slot, TipSigned(wanted.nonce, signed))
        door.histories.clear()
        door.tips.clear()

    def show(self, channel: BroadcastChannel, peer: Peer[T], *, waits: bool) -> None:
        """Send observers the records that they lack: in a step, as soon as the last record is certified, so that they stand
        where the step began."""
        state, certified, oldest = self._ledger.state, self._ledger.certified, self._ledger.oldest
        slot, states = Slot(peer.run.id, state.step, Phase.REJOIN), (*self._ledger.past, state)
        self._aggregates.add(states)
        self._show_strangers(channel, slot, waits=waits)
        self._answer_strangers(channel, peer)
        if not self._observers:
            channel.catch_up.forget_states()
            return
        begun, aggregates = channel.signed_slots.begun, self._aggregates.served(states)
        shown = {
            key: SyncShown(_from(certified, observer.since - oldest), waits, begun)
            for key, observer in self._observers.items()
        }
        if not state.content or self._ledger.lacks is not None:
            channel.catch_up.show(slot, shown, aggregates, self._archive)  # nobody could check the model [U5]
            return
        work, training = peer.work, state.training
        served = Served(partial(work.index, training), partial(work.chunk, training))
        model = state.model, served, work.length(training)
        channel.catch_up.show(slot, shown, aggregates, self._archive, model)
