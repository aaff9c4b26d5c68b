"""Rules by name, from a user's file, from an installed package, or as a function.

A rule is a function of the vectors, `rule(vectors_PD) -> Tensor`, or a dataclass with such a `__call__`. Where it names
`byzantine`, `tau` or `layout`, it is given them. Other keyword parameters are its options. A rule that remembers is a
dataclass that extends `RuleWithMemory`.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from troth.aggregation import RULES, AnyRule, PreAggregation, RuleEntry, RuleWithMemory
from troth.errors import OperatorError
from troth.plugins import Kind, find, made, name_of
from troth.specs import SpecError, convert_options, file_of, parse_spec

# P peers, D coordinates

TROTH = "troth"  # name of the defence that is the protocol itself, and no rule
RULE_PLUGINS = "troth.rules"  # entry points of installed packages
_GIVEN = ("byzantine", "tau", "layout")


class DefenceError(OperatorError):
    """A rule that cannot be used; the message says why."""


def make_rule(defence: str | Callable[..., Tensor] | RuleWithMemory) -> AnyRule:
    """`krum`, `my_rule.py`, `my_rule.py:name:option=value`, the name of a package's rule; or a function, or an object."""
    if isinstance(defence, RuleWithMemory):
        return _filled(defence)
    if not isinstance(defence, str):
        return _entry(defence, {}, name_of(defence))
    thing, options = find(defence, RULE, {TROTH: None, **RULES}, RULE_PLUGINS)
    if isinstance(thing, RuleEntry):
        return replace(_entry(thing.function, options, defence), summary=thing.summary, most=thing.most)
    if isinstance(thing, type | RuleWithMemory):
        thing, options = made(thing, options, defence), {}
    return _filled(thing) if isinstance(thing, RuleWithMemory) else _entry(thing, options, defence)


def _filled(rule: RuleWithMemory) -> RuleWithMemory:
    """A rule with the one that it names inside it."""
    return rule.around(make_rule(_inside(rule.rule))) if isinstance(rule, PreAggregation) else rule


def _inside(spec: str) -> str:
    """An inner rule's spec: there a `;` stands for the commas between options."""
    return spec.replace(";", ",")


def specs_in(spec: str) -> list[str]:
    """A rule's spec, and those of the rules inside it."""
    name, options = (spec, {}) if file_of(spec) else parse_spec(spec)
    row = RULES.get(name)
    around = isinstance(row, type) and issubclass(row, PreAggregation) and "rule" in options
    return [spec, *specs_in(_inside(options["rule"]))] if around else [spec]


def _is_rule(thing: Any) -> bool:
    """Whether it is a function of one positional argument, a class or an object that is called so, or a rule with memory."""
    if isinstance(thing, type) and issubclass(thing, RuleWithMemory):
        return not inspect.isabstract(thing)
    if isinstance(thing, RuleWithMemory):
        return True
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


RULE: Kind[Any] = Kind(
    "defence", "a function of one matrix, a class with such a __call__, or a RuleWithMemory", _is_rule
)


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
