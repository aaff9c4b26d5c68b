"""A member's service to observers: for some steps they hear every decision, and get the records that they lack (SPEC B2)."""

from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.outside.catch_up_server import Served
from troth.protocol.core.state import Peer
from troth.protocol.recovery.aggregates import KeptAggregates
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.wire.frames import SyncShown
from troth.protocol.wire.messages import Phase

T = TypeVar("T")
_RECORDS = 64  # that a stranger gets at once
OBSERVING = 20  # steps that a peer may observe (SPEC B7): two are enough, if its link is quick and nothing goes wrong


@dataclass(frozen=True)
class _Observer:
    member: PeerId  # old key of its seat
    first: int  # step that it observes
    since: int  # first step whose record it needs


class Observers(Generic[T]):
    """Peers that hear every decision from this member."""

    def __init__(self, ledger: Ledger[T], size: int) -> None:
        self._ledger = ledger
        self._aggregates = KeptAggregates(size)
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
        channel.catch_up.watch(self._observers.keys())

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

    def show(self, channel: BroadcastChannel, peer: Peer[T], *, waits: bool) -> None:
        """Send observers the records that they lack: in a step, as soon as the last record is certified, so that they stand
        where the step began."""
        state, certified, oldest = self._ledger.state, self._ledger.certified, self._ledger.oldest
        slot, states = Slot(peer.run.id, state.step, Phase.REJOIN), (*self._ledger.past, state)
        self._aggregates.add(states)
        self._show_strangers(channel, slot, waits=waits)
        if not self._observers:
            channel.catch_up.forget_states()
            return
        begun = channel.signed_slots.begun
        shown = {
            key: SyncShown(certified[max(0, observer.since - oldest) :], waits, begun)
            for key, observer in self._observers.items()
        }
        if not state.content or self._ledger.lacks is not None:
            channel.catch_up.show(slot, shown, self._aggregates.served(states))  # nobody could check the model [U5]
            return
        work, training = peer.work, state.training
        served = Served(partial(work.index, training), partial(work.chunk, training))
        model = state.model, served, work.length(training)
        channel.catch_up.show(slot, shown, self._aggregates.served(states), model)
