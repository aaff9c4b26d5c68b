"""One peer in one step: everything that its attempts have in common."""

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView
from troth.protocol.core.roles import Roles, draw_roles
from troth.protocol.core.scales import part_taus
from troth.protocol.core.state import Peer, State
from troth.protocol.wire.messages import Phase

T = TypeVar("T")


@dataclass(frozen=True)
class StepContext(Generic[T]):
    """A peer, its state at the start of the step, and the roles drawn from that state."""

    peer: Peer[T]
    state: State[T]
    roles: Roles

    @classmethod
    def at(cls, peer: Peer[T], state: State[T]) -> "StepContext[T]":
        return cls(peer, state, draw_roles(peer.run, state.roster, state.randomness, state.pending_audits))

    def slot(self, phase: Phase, attempt: int = 0) -> Slot:
        return Slot(self.peer.run.id, self.state.step, phase, attempt, self.state.incarnation)

    @property
    def began(self) -> bool:
        """Whether this is the first step of its incarnation (SPEC B5)."""
        last = self.state.last
        return self.state.incarnation > (0 if last is None else last.record.incarnation)

    @property
    def contributes(self) -> bool:
        return self.peer.me in self.roles.owners and not self.peer.observing

    @cached_property
    def disputed_links(self) -> dict[PeerId, frozenset[PeerId]]:
        """Members in link disputes, by member (SPEC F2)."""
        return self.state.roster.disputed_links()

    def view(
        self,
        members: frozenset[PeerId],
        *,
        admitted: frozenset[PeerId] = frozenset(),
        audits: int = 1,
        disputed: int = 1,
    ) -> AttemptView:
        """Describe an attempt among these members to the channel."""
        roster, links = self.state.roster, self.disputed_links
        return AttemptView(members, links, admitted, audits, disputed, roster.liars, roster.quorum, self.state.step)

    @cached_property
    def taus(self) -> tuple[float, ...]:
        """Clipping radius of every part (SPEC A1)."""
        return part_taus(self.state.scales.tau, self.roles.bounds)
