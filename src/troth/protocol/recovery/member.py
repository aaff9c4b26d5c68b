"""Coming back after a power cut or a broken line (SPEC B1–B8): catch up, look on for two steps, knock, be a member again.

One voice is enough, since nothing is believed: records are followed from what this peer knew itself, each signed by a quorum of
the members before it, and the state has the digest in the last of them.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Generic, TypeVar

import msgspec

from troth.crypto import Digest, Identity, PeerId, Signature, Slot, signed_bytes
from troth.protocol.broadcast.catch_up_server import MOST_AHEAD
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.signed_slots import SignedBeforeError
from troth.protocol.core.channel import Entry
from troth.protocol.core.errors import CannotGoOnError, LeftOutError, StalledError
from troth.protocol.core.records import Returned, StepRecord, decode_record, encode_record, right_signers
from troth.protocol.core.rejoin import request_bytes
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import Roster, scales_after
from troth.protocol.core.run import Run
from troth.protocol.core.state import LastRecord, Outcome, Peer, State
from troth.protocol.recovery.restart import Restart, tip_of
from troth.protocol.recovery.restart_quorum import proven
from troth.protocol.step.closing import close_run
from troth.protocol.step.step import run_step
from troth.protocol.wire.frames import (
    MOST_CERTIFIED_RECORDS,
    Busy,
    CertifiedRecord,
    Outside,
    RejoinRequest,
    RestartCertificate,
    StateShown,
    StateWanted,
    SyncShown,
    SyncWanted,
    Waiting,
)
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")
_OBSERVING = 20  # steps that somebody may look on: two are enough, if its line is quick and nothing goes wrong
_ASKING = 400  # times that everyone is asked
_PATIENCE = 2  # times the least delta, before asking again
_STATE_IN_BULKS = 4  # a state may be three times the model, and two send it
_MOST_WAIT = 30.0


class RemovedError(CannotGoOnError):
    """Banned or expelled: there is no way back but the door."""


class ForkedError(CannotGoOnError):
    """The others hold another history, and a quorum signed it: people have to find out how (SPEC B2)."""


@dataclass(frozen=True)
class Followed:
    """Where the records lead."""

    records: tuple[StepRecord, ...]
    roster: Roster

    @property
    def step(self) -> int:
        """That comes next."""
        return self.records[-1].step + 1

    @property
    def tip(self) -> bytes:
        return encode_record(self.records[-1])


def follow(
    run: Run, known: State[T], model: Digest, certified: Sequence[CertifiedRecord], tools: Primitives
) -> Followed | None:
    """The records that go on from this state and its model, if each follows on the one before and a quorum of its members
    signed it. Of a step that was made again there may be two: what follows on the other one leads elsewhere (SPEC B5)."""
    records: list[StepRecord] = []
    incarnation = known.incarnation
    roster, scales, seeds, roles = known.roster, known.scales, known.earlier_randomness, known.randomness
    for signed in certified:
        try:
            record = decode_record(signed.record)
        except msgspec.MsgspecError:
            return None
        here = (known.step + len(records), roster.members, model, seeds, scales.tau, scales.updates + record.updated)
        said = (record.step, record.members, record.state_before, record.seed_randomness, record.tau, record.updates)
        if here != said or record.incarnation < incarnation or not has_quorum(run, signed, record, roster, tools):
            return None
        records.append(record)
        incarnation = record.incarnation
        roster, scales = roster.after(record), scales_after(scales, record, roster, run)
        model, seeds, roles = Digest(record.state_after), roles, Digest(record.randomness)
    return Followed(tuple(records), roster) if records else None


def has_quorum(run: Run, signed: CertifiedRecord, record: StepRecord, roster: Roster, tools: Primitives) -> bool:
    """Whether a quorum of these members signed it (SPEC U2)."""
    signatures = {PeerId(peer): Signature(signature) for peer, signature in signed.signatures.items()}
    return len(right_signers(run.id, record.step, signed.record, roster.members, signatures, tools)) >= roster.quorum


def state_after(run: Run, state: State[T], followed: Followed, training: T, tools: Primitives) -> State[T]:
    """Everything in common at the start of the next step; what is kept for audits comes from looking on."""
    scales, roster = state.scales, state.roster
    for record in followed.records:
        before_last, scales, roster = roster, scales_after(scales, record, roster, run), roster.after(record)
    last = followed.records[-1]
    before = followed.records[-2].randomness if len(followed.records) > 1 else state.randomness
    return State(
        step=last.step + 1,
        roster=followed.roster,
        training=training,
        randomness=Digest(last.randomness),
        earlier_randomness=Digest(before),
        scales=scales,
        pending_audits=PendingAudits.after(last),
        audit_records={},
        incarnation=last.incarnation,
        last=LastRecord.of(last, before_last, tools),
    )


def _record_of(signed: CertifiedRecord) -> StepRecord | None:
    try:
        return decode_record(signed.record)
    except msgspec.MsgspecError:
        return None


def _step_of(signed: CertifiedRecord) -> int:
    """Of one that was checked before."""
    return decode_record(signed.record).step


@dataclass(frozen=True)
class _Shown(Generic[T]):
    """Records that somebody showed, and that go on from a state of this peer's own."""

    known: State[T]
    followed: Followed
    certified: tuple[CertifiedRecord, ...]
    begun: RestartCertificate | None

    @property
    def order(self) -> tuple[int, int]:
        """The longest counts; of two as long, that of the later incarnation."""
        return self.followed.step, self.followed.records[-1].incarnation


@dataclass
class _Voices(Generic[T]):
    """What those say who are in a step."""

    said: dict[PeerId, _Shown[T]] = field(default_factory=dict)
    first: float | None = None  # when somebody spoke first

    def hear(self, sender: PeerId, shown: _Shown[T], now: float) -> None:
        self.said[sender] = shown
        self.first = now if self.first is None else self.first

    def newest(self, now: float, patience: float) -> _Shown[T] | None:
        """The longest that anyone shows, as soon as somebody honest has spoken, or must have: else liars who answer quickly
        would have this peer look on in a step that is long over (SPEC B7)."""
        if self.first is None:
            return None
        best = max(self.said.values(), key=lambda shown: shown.order)
        voices = self.said.keys() & set(best.followed.roster.members)
        return best if len(voices) > best.followed.roster.liars or now >= self.first + patience else None

    def tellers(self, best: _Shown[T]) -> list[PeerId]:
        """Whom to ask for the state: first those who showed just this."""
        return sorted(self.said, key=lambda peer: (self.said[peer].followed.tip != best.followed.tip, peer))

    def forget(self) -> None:
        self.said.clear()
        self.first = None


@dataclass(frozen=True)
class _Borrowed(Generic[T]):
    """Where a peer stood before it borrowed, once or several times."""

    state: State[T]
    lacks: Digest | None
    past: tuple[State[T], ...]
    certified: tuple[CertifiedRecord, ...]
    tips: frozenset[bytes]  # that it borrowed
    since: float  # the last time


@dataclass(frozen=True)
class _Observer:
    """Somebody who looks on."""

    member: PeerId  # who it was
    first: int  # in which step it began
    since: int  # from which step on it needs records


class Member(Generic[T]):
    """A peer from step to step; when the others have gone on without it, it comes back."""

    def __init__(
        self,
        peer: Peer[T],
        state: State[T],
        open_channel: Callable[[Identity], AgreedChannel],
        ends: int | None = None,
        certified: Sequence[CertifiedRecord] = (),
        lacks: Digest | None = None,
        past: Sequence[State[T]] = (),
        patience: float = _MOST_WAIT,
        restart_with: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.peer = replace(peer, certified=self._certified)
        self.state = state
        self._seat = peer.identity  # the key that the others know
        self._open_channel = open_channel  # that looks on
        self._ends = ends  # after so many updates
        self._certified_records: deque[CertifiedRecord] = deque(
            certified, maxlen=MOST_CERTIFIED_RECORDS
        )  # up to the last record
        self.lacks = lacks  # the model's digest, if all but the model is known
        self._patience = patience  # with members who are not there when the run is to begin anew
        self._restart_with = restart_with  # how many are enough for that, if people say so
        self._serving: AgreedChannel | None = None  # while this peer is a member
        self._observers: dict[PeerId, _Observer] = {}
        self.restart: Restart[T] | None = None  # with others in no step, while this peer is in none
        self.past: tuple[State[T], ...] = tuple(past)  # the states before the last two records, oldest first
        self._unsure: State[T] | None = None  # after a record that this peer could not prove, and threw away
        self._borrowed: _Borrowed[T] | None = (
            None  # where this peer stood before it took over a record whose model it lacks
        )
        self._hopeless: set[bytes] = set()  # records whose model nobody hands out
        self.write_down: Callable[[Sequence[CertifiedRecord]], None] = lambda _certified_records: (
            None
        )  # certified records
        self.threw_away: Callable[[StepRecord], None] = lambda _record: None  # one that nobody can prove

    async def take_part(self, channel: AgreedChannel) -> AsyncIterator[Outcome[T]]:
        """One step after another as a member. Raises `CannotGoOnError` when the others go on without this peer."""
        self._serving = channel
        self._set_roster(channel)
        while not self.over:
            outcome = await self._next_step()
            self._went(outcome)
            yield outcome
            if self.peer.me in outcome.record.absent:
                raise LeftOutError(f"the others went on without this peer in step {outcome.record.step}")
            if self.peer.me not in self.state.roster.members:
                how = "banned" if self.peer.me in outcome.record.banned else "expelled, since its line failed too often"
                raise RemovedError(f"this peer was {how}, in step {outcome.record.step}")
            self._set_roster(channel)
            self._admit(channel)

    async def come_back(self, successor: Identity, tries: int = 8) -> AsyncIterator[Outcome[T]]:
        """Look on until this peer is a member again, under its own key or the heir's; then go on as one."""
        for _ in range(tries):
            self._step_back()
            self._serving = None
            channel = self._open_channel(successor)
            self.peer = replace(self.peer, identity=successor, channel=channel, observing=True)
            restarted = await self._catch_up(channel)
            if self.over:
                return
            if successor.peer in self.state.roster.may_ask:
                self._seat = successor  # it was let in before, and missed it
            try:
                if not restarted:
                    async for outcome in self._observe(channel):
                        yield outcome
                channel.speak()
                self.peer, self._seat = replace(self.peer, observing=False), successor
                async for outcome in self.take_part(channel):
                    yield outcome
                return
            except (LeftOutError, StalledError, SignedBeforeError):
                continue  # it missed something: from the beginning
        raise LeftOutError("this peer did not find its way back")

    async def _observe(self, channel: AgreedChannel) -> AsyncIterator[Outcome[T]]:
        """Until it is a member, and has what audits of the last two steps need (SPEC B3, B4)."""
        looked = requested = 0
        while self.peer.me not in self.state.roster.members or len(self.state.audit_records) < 2:
            requested += self._request_rejoin(channel, min(1 << max(0, requested - 1), MOST_AHEAD))
            looked += 1
            if looked % (_OBSERVING // 2) == 0:
                self._ask(channel, self.state.roster.members, self.state.step)  # to look on for longer
            outcome = await self._next_step()
            self._went(outcome)
            yield outcome
            if self._seat.peer in self.state.roster.banned:
                raise RemovedError(f"this peer was banned in step {outcome.record.step}")

    @property
    def certified(self) -> tuple[CertifiedRecord, ...]:
        """The last records that this peer holds, and who signed them."""
        return tuple(self._certified_records)

    @property
    def over(self) -> bool:
        return self.state.closed and self.lacks is None

    async def linger(self, channel: AgreedChannel, seconds: float) -> None:
        """When it is over: for those who are still on their way."""
        self._set_roster(channel)
        until = channel.now() + seconds
        while channel.now() < until:
            await channel.hear_outside(min(until, channel.now() + channel.timeouts.delta))
            self._admit(channel)
            self._show(channel)

    async def _next_step(self) -> Outcome[T]:
        """After the last update, the step that closes the run (SPEC U4)."""
        over = self._ends is not None and self.state.scales.updates >= self._ends
        return await (close_run(self.peer, self.state) if over else run_step(self.peer, self.state))

    def _went(self, outcome: Outcome[T]) -> None:
        """A step has ended; the next one's Commits certify its record, or the closing step's own signatures (SPEC U2, U4)."""
        self.past, self.state = (*self.past[-1:], self.state), outcome.state
        last = outcome.state.last
        if last is not None and len(outcome.closing) >= last.quorum:  # else the run ends unclosed
            self._certified(outcome.record, outcome.closing)

    def _certified(self, record: StepRecord, signatures: Mapping[PeerId, Signature]) -> None:
        """From here on it can be shown to others, and is not made again while somebody honest who waits has it."""
        signed = CertifiedRecord(encode_record(record), {bytes(peer): bytes(said) for peer, said in signatures.items()})
        if not self._certified_records or self._certified_records[-1].record != signed.record:
            self._drop_certified(record.step)
            self._certified_records.append(signed)
            self.write_down([signed])
        if self._serving is not None:
            self._show(self._serving)

    def _step_back(self) -> None:
        """Out of a step, a peer stands where it can prove that the run was: before a record that is not certified."""
        last = self.state.last
        certified = last is None or (
            bool(self._certified_records) and self._certified_records[-1].record == encode_record(last.record)
        )
        if last is not None and not certified and self.past:
            self._unsure = self.state
            self.state, self.past = self.past[-1], self.past[:-1]
            model = Digest(last.record.state_before)
            self.lacks = None if self.peer.work.digest(self.state.training) == model else model
            self._drop_certified(self.state.step)
            self.threw_away(last.record)

    def _drop_certified(self, step: int) -> None:
        """Those of this step and later ones."""
        while self._certified_records and _step_of(self._certified_records[-1]) >= step:
            self._certified_records.pop()

    @property
    def earlier(self) -> State[T] | None:
        """The state before the last record."""
        return self.past[-1] if self.past else None

    # For others

    def _set_roster(self, channel: AgreedChannel) -> None:
        channel.catch_up.roster = self.state.roster

    def _admit(self, channel: AgreedChannel) -> None:
        """Between two steps: those who were gone and ask hear everything from here on, for some steps."""
        roster, step, oldest = self.state.roster, self.state.step, self._oldest_certified
        for member, asking in channel.catch_up.asking.items():
            if oldest <= asking.since <= step:
                older = [key for key, observer in self._observers.items() if observer.member == member]
                for key in older:
                    del self._observers[key]
                self._observers[asking.key] = _Observer(member, step, asking.since)
        self._observers = {
            peer: observer
            for peer, observer in sorted(self._observers.items())
            if step < observer.first + _OBSERVING
            and (observer.first == step or (observer.member in roster.may_ask and peer not in roster.members))
            and oldest <= observer.since
        }
        channel.catch_up.watch(self._observers.keys())

    def _show(self, channel: AgreedChannel) -> None:
        """To them the records that they lack: in a step as soon as the last one is certified, so that they stand where it
        began."""
        slot = Slot(self.peer.run.id, self.state.step, Phase.REJOIN)
        if not self._observers:
            channel.catch_up.show(slot, {}, None)
            return
        waits, certified, oldest = self.restart is not None, self.certified, self._oldest_certified
        shown = {
            peer: SyncShown(certified[max(0, observer.since - oldest) :], waits, channel.begun)
            for peer, observer in self._observers.items()
        }
        digest = self.peer.work.digest(self.state.training)
        raw = channel.catch_up.state(digest) or self.peer.work.pack(self.state.training)
        channel.catch_up.show(slot, shown, (digest, raw))

    @property
    def _oldest_certified(self) -> int:
        return _step_of(self._certified_records[0]) if self._certified_records else self.state.step

    # For oneself

    async def _catch_up(self, channel: AgreedChannel) -> bool:
        """Ask everyone what has happened, and take the longest history (SPEC B2). True if it turns out that nobody is in a
        step, and enough members to begin anew are here (SPEC B5)."""
        voices: _Voices[T] = _Voices()
        restart = self.restart = Restart(self.peer, channel, self._patience, self._restart_with)
        self._stand_in(restart, waits=self.lacks is None)
        asked = served = 0
        while asked < _ASKING or restart.has_enough:
            everyone, asked = self._enter(channel), asked + 1
            since = self.earlier if self.earlier is not None and not asked % 2 else self.state
            self._ask(channel, everyone, since.step)
            until = channel.now() + _PATIENCE * channel.bounds.delta
            while channel.now() < until:
                heard = await channel.hear_outside(min(until, restart.pause()))
                if restart.waits and served < asked:  # seldom: it may be much, and anyone may ask
                    served = asked
                    self._admit(channel)
                    self._show(channel)
                if heard is not None:
                    await self._hear(channel, restart, *heard, voices)
                if await self._goes_on(channel, voices):
                    self.restart = None
                    self._ask(channel, self.state.roster.members, self.state.step)  # it looks on from here
                    return False
                self._give_up_borrowing(channel, restart)
                if (incarnation := restart.begins()) is not None:
                    self.state, self.restart = self.state.restarted(incarnation), None
                    channel.observe_from(self.state.step)
                    return True
        raise LeftOutError("nobody says what has happened")

    def _enter(self, channel: AgreedChannel) -> list[PeerId]:
        everyone = {*self.peer.run.founders, *self.state.roster.members}
        channel.enter(Entry(frozenset(everyone)))
        self._set_roster(channel)
        return sorted(everyone)

    async def _hear(
        self, channel: AgreedChannel, restart: Restart[T], sender: PeerId, frame: Outside, voices: _Voices[T]
    ) -> None:
        if isinstance(frame, Waiting | Busy | RestartCertificate):
            restart.hear(sender, frame)
        if not isinstance(frame, SyncShown):
            return
        await self._complete(channel, restart)
        shown = self._shown(frame)
        if shown is None:
            return
        if frame.waits or sender in restart.waiting_at(shown.followed.step):  # it goes on with nothing
            voices.said.pop(sender, None)
            if shown.followed.tip not in self._hopeless:
                self._borrow(channel, restart, shown)
                voices.forget()
        else:
            voices.hear(sender, shown, channel.now())

    async def _goes_on(self, channel: AgreedChannel, voices: _Voices[T]) -> bool:
        """Whether this peer stands now where those are who go on."""
        best = voices.newest(channel.now(), channel.bounds.quiet_step)
        if best is None:
            return False
        channel.observe_from(best.followed.step)
        training = await self._fetch(channel, voices.tellers(best), Digest(best.followed.records[-1].state_after))
        if training is None:
            voices.forget()
            return False
        self._stand(best, training)
        self._make_own(best.known.step)
        begun = best.begun
        if begun is not None and begun.incarnation > self.state.incarnation and self._is_proved(begun, self.state):
            self.state = self.state.restarted(begun.incarnation)  # the step that goes on now was begun anew
        return True

    def _shown(self, frame: SyncShown) -> _Shown[T] | None:
        """What somebody shows, if it is all signed and goes on from what this peer knows: from its last record, or from the
        one before if the others made its last one again (SPEC B2)."""
        certified, earlier, tools = frame.certified, self.earlier, self.peer.tools
        if (
            earlier is not None
            and self._certified_records
            and certified
            and certified[0].record == self._certified_records[-1].record
        ):
            certified = certified[1:]
        first = _record_of(certified[0]) if certified else None
        if first is None:
            return None
        known = earlier if earlier is not None and first.step == earlier.step else self.state
        followed = follow(self.peer.run, known, self._model_of(known), certified, tools)
        if followed is None and first.step == known.step and (known is earlier or earlier is None):
            self._stop_if_forked(known, certified[0], first)
        if followed is None or (known is earlier and not self._is_superseded(first, frame.begun)):
            return None
        return _Shown(known, followed, certified, frame.begun)

    def _is_superseded(self, by: StepRecord, begun: RestartCertificate | None) -> bool:
        """Of two records of one step, the one of the later incarnation counts, with the proof that it began."""
        assert self.state.last is not None
        assert self.earlier is not None
        later = begun is not None and self.state.last.record.incarnation < by.incarnation == begun.incarnation
        return later and begun is not None and self._is_proved(begun, self.earlier)

    def _is_proved(self, begun: RestartCertificate, at: State[T]) -> bool:
        tip, roster = tip_of(self.peer.run, at, self._model_of(at)), at.roster
        return proven(begun, tip, roster.members, roster.quorum, self.peer.tools) is not None

    def _stop_if_forked(self, known: State[T], signed: CertifiedRecord, record: StepRecord) -> None:
        """What a quorum signed and does not go on from here is another history, and older than this peer's last record."""
        if has_quorum(self.peer.run, signed, record, known.roster, self.peer.tools):
            raise ForkedError(
                f"two histories: a quorum signed a record of step {record.step} (incarnation {record.incarnation}) that does "
                f"not go on from this peer's, whose last is of step {self.state.step - 1} (incarnation "
                f"{self.state.incarnation}); keep this folder, compare journals with the others, and agree which one counts"
            )

    def _model_of(self, known: State[T]) -> Digest:
        """The digest of the model that belongs to this state, also where the model itself is not here."""
        if known.last is not None:
            return Digest(known.last.record.state_after)
        if known is self.earlier and self.state.last is not None:
            return Digest(self.state.last.record.state_before)
        return self.lacks or self.peer.work.digest(known.training)

    def _stand(self, shown: _Shown[T], training: T) -> None:
        known, followed, run, tools = shown.known, shown.followed, self.peer.run, self.peer.tools
        before = Followed(followed.records[:-1], reduce(Roster.after, followed.records[:-1], known.roster))
        self._drop_certified(known.step)
        self._certified_records.extend(shown.certified)
        self.past = (state_after(run, known, before, known.training, tools) if before.records else known,)
        self.state = state_after(run, known, followed, training, tools)
        unsure = self._unsure
        if unsure is not None and unsure.last is not None and encode_record(unsure.last.record) == followed.tip:
            self.state = unsure  # others can prove it: with what this peer kept for audits

    def _make_own(self, since: int) -> None:
        """The records from this step on, and whatever was borrowed before them: the model is here, there is no way back."""
        first = since if self._borrowed is None else min(since, self._borrowed.state.step)
        self.lacks = self._borrowed = None
        self.write_down(self.certified[max(0, len(self._certified_records) - (self.state.step - first)) :])

    # To begin anew (SPEC B5, B6)

    def _borrow(self, channel: AgreedChannel, restart: Restart[T], shown: _Shown[T]) -> None:
        """From one who waits ahead: what the members signed is so, however few have it. The model is still to come, and until
        then this peer waits nowhere; if it never comes, everything is as before."""
        now = channel.now()
        before = self._borrowed or _Borrowed(self.state, self.lacks, self.past, self.certified, frozenset(), now)
        self._borrowed = replace(before, tips=before.tips | {shown.followed.tip}, since=now)
        self._stand(shown, self.state.training)
        self.lacks = Digest(shown.followed.records[-1].state_after)
        if self.peer.work.digest(self.state.training) == self.lacks:
            self._make_own(shown.known.step)
            self._stand_in(restart, waits=True)
            return
        channel.observe_from(self.state.step)
        self._stand_in(restart, waits=False)

    def _give_up_borrowing(self, channel: AgreedChannel, restart: Restart[T]) -> None:
        borrowed = self._borrowed
        if borrowed is None or self.lacks is None or channel.now() < borrowed.since + self._patience:
            return
        self.state, self.lacks, self.past, self._borrowed = borrowed.state, borrowed.lacks, borrowed.past, None
        self._certified_records.clear()
        self._certified_records.extend(borrowed.certified)
        self._hopeless |= borrowed.tips
        channel.observe_from(self.state.step)
        self._stand_in(restart, waits=self.lacks is None)

    def _stand_in(self, restart: Restart[T], *, waits: bool) -> None:
        unsure = self._unsure if self._unsure is not None and self._unsure.step == self.state.step + 1 else None
        restart.stand(self.state, waits=waits, unsure=None if unsure is None else unsure.roster)

    async def _complete(self, channel: AgreedChannel, restart: Restart[T]) -> None:
        """The model alone, from those who wait at the same place."""
        if self.lacks is None:
            return
        training = await self._fetch(channel, restart.waiting_at(self.state.step), self.lacks)
        if training is not None:
            self.state = replace(self.state, training=training)
            self._make_own(self.state.step)
            self._stand_in(restart, waits=True)

    def _ask(self, channel: AgreedChannel, peers: Iterable[PeerId], since: int) -> None:
        """What has happened since this step, and to be told from now on."""
        slot = Slot(self.peer.run.id, since, Phase.REJOIN)
        channel.send_each(slot, peers, SyncWanted(since, self._seat.peer, self._delegation(slot)))

    async def _fetch(self, channel: AgreedChannel, backers: Sequence[PeerId], digest: Digest) -> T | None:
        """The state with this digest, from the first who sends it: two are asked at a time, since it may be large."""
        if self.lacks is None and self.peer.work.digest(self.state.training) == digest:
            return self.state.training
        slot, bounds = Slot(self.peer.run.id, self.state.step, Phase.REJOIN), channel.bounds
        for first in range(0, len(backers), 2):
            channel.send_each(slot, backers[first : first + 2], StateWanted(digest))
            until = channel.now() + 2 * bounds.delta + _STATE_IN_BULKS * bounds.bulk
            while (heard := await channel.hear_outside(until)) is not None:
                sender, frame = heard
                if isinstance(frame, Waiting | Busy | RestartCertificate) and self.restart is not None:
                    self.restart.hear(sender, frame)
                if isinstance(frame, StateShown) and sender in backers:
                    training = self.peer.work.unpack(frame.state)
                    if not isinstance(training, Malformed) and self.peer.work.digest(training) == digest:
                        return training
        return None

    def _request_rejoin(self, channel: AgreedChannel, ahead: int) -> bool:
        """For the next step; and when that came too late, for more and more of those after it (SPEC B3)."""
        roster, seat, now = self.state.roster, self._seat, self.state
        since, back = roster.absent_since(seat.peer), Returned(seat.peer, self.peer.me)
        steps = [k for k in range(now.step + 1, now.step + 1 + ahead) if roster.may_return(back, k)]
        if since is None or not steps:
            return False
        for step in steps:
            slot = Slot(self.peer.run.id, step, Phase.REJOIN, incarnation=now.incarnation)
            signature = seat.sign(request_bytes(slot, seat.peer, self.peer.me, since))
            channel.send_each(slot, roster.members, RejoinRequest(seat.peer, signature))
        return True

    def _delegation(self, slot: Slot) -> Signature:
        return self._seat.sign(signed_bytes(slot, self._seat.peer, Digest(self.peer.me)))
