"""Schedule of a coalition's attack; at other times its members behave."""

from dataclasses import dataclass

from troth.attacks.errors import AttackError
from troth.crypto import Seed, stream


@dataclass(frozen=True)
class AttackSchedule:
    """From `start` to before `stop`, at every `every`-th step, each time with this probability (one draw for all)."""

    start: int = 0
    every: int = 1
    probability: float = 1.0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0:
            raise AttackError(f"`attack_start` must not be negative, got {self.start}")
        if self.every < 1:
            raise AttackError(f"`attack_every` must be at least 1, got {self.every}")
        if not 0 < self.probability <= 1:
            raise AttackError(f"`attack_probability` must be above 0 and at most 1, got {self.probability}")
        if self.stop is not None and self.stop <= self.start:
            raise AttackError(f"`attack_stop` must be after `attack_start`, got {self.stop} and {self.start}")

    def active(self, step: int, seed: Seed) -> bool:
        if step < self.start or (self.stop is not None and step >= self.stop):
            return False
        if (step - self.start) % self.every:
            return False
        return self.probability == 1.0 or float(stream(seed, "attack schedule", step).uniform(1)[0]) < self.probability
