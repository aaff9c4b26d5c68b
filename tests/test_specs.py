"""Things chosen by name: what a spec means, and what a mistyped one is told."""

from dataclasses import dataclass, field

import pytest

from troth.errors import OperatorError
from troth.specs import SpecError, build, parse_spec, pick

TABLE = {"sign-flip": 1, "label-flip": 2, "alie": 3}


@dataclass(frozen=True)
class Options:
    count: int = 1
    length: float = 2.0
    fast: bool = False
    name: str = "x"
    made: int = field(default=7, init=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")


@dataclass(frozen=True)
class NoOptions:
    pass


def test_pick_finds_the_entry() -> None:
    assert pick(TABLE, "label-flip", "attack") == 2


def test_pick_suggests_near_names() -> None:
    with pytest.raises(SpecError, match=r"^unknown attack 'sgn-flip': did you mean sign-flip or label-flip\?$"):
        pick(TABLE, "sgn-flip", "attack")


def test_pick_lists_all_names_when_none_is_near() -> None:
    with pytest.raises(SpecError, match=r"^unknown attack 'zzz': choose from sign-flip, label-flip, alie$"):
        pick(TABLE, "zzz", "attack")


def test_a_mistyped_choice_is_the_operators_mistake() -> None:
    assert issubclass(SpecError, OperatorError)


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("alie", "alie", {}),
        ("alie:", "alie", {}),
        ("ipm-0.6:epsilon=0.3", "ipm-0.6", {"epsilon": "0.3"}),
        (" sgd : momentum = 0.5 , nesterov=false ", "sgd", {"momentum": "0.5", "nesterov": "false"}),
        ("a:b=c=d", "a", {"b": "c=d"}),
        ("a:b=1,,c=2,", "a", {"b": "1", "c": "2"}),
        ("a:b=", "a", {"b": ""}),
    ],
)
def test_parse_spec(spec: str, name: str, options: dict[str, str]) -> None:
    assert parse_spec(spec) == (name, options)


@pytest.mark.parametrize(("spec", "item"), [("a:b", "b"), ("a:b=1,c", "c"), ("a:=1", "=1")])
def test_parse_spec_says_how_to_write_an_option(spec: str, item: str) -> None:
    with pytest.raises(SpecError, match=f"^'{item}' in '{spec}' is not an option: write name:option=value"):
        parse_spec(spec)


def test_build_converts_to_the_types_of_the_fields() -> None:
    made = build(Options, {"count": "3", "length": "1e-3", "fast": "True", "name": "4"}, "spec")
    assert made == Options(count=3, length=1e-3, fast=True, name="4")
    assert type(made.length) is float


def test_build_keeps_defaults() -> None:
    assert build(Options, {}, "spec") == Options()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "'spec' has no option 'colour' \\(its options: count, length, fast, name\\)"),
        ({"made": "1"}, "'spec' has no option 'made'"),
        ({"count": "1.5"}, "option 'count' takes a whole number, got '1.5'"),
        ({"count": ""}, "option 'count' takes a whole number, got ''"),
        ({"length": "long"}, "option 'length' takes a finite number, got 'long'"),
        ({"fast": "yes"}, "option 'fast' takes true or false, got 'yes'"),
        ({"count": "-1"}, "'spec': count must not be negative, got -1"),
    ],
)
def test_build_says_what_is_wrong(options: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        build(Options, options, "spec")


def test_build_says_when_there_are_no_options() -> None:
    with pytest.raises(SpecError, match="its options: none"):
        build(NoOptions, {"a": "1"}, "spec")
