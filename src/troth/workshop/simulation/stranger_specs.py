"""Strangers who come to a simulated run, as they are asked for: `honest:at=20`, `noise:count=3`, `names:count=1000,machines=4`.

Each kind is a frozen set of options that says what its strangers do in a step, and nothing about how a step works. A new kind is
a class here and a row of `STRANGERS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final

from troth.crypto import PeerId
from troth.errors import OperatorError
from troth.protocol.core.run import MOST_PROBATION
from troth.protocol.wire.messages import MOST_CANDIDATES
from troth.specs import ALSO, build, parse_spec, pick
from troth.training import Task
from troth.workshop.attacks import GradientAttack, make_attack

LEAST_PROBATION = 2  # steps that a newcomer has to have seen before it can judge others' work (SPEC B4)
MOST_STRANGERS = 4096


class StrangersError(OperatorError):
    """Strangers who cannot come; the message says what would be right."""


class Doing(Enum):
    """What a stranger does in a step that asks it for a gradient."""

    WORK = auto()  # computes it
    FAKE = auto()  # hands in something else, and computes nothing
    ATTACK = auto()  # sends, as a member, what its attack makes of it
    STAY_AWAY = auto()  # is silent: a candidate misses the step, a member leaves


@dataclass(frozen=True)
class Strangers:
    """Newcomers of one kind: so many, the first before step `at`, each of the others `every` steps after the one before."""

    at: int = 0
    count: int = 1
    every: int = 0

    lies: ClassVar[bool] = True  # whether they are on the liars' side; those shield each other
    not_negative: ClassVar[tuple[str, ...]] = ("at", "every")  # options

    def __post_init__(self) -> None:
        for name in self.not_negative:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 1 <= self.count <= MOST_STRANGERS:
            raise ValueError(f"count must be 1 to {MOST_STRANGERS}, got {self.count}")

    def knocks(self, number: int) -> int:
        """The step before which one of them comes to the door."""
        return self.at + self.every * number

    def doing(self, member_for: int | None, step: int) -> Doing:
        """What one of them does in a step. `member_for`: steps in which it was a member since it came in; None: on probation."""
        raise NotImplementedError

    def lie(self) -> GradientAttack:
        """How they lie as members."""
        return GradientAttack()


@dataclass(frozen=True)
class Honest(Strangers):
    """works for its seat, and goes on working; on probation it misses every `misses`-th step of the run (0: none)"""

    misses: int = 0

    lies: ClassVar[bool] = False
    not_negative: ClassVar[tuple[str, ...]] = ("at", "every", "misses")

    def doing(self, member_for: int | None, step: int) -> Doing:
        late = member_for is None and self.misses and step % self.misses == 0
        return Doing.STAY_AWAY if late else Doing.WORK


@dataclass(frozen=True)
class Lazy(Strangers):
    """Computes nothing, before and after."""

    def doing(self, member_for: int | None, step: int) -> Doing:
        return Doing.FAKE


@dataclass(frozen=True)
class Zeros(Lazy):
    """hands in zeros, and computes nothing"""


@dataclass(frozen=True)
class Noise(Lazy):
    """hands in noise, and computes nothing"""


@dataclass(frozen=True)
class Old(Lazy):
    """computes one gradient, and hands it in again in every step"""


@dataclass(frozen=True)
class Copies(Lazy):
    """hands in the gradient of another peer"""


@dataclass(frozen=True)
class Attackers(Strangers):
    """Attacks as a member, at times."""

    attack: str = "sign-flip"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lie()

    def lie(self) -> GradientAttack:
        return make_attack(self.attack)


@dataclass(frozen=True)
class Turns(Attackers):
    """works until it is a member and `after` steps more, then attacks: see 'troth attacks'"""

    after: int = 0

    not_negative: ClassVar[tuple[str, ...]] = ("at", "every", "after")

    def doing(self, member_for: int | None, step: int) -> Doing:
        return Doing.WORK if member_for is None or member_for < self.after else Doing.ATTACK


@dataclass(frozen=True)
class Leaves(Attackers):
    """works until it is a member, attacks in its `stay`-th step, leaves before it is audited, comes back, and so on"""

    stay: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stay < 1:
            raise ValueError(f"stay must be at least 1 step, got {self.stay}")

    def doing(self, member_for: int | None, step: int) -> Doing:
        if member_for is None or member_for + 1 < self.stay:
            return Doing.WORK
        return Doing.ATTACK if member_for + 1 == self.stay else Doing.STAY_AWAY


@dataclass(frozen=True)
class Names(Strangers):
    """one attacker under many names; a machine makes one gradient a step; strategy: works, fakes, turns or stretches"""

    count: int = 100
    machines: int = 4
    hash_share: float = 0.5
    strategy: str = "works"

    not_negative: ClassVar[tuple[str, ...]] = ("at", "every", "machines")

    def __post_init__(self) -> None:
        super().__post_init__()
        pick(STRATEGIES, self.strategy, "strategy")
        if not 0 < self.hash_share < 1:
            raise ValueError(f"hash_share must be above 0 and below 1, got {self.hash_share:g}")


STRANGERS: dict[str, type[Strangers]] = {
    "honest": Honest,
    "zeros": Zeros,
    "noise": Noise,
    "old": Old,
    "copies": Copies,
    "turns": Turns,
    "leaves": Leaves,
    "names": Names,
}


def make_strangers(specs: str) -> list[tuple[str, Strangers]]:
    """Each spec, and the strangers that it asks for: `honest:at=20 + noise:count=3`."""
    found = []
    for spec in filter(None, map(str.strip, specs.split(ALSO))):
        name, options = parse_spec(spec)
        found.append((spec, build(pick(STRANGERS, name, "kind of strangers"), options, spec)))
    return found


def attacks_of(strangers: Sequence[tuple[str, Strangers]]) -> list[str]:
    """Specs of the attacks that some of them turn to."""
    return [kind.attack for _, kind in strangers if isinstance(kind, Attackers)]


def check_door(probation: int, slots: int, strangers: Sequence[tuple[str, Strangers]]) -> None:
    """Raise for a door that no run can have, and for strangers at a closed one."""
    if probation and not LEAST_PROBATION <= probation <= MOST_PROBATION:
        raise StrangersError(
            f"`probation` must be 0 (the door is closed), or {LEAST_PROBATION} to {MOST_PROBATION}, got {probation}"
        )
    if not 1 <= slots <= MOST_CANDIDATES:
        raise StrangersError(f"`slots` must be 1 to {MOST_CANDIDATES}, got {slots}")
    if strangers and not probation:
        raise StrangersError(
            "`strangers` need an open door: set `probation`, the steps that they work before they are members"
        )
    count = sum(kind.count for _, kind in strangers)
    if count > MOST_STRANGERS:
        raise StrangersError(f"`strangers` must be at most {MOST_STRANGERS}, got {count}")


def check_strangers(strangers: Sequence[tuple[str, Strangers]], task: Task, *, steps: int, honest: int) -> None:
    """Raise for strangers who come too late, or whose attack is not defined here."""
    for spec, kind in strangers:
        last = kind.knocks(kind.count - 1)
        if last >= steps:
            raise StrangersError(f"`strangers` {spec}: somebody knocks at step {last}, and the run ends after {steps}")
        kind.lie().check(task, honest=honest, colluders=kind.count)


# An attacker under many names, with fewer machines than names: which gradients it works, and which it fakes.


@dataclass(frozen=True)
class Due:
    """Gradients that the attacker's names owe in a step."""

    seats: int  # of members, validators of this step included
    contributors: list[PeerId]  # members that must commit
    begun: list[PeerId]  # candidates that have begun
    fresh: list[PeerId]  # candidates that have not begun
    spare: list[PeerId] = field(default_factory=list)  # begun, and keep their slot if they miss this step


@dataclass(frozen=True)
class Committed:
    """Names that commit in this step; others of the attacker's candidates stay silent."""

    worked: frozenset[PeerId] = frozenset()
    faked: frozenset[PeerId] = frozenset()


Strategy = Callable[[Due, int], Committed]


def works(due: Due, machines: int) -> Committed:
    """Begin no more than can be worked to the end, and leave the other slots empty: that keeps others out."""
    begin = max(0, machines - due.seats - len(due.begun))
    return Committed(worked=frozenset((*due.contributors, *due.begun, *due.fresh[:begin])))


def fakes(due: Due, machines: int) -> Committed:
    """Work nothing, under every name there is, and hope."""
    del machines
    return Committed(faked=frozenset((*due.contributors, *due.begun, *due.fresh)))


def turns(due: Due, machines: int) -> Committed:
    """Work through probation first of all, then for as many seats as machines are left, and fake the others."""
    candidates = [*due.begun, *due.fresh][:machines]
    left = machines - len(candidates)
    return Committed(frozenset((*candidates, *due.contributors[:left])), frozenset(due.contributors[left:]))


def stretches(due: Due, machines: int) -> Committed:
    """Begin an eighth more than can be worked in every step, and let candidates miss steps in turn."""
    left = max(0, machines - due.seats)
    begin = max(0, left * 9 // 8 - len(due.begun))
    must = [key for key in due.begun if key not in due.spare]
    return Committed(worked=frozenset((*due.contributors, *[*must, *due.fresh[:begin], *due.spare][:left])))


STRATEGIES: Final[dict[str, Strategy]] = {"works": works, "fakes": fakes, "turns": turns, "stretches": stretches}
