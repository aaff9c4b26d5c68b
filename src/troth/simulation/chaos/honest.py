"""An honest peer's way through a world: it takes part, loses power or its network, and comes back."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, blob_digest
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlotsInMemory
from troth.protocol.core.channel import Channel
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.recovery.member import Member
from troth.protocol.wire.frames import CertifiedRecord, Packet, RestartCertificate, Value
from troth.simulation.chaos.memory_probe import MeasuredLink, held_bytes
from troth.simulation.chaos.stage import FreshCoins, Stage
from troth.simulation.chaos.virtual_time import VirtualLink
from troth.simulation.lockstep.drop_outs import DroppingChannel, PowerCutError
from troth.training.work import Training, TrainingWork

_TRIES = 4  # of a peer that comes back and finds nobody in a step


class NotedSignedSlots(SignedSlotsInMemory):
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


class SlowWork(TrainingWork):
    """Takes its time for gradients."""

    def __init__(self, *training: Any, seconds: float, link: VirtualLink) -> None:
        super().__init__(*training)
        self._seconds = seconds
        self._link = link

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        if self._seconds:
            await self._link.work(self._seconds)
        return await super().gradient(training, seed, step)


class HonestPeer:
    """One honest peer from the first step to the last; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        plan = stage.plan
        self._stage = stage
        self._number = number
        self._identity = stage.identities[number]
        self._cut = plan.crashes.get(number, plan.blackout.get(number))
        self._clock = plan.network.clocks.get(number, (0.0, 0.0))
        self._journal = NotedSignedSlots(stage.recorder.incarnation_began)
        self._link = stage.time.link(self._identity.peer, *self._clock)
        self._entropy = FreshCoins(plan.seed, number)
        self._record_keys = stage.record_keys(number)
        self._first = stage.first_state()
        self._first_channel = self._channel = self._open_channel(self._identity, observing=False)

    async def run(self) -> None:
        channel = self._first_channel
        cut = DroppingChannel(channel, self._cut, self._lose_power_in) if self._cut else channel
        member = self._make_member(self._first, cut)
        try:
            await self._follow(member.take_part(channel))
            return
        except PowerCutError:
            if self._off_for_good:
                raise
            member = await self._start_again(member)
            if self._signed_nothing_in(member.state):  # simply go on
                with suppress(LeftOutError, StalledError):
                    await self._follow(member.take_part(self._channel))
                    return
        except (LeftOutError, StalledError):
            if self._number in self._stage.world.steady and not self._stage.plan.blackout:
                raise
        self._stage.recorder.left_step(self._number)
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
            self._stage.recorder.step_ended(self._number, outcome, self._channel.pacing.timeouts)
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
        self._stage.recorder.power_came_back(self._number)
        channel = self._open_channel(self._identity, observing=False)
        channel.pacing.next_timeouts = self._first_channel.pacing.next_timeouts  # they last as long as the state does
        if self._cut.journal:
            return self._make_member(member.state, channel, member.certified, member.past)
        self._record_keys = self._stage.record_keys(self._number, lost=1)
        return self._make_member(self._first, channel)

    def _signed_nothing_in(self, state: State[Training]) -> bool:
        """Whether the journal is left and shows no signature for this step: then nothing can be signed twice."""
        signed = (self._journal.last_incarnation, self._journal.last_step)
        return self._cut is not None and self._cut.journal and signed < (state.incarnation, state.step)

    # Its parts

    def _make_member(
        self,
        state: State[Training],
        channel: Channel,
        certified: Sequence[CertifiedRecord] = (),
        past: Sequence[State[Training]] = (),
    ) -> Member[Training]:
        stage, me = self._stage, self._identity
        seconds = stage.plan.network.slow.get(self._number, 0.0)
        work = stage.work(partial(SlowWork, seconds=seconds, link=self._link))
        outside = stage.wrapped(me.peer, channel, self._channel)
        peer = Peer(
            me, stage.run, work, outside, self._entropy, stage.tools, self._channel, record_keys=self._record_keys
        )
        return Member(
            peer,
            state,
            self._open_channel,
            certified=certified,
            past=past,
            restart_with=stage.recorder.confirmed,
            wrap=lambda opened, key: stage.wrapped(key.peer, opened, opened),
            on_certified=partial(stage.recorder.certified, self._number),
        )

    def _open_channel(self, key: Identity, *, observing: bool = True) -> BroadcastChannel:
        stage, link = self._stage, cast(PacketLink, self._link)
        if key is not self._identity:
            link = stage.time.link(key.peer, *self._clock, home=self._identity.peer)
        if self._cut:
            link = NotedLink(link, key.peer, stage.world.said)
        link = MeasuredLink(link, self._measure)
        self._channel = BroadcastChannel(key, link, stage.bounds, stage.tools, self._journal, observing=observing)
        return self._channel

    def _measure(self) -> int:
        held = held_bytes(self._channel)
        self._stage.recorder.held(held)
        return held
