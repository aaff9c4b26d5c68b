"""A member's way through the run: one step after another, and back into it after a crash or a broken link (SPEC B1–B8).

`take_part` is the happy path. It ends with the run, or with an exception: then `come_back` catches up, observes two steps,
requests to rejoin, and takes part again.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from troth.crypto import Digest, Identity, PeerId, Signature, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import SignedBeforeError
from troth.protocol.broadcast.serving import MOST_AHEAD, Archive
from troth.protocol.core.channel import Channel
from troth.protocol.core.door import probe_bytes
from troth.protocol.core.records import StepRecord
from troth.protocol.core.run import CannotGoOnError, LeftOutError, StalledError
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.recovery.catch_up import CatchUp
from troth.protocol.recovery.following import Following, Invitation
from troth.protocol.recovery.ledger import Known, Ledger
from troth.protocol.recovery.models import Downloads
from troth.protocol.recovery.requests import OBSERVING, Changed, Knocking, Observers, Requests
from troth.protocol.recovery.restart import Restart
from troth.protocol.step.attempt import StepContext, own_seed
from troth.protocol.step.closing import close_run
from troth.protocol.step.step import committed_parts, run_step
from troth.protocol.wire.frames import MOST_CERTIFIED_RECORDS, CertifiedRecord, ProbeShown
from troth.protocol.wire.messages import Phase, Probe

T = TypeVar("T")
_PATIENCE = 30.0
_HASHES = 1 << 16  # less than a second's work


class RemovedError(CannotGoOnError):
    """This peer was banned or expelled: it cannot come back."""


class LostFolderError(CannotGoOnError):
    """This peer has a seat, and does not know what it has signed: it has to come back under a successor key (SPEC B1)."""


class Member(Generic[T]):
    """One peer from step to step, and back into the run."""

    def __init__(
        self,
        peer: Peer[T],
        state: State[T],
        open_channel: Callable[[Identity], BroadcastChannel],  # opens a channel that observes
        ends: int | None = None,  # updates after which the run ends
        *,
        certified: Sequence[CertifiedRecord] = (),  # up to the state's last record
        lacks: Digest | None = None,  # digest of the model, if all but the model is known
        past: Sequence[State[T]] = (),  # before the last two records, oldest first
        patience: float = _PATIENCE,  # seconds to wait for missing members before a restart
        restart_with: Callable[[], int | None] = lambda: None,  # members enough for a restart, if the operator says so
        wrap: Callable[[BroadcastChannel, Identity], Channel] = lambda channel, _identity: channel,  # for steps
        on_certified: Callable[[Sequence[CertifiedRecord]], None] = lambda _certified: None,
        on_discarded: Callable[[StepRecord], None] = lambda _record: None,  # called with a record that nobody can prove
        changes: Changed | None = None,  # records that changed the members, from a step on; None: those held here
        on_followed: Callable[[Sequence[CertifiedRecord]], None] = lambda _changes: None,  # by a stranger
        on_candidate: Callable[[State[T], Digest], None] = lambda _state, _lacks: None,  # without the model
        downloads: Downloads[T] | None = None,
        archive: Archive = lambda _aggregate: None,  # older aggregates than those in memory
    ) -> None:
        self.peer = replace(peer, certified=self._certify)
        self._seat = peer.identity  # the key that the others know this peer by
        self._open_channel = open_channel
        self._wrap = wrap
        self._ends = ends
        self._patience = patience
        self._restart_with = restart_with
        self._on_followed = on_followed
        self._on_candidate = on_candidate
        self._downloads: Downloads[T] = downloads or Downloads()
        self._ledger = Ledger(peer, Known(state, certified, lacks, past), on_certified, on_discarded)
        self._observers = Observers(self._ledger, peer.run.parameters, changes or self._held_changes, archive)
        self._serving: BroadcastChannel | None = None  # channel to observers, while this peer is a member
        self.restart: Restart[T] | None = None  # while this peer is in no step

    # Standing

    @property
    def state(self) -> State[T]:
        return self._ledger.state

    @property
    def past(self) -> tuple[State[T], ...]:
        return self._ledger.past

    @property
    def certified(self) -> tuple[CertifiedRecord, ...]:
        return self._ledger.certified

    @property
    def lacks(self) -> Digest | None:
        return self._ledger.lacks

    @property
    def over(self) -> bool:
        return self._ledger.over

    @property
    def has_seat(self) -> bool:
        """Whether this peer is a member, or was one and may come back; a stranger is not, nor is a candidate."""
        roster = self.state.roster
        return self._seat.peer in roster.may_ask - roster.door.keys

    # The happy path

    async def take_part(self, channel: BroadcastChannel) -> AsyncIterator[Outcome[T]]:
        """Run one step after another as a member. Raises `CannotGoOnError` when the others go on without this peer."""
        self.peer = replace(self.peer, noticed=channel)
        self._serving = channel
        self._serve(channel)
        while not self.over:
            if self._ledger.rests:
                await self._rest(channel)
                self._observers.admit(channel)
            outcome = await self._next_step()
            yield outcome
            if self.peer.me in outcome.record.absent:
                raise LeftOutError(f"the others went on without this peer in step {outcome.record.step}")
            if self.peer.me not in self.state.roster.members:
                how = "banned" if self.peer.me in outcome.record.banned else "expelled, since its link failed too often"
                raise RemovedError(f"this peer was {how}, in step {outcome.record.step}")
            self._serve(channel)
            self._observers.admit(channel)

    async def _rest(self, channel: BroadcastChannel) -> None:
        """Let the time between two steps of a pause pass, and wait until somebody needs the next one (SPEC G3)."""
        commit = Slot(self.peer.run.id, self.state.step, Phase.COMMIT, incarnation=self.state.incarnation)
        roster = self.state.roster
        await channel.rest(commit, roster.members, roster.rest(channel.pacing.bounds.delta))

    async def _next_step(self) -> Outcome[T]:
        """Run a step or, after the last update, the closing step (SPEC U4). The next step's Commits certify its record, or the
        closing step's own signatures do (SPEC U2)."""
        if self.peer.record_keys is not None:  # the last step is on disk
            self.peer.record_keys.keep(self._ledger.record_keys_of(self.peer.me))
        over = self._ends is not None and self.state.scales.updates >= self._ends
        outcome = await (close_run(self.peer, self.state) if over else run_step(self.peer, self.state))
        self._ledger.advance(outcome)
        last = outcome.state.last
        if last is not None and len(outcome.closing) >= last.quorum:  # else the run ends unclosed
            self._certify(outcome.record, outcome.closing)
        return outcome

    def _certify(self, record: StepRecord, signatures: Mapping[PeerId, Signature]) -> None:
        self._ledger.certify(record, signatures)
        if self._serving is not None:
            self._observers.show(self._serving, self.peer, waits=self.restart is not None)

    def _serve(self, channel: BroadcastChannel) -> None:
        channel.catch_up.roster = self.state.roster
        channel.doorkeeper.stand(self.peer.run.id, self.state.roster)

    async def linger(self, channel: BroadcastChannel, seconds: float) -> None:
        """Serve peers that are still catching up, after the run is over."""
        self._serve(channel)
        until = channel.now() + seconds
        while channel.now() < until:
            await channel.hear_outside(min(until, channel.now() + channel.pacing.timeouts.delta))
            self._observers.admit(channel)
            self._observers.show(channel, self.peer, waits=self.restart is not None)

    # The way back

    async def come_back(self, successor: Identity, tries: int = 8) -> AsyncIterator[Outcome[T]]:
        """Catch up, observe until this peer is a member again, under its own key or a successor key, and take part."""
        for _ in range(tries):
            self._ledger.step_back()
            channel = self._listen(successor)
            restarted = await self._catch_up(channel)
            if self.over:
                return
            if successor.peer in self.state.roster.may_ask:
                self._seat = successor  # it was admitted before, and missed it
            try:
                async for outcome in self._enter(channel, observes=not restarted):
                    yield outcome
                return
            except (LeftOutError, StalledError, SignedBeforeError):
                continue  # it missed something, and catches up again
        raise LeftOutError("this peer did not find its way back")

    def _listen(self, key: Identity) -> BroadcastChannel:
        """Open a channel under this key, and only listen on it."""
        self._serving, channel = None, self._open_channel(key)
        outside = self._wrap(channel, key)
        self.peer = replace(self.peer, identity=key, channel=outside, noticed=channel, observing=True)
        return channel

    async def _enter(self, channel: BroadcastChannel, *, observes: bool) -> AsyncIterator[Outcome[T]]:
        """Observe until this peer is a member, and take part from then on."""
        if observes:
            async for outcome in self._observe(channel):
                yield outcome
        channel.speak()
        self.peer, self._seat = replace(self.peer, observing=False), self.peer.identity
        async for outcome in self.take_part(channel):
            yield outcome

    def _held_changes(self, since: int) -> Sequence[CertifiedRecord]:
        """Records that changed the members, as far as this peer holds them in memory."""
        held = zip(self._ledger.records, self._ledger.certified, strict=True)
        return [signed for record, signed in held if record.changes_roster and record.step >= since]

    # The way in

    async def join(
        self,
        address: str = "",
        hashes: int = _HASHES,
        tries: int = 8,
        invitation: Invitation | None = None,
        *,
        remembers: bool = True,
    ) -> AsyncIterator[Outcome[T]]:
        """Come in as a stranger: follow the run, win a slot, work on probation until this peer is a member, and take part.
        Whoever misses too many steps on probation starts over (SPEC J3–J7). `address` is where members will find it, `hashes`
        the work on its ticket between two answers, `remembers` whether it knows what it has signed in this run. Raises
        `LostFolderError` if it has a seat, and does not."""
        key = self.peer.identity
        for number in range(tries):
            channel = self._listen(key)
            if not number:
                await self._follow_from_the_founders(channel, invitation)
                if self.has_seat and not remembers:
                    raise LostFolderError("this peer has a seat, and its folder was lost")
            await Knocking(self.peer, self._requests, self._ledger, channel, address, hashes).run()
            if self.lacks is not None:
                self._on_candidate(self.state, self.lacks)
            try:
                await self._catch_up(channel)
                async for outcome in self._enter(channel, observes=True):
                    yield outcome
                return
            except (LeftOutError, StalledError, SignedBeforeError):
                if self.has_seat:
                    raise  # it is a member, and comes back as such
        raise LeftOutError("this peer did not find its way in")

    async def _follow_from_the_founders(self, channel: BroadcastChannel, invitation: Invitation | None) -> None:
        """Follow to where the run is. A stranger that was there before goes on from its own records, which may lead from a model
        that it has begun to fetch, unless they are so old that members may not keep those in between."""
        tip, known = await Following(self.peer, channel, invitation).run(), self._ledger.state
        if known.last is None or not 0 <= tip.record.step + 1 - known.step <= MOST_CERTIFIED_RECORDS // 2:
            self._on_followed(tip.changes.certified)
            self._ledger.begin_at(tip.state(known, self.peer.tools), tip.signed)

    async def _probe(self, channel: BroadcastChannel) -> None:
        """Commit to a gradient of this step as a candidate, if it has signed nothing for it yet (SPEC J5)."""
        peer, context = self.peer, StepContext.at(self.peer, self.state)
        slot = context.slot(Phase.COMMIT)
        gradient_D = await peer.work.gradient(self.state.training, own_seed(context), self.state.step)
        root = committed_parts(context, gradient_D).root
        channel.signed_slots.claim(slot)
        probe = Probe(peer.me, root, peer.identity.sign(probe_bytes(slot, peer.me, root, peer.tools)))
        channel.outlet.send_each(slot, self.state.roster.members, ProbeShown(probe))

    async def _catch_up(self, channel: BroadcastChannel) -> bool:
        restart = self.restart = Restart(self.peer, channel, self._patience, self._restart_with)
        parts = self.peer, self._requests, self._ledger, self._observers, channel, restart
        restarted = await CatchUp(*parts, self._downloads, self._patience).run()
        self.restart = None
        return restarted

    async def _observe(self, channel: BroadcastChannel) -> AsyncIterator[Outcome[T]]:
        """Observe steps until this peer is a member and has the audit records of the last two (SPEC B3, B4)."""
        observed = requested = 0
        while not self.over and (self.peer.me not in self.state.roster.members or not self._has_last_audit_records):
            requested += self._requests.rejoin(channel, self.state, min(1 << max(0, requested - 1), MOST_AHEAD))
            observed += 1
            if observed % (OBSERVING // 2) == 0:
                self._requests.ask(channel, self.state.roster.members, self.state.step)  # to observe for longer
            if self._ledger.rests and observed > 1:  # the first step that it observes has begun
                await self._rest(channel)
            if self.peer.me in self.state.roster.door.keys:
                await self._probe(channel)
            outcome = await self._next_step()
            yield outcome
            if self._seat.peer in self.state.roster.banned:
                raise RemovedError(f"this peer was banned in step {outcome.record.step}")
            if self._seat.peer not in self.state.roster.may_ask:
                raise LeftOutError(f"this peer lost its slot in step {outcome.record.step}")

    @property
    def _has_last_audit_records(self) -> bool:
        """Whether the records of the last two steps are here; earlier ones, whose audits are owed, do not count. Of the closing
        step there is none."""
        state = self.state
        return state.closed or {state.step - 2, state.step - 1} <= state.audit_records.keys()

    @property
    def _requests(self) -> Requests:
        return Requests(self.peer.run, self._seat, self.peer.identity)
