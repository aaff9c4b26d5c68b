"""The founders' way through a world: the honest take part, lose power or their network, and come back; liars are honest code
behind a link, a channel and gradients that lie."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, blob_digest, stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink, SignedSlots
from troth.protocol.core.channel import Channel
from troth.protocol.core.run import LeftOutError, StalledError
from troth.protocol.core.state import Outcome, State
from troth.protocol.recovery.member import Member, RemovedError
from troth.protocol.step.step import run_step
from troth.protocol.wire.frames import CertifiedRecord, Packet, RestartCertificate, Value
from troth.training.work import Training
from troth.workshop.attacks import Collusion, make_attack
from troth.workshop.attacks.broadcasts import LateChannel
from troth.workshop.attacks.door import DOOR_LIES, DoorLiar, PoisonedLink
from troth.workshop.attacks.link import LyingLink
from troth.workshop.chaos.world import MeasuredLink, Stage, forged, held_bytes
from troth.workshop.simulation.exchange import DroppingChannel, PowerCutError

# D coordinates

_TRIES = 4  # of a peer that comes back and finds nobody in a step


class NotedSignedSlots(SignedSlots):
    """Reports when the run restarts."""

    def __init__(self, note: Callable[[int], object]) -> None:
        super().__init__()
        self._note = note

    def begins(self, begun: RestartCertificate) -> None:
        super().begins(begun)
        self._note(begun.incarnation)


class NotedLink:
    """Records what was signed for which slot, before and after a power cut."""

    def __init__(self, link: PacketLink, me: PeerId, said: dict[tuple[PeerId, Slot], set[Digest]]) -> None:
        self._me = me
        self._said = said
        self._link = link
        self.now, self.receive, self.gone = link.now, link.receive, link.gone

    def send(self, to: PeerId, packet: Packet) -> None:
        self._link.send(to, packet)
        if isinstance(packet.frame, Value):
            self._said.setdefault((self._me, packet.slot), set()).add(blob_digest(packet.frame.envelope.payload))


class HonestPeer:
    """One honest peer from the first step to the last; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        plan = stage.plan
        self._stage = stage
        self._number = number
        self._identity = stage.identities[number]
        self._cut = plan.crashes.get(number, plan.blackout.get(number))
        self._journal = NotedSignedSlots(stage.world.incarnation_began)
        self._link = stage.link(number)
        self._seconds = plan.network.slow.get(number, 0.0)
        self._ports = replace(
            stage.ports(number),
            work=stage.work(self._take_time) if self._seconds else stage.work(),
            link=self._link_for,
            slots=self._journal,
            outside=self._outside,
        )
        self._first = stage.first_state()
        self._first_channel: BroadcastChannel | None = None

    async def run(self) -> None:
        channel = self._first_channel = self._ports.open(self._identity, observing=False)
        member = self._make_member(self._first)
        try:
            await self._follow(member.take_part(channel))
            return
        except PowerCutError:
            if self._off_for_good:
                raise
            member = await self._start_again(member)
            if self._signed_nothing_in(member.state):  # simply go on
                with suppress(LeftOutError, StalledError):
                    await self._follow(member.take_part(self._ports.opened))
                    return
        except (LeftOutError, StalledError):
            if self._number in self._stage.world.steady and not self._stage.plan.blackout:
                raise
        self._stage.world.went_on(self._number)
        await self._come_back(member)

    async def _come_back(self, member: Member[Training]) -> None:
        """Try several times; `troth join` tries again until it is stopped."""
        successor = self._stage.successors.get(self._number, self._identity)
        for tries in range(_TRIES):
            try:
                await self._follow(member.come_back(successor))
                return
            except (LeftOutError, StalledError):
                if tries == _TRIES - 1:
                    raise
            except PowerCutError:  # while this peer was in no step
                if self._off_for_good:
                    raise
                member = await self._start_again(member)

    async def _follow(self, steps: AsyncIterator[Outcome[Training]]) -> None:
        async for outcome in steps:
            self._stage.world.step_ended(self._number, outcome, self._ports.opened.pacing.timeouts)
            if outcome.record.step >= self._stage.plan.steps - 1:
                return

    # Power

    @property
    def _off_for_good(self) -> bool:
        return self._cut is None or self._cut.down is None

    def _lose_power_in(self, seconds: float) -> None:
        self._link.break_in(seconds, PowerCutError("stopped amid a step"))

    async def _start_again(self, member: Member[Training]) -> Member[Training]:
        """Wait for power; go on with the member's state if the journal is left, else from the first state."""
        assert self._cut is not None
        assert self._cut.down is not None
        await self._link.off(self._cut.down)
        self._stage.world.power_back[self._number] = self._stage.time.now
        assert self._first_channel is not None
        channel = self._ports.open(self._identity, observing=False)
        channel.pacing.next_timeouts = self._first_channel.pacing.next_timeouts  # they last as long as the state does
        if self._cut.journal:
            return self._make_member(member.state, member.certified, member.past)
        self._ports.record_keys = self._stage.record_keys(self._number, lost=1)
        return self._make_member(self._first)

    def _signed_nothing_in(self, state: State[Training]) -> bool:
        """Whether the journal is left and shows no signature for this step: then nothing can be signed twice."""
        signed = (self._journal.last_incarnation, self._journal.last_step)
        return self._cut is not None and self._cut.journal and signed < (state.incarnation, state.step)

    # Its parts

    def _make_member(
        self,
        state: State[Training],
        certified: Sequence[CertifiedRecord] = (),
        past: Sequence[State[Training]] = (),
    ) -> Member[Training]:
        world = self._stage.world
        return self._ports.member(
            self._ports.peer(self._identity),
            state,
            certified=certified,
            past=past,
            restart_with=world.confirmed,
            on_certified=partial(world.certified, self._number),
        )

    async def _take_time(self, gradient_D: Tensor, _training: Training, _seed: Seed, _step: int) -> Tensor:
        await self._link.work(self._seconds)
        return gradient_D

    def _link_for(self, key: Identity) -> PacketLink:
        link: PacketLink = self._stage.link(self._number, key)
        if self._cut:
            link = NotedLink(link, key.peer, self._stage.world.said)
        return MeasuredLink(link, self._measure)

    def _outside(self, opened: BroadcastChannel, key: Identity) -> Channel:
        """The channel as steps see it: the first one until the power goes."""
        drops = self._cut if opened is self._first_channel else None
        channel = DroppingChannel(opened, drops, self._lose_power_in) if drops else opened
        return self._stage.wrapped(key.peer, channel, opened)

    def _measure(self) -> int:
        world, held = self._stage.world, held_bytes(self._ports.opened)
        world.most_held = max(world.most_held, held)
        return held


class Liar:
    """One liar from the first step to the last; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        plan = stage.plan
        self._stage = stage
        self._identity = stage.identities[number]
        me = self._identity.peer
        fellows = {stage.identities[k].peer: stage.identities[k] for k in plan.lying - {number}}
        self._door_lies = plan.liars.get(number, frozenset()) & DOOR_LIES.keys()
        self._draw = stream(plan.seed, "liar at the door", number)
        link = stage.link(number)
        served = PoisonedLink(link, self._identity, self._door_lies, self._draw, fellows) if self._door_lies else link
        lying = LyingLink(
            served,
            self._identity,
            plan.liars.get(number, frozenset()) - DOOR_LIES.keys(),
            *plan.intensity[number],
            stream(plan.seed, "liar", number),
            fellows,
            self._free,
        )
        stage.world.lies_of[me] = lying.lies
        self._forges_from = plan.forge_from.get(number, plan.steps)
        self._collusion = self._collude(number)
        self._ports = replace(
            stage.ports(number),
            work=stage.work(self._forge),
            link=lambda _key: lying,
            channel=LateChannel,
            outside=self._outside,
        )
        self._first = self._ports.open(self._identity, observing=False)
        lying.follow(self._first)
        self._peer = self._ports.peer(self._identity)
        if not self._lies_on_return:
            self._ports.channel = BroadcastChannel
        self._state = stage.first_state()

    async def run(self) -> None:
        plan = self._stage.plan
        serving = self._member() if plan.probation else None
        try:
            await (self._step_by_step() if serving is None else self._serve(serving))
        except RemovedError:
            pass
        except (LeftOutError, StalledError):
            if not (plan.blackout or plan.liars_return):
                raise
            await self._come_back(serving or self._member())

    async def _step_by_step(self) -> None:
        for _ in range(self._stage.plan.steps):
            self._state = (await run_step(self._peer, self._state)).state
            if self._peer.me not in self._state.roster.members:
                return

    async def _serve(self, member: Member[Training]) -> None:
        """Take part, and serve those who are outside, as members do: what its links and channels make of it."""
        async for outcome in member.take_part(self._first):
            self._state = outcome.state
            if outcome.record.step >= self._stage.plan.steps - 1:
                return

    def _member(self) -> Member[Training]:
        return self._ports.member(self._peer, self._state, self._stage.plan.steps)

    async def _come_back(self, member: Member[Training]) -> None:
        while True:
            try:
                async for outcome in member.come_back(self._identity):
                    self._state = outcome.state
                return
            except (LeftOutError, StalledError):
                if not self._stage.plan.liars_return:
                    raise

    async def _forge(self, honest_D: Tensor, _training: Training, seed: Seed, step: int) -> Tensor:
        """Turn gradients round from some step on, or put one huge number into them."""
        if step < self._forges_from or not self._free():
            return honest_D
        self._stage.world.forged.add((self._identity.peer, step))
        return forged(honest_D, seed, self._stage.plan)

    def _free(self) -> bool:
        """Whether it may lie now: a member that has just come back is audited (SPEC B4), and behaves."""
        plan, roster, me = self._stage.plan, self._state.roster, self._identity.peer
        back = any(peer == me and when == self._state.step - 1 for when, peer in roster.returns)
        return not back and (not plan.waits or len(roster.members) < plan.peers)

    def _collude(self, number: int) -> Collusion | None:
        stage, plan = self._stage, self._stage.plan
        if number not in plan.attacks:
            return None
        start = plan.intensity[number][1]
        return Collusion(
            make_attack(plan.attacks[number]),
            frozenset(stage.identities[k].peer for k in plan.lying),
            stage.run,
            lambda step: step >= start and self._free(),
            stage.board,
            lambda: self._state,
        )

    @property
    def _lies_on_return(self) -> bool:
        return self._stage.plan.liars_return and self._collusion is not None

    def _outside(self, opened: BroadcastChannel, key: Identity) -> Channel:
        """The channel as steps see it, behind its lies: to members, and about strangers."""
        channel: Channel = opened
        if self._collusion is not None and (opened is self._first or self._lies_on_return):
            channel = self._collusion.attack.behaviour(opened, key.peer, self._collusion)
        if self._door_lies:
            channel = DoorLiar(channel, self._door_lies, self._draw, lambda: self._state)
        return self._stage.wrapped(key.peer, channel, opened)
