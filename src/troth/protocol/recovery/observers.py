"""A member's service to observers: for some steps they hear every decision, and get the records that they lack (SPEC B2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.outside.catch_up_server import Archive, Served
from troth.protocol.core.run import Parameters
from troth.protocol.core.standing import Standing
from troth.protocol.core.state import Peer
from troth.protocol.history.record import step_of
from troth.protocol.recovery.aggregates import KeptAggregates
from troth.protocol.recovery.following import confirmed, shown_history, tip_bytes
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.wire.frames import MOST_CERTIFIED_RECORDS, CertifiedRecord, SyncShown, TipSigned
from troth.protocol.wire.messages import Phase

T = TypeVar("T")
_RECORDS = 64  # of those that it lacks that a stranger gets at once
Changed = Callable[[int], Sequence[CertifiedRecord]]
OBSERVING = 20  # steps that a peer may observe (SPEC B7): two are enough, if its link is quick and nothing goes wrong


@dataclass(frozen=True)
class _Observer:
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
        self._aggregates = KeptAggregates(parameters.size, parameters.content_every)
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
        standing = Standing(state.roster, state.scales, state.randomness, state.earlier_randomness) if tip else None
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
