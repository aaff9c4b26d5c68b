"""Catching up: a peer in no step follows the records to where the run goes on, or restarts (SPEC B2, B5–B7)."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.records import StepRecord
from troth.protocol.core.run import LeftOutError
from troth.protocol.core.state import Peer
from troth.protocol.history import record_of
from troth.protocol.recovery.ledger import Ledger, Shown
from troth.protocol.recovery.models import Downloads, Models
from troth.protocol.recovery.requests import OBSERVING, Observers, Requests
from troth.protocol.recovery.restart import Restart
from troth.protocol.wire.frames import Answer, Busy, RestartCertificate, SyncShown, Waiting

T = TypeVar("T")
_ASKING = 400  # times that everyone is asked
_PATIENCE = 2  # time before asking again, in units of the least delta
_FOLLOWS = 16  # steps that a peer may be behind when it has the model: it makes up for them as an observer


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
        """Members to ask for the state: first those that showed this very history, last those that have shown none yet."""
        told = sorted(self.said, key=lambda peer: (self.said[peer].followed.tip != best.followed.tip, peer))
        return [*told, *(peer for peer in best.followed.roster.members if peer not in self.said)]

    def forget(self) -> None:
        self.said.clear()
        self.first = None


@dataclass(eq=False)
class CatchUp(Generic[T]):
    """One attempt to catch up, over one channel."""

    _peer: Peer[T]
    _requests: Requests
    _ledger: Ledger[T]
    _observers: Observers[T]
    _channel: BroadcastChannel
    _restart: Restart[T]
    _downloads: Downloads[T]
    _patience: float  # seconds to wait for missing members before a restart
    _voices: Voices[T] = field(default_factory=Voices)
    _meanwhile: dict[PeerId, SyncShown] = field(default_factory=dict)  # shown during a download; not checked yet
    _first: int = 0  # the first step whose frames are kept for this peer

    def __post_init__(self) -> None:
        self._models = Models(self._peer, self._ledger, self._channel, self._downloads, self._hear_meanwhile)
        self._asked = self._ledger.state.step  # step of the others, as far as known, when it last asked to observe

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
            until = channel.now() + _PATIENCE * channel.pacing.bounds.delta
            while channel.now() < until:
                heard = await channel.hear_outside(min(until, restart.pause()))
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
            self._voices.hear(sender, shown, self._channel.now())

    async def _goes_on(self) -> bool:
        """Adopt the newest history of members that are in a step, with its model; return whether that was possible."""
        channel, voices = self._channel, self._voices
        best = voices.newest(channel.now(), channel.pacing.bounds.quiet_step)
        if best is None:
            return False
        self._observe_from(best.followed.step)
        records = self._records(best)
        if self._models.way(records) is None:
            return False  # nobody can tell whether a model is the one: one of the next records names its content [U5]
        training = await self._models.reach(voices.tellers(best), Digest(records[-1].state_after), records)
        if training is None or best.followed.step < self._first:  # the others are far ahead: on from where it is
            voices.forget()
            self._hear_what_came()
            return False
        self._ledger.adopt(best, training)
        self._downloads.forget()
        return True

    def _records(self, best: Shown[T]) -> list[StepRecord]:
        """Records up to the end of this history, without a gap: with those before this peer's own state, if its model, or one
        that it has begun to fetch, is of an earlier step."""
        own = [] if self._ledger.lacks is None and not self._downloads.models else self._ledger.records
        return [*(record for record in own if record.step < best.known.step), *best.followed.records]

    def _observe_from(self, step: int) -> None:
        self._first = step
        self._channel.position.observe_from(step)

    # During a download

    def _hear_meanwhile(self, sender: PeerId, frame: Answer) -> None:
        if isinstance(frame, Waiting | Busy | RestartCertificate):
            self._restart.hear(sender, frame)
        if not isinstance(frame, SyncShown) or frame.waits or not frame.certified:
            return
        if sender in self._ledger.state.roster.members:
            self._meanwhile[sender] = frame
        step = self._others_at()
        if step >= self._first + _FOLLOWS:
            self._observe_from(step)  # frames of earlier steps would fill the memory that these need
        if step >= self._asked + OBSERVING // 2:
            self._asked = step
            self._requests.ask(self._channel, sorted(self._ledger.state.roster.members), self._ledger.state.step)

    def _others_at(self) -> int:
        """The step that an honest member is at, by the records that members have shown: `L` of them may have made theirs up."""
        tips = [record_of(frame.certified[-1]) for frame in self._meanwhile.values()]
        steps = sorted((tip.step + 1 for tip in tips if tip is not None), reverse=True)
        liars = self._ledger.state.roster.liars
        return steps[liars] if len(steps) > liars else 0

    def _hear_what_came(self) -> None:
        """Examine the records that came during a download. Those that several members showed alike are checked once."""
        now, checked = self._channel.now(), dict[tuple[int, tuple[bytes, ...]], Shown[T] | None]()
        for sender, frame in self._meanwhile.items():
            begun = -1 if frame.begun is None else frame.begun.incarnation
            key = begun, tuple(signed.record for signed in frame.certified)
            if key not in checked or checked[key] is None:
                checked[key] = self._ledger.examine(frame)
            if (shown := checked[key]) is not None:
                self._voices.hear(sender, shown, now)
        self._meanwhile = {}

    # Restart (SPEC B5, B6)

    def _wait_in_restart(self) -> None:
        """Wait for a restart from this state, unless the model is still to come."""
        ledger = self._ledger
        self._restart.stand(ledger.state, waits=ledger.lacks is None, unsure=ledger.unproved_roster)

    def _borrow(self, shown: Shown[T]) -> None:
        if not self._ledger.borrow(shown, self._channel.now()):
            self._channel.position.observe_from(self._ledger.state.step)
        self._wait_in_restart()

    def _give_up_borrowing(self) -> None:
        if self._ledger.give_up_borrowing(self._channel.now(), self._patience):
            self._channel.position.observe_from(self._ledger.state.step)
            self._wait_in_restart()

    async def _complete(self) -> None:
        """Fetch the model that is still lacking, from members that wait at the same step."""
        ledger = self._ledger
        if ledger.lacks is None:
            return
        training = await self._models.reach(self._restart.waiting_at(ledger.state.step), ledger.lacks, ledger.records)
        if training is not None:
            ledger.complete(training)
            self._downloads.forget()
            self._wait_in_restart()
