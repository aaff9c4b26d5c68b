"""An attacker under many names, with fewer machines than names: which gradients it works, and which it fakes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from troth.crypto import PeerId


@dataclass(frozen=True)
class Due:
    """Gradients that the attacker's names owe in a step."""

    seats: int  # of members, validators of this step included
    contributors: list[PeerId]  # members that must commit
    begun: list[PeerId]  # candidates that have begun
    fresh: list[PeerId]  # candidates that have not begun
    spare: list[PeerId] = field(
        default_factory=list
    )  # of those who have begun: they keep their slot if they miss this step


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
