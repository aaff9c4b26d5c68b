"""Options of a run, declared once: a dataclass's fields carry text and bounds, and the command line follows from them.

Bounds hold where the dataclass asks for `check_bounds`, as a scenario does; a manifest checks its numbers itself, since they also
come from a file that somebody else wrote.

Imports nothing of ours but the root of errors, so that every package may declare its options with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from troth.errors import OperatorError


@dataclass(frozen=True)
class Option:
    """Text and bounds of an option, and its form on a command line where that does not follow from the field."""

    help: str
    flag: str = ""  # its name there, if not the field's
    shown: str = ""  # its default there, in words
    least: int | None = None
    positive: bool = False


@dataclass(frozen=True)
class Declared:
    """A field of a dataclass of options. A field without `Option` is none that a command line offers."""

    name: str
    option: Option | None
    kinds: frozenset[type]  # plain types that it takes: int, float, bool, str, Path, and list for several texts
    choices: tuple[str, ...]  # all texts that it takes, if they are few
    default: Any

    @property
    def flag(self) -> str:
        own = "" if self.option is None else self.option.flag
        return own or self.name.replace("_", "-")


@cache
def declared(kind: type) -> tuple[Declared, ...]:
    """The options that a dataclass declares, in its order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_declared(field.name, hints[field.name], field.default) for field in fields(kind))


def _declared(name: str, hint: Any, default: Any) -> Declared:
    option = None
    if get_origin(hint) is Annotated:
        hint, option = get_args(hint)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    return Declared(name, option, frozenset(_plain(hint)), choices, default)


def _plain(hint: Any) -> set[type]:
    if get_origin(hint) in (Union, UnionType):
        return set().union(*map(_plain, get_args(hint)))
    if get_origin(hint) is Sequence:
        return {list}
    if get_origin(hint) is Literal:
        return {str}
    return {hint} if hint in (int, float, bool, str, Path) else set()


def check_bounds(options: object, error: type[OperatorError]) -> None:
    """Raise for a value outside of its declared bounds; None has none."""
    kind: type = type(options)
    for one in declared(kind):
        value = getattr(options, one.name)
        if one.option is None or value is None:
            continue
        if one.option.least is not None and value < one.option.least:
            raise error(f"`{one.name}` must be at least {one.option.least}, got {value}")
        if one.option.positive and not (value > 0 and isfinite(value)):
            raise error(f"`{one.name}` must be a positive number, got {value:g}")


def check_outer(outer: float, local_steps: int, error: type[OperatorError]) -> None:
    if outer != 1 and local_steps == 1:
        raise error("`outer` needs `local_steps` above 1: for a single one, change `rate`")


# Options of every run, simulated or real

Steps = Annotated[int | None, Option("How many steps. Default: the task's.", least=1)]
OptimizerSpec = Annotated[
    str | None, Option("sgd, adamw or lamb; options as in sgd:momentum=0.9. Default: the task's.")
]
Rate = Annotated[float | None, Option("Learning rate. Default: the task's.", positive=True)]
ScheduleName = Annotated[str, Option("Learning rate over time: constant, cosine, linear, step or restarts.")]
Warmup = Annotated[int, Option("Steps over which the learning rate rises to its value.", least=0)]
LocalSteps = Annotated[
    int,
    Option("Contribute the mean of so many gradients, met on a private walk of the optimizer: fewer bytes.", least=1),
]
Outer = Annotated[
    float, Option("Factor of the rate of the aggregate's step, times that of the local steps.", positive=True)
]
CodeName = Annotated[
    Literal["float32", "int8"],
    Option("What gradients and aggregates travel as; int8 moves 3 bytes a parameter and step in place of 8."),
]
Validators = Annotated[int, Option("How many peers audit instead of contributing, each step.", least=0)]
BeyondGuarantee = Annotated[bool, Option("Allow more liars than the guarantee covers.")]
Tau = Annotated[float | None, Option("Clipping radius. Default: the task's.", positive=True)]
TauAuto = Annotated[
    float | None,
    Option("Let the radius follow this share (at most 0.5) of the usual distance from the aggregate.", positive=True),
]
