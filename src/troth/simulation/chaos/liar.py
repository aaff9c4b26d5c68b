"""A liar's way through a world: honest code, behind a link, a channel and gradients that lie."""

from dataclasses import replace

from torch import Tensor

from troth.attacks import Collusion, make_attack
from troth.attacks.wire.door import DOOR_LIES, DoorLiar, PoisonedLink
from troth.attacks.wire.late_channel import LateChannel
from troth.attacks.wire.link import LyingLink
from troth.crypto import Identity, Seed, stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import Channel
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.recovery.member import Member, RemovedError
from troth.protocol.step.step import run_step
from troth.simulation.chaos.stage import Stage
from troth.simulation.chaos.world import forged
from troth.training.work import Training

# D coordinates


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
        link = stage.time.link(me)
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
        stage.recorder.count_lies(me, lying.lies)
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
        if plan.probation:
            await self._serve()
            return
        try:
            for _ in range(plan.steps):
                self._state = (await run_step(self._peer, self._state)).state
                if self._peer.me not in self._state.roster.members:
                    return
            return
        except (LeftOutError, StalledError):
            if not (plan.blackout or plan.liars_return):
                raise
        await self._come_back(self._member())

    async def _serve(self) -> None:
        """Take part, and serve those who are outside, as members do: what its links and channels make of it."""
        plan, member = self._stage.plan, self._member()
        try:
            async for outcome in member.take_part(self._first):
                self._state = outcome.state
                if outcome.record.step >= plan.steps - 1:
                    return
        except RemovedError:
            return
        except (LeftOutError, StalledError):
            if not (plan.blackout or plan.liars_return):
                raise
        await self._come_back(member)

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
        return forged(honest_D, seed, self._stage.plan.spikes)

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
