"""Catching up: a peer in no step follows the records to where the run goes on, or restarts (SPEC B2, B5–B7)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Collected
from troth.protocol.core.errors import LeftOutError
from troth.protocol.core.records import StepRecord
from troth.protocol.core.state import Peer
from troth.protocol.recovery.aggregates import CollectedAggregate, most_kept, updated, way_from
from troth.protocol.recovery.download import Download
from troth.protocol.recovery.history import record_of
from troth.protocol.recovery.ledger import Ledger, Shown
from troth.protocol.recovery.observers import Observers
from troth.protocol.recovery.requests import Requests
from troth.protocol.recovery.restart import Restart
from troth.protocol.wire.frames import Answer, Busy, RestartCertificate, SyncShown, Waiting
from troth.protocol.wire.messages import Malformed, Phase

T = TypeVar("T")
R = TypeVar("R")
_ASKING = 400  # times that everyone is asked
_PATIENCE = 2  # time before asking again, in units of the least delta


@dataclass
class Voices(Generic[T]):
    """Records shown by members that are in a step."""

    said: dict[PeerId, Shown[T]] = field(default_factory=dict)
    first: float | None = None  # time of the first answer

    def hear(self, sender: PeerId, shown: Shown[T], now: float) -> None:
        self.said[sender] = shown
        self.first = now if self.first is None else self.first

    def newest(self, now: float, patience: float) -> Shown[T] | None:
        """Longest history shown, as soon as an honest member has answered, or must have: else liars that answer first could make
        this peer observe a step that is long over (SPEC B7)."""
        if self.first is None:
            return None
        best = max(self.said.values(), key=lambda shown: shown.order)
        voices = self.said.keys() & set(best.followed.roster.members)
        return best if len(voices) > best.followed.roster.liars or now >= self.first + patience else None

    def tellers(self, best: Shown[T]) -> list[PeerId]:
        """Members to ask for the state: first those that showed this very history."""
        return sorted(self.said, key=lambda peer: (self.said[peer].followed.tip != best.followed.tip, peer))

    def forget(self) -> None:
        self.said.clear()
        self.first = None


class CatchUp(Generic[T]):
    """One attempt to catch up, over one channel."""

    def __init__(
        self,
        peer: Peer[T],
        requests: Requests,
        ledger: Ledger[T],
        observers: Observers[T],
        channel: BroadcastChannel,
        restart: Restart[T],
        patience: float,
    ) -> None:
        self._peer = peer
        self._requests = requests
        self._ledger = ledger
        self._observers = observers
        self._channel = channel
        self._restart = restart
        self._patience = patience  # seconds to wait for missing members before a restart
        self._voices: Voices[T] = Voices()
        self._downloads: dict[Digest, Download[Any]] = {}  # the last one, if it is not complete

    async def run(self) -> bool:
        """Ask everyone for records, and adopt the longest history. True if the run restarts instead: nobody is in a step, and
        enough members wait (SPEC B5)."""
        channel, ledger, restart = self._channel, self._ledger, self._restart
        self._wait_in_restart()
        asked = served = 0
        while asked < _ASKING or restart.has_enough:
            everyone, asked = self._stand_outside(), asked + 1
            since = ledger.earlier if ledger.earlier is not None and not asked % 2 else ledger.state
            self._requests.ask(channel, everyone, since.step)
            until = channel.listener.now() + _PATIENCE * channel.pacing.bounds.delta
            while channel.listener.now() < until:
                heard = await channel.listener.hear_outside(min(until, restart.pause()))
                if restart.waits and served < asked:  # once per round: answers may be large, and anyone may ask
                    served = asked
                    self._observers.admit(channel)
                    self._observers.show(channel, self._peer, waits=True)
                if heard is not None:
                    await self._hear(*heard)
                if await self._goes_on():
                    self._requests.ask(channel, ledger.state.roster.members, ledger.state.step)  # to observe from here
                    return False
                self._give_up_borrowing()
                if (incarnation := restart.begins()) is not None:
                    ledger.restart(incarnation)
                    channel.position.observe_from(ledger.state.step)
                    return True
        raise LeftOutError("no member showed records that continue this peer's")

    def _stand_outside(self) -> list[PeerId]:
        roster = self._ledger.state.roster
        everyone = {*self._peer.run.founders, *roster.members}
        self._channel.stand_outside(frozenset(everyone))
        self._channel.catch_up.roster = roster
        return sorted(everyone)

    async def _hear(self, sender: PeerId, frame: Answer) -> None:
        if isinstance(frame, Waiting | Busy | RestartCertificate):
            self._restart.hear(sender, frame)
        if not isinstance(frame, SyncShown):
            return
        await self._complete()
        shown = self._ledger.examine(frame)
        if shown is None:
            return
        if frame.waits or sender in self._restart.waiting_at(shown.followed.step):  # the sender is in no step
            self._voices.said.pop(sender, None)
            if not self._ledger.is_hopeless(shown):
                self._borrow(shown)
                self._voices.forget()
        else:
            self._voices.hear(sender, shown, self._channel.listener.now())

    async def _goes_on(self) -> bool:
        """Adopt the newest history of members that are in a step, with its model; return whether that was possible."""
        channel, voices = self._channel, self._voices
        best = voices.newest(channel.listener.now(), channel.pacing.bounds.quiet_step)
        if best is None:
            return False
        channel.position.observe_from(best.followed.step)
        last = best.followed.records[-1]
        if not last.content and self._way(best.followed.records) is None:
            return False  # nobody can tell whether a model is the one: one of the next records names its content [U5]
        training = await self._reach(voices.tellers(best), Digest(last.state_after), best.followed.records)
        if training is None:
            voices.forget()
            return False
        self._ledger.adopt(best, training)
        return True

    # Restart (SPEC B5, B6)

    def _wait_in_restart(self) -> None:
        """Wait for a restart from this state, unless the model is still to come."""
        ledger = self._ledger
        self._restart.stand(ledger.state, waits=ledger.lacks is None, unsure=ledger.unproved_roster)

    def _borrow(self, shown: Shown[T]) -> None:
        if not self._ledger.borrow(shown, self._channel.listener.now()):
            self._channel.position.observe_from(self._ledger.state.step)
        self._wait_in_restart()

    def _give_up_borrowing(self) -> None:
        if self._ledger.give_up_borrowing(self._channel.listener.now(), self._patience):
            self._channel.position.observe_from(self._ledger.state.step)
            self._wait_in_restart()

    async def _complete(self) -> None:
        """Fetch the model that is still lacking, from members that wait at the same step."""
        ledger = self._ledger
        if ledger.lacks is None:
            return
        records = [record for signed in ledger.certified if (record := record_of(signed)) is not None]
        training = await self._reach(self._restart.waiting_at(ledger.state.step), ledger.lacks, records)
        if training is not None:
            ledger.complete(training)
            self._wait_in_restart()

    # The model that records lead to (SPEC J1, J2)

    async def _reach(self, backers: Sequence[PeerId], digest: Digest, records: Sequence[StepRecord]) -> T | None:
        """The model with this digest, to which these records lead, with the help of these members: it is here already, is
        fetched by its content, or made again from one that is here."""
        state, work = self._ledger.state, self._peer.work
        if self._ledger.lacks is None and state.model == digest:
            return state.training
        if not records or records[-1].content:
            return await self._fetch(backers, digest, partial(work.collect, digest=digest))
        way = self._way(records)
        return None if way is None else await self._replay(backers, *way)

    def _way(self, records: Sequence[StepRecord]) -> tuple[T, Sequence[StepRecord]] | None:
        """A model that is here and the records that lead on from it, if members keep the aggregates of all of them."""
        ledger = self._ledger
        way = way_from({state.model: state.training for state in (*ledger.past, ledger.state)}, records)
        return way if way is not None and len(way[1]) <= most_kept(self._peer.run.parameters.size) else None

    async def _replay(self, backers: Sequence[PeerId], training: T, records: Sequence[StepRecord]) -> T | None:
        """Make these updates, each from its aggregate. A content on the way shows whether this peer's memory failed."""
        peer, size = self._peer, self._peer.run.parameters.size
        for record in records:
            if record.updated:
                collect = partial(CollectedAggregate.of, record, size)
                aggregate_D = await self._fetch(backers, Digest(record.aggregates), collect)
                if aggregate_D is None:
                    return None
                training = updated(peer.work, peer.tools, training, record, aggregate_D)
            if record.content and peer.work.digest(training) != record.state_after:
                return None
        return training

    async def _fetch(
        self, backers: Sequence[PeerId], digest: Digest, collect: Callable[[bytes], Collected[R] | Malformed]
    ) -> R | None:
        """Fetch what has this digest, in chunks from several of these members; what has come is kept for another attempt."""
        download = self._downloads.pop(digest, None) or Download(digest, collect)
        slot = Slot(self._peer.run.id, self._ledger.state.step, Phase.REJOIN)
        found: R | None = await download.run(self._channel, slot, backers, self._hear_meanwhile)
        if found is None:
            self._downloads = {digest: download}
        return found

    def _hear_meanwhile(self, sender: PeerId, frame: Answer) -> None:
        if isinstance(frame, Waiting | Busy | RestartCertificate):
            self._restart.hear(sender, frame)
