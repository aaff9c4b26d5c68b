"""The parts of a rehearsal's peers: seeded coins, and for liars an attack around everything that the network gives them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from troth.attacks import Coalition, Collusion
from troth.attacks.wire.late_channel import LateChannel
from troth.attacks.wire.link import LyingLink
from troth.crypto import Identity, Seed, derive, stream
from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.network.node.factory import PeerFactory
from troth.protocol.broadcast.channel import BroadcastChannel, OnAnnounced
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlots
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel, Entropy
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.run import Run
from troth.protocol.wire.primitives import Primitives
from troth.swarm.plan import SwarmPlan
from troth.training import Problem
from troth.training.work import Training, TrainingWork, finite_or_zero

_STAND_INS = 4


class RehearsalFactory(PeerFactory):
    """Makes an honest peer whose coins can be repeated."""

    def __init__(self, plan: SwarmPlan, number: int) -> None:
        self._plan = plan
        self._number = number

    def entropy(self) -> Entropy:
        return SeededEntropy(self._plan.seed, self._number)


class LiarFactory(RehearsalFactory):
    """Makes a liar, which knows the keys of the other liars."""

    def __init__(self, plan: SwarmPlan, number: int) -> None:
        super().__init__(plan, number)
        self._coalition = plan.coalition()
        self._attack = self._coalition.attack_of(number)
        self._identities = plan.identities()

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        self._coalition.layout = problem.layout
        return manifest.work(problem, tools, _LyingWork).lie(self._coalition, self._number)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work)  # nothing is begun: what it contributes is not what `gradient_now` computes

    def link(self, link: PacketLink, identity: Identity) -> PacketLink:
        if not self._plan.behaviours:
            return link
        draw = stream(self._plan.seed, "liar", self._number)
        fellows = {self._identities[k].peer: self._identities[k] for k in self._plan.liars if k != self._number}
        behaviours = frozenset(self._plan.behaviours)
        return LyingLink(link, identity, behaviours, 1.0, self._plan.attack_start, draw, fellows)

    def channel(
        self,
        identity: Identity,
        link: PacketLink,
        bounds: Timeouts,
        tools: Primitives,
        slots: SignedSlots,
        *,
        observing: bool,
        on_announced: OnAnnounced,
    ) -> BroadcastChannel:
        channel = LateChannel(identity, link, bounds, tools, slots, observing=observing, on_announced=on_announced)
        if isinstance(link, LyingLink):
            link.follow(channel)
        return channel

    def outside(self, channel: BroadcastChannel, identity: Identity, run: Run) -> Channel:
        colluders = frozenset(self._identities[k].peer for k in self._plan.liars)
        board: dict[Any, Any] = {}  # processes share no memory: each liar has its own
        assert isinstance(channel, LateChannel)
        return self._attack.behaviour(
            channel, identity.peer, Collusion(self._attack, colluders, run, self._coalition.active, board)
        )


class _LyingWork(TrainingWork):
    """Contributes the gradients that its coalition wants. Honest gradients are guessed from batches of its own."""

    def lie(self, coalition: Coalition, number: int) -> "_LyingWork":
        self._coalition, self._number = coalition, number
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        batch = self._coalition.batch(step, self.problem.task, self.problem.batch(seed), self._number)
        losses_P, own_BD = self.problem.gradients(training.parameters_D, [batch])
        self.loss = float(losses_P[0])
        own_BD = torch.stack([finite_or_zero(own_BD[0])])
        honest_HD = own_BD
        if self._coalition.active(step) and self._coalition.attack_of(self._number).needs_honest:
            batches = [self.problem.batch(Seed(derive(seed, "stand-in", k))) for k in range(_STAND_INS)]
            honest_HD = self.problem.gradients(training.parameters_D, batches)[1]
        return self._coalition.gradients(step, own_BD, honest_HD, [self._number])[0]
