"""A step as users see it, the same for a simulation and for a member of a real run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Ban:
    """A peer is out, for good, and anyone can check why."""

    peer: str  # its name; in a simulation `peer3`
    step: int  # counted from 0, as in the names of evidence files
    reason: str
    evidence: Path | None  # the file that proves it, written with the next step; of a simulation None until it is saved


@dataclass(frozen=True)
class Step:
    """One step that has ended.

    A member's run may have more steps than updates, in which the model does not move: while too few are there to train, and
    at the end, when the last audits are made and the run is closed.
    """

    number: int  # updates of the model so far, this one included
    of: int  # updates of the whole run
    loss: float  # of a member: on its own last batch; in a simulation: mean over the honest peers
    members: int  # after this step
    withstands: int | None  # liars among them; None with a trusted server, which promises nothing
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the model, in steps in which it was evaluated
    bans: tuple[Ban, ...] = ()
    left: tuple[str, ...] = ()  # without a ban: absent, or expelled over their connection
    returned: tuple[str, ...] = ()
    moved: bool = True  # whether the model did
    attacked: bool = False  # in a simulation: whether the liars attacked
    seconds: float | None = None  # of a member: how long the step took

    def after(self, earlier: "Step") -> "Step":
        """This step and an earlier one as one, so that nothing which happened in the earlier one is lost."""
        return replace(
            self,
            metrics=self.metrics or earlier.metrics,
            bans=earlier.bans + self.bans,
            left=earlier.left + self.left,
            returned=earlier.returned + self.returned,
            moved=earlier.moved or self.moved,
            attacked=earlier.attacked or self.attacked,
        )
