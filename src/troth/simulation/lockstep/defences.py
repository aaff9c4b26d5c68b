"""Defences: rules by name, from a user's file, from an installed package, or as a function; checked before a run.

A rule is a function of the vectors, `rule(vectors_PD) -> Tensor`, or a dataclass with such a `__call__`. Where it names
`byzantine` or `tau`, it is given them. Other keyword parameters are its options.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from troth.aggregation import RULES, Rule, RuleEntry, bind_rule
from troth.crypto import stream
from troth.errors import OperatorError
from troth.plugins import Kind, blamed, find, in_one_line, make, name_of
from troth.specs import SpecError, convert_options

# P peers, D coordinates

TROTH = "troth"  # name of the defence that is the protocol itself
RULE_PLUGINS = "troth.rules"  # entry points of installed packages
_GIVEN = ("byzantine", "tau")
_PROBE_WIDTH = 5


class DefenceError(OperatorError):
    """A rule that cannot be used; the message says why."""


def make_rule(defence: str | Callable[..., Tensor]) -> RuleEntry:
    """`krum`, `my_rule.py`, `my_rule.py:name:option=value`, the name of a package's rule; or a function, or an object."""
    if not isinstance(defence, str):
        return _entry(defence, {}, name_of(defence))
    thing, options = find(defence, RULE, {TROTH: None, **RULES}, RULE_PLUGINS)
    if isinstance(thing, RuleEntry):
        return _entry(thing.function, options, defence)
    if isinstance(thing, type):
        return _entry(make(thing, options, defence), {}, defence)
    return _entry(thing, options, defence)


def check_rule(entry: RuleEntry, name: str, *, peers: int, byzantine: int, tau: float) -> None:
    """Try a rule on made-up vectors: it must give one finite vector of their length."""
    probe_PD = torch.from_numpy(stream(0, "rule probe").normal(peers * _PROBE_WIDTH)).float().view(peers, -1)
    try:
        found_D = apply_rule(bind_rule(entry, byzantine=byzantine, tau=tau), probe_PD, name)
    except DefenceError:
        raise
    except Exception as error:
        why = blamed(error) or (str(error) if isinstance(error, ValueError) else in_one_line(error))
        raise DefenceError(f"`defence` {name} cannot be used here: {why}") from error
    if not bool(torch.isfinite(found_D).all()):
        raise DefenceError(f"`defence` {name} gives something that is not finite for ordinary vectors")


def apply_rule(rule: Rule, vectors_PD: Tensor, name: str) -> Tensor:
    """Apply a rule, and refuse anything but one vector as long as those that went in."""
    found_D: Any = rule(vectors_PD)
    width = vectors_PD.shape[1]
    if not isinstance(found_D, Tensor) or found_D.shape != (width,) or not found_D.is_floating_point():
        got = (
            f"a tensor {tuple(found_D.shape)} of {found_D.dtype}"
            if isinstance(found_D, Tensor)
            else type(found_D).__name__
        )
        raise DefenceError(f"`defence` {name} must give one vector of {width} numbers for each matrix, and gave {got}")
    return found_D.to(vectors_PD)


def _is_rule(thing: Any) -> bool:
    """Whether it is a function of one positional argument, or a class or an object that is called so."""
    if isinstance(thing, type):
        return "__call__" in vars(thing) and _takes_vectors(partial(thing.__call__, None))
    return callable(thing) and not inspect.ismodule(thing) and _takes_vectors(thing)


def _takes_vectors(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty and p.name not in _GIVEN]
    return len(needed) == 1 and positional[0] is needed[0]


RULE: Kind[Any] = Kind("defence", "a function of one matrix, or a class with such a __call__", _is_rule)


def _entry(function: Callable[..., Tensor], options: dict[str, str], spec: str) -> RuleEntry:
    """A rule with the parameters that it wants to be given, its options set."""
    if not callable(function) or isinstance(function, type):
        raise DefenceError(
            f"`defence` {spec} is no rule: give a name, a function of the vectors, or an object with __call__"
        )
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some of torch's own say nothing of themselves
        parameters = {}
    kinds = {
        name: _kind(parameter)
        for name, parameter in list(parameters.items())[1:]
        if name not in _GIVEN and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    values = convert_options(options, kinds, spec)
    for name in kinds:
        if name not in values and parameters[name].default is inspect.Parameter.empty:
            raise SpecError(f"'{spec}' needs a value for its option '{name}': write {name}=…")
    needs = tuple(name for name in _GIVEN if name in parameters)
    about = (inspect.getdoc(function) or "").strip().splitlines()
    return RuleEntry(partial(function, **values) if values else function, needs, about[0] if about else "")


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of an option: as annotated, or else that of its default."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return str if parameter.default in (None, parameter.empty) else type(parameter.default)
