"""Who is a member, and what that guarantees."""

from collections.abc import Iterable
from dataclasses import dataclass

from troth.crypto import PeerId
from troth.protocol.run import Run, effective_validators


@dataclass(frozen=True)
class Roster:
    """The members at the start of a step, sorted by key, and those banned before it."""

    members: tuple[PeerId, ...]
    banned: tuple[PeerId, ...] = ()

    @classmethod
    def founding(cls, run: Run) -> "Roster":
        return cls(run.founders)

    def without(self, banned: Iterable[PeerId]) -> "Roster":
        """The roster of the next step. A key that left before its verdict is banned all the same."""
        new = [peer for peer in banned if peer not in self.banned]
        return Roster(
            tuple(peer for peer in self.members if peer not in new),
            tuple(sorted({*self.banned, *new})),
        )

    @property
    def majority(self) -> int:
        """More than half of the members: no two disjoint groups have it, and liars alone never do."""
        return len(self.members) // 2 + 1

    def liars_left(self, run: Run) -> int:
        """`b_t`: how many liars among the members the guarantee still covers (SPEC G1)."""
        members = len(self.members)
        active = effective_validators(members, run.parameters.validators)
        still_hidden = run.parameters.byzantine - len(self.banned)
        outnumbered = (members - active + 1) // 2 - 1
        return max(0, still_hidden if run.parameters.beyond_guarantee else min(still_hidden, outnumbered))

    def enough(self, run: Run, contributors: int) -> bool:
        """Whether a step with so many contributors may change the model (SPEC G2).

        Not with fewer than `2·b_t + 1`, among whom the liars might be the majority; not with half of the founders gone
        for reasons other than bans; and not while liars may remain but nobody can be spared to validate.
        """
        floor = (len(run.founders) - len(self.banned)) // 2 + 1
        unwatched = effective_validators(len(self.members), run.parameters.validators) == 0
        if unwatched and run.parameters.byzantine > len(self.banned):
            return False
        return contributors >= max(2 * self.liars_left(run) + 1, floor)
