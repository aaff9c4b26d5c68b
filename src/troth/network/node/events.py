"""What a peer tells people of a step."""

from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True)
class StepEvent:
    """As one peer saw it."""

    step: int  # that comes next
    of: int  # updates
    seconds: float  # that it took
    loss: float  # of this peer's last batch
    members: int
    guarantee: int  # liars among them that the run still withstands
    audits: int  # that this peer made in it
    attempts: int
    control_bytes: int  # received so far
    bulk_bytes: int
    sent_bytes: int
    delta_s: float = 0.0  # that a message between honest peers might take in it, as the members had agreed
    least_delta_s: float = 0.0
    banned: tuple[tuple[str, str], ...] = ()  # who, and why
    left: tuple[str, ...] = ()  # without a ban, and may come back
    expelled: tuple[str, ...] = ()  # without a ban, and may not
    returned: tuple[str, ...] = ()
    updates: int | None = None  # made so far, if they are not as many as steps
    paused_for: tuple[str, ...] | None = None  # the model did not move, since these are gone
    observed: bool = False
    restarted: bool = False  # the run went on with it after too many had stopped
    metrics: dict[str, float] | None = None  # of the model, where it was evaluated

    def sentences(self) -> list[str]:
        """What is worth a line of its own."""
        step = self.step - 1
        return [
            *([f"step {step}: the run goes on, after too many had stopped"] if self.restarted else []),
            *(f"step {step}: {who} is banned: {why}" for who, why in self.banned),
            *(f"step {step}: {who} is absent, and no longer a member" for who in self.left),
            *(f"step {step}: {who} is expelled: its line failed too often" for who in self.expelled),
            *(f"step {step}: {who} is back" for who in self.returned),
        ]

    def line(self, metrics: str) -> str:
        """Where it stands."""
        observing = "  (looks on)" if self.observed else ""
        if self.paused_for is not None:
            observing += f"  paused: too few to train, until some of {', '.join(self.paused_for) or 'them'} are back"
        slow = f"  Δ {self.delta_s:.1f} s" if self.delta_s > self.least_delta_s else ""
        loss = "–" if isnan(self.loss) else f"{self.loss:.3f}"  # who only looks on has computed none yet
        done = self.step if self.updates is None else self.updates
        return (
            f"step {done}/{self.of}  loss {loss}  {metrics}  peers {self.members}  "
            f"withstands {self.guarantee}  {self.seconds:.2f} s a step{slow}{observing}"
        )

    def metrics_in_words(self) -> str:
        return "  ".join(f"{name} {value:.3g}" for name, value in (self.metrics or {}).items())
