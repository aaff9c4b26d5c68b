"""A stranger's way through a world: it comes to the door, honestly or to cheat, and takes part once it is in (SPEC J3–J7)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from troth.crypto import Identity, Seed
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.signed_slots import SignedSlotsInMemory
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.state import Peer
from troth.protocol.recovery.member import Member
from troth.simulation.chaos.plan import HONEST
from troth.simulation.chaos.stage import FreshCoins, Stage
from troth.simulation.chaos.world import FORGED
from troth.training.work import Training, TrainingWork

# D coordinates

_HASHES = 1 << 8  # its world asks for little work


class StrangeWork(TrainingWork):
    """Gradients as a stranger hands them in: nothing, noise, an old one, one of somebody else's seed, or a lie once it is in."""

    def __init__(self, *training: Any, behaviour: str, stranger: "Stranger") -> None:
        super().__init__(*training)
        self._behaviour = behaviour
        self._stranger = stranger
        self._old_D: Tensor | None = None

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        honest_D = await super().gradient(training, seed, step)
        match self._behaviour:
            case "noise":
                return torch.sin(honest_D * 1000 + step)
            case "zeros":
                return torch.zeros_like(honest_D)
            case "old":
                self._old_D = honest_D if self._old_D is None else self._old_D
                return self._old_D
            case "copy":
                return self.gradient_now(training, self._stranger.seed_of_another())
            case "turns" if self._stranger.is_member:
                self._stranger.note_lie(step)
                return honest_D * FORGED
        return honest_D


class Stranger:
    """One newcomer from its arrival to the last step; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self._arrives, self.behaviour = stage.plan.strangers[number]
        self._identity = stage.identities[number]
        self._link = stage.time.link(self._identity.peer)
        self._journal = SignedSlotsInMemory()
        channel = self._open_channel(self._identity)
        work = stage.work(partial(StrangeWork, behaviour=self.behaviour, stranger=self))
        outside = stage.wrapped(self._identity.peer, channel, channel)
        entropy = FreshCoins(stage.plan.seed, number)
        peer = Peer(self._identity, stage.run, work, outside, entropy, stage.tools, channel)
        self._member = Member(
            peer,
            stage.first_state(),
            self._open_channel,
            wrap=lambda opened, key: stage.wrapped(key.peer, opened, opened),
            on_certified=partial(stage.recorder.certified, number) if self.behaviour == HONEST else lambda _made: None,
        )

    @property
    def is_member(self) -> bool:
        return self._identity.peer in self._member.state.roster.members

    def seed_of_another(self) -> Seed:
        """The seed of a founder in this step."""
        return gradient_seed(self._member.state.earlier_randomness, self._stage.identities[0].peer)

    def note_lie(self, step: int) -> None:
        self._stage.world.forged.add((self._identity.peer, step))

    async def run(self) -> None:
        if self._arrives:
            await self._link.off(self._arrives)
        while True:
            steps = self._member.come_back(self._identity) if self.is_member else self._member.join(hashes=_HASHES)
            try:
                async for outcome in steps:
                    if self.behaviour == HONEST:
                        timeouts = self._channel.pacing.timeouts
                        self._stage.recorder.step_ended(self._number, outcome, timeouts)
                    if outcome.record.step >= self._stage.plan.steps - 1:
                        return
                return
            except (LeftOutError, StalledError):
                if not self.is_member:
                    raise

    def _open_channel(self, key: Identity) -> BroadcastChannel:
        stage = self._stage
        self._channel = BroadcastChannel(key, self._link, stage.bounds, stage.tools, self._journal, observing=True)
        return self._channel
