"""The parts of a rehearsal's peers: seeded coins, and for liars an attack around everything that the network gives them."""

from collections.abc import Callable
from dataclasses import replace
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
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.core.channel import Channel
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.recovery.builder import PeerBuilder
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

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        return replace(ports, entropy=SeededEntropy(self._plan.seed, self._number))


class LiarFactory(RehearsalFactory):
    """Makes a liar, which knows the keys of the other liars."""

    def __init__(self, plan: SwarmPlan, number: int) -> None:
        super().__init__(plan, number)
        self._coalition = plan.coalition()
        identities = plan.identities()
        self._fellows = {identities[k].peer: identities[k] for k in plan.liars if k != number}
        self._colluders = frozenset(identities[k].peer for k in plan.liars)

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        self._coalition.layout = problem.layout
        return manifest.work(problem, tools, _LyingWork).lie(self._coalition, self._number)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work)  # nothing is begun: what it contributes is not what `gradient_now` computes

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        attack, board = self._coalition.attack_of(self._number), dict[Any, Any]()  # processes share no memory
        collusion = Collusion(attack, self._colluders, ports.run, self._coalition.active, board)
        links: list[LyingLink] = []

        def lying(key: Identity) -> PacketLink:
            plan, draw = self._plan, stream(self._plan.seed, "liar", self._number)
            behaviours = frozenset(plan.behaviours)
            links[:] = [LyingLink(ports.link(key), key, behaviours, 1.0, plan.attack_start, draw, self._fellows)]
            return links[0]

        def outside(channel: BroadcastChannel, key: Identity) -> Channel:
            for link in links:
                link.follow(channel)
            assert isinstance(channel, LateChannel)
            behaving: Channel = attack.behaviour(channel, key.peer, collusion)
            return behaving

        link = lying if self._plan.behaviours else ports.link
        return replace(super().ports(ports), link=link, channel=LateChannel, outside=outside)


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
