"""Options of scenarios as a sweep's file writes them: checked one by one, named where they are wrong."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from troth.lab.files import SweepError
from troth.simulation import Scenario
from troth.training import make_task

NONE = "none"  # as an attack: nobody lies
WHEN = {"early": 1 / 6, "middle": 1 / 3, "late": 2 / 3}  # start of an attack, as a share of the steps

_OF_ATTACKS = ("attack", "attack_start", "attack_every", "attack_probability", "attack_stop")
_NOT_HERE = {"seed": "write `seeds = [0, 1, 2]` above all tables"}


def check_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Refuse options that scenarios do not have, and values of the wrong kind; whole numbers may stand for others."""
    return {name: _checked(name, value, where) for name, value in options.items()}


def _checked(name: str, value: Any, where: str) -> Any:
    if name in _NOT_HERE:
        raise SweepError(f"{where}: no `{name}` here: {_NOT_HERE[name]}")
    if name == "when":
        if value not in WHEN:
            raise SweepError(f"{where}: `when` is one of {', '.join(WHEN)}, got {value!r}")
        return value
    kinds = _kinds()
    if name not in kinds:
        near = difflib.get_close_matches(name, (*kinds, "when"), n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join((*kinds, 'when'))}"
        raise SweepError(f"{where}: a scenario has no option `{name}`: {hint}")
    kind = kinds[name]
    if float in kind and type(value) is int:
        return float(value)
    if list in kind and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if Path in kind and isinstance(value, str):
        return Path(value)
    if type(value) not in kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list of texts"}
        wanted = " or ".join(word for one, word in words.items() if one in kind)
        raise SweepError(f"{where}: `{name}` takes {wanted}, got {value!r}")
    return value


@cache
def _kinds() -> dict[str, frozenset[type]]:
    """The plain types that each option takes; a sequence is a list in the file, and a path is text."""
    hints = get_type_hints(Scenario)
    return {field.name: frozenset(_plain(hints[field.name])) for field in fields(Scenario) if field.name != "seed"}


def _plain(hint: Any) -> set[type]:
    if get_origin(hint) in (Union, UnionType):
        return set().union(*map(_plain, get_args(hint)))
    if get_origin(hint) is Sequence:
        return {list}
    return {hint} if hint in (int, float, bool, str, Path) else set()


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a scenario: `when` becomes a step, and nothing of an attack is left where nobody lies."""
    plain = dict(options)
    when = plain.pop("when", None)
    if plain.get("attack") == NONE:
        plain |= {"byzantine": 0}
    if not plain.get("byzantine"):
        return {name: value for name, value in plain.items() if name not in _OF_ATTACKS}
    if when is not None:
        steps = plain.get("steps") or make_task(plain.get("task", Scenario.task)).steps
        plain["attack_start"] = int(WHEN[when] * steps)
    return plain
