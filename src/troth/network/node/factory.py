"""The parts of an honest peer that a rehearsal replaces."""

import secrets
from collections.abc import Callable

from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.protocol.core.coins import Coins
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.wire.primitives import Primitives
from troth.resting import RESTS_FROM
from troth.training import Problem
from troth.training.work import Training, TrainingWork


class SystemEntropy:
    """Coins from the system's generator, which nobody can guess."""

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(secrets.token_bytes(32), secrets.token_bytes(32))


class PeerFactory:
    """Makes the parts of an honest peer. A rehearsal overrides some of them, to repeat coins or to lie."""

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        return manifest.work(problem, tools)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        """The work as the protocol's steps see it. It begins gradients before they are asked for, unless vectors are so large
        that they rest in files: the next model and two gradients would take four of them in memory."""
        return GradientsAhead(work, allowed_s if work.problem.size < RESTS_FROM else None)

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        """The ports of an honest peer, or some of them wrapped."""
        return ports
