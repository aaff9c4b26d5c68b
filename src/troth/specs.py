"""Specs: things chosen by name on a command line or in a manifest, `name` or `name:option=value,option=value`.

A spec may name a user's own file too, `file.py:Name:option=value`; `troth.plugins` runs it. Imports nothing of ours but the
root of errors, so that every package may use it.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin

from troth.errors import OperatorError

T = TypeVar("T")
P = ParamSpec("P")

ALSO = " + "  # between several specs in one string
_SIMPLE = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}
_FILE = re.compile(r"\s*(?P<file>.*?\.py)\s*(?::(?P<rest>.*))?", re.DOTALL)


class SpecError(OperatorError):
    """An unknown name or option, or a value of the wrong kind; the message says what would be right."""


class LazyTable(Mapping[str, T]):
    """A table of things by name, each as `module:attribute`, which is imported when it is looked up."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._places[name].partition(":")
        thing: T = getattr(import_module(module), attribute)
        return thing

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Look up a name; an unknown one raises an error with the nearest names."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(table)}"
    raise SpecError(f"unknown {kind} '{name}': {hint}")


def check_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function refuse a keyword that it does not have, with the nearest that it has, and a text for a number."""
    kinds: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        packed = get_args(parameter.annotation)  # `**options: Unpack[Options]`
        options = parameter.kind is parameter.VAR_KEYWORD
        kinds |= packed[0].__annotations__ if options else {name: parameter.annotation}

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        for name, value in keywords.items():
            if name not in kinds:
                near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.6)
                hint = f"did you mean `{near[0]}`?" if near else f"choose from {', '.join(kinds)}"
                raise SpecError(f"{function.__name__}() has no option `{name}`: {hint}")
            _check_number(name, value, kinds[name])
        return function(*arguments, **keywords)

    return checked


class FileSpec(NamedTuple):
    """A spec that names a file: its path as it was written, the name inside (empty: the only one), and options as text."""

    file: str
    name: str
    options: dict[str, str]


def file_of(spec: str) -> str | None:
    """The file that a spec names, as it was written; None for anything else.

    A file ends with the first `.py` before a colon or the end, so its path may hold colons and spaces. Everybody who has to
    know whether a spec runs a file asks here.
    """
    found = _FILE.fullmatch(spec)
    if found is None or re.match(r"[^:/]*:\s*\w+\s*=", found["file"]):  # `name:option=x.py` names no file
        return None
    return found["file"]


def parse_file_spec(spec: str) -> FileSpec:
    """Split `"my.py:Loud:scale=3"` into `("my.py", "Loud", {"scale": "3"})`; name and options may both be missing."""
    found = _FILE.fullmatch(spec)
    assert found is not None, "ask file_of first"
    rest = found["rest"] or ""
    name, _, options = rest.partition(":")
    if "=" in name:
        name, options = "", rest
    return FileSpec(found["file"], name.strip(), _parse_options(options, spec))


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec: `"ipm:epsilon=0.3"` becomes `("ipm", {"epsilon": "0.3"})`; a file stands for its name."""
    if file_of(spec) is not None:
        named = parse_file_spec(spec)
        return named.file, named.options
    name, _, rest = spec.partition(":")
    return name.strip(), _parse_options(rest, spec)


def _parse_options(text: str, spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SpecError(f"'{item}' in '{spec}' is not an option: write name:option=value,option=value")
        options[key.strip()] = value.strip()
    return options


def build(kind: type[T], options: Mapping[str, str], spec: str) -> T:
    """Make an object of a class from its options as text, converted to the types of its fields."""
    if not dataclasses.is_dataclass(kind):
        if options:
            raise SpecError(f"{kind.__name__} has no options to set: write @dataclass(frozen=True) above the class")
        return kind()
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values = convert_options(options, {name: field.type for name, field in fields.items()}, spec)
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise SpecError(f"'{spec}' needs a value for its option '{name}': write {name}=…")
    try:
        return kind(**values)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(f"'{spec}': {error}") from error


def convert_options(options: Mapping[str, str], kinds: Mapping[str, Any], spec: str) -> dict[str, Any]:
    """Turn options into values of these kinds; raise for an option that is not among them."""
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SpecError(f"'{spec}' has no option '{key}' (its options: {', '.join(kinds) or 'none'}){hint}")
        values[key] = _convert(text, kinds[key], key)
    return values


_WANTED = {bool: "true or false", int: "a whole number", float: "a finite number"}


def _check_number(name: str, value: Any, kind: Any) -> None:
    """Refuse what is no number where one is wanted; options of other kinds are left to others."""
    kind, may_be_none = _without_none(kind)
    if kind not in _WANTED or (value is None and may_be_none):
        return
    right = isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not right:
        raise SpecError(f"`{name}` takes {_WANTED[kind]}{' or none' if may_be_none else ''}, got {value!r}")


def _convert(text: str, kind: Any, key: str) -> Any:
    kind, may_be_none = _without_none(kind)
    if may_be_none and text.lower() == "none":
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float, str, Path):
            value = kind(text)
            if kind is not float or math.isfinite(value):
                return value
    except (KeyError, ValueError):
        pass
    wanted = _WANTED.get(kind)
    if wanted is None:
        raise SpecError(
            f"option '{key}' is of type {kind}, which cannot be set here: use int, float, bool, str or Path"
        )
    raise SpecError(f"option '{key}' takes {wanted}{' or none' if may_be_none else ''}, got '{text}'")


def _without_none(kind: Any) -> tuple[Any, bool]:
    """The type behind `int | None`, and whether there was a None; a file with postponed annotations has types as text."""
    if isinstance(kind, str):
        bare = kind.removeprefix("Optional[").removesuffix("]").replace("| None", "").strip()
        return _SIMPLE.get(bare, kind), bare != kind
    if get_origin(kind) in (Union, UnionType):
        others = [part for part in get_args(kind) if part is not NoneType]
        if len(others) == 1:
            return others[0], True
    return kind, False
