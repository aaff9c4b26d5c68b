"""Who is a member, and what that guarantees."""

from collections.abc import Iterable
from dataclasses import dataclass

from troth.crypto import PeerId
from troth.protocol.records import StepRecord
from troth.protocol.run import Run, effective_validators

MOST_STRIKES = 3  # within …
STRIKE_STEPS = 1000  # … so many steps: a peer with that many is expelled


@dataclass(frozen=True)
class Roster:
    """The members at the start of a step, sorted by key; those banned before it; and who did not open its coin when."""

    members: tuple[PeerId, ...]
    banned: tuple[PeerId, ...] = ()
    strikes: tuple[tuple[int, PeerId], ...] = ()

    @classmethod
    def founding(cls, run: Run) -> "Roster":
        return cls(run.founders)

    def after(self, record: StepRecord) -> "Roster":
        """The roster of the next step (SPEC T5, N1, N3). A key that left before its verdict is banned all the same."""
        recent = [strike for strike in self.strikes if strike[0] > record.step - STRIKE_STEPS]
        return Roster(
            members=tuple(peer for peer in self.members if peer not in record.leaving),
            banned=tuple(sorted({*self.banned, *record.banned})),
            strikes=(*recent, *((record.step, PeerId(peer)) for peer in record.struck)),
        )

    def expelled(self, step: int, struck: Iterable[PeerId]) -> tuple[PeerId, ...]:
        """Those of the newly struck for whom it was once too often (SPEC N3)."""
        recent = [peer for when, peer in self.strikes if when > step - STRIKE_STEPS]
        return tuple(sorted(peer for peer in struck if recent.count(peer) + 1 >= MOST_STRIKES))

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
