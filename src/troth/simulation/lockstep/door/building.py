"""From a scenario's specs to strangers with keys, gradients and channels of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from troth.attacks import Collusion
from troth.crypto import Identity, PeerId, derive
from troth.protocol.core.channel import Channel
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.simulation.lockstep.door.chronicle import Chronicle
from troth.simulation.lockstep.door.company import Company
from troth.simulation.lockstep.door.ears import Ear
from troth.simulation.lockstep.door.hand_ins import HandIns
from troth.simulation.lockstep.door.party import Party
from troth.simulation.lockstep.door.specs import Doing, Strangers
from troth.simulation.lockstep.door.stranger import Outfit, Stranger
from troth.simulation.lockstep.pool import GradientPool, PooledWork
from troth.simulation.lockstep.reliable import ReliableChannel
from troth.training import Problem
from troth.training.work import Training


@dataclass(frozen=True)
class Expected:
    """Strangers of one spec, before the run is there."""

    spec: str
    kind: Strangers
    first: int  # number of the first of them
    identities: tuple[Identity, ...]


def expected_strangers(specs: list[tuple[str, Strangers]], seed: int, first: int) -> list[Expected]:
    """Keys of everyone that will come, numbered after the founders."""
    found = []
    for spec, kind in specs:
        keys = tuple(Identity.from_secret(derive(seed, "stranger", first + k)) for k in range(kind.count))
        found.append(Expected(spec, kind, first, keys))
        first += kind.count
    return found


@dataclass(frozen=True)
class OpenDoor:
    """The door of a run: who comes, what they hand in, and what became of them."""

    company: Company
    hand_ins: HandIns
    chronicle: Chronicle


@dataclass(frozen=True)
class Stage:
    """What all strangers of a run share."""

    run: Run
    seed: int
    work: Callable[[], PooledWork]
    tools: Primitives
    ears: Mapping[PeerId, Ear]
    colluders: frozenset[PeerId]
    board: dict[Any, Any]  # what liars tell each other

    def open(self, expected: Sequence[Expected], problem: Problem, pool: GradientPool) -> "OpenDoor":
        parties = [self.party(one) for one in expected]
        hand_ins = HandIns(problem, pool, parties, self.colluders, derive(self.seed, "hand-ins"))
        return OpenDoor(Company(self.run, parties, self.ears), hand_ins, Chronicle(self.run, parties))

    def party(self, expected: Expected) -> Party:
        """Give each of them what it needs to take part."""
        strangers = []
        for place, identity in enumerate(expected.identities):
            number = expected.first + place
            stranger = Stranger(number, expected.kind.knocks(place), self._outfit(identity, number))
            if expected.kind.lies:
                stranger.outfit = replace(stranger.outfit, channel=self._wrapped(expected.kind, stranger))
            strangers.append(stranger)
        return Party(expected.spec, expected.kind, strangers)

    def _outfit(self, identity: Identity, number: int) -> Outfit:
        channel, entropy = ReliableChannel(identity, self.tools), SeededEntropy(self.seed, number)
        return Outfit(identity, self.run, self.work(), channel, entropy, self.tools, self.ears[identity.peer])

    def _wrapped(self, kind: Strangers, stranger: Stranger) -> Channel:
        """A liar's channel: once it is a member it shields the other liars, and attacks when its kind says so."""
        attack = kind.lie()

        def state() -> State[Training]:
            assert stranger.state is not None
            return stranger.state

        def active(_step: int) -> bool:
            return stranger.doing is Doing.ATTACK

        collusion = Collusion(attack, self.colluders, self.run, active, self.board, state)
        return attack.behaviour(ReliableChannel(stranger.outfit.identity, self.tools), stranger.me, collusion)
