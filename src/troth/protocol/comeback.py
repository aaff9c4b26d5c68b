"""Coming back after a power cut or a broken line (SPEC B1–B4): catch up, look on for two steps, knock, be a member again.

Nothing that one peer says is believed: records are followed from what this peer knew itself, each signed by more than half of
the members before it; that the last one is the newest, more than half of its members say; the state has the digest in it.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Generic, TypeVar

import msgspec

from troth.crypto import Context, Digest, Identity, PeerId, Signature, signed_bytes
from troth.protocol.agreed import AgreedChannel
from troth.protocol.channel import Entry
from troth.protocol.closing import close_run
from troth.protocol.frames import (
    MOST_LINKS,
    Begun,
    Busy,
    Knock,
    Link,
    Outside,
    StateShown,
    StateWanted,
    SyncShown,
    SyncWanted,
    Waiting,
)
from troth.protocol.gate import MOST_AHEAD
from troth.protocol.journal import SignedBeforeError
from troth.protocol.meeting import Meeting
from troth.protocol.messages import Malformed, Phase
from troth.protocol.primitives import Primitives
from troth.protocol.records import StepRecord, decode_record, encode_record, right_signers
from troth.protocol.roles import Due
from troth.protocol.roster import STRIKE_STEPS, Roster, scales_after
from troth.protocol.run import Run
from troth.protocol.state import CannotGoOnError, LastRecord, LeftOutError, Outcome, Peer, StalledError, State
from troth.protocol.step import run_step

T = TypeVar("T")
_LOOKING = 20  # steps that somebody may look on: two are enough, if its line is quick and nothing goes wrong
_ASKING = 400  # times that everyone is asked
_PATIENCE = 2  # times the least delta, before asking again
_STATE_IN_BULKS = 4  # a state may be three times the model, and two send it
_MOST_WAIT = 30.0


class PutOutError(CannotGoOnError):
    """Banned or expelled: there is no way back but the door."""


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


def follow(run: Run, known: State[T], model: Digest, links: Sequence[Link], tools: Primitives) -> Followed | None:
    """The records that go on from this state and its model, if each follows on the one before and more than half of its
    members signed it. Of a step that was made again there are two: what follows on the other one leads elsewhere (SPEC B5)."""
    records: list[StepRecord] = []
    roster, scales, seeds, roles = known.roster, known.scales, known.earlier_randomness, known.randomness
    for link in links:
        try:
            record = decode_record(link.record)
        except msgspec.MsgspecError:
            return None
        here = (known.step + len(records), roster.members, model, seeds, scales.tau, scales.updates + record.updated)
        said = (record.step, record.members, record.state_before, record.seed_randomness, record.tau, record.updates)
        if here != said:
            return None
        signatures = {PeerId(peer): Signature(signature) for peer, signature in link.signatures.items()}
        if len(right_signers(run.id, record.step, link.record, roster.members, signatures, tools)) < roster.quorum:
            return None
        records.append(record)
        roster, scales = roster.after(record), scales_after(scales, record, roster, run)
        model, seeds, roles = Digest(record.state_after), roles, Digest(record.randomness)
    return Followed(tuple(records), roster) if records else None


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
        due=Due.after(last),
        kept={},
        incarnation=last.incarnation,
        last=LastRecord.of(last, before_last, tools),
    )


def _step_of(link: Link) -> int | None:
    try:
        return decode_record(link.record).step
    except msgspec.MsgspecError:
        return None


@dataclass(frozen=True)
class _Lent(Generic[T]):
    """Where a peer stood before it borrowed, once or several times."""

    state: State[T]
    lacks: Digest | None
    past: tuple[State[T], ...]
    links: tuple[Link, ...]
    tips: frozenset[bytes]  # that it borrowed
    since: float  # the last time


@dataclass(frozen=True)
class _Watcher:
    """Somebody who looks on."""

    member: PeerId  # who it was
    first: int  # in which step it began
    since: int  # from which step on it needs records


class Life(Generic[T]):
    """A peer from step to step; when the others have gone on without it, it comes back."""

    def __init__(
        self,
        peer: Peer[T],
        state: State[T],
        open_channel: Callable[[Identity], AgreedChannel],
        ends: int | None = None,
        calm: Sequence[int] = (0,),
        links: Sequence[Link] = (),
        lacks: Digest | None = None,
        past: Sequence[State[T]] = (),
        patience: float = _MOST_WAIT,
    ) -> None:
        self.peer = peer
        self.state = state
        self._seat = peer.identity  # the key that the others know
        self._open_channel = open_channel  # that looks on
        self._ends = ends  # after so many updates
        self._calm = calm  # how many steps to look on before knocking, by how often one came back lately
        self._links: deque[Link] = deque(links, maxlen=MOST_LINKS)  # up to the last record
        self.lacks = lacks  # the model's digest, if all but the model is known
        self._patience = patience  # with members who are not there when the run is to begin anew
        self._watching: dict[PeerId, _Watcher] = {}
        self.meeting: Meeting[T] | None = None  # with others in no step, while this peer is in none
        self.past: tuple[State[T], ...] = tuple(past)  # the states before the last two records, oldest first
        self._lent: _Lent[T] | None = None  # where this peer stood before it took over a record whose model it lacks
        self._hopeless: set[bytes] = set()  # records whose model nobody hands out
        self.write_down: Callable[[Sequence[Link]], None] = lambda _links: None  # certified records

    async def take_part(self, channel: AgreedChannel) -> AsyncIterator[Outcome[T]]:
        """One step after another as a member. Raises `CannotGoOnError` when the others go on without this peer."""
        self._open_gate(channel)
        while not self.over:
            outcome = await self._next_step()
            self._went(outcome)
            yield outcome
            if self.peer.me in outcome.record.absent:
                raise LeftOutError(f"the others went on without this peer in step {outcome.record.step}")
            if self.peer.me not in self.state.roster.members:
                how = "banned" if self.peer.me in outcome.record.banned else "expelled, since its line failed too often"
                raise PutOutError(f"this peer was {how}, in step {outcome.record.step}")
            self._open_gate(channel)
            self._serve(channel)

    async def come_back(self, heir: Identity, tries: int = 8) -> AsyncIterator[Outcome[T]]:
        """Look on until this peer is a member again, under its own key or the heir's; then go on as one."""
        for _ in range(tries):
            self._step_back()
            channel = self._open_channel(heir)
            self.peer = replace(self.peer, identity=heir, channel=channel, looks_on=True)
            anew = await self._catch_up(channel)
            if self.over:
                return
            if heir.peer in self.state.roster.may_ask:
                self._seat = heir  # it was let in before, and missed it
            try:
                if not anew:
                    async for outcome in self._look_on(channel):
                        yield outcome
                channel.speak()
                self.peer, self._seat = replace(self.peer, looks_on=False), heir
                async for outcome in self.take_part(channel):
                    yield outcome
                return
            except (LeftOutError, StalledError, SignedBeforeError):
                continue  # it missed something: from the beginning
        raise LeftOutError("this peer did not find its way back")

    async def _look_on(self, channel: AgreedChannel) -> AsyncIterator[Outcome[T]]:
        """Until it is a member, and has what audits of the last two steps need (SPEC B3, B4)."""
        looked, ahead, calm = 0, 1, self._calm_steps({self._seat.peer, self.peer.me})
        while self.peer.me not in self.state.roster.members or len(self.state.kept) < 2:
            if looked >= calm:
                self._knock(channel, ahead)
                ahead = min(2 * ahead, MOST_AHEAD)
            elif looked % (_LOOKING // 2) == 1:
                self._ask(channel, self.state.roster.members, self.state.step)  # to look on for longer
            looked += 1
            outcome = await self._next_step()
            self._went(outcome)
            yield outcome
            if self._seat.peer in self.state.roster.banned:
                raise PutOutError(f"this peer was banned in step {outcome.record.step}")

    def _calm_steps(self, mine: set[PeerId]) -> int:
        """Nobody may come back often: whose line failed again makes sure first that it is better now."""
        since = self.state.step - STRIKE_STEPS
        times = sum(peer in mine and when > since for when, peer in self.state.roster.returns)
        return self._calm[min(times, len(self._calm) - 1)]

    @property
    def links(self) -> tuple[Link, ...]:
        """The last records that this peer holds, and who signed them."""
        return tuple(self._links)

    @property
    def over(self) -> bool:
        return self.state.closed and self.lacks is None

    async def linger(self, channel: AgreedChannel, seconds: float) -> None:
        """When it is over: for those who are still on their way."""
        self._open_gate(channel)
        until = channel.now() + seconds
        while channel.now() < until:
            await channel.hear_outside(min(until, channel.now() + channel.pace.delta))
            self._serve(channel)

    async def _next_step(self) -> Outcome[T]:
        """After the last update, the step that closes the run (SPEC U4)."""
        over = self._ends is not None and self.state.scales.updates >= self._ends
        return await (close_run(self.peer, self.state) if over else run_step(self.peer, self.state))

    def _went(self, outcome: Outcome[T]) -> None:
        """A step has ended: its Commits certified the record before; its own is certified by the next (SPEC U2)."""
        if self.state.last is not None:
            self._certified(self.state.last.record, outcome.certificate)
        self.past, self.state = (*self.past[-1:], self.state), outcome.state
        if outcome.closing:
            self._certified(outcome.record, outcome.closing)

    def _certified(self, record: StepRecord, signatures: Mapping[PeerId, Signature]) -> None:
        link = Link(encode_record(record), {bytes(peer): bytes(said) for peer, said in signatures.items()})
        if not self._links or _step_of(self._links[-1]) != record.step:
            self._links.append(link)
            self.write_down([link])

    def _step_back(self) -> None:
        """Out of a step, a peer stands where it can prove that the run was: before a record that is not certified yet."""
        last = self.state.last
        certified = last is None or (bool(self._links) and _step_of(self._links[-1]) == last.record.step)
        if not certified and self.past:
            self.state, self.past = self.past[-1], self.past[:-1]

    @property
    def earlier(self) -> State[T] | None:
        """The state before the last record."""
        return self.past[-1] if self.past else None

    # For others

    def _open_gate(self, channel: AgreedChannel) -> None:
        channel.gate.may_knock = self.state.roster.may_ask

    def _serve(self, channel: AgreedChannel) -> None:
        """Those who were gone and ask get the records they lack, and look on for some steps."""
        roster, step, first = self.state.roster, self.state.step, self.state.step - len(self._links)
        for member, asking in channel.gate.asking.items():
            if first <= asking.since < step or (self.meeting is not None and asking.since == step):
                older = [key for key, watcher in self._watching.items() if watcher.member == member]
                for key in older:
                    del self._watching[key]
                self._watching[asking.key] = _Watcher(member, step, asking.since)
        self._watching = {
            peer: watcher
            for peer, watcher in sorted(self._watching.items())
            if step < watcher.first + _LOOKING
            and (watcher.first == step or (watcher.member in roster.may_ask and peer not in roster.members))
            and first <= watcher.since
        }
        waits = self.meeting is not None
        shown = {peer: SyncShown(tuple(self._links)[w.since - first :], waits) for peer, w in self._watching.items()}
        training = self.state.training
        digest = self.peer.work.digest(training)
        raw = (channel.gate.state(digest) or self.peer.work.pack(training)) if shown else b""
        channel.gate.show(Context(self.peer.run.id, step, Phase.KNOCK), shown, (digest, raw))

    # For oneself

    async def _catch_up(self, channel: AgreedChannel) -> bool:
        """Ask everyone what has happened, and believe more than half (SPEC B2). True if it turns out that nobody is in a step,
        and enough members to begin anew are here (SPEC B5)."""
        said: dict[PeerId, Followed] = {}
        meeting = self.meeting = Meeting(self.peer, channel, self._patience)
        meeting.stand(self.state, waits=self.lacks is None)
        asked = served = 0
        while asked < _ASKING or meeting.has_majority:
            everyone, asked = self._enter(channel), asked + 1
            since = self.earlier if self.earlier is not None and not asked % 2 else self.state
            self._ask(channel, everyone, since.step)
            until = channel.now() + _PATIENCE * channel.bounds.delta
            while channel.now() < until:
                heard = await channel.hear_outside(min(until, meeting.pause()))
                if meeting.waits and served < asked:  # seldom: it may be much, and anyone may ask
                    served = asked
                    self._serve(channel)
                if heard is not None and await self._hear(channel, meeting, *heard, said):
                    self.meeting = None
                    self._ask(channel, self.state.roster.members, self.state.step)  # it looks on from here
                    return False
                self._give_up_borrowing(channel, meeting)
                if (incarnation := meeting.begins()) is not None:
                    self.state, self.meeting = self.state.anew(incarnation), None
                    channel.look_on_from(self.state.step)
                    return True
        raise LeftOutError("nobody says what has happened")

    def _enter(self, channel: AgreedChannel) -> list[PeerId]:
        everyone = {*self.peer.run.founders, *self.state.roster.members}
        channel.enter(Entry(frozenset(everyone)))
        self._open_gate(channel)
        return sorted(everyone)

    async def _hear(
        self,
        channel: AgreedChannel,
        meeting: Meeting[T],
        sender: PeerId,
        frame: Outside,
        said: dict[PeerId, Followed],
    ) -> bool:
        """Whether this peer stands now where those are who go on."""
        if isinstance(frame, Waiting | Busy | Begun):
            meeting.hear(sender, frame)
        if not isinstance(frame, SyncShown):
            return False
        await self._complete(channel, meeting)
        known = self._known_before(frame.links)
        followed = follow(self.peer.run, known, self._model_of(known), frame.links, self.peer.tools)
        if followed is None or sender not in followed.roster.members:
            return False
        waiting = {*meeting.waiting_at(followed.step), *([sender] if frame.waits else [])}  # these go on with nothing
        if sender in waiting:
            if known is self.state and followed.tip not in self._hopeless:
                self._borrow(channel, meeting, followed, frame.links)
            return False
        said[sender] = followed
        alike = {peer for peer, others in said.items() if others.tip == followed.tip}
        backers = sorted(alike & set(followed.roster.members) - waiting)
        if len(backers) < followed.roster.quorum:
            return False
        channel.look_on_from(followed.step)
        training = await self._fetch(channel, backers, Digest(followed.records[-1].state_after))
        if training is None:
            return False
        self._stand(known, followed, frame.links, training)
        self._make_own(known.step)
        return True

    def _known_before(self, links: Sequence[Link]) -> State[T]:
        """The state that these records may follow on: of this peer's own last record there may be another by now (SPEC B5)."""
        earlier = self.earlier
        if earlier is not None and links and _step_of(links[0]) == earlier.step:
            return earlier
        return self.state

    def _model_of(self, known: State[T]) -> Digest:
        """The digest of the model that belongs to this state, also where the model itself is not here."""
        if self._links:
            last = decode_record(self._links[-1].record)
            return Digest(last.state_after if known is self.state else last.state_before)
        return self.lacks or self.peer.work.digest(known.training)

    def _stand(self, known: State[T], followed: Followed, links: Sequence[Link], training: T) -> None:
        before = reduce(Roster.after, followed.records[:-1], known.roster)
        earlier = Followed(followed.records[:-1], before)
        if known is self.earlier and self._links:
            self._links.pop()  # there is another by now
        self._links.extend(links)
        run, tools = self.peer.run, self.peer.tools
        self.past = (state_after(run, known, earlier, known.training, tools) if earlier.records else known,)
        self.state = state_after(run, known, followed, training, tools)

    def _make_own(self, since: int) -> None:
        """The records from this step on, and whatever was borrowed before them: the model is here, there is no way back."""
        first = since if self._lent is None else min(since, self._lent.state.step)
        self.lacks = self._lent = None
        self.write_down(self.links[max(0, len(self._links) - (self.state.step - first)) :])

    # To begin anew (SPEC B5)

    def _borrow(self, channel: AgreedChannel, meeting: Meeting[T], followed: Followed, links: Sequence[Link]) -> None:
        """From one who waits ahead: what the members signed is so, however few have it. The model is still to come, and until
        then this peer waits nowhere; if it never comes, everything is as before."""
        now = channel.now()
        before = self._lent or _Lent(self.state, self.lacks, self.past, self.links, frozenset(), now)
        self._lent = replace(before, tips=before.tips | {followed.tip}, since=now)
        self._stand(self.state, followed, links, self.state.training)
        self.lacks = Digest(followed.records[-1].state_after)
        channel.look_on_from(self.state.step)
        meeting.stand(self.state, waits=False)

    def _give_up_borrowing(self, channel: AgreedChannel, meeting: Meeting[T]) -> None:
        lent = self._lent
        if lent is None or self.lacks is None or channel.now() < lent.since + self._patience:
            return
        self.state, self.lacks, self.past, self._lent = lent.state, lent.lacks, lent.past, None
        self._links.clear()
        self._links.extend(lent.links)
        self._hopeless |= lent.tips
        channel.look_on_from(self.state.step)
        meeting.stand(self.state, waits=self.lacks is None)

    async def _complete(self, channel: AgreedChannel, meeting: Meeting[T]) -> None:
        """The model alone, from those who wait at the same place."""
        if self.lacks is None:
            return
        training = await self._fetch(channel, meeting.waiting_at(self.state.step), self.lacks)
        if training is not None:
            self.state = replace(self.state, training=training)
            self._make_own(self.state.step)
            meeting.stand(self.state, waits=True)

    def _ask(self, channel: AgreedChannel, peers: Iterable[PeerId], since: int) -> None:
        """What has happened since this step, and to be told from now on."""
        place = Context(self.peer.run.id, since, Phase.KNOCK)
        channel.send_each(place, peers, SyncWanted(since, self._seat.peer, self._testament(place)))

    async def _fetch(self, channel: AgreedChannel, backers: Sequence[PeerId], digest: Digest) -> T | None:
        """The state with this digest, from the first who sends it: two are asked at a time, since it may be large."""
        if self.lacks is None and self.peer.work.digest(self.state.training) == digest:
            return self.state.training
        place, bounds = Context(self.peer.run.id, self.state.step, Phase.KNOCK), channel.bounds
        for first in range(0, len(backers), 2):
            channel.send_each(place, backers[first : first + 2], StateWanted(digest))
            until = channel.now() + 2 * bounds.delta + _STATE_IN_BULKS * bounds.bulk
            while (heard := await channel.hear_outside(until)) is not None:
                sender, frame = heard
                if isinstance(frame, Waiting | Busy | Begun) and self.meeting is not None:
                    self.meeting.hear(sender, frame)
                if isinstance(frame, StateShown) and sender in backers:
                    training = self.peer.work.unpack(frame.state)
                    if not isinstance(training, Malformed) and self.peer.work.digest(training) == digest:
                        return training
        return None

    def _knock(self, channel: AgreedChannel, ahead: int) -> None:
        """For the next step; and when that came too late, for more and more of those after it (SPEC B3)."""
        for step in range(self.state.step + 1, self.state.step + 1 + ahead):
            place = Context(self.peer.run.id, step, Phase.KNOCK)
            channel.send_each(place, self.state.roster.members, Knock(self._seat.peer, self._testament(place)))

    def _testament(self, place: Context) -> Signature:
        return self._seat.sign(signed_bytes(place, self._seat.peer, Digest(self.peer.me)))
