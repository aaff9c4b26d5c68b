"""One attempt at a step: who takes part in it, who owns what, and what has arrived so far (SPEC N1, N2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeVar

from torch import Tensor

from troth.crypto import Context, Digest, PeerId
from troth.protocol.coins import Coins, right_openings
from troth.protocol.messages import Announced, Clip, Commit, Phase, ReportNumbers
from troth.protocol.parts import Parcel
from troth.protocol.primitives import Primitives
from troth.protocol.roles import Roles, draw_roles
from troth.protocol.state import Peer, State

# D coordinates
T = TypeVar("T")


@dataclass(frozen=True)
class Here(Generic[T]):
    """This peer in this step: where its messages belong, and what its roles are."""

    peer: Peer[T]
    state: State[T]
    roles: Roles

    @classmethod
    def at(cls, peer: Peer[T], state: State[T]) -> "Here[T]":
        contributors = state.kept.contributors if state.kept else ()
        return cls(peer, state, draw_roles(peer.run, state.roster, state.randomness, contributors))

    def place(self, phase: Phase, attempt: int = 0) -> Context:
        return Context(self.peer.run.id, self.state.step, phase, attempt)

    @property
    def contributes(self) -> bool:
        return self.peer.me in self.roles.owners


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """Clip to Vote, without those who are out. Gradients and part bounds stay; coins are fresh."""

    here: Here[T]
    number: int
    out: frozenset[PeerId]
    coins: Coins
    commits: Mapping[PeerId, Announced]
    received: Mapping[int, Mapping[PeerId, Parcel]] = field(default_factory=dict)  # parts that this peer owns
    just_out: frozenset[PeerId] = frozenset()  # because of the attempt before

    @cached_property
    def roots(self) -> dict[PeerId, Digest]:
        """What the contributors of this attempt committed to, in the order of keys."""
        roots: dict[PeerId, Digest] = {}
        for peer in sorted(set(self.here.roles.owners) - self.out):
            message = self.commits[peer].message if peer in self.commits else None
            if isinstance(message, Commit) and message.root is not None:
                roots[peer] = Digest(message.root)
        return roots

    @cached_property
    def owners(self) -> tuple[PeerId, ...]:
        return tuple(self.here.roles.owner_of(part, self.out) for part in range(len(self.here.roles.owners)))

    @cached_property
    def my_parts(self) -> list[int]:
        return [part for part, owner in enumerate(self.owners) if owner == self.here.peer.me]

    def newly_owned(self, part: int) -> bool:
        """Whether the part has to be sent again: in the first attempt every part, later those whose owner went out."""
        return self.number == 0 or self.here.roles.owner_of(part, self.out - self.just_out) != self.owners[part]

    def receiving(self, parcels: Mapping[int, Mapping[PeerId, Parcel]]) -> "Attempt[T]":
        return replace(self, received={**self.received, **parcels})

    def place(self, phase: Phase) -> Context:
        return self.here.place(phase, self.number)

    def span(self, part: int) -> tuple[int, int]:
        return self.here.roles.bounds[part], self.here.roles.bounds[part + 1]

    def part_tau(self, part: int) -> float:
        start, stop = self.span(part)
        return self.here.peer.run.parameters.part_tau(stop - start)

    def right_coins(
        self, which: str, clips: Mapping[PeerId, Announced], shown: Mapping[PeerId, bytes], tools: Primitives
    ) -> dict[PeerId, bytes]:
        """The opened coins that fit what was committed to: in Commit for the first attempt, in Clip later (SPEC N2)."""
        source, phase = (self.commits, Phase.COMMIT) if self.number == 0 else (clips, Phase.CLIP)
        committed: dict[PeerId, bytes] = {}
        for peer, announced in source.items():
            assert isinstance(announced.message, Commit | Clip)
            coin = announced.message.coin_a if which == "A" else announced.message.coin_b
            if coin is not None and peer not in self.out:
                committed[peer] = coin
        return right_openings(which, committed, shown, self.place(phase), tools)

    def again(self, out: frozenset[PeerId]) -> "Attempt[T]":
        """The next attempt, without these: fresh coins, so that nobody knows what will be drawn."""
        coins = self.here.peer.entropy.coins(self.here.state.step, self.number + 1)
        return replace(self, number=self.number + 1, out=self.out | out, just_out=out, coins=coins)


@dataclass(frozen=True)
class Reduced:
    """The aggregate as everyone holds it, and what was announced about it."""

    aggregate_D: Tensor
    norms: Mapping[int, float]  # as announced, by part
    clips: Mapping[PeerId, Announced]
    rows: Mapping[int, Tensor]  # what contributors committed to, for the parts that this peer owns


@dataclass(frozen=True)
class Reported:
    """Everyone's reports under this attempt's projections."""

    projection_key: Digest
    announced: Mapping[PeerId, Announced]
    numbers: Mapping[PeerId, ReportNumbers]
