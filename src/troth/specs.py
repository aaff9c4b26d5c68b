"""Specs: things chosen by name on a command line or in a manifest, `name` or `name:option=value,option=value`.

Imports nothing of ours but the root of errors, so that every package may use it.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from troth.errors import OperatorError

T = TypeVar("T")

_SIMPLE = {"int": int, "float": float, "str": str, "bool": bool}


class SpecError(OperatorError):
    """An unknown name or option, or a value of the wrong kind; the message says what would be right."""


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Look up a name; an unknown one raises an error with the nearest names."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(table)}"
    raise SpecError(f"unknown {kind} '{name}': {hint}")


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec: `"ipm:epsilon=0.3"` becomes `("ipm", {"epsilon": "0.3"})`."""
    name, _, rest = spec.partition(":")
    options: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SpecError(f"'{item}' in '{spec}' is not an option: write name:option=value,option=value")
        options[key.strip()] = value.strip()
    return name.strip(), options


def build(kind: type[T], options: Mapping[str, str], spec: str) -> T:
    """Make a dataclass from its options as text, converted to the types of its fields."""
    if not dataclasses.is_dataclass(kind):
        raise SpecError(f"{kind.__name__} has no options to set: write @dataclass(frozen=True) above the class")
    # A file with postponed annotations has the types of its fields as text.
    fields = {f.name: _SIMPLE.get(str(f.type), f.type) for f in dataclasses.fields(kind) if f.init}
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise SpecError(f"'{spec}' has no option '{key}' (its options: {known})")
        values[key] = _convert(text, fields[key], key)
    try:
        return kind(**values)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(f"'{spec}': {error}") from error


def _convert(text: str, kind: Any, key: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float, str):
            value = kind(text)
            if kind is not float or math.isfinite(value):
                return value
    except (KeyError, ValueError):
        pass
    wanted = {bool: "true or false", int: "a whole number", float: "a finite number"}.get(kind, str(kind))
    raise SpecError(f"option '{key}' takes {wanted}, got '{text}'")
