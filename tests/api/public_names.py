"""The public names and their signatures, as text: `golden/public-names.txt`.

`make vectors` (`python -m tests.api.public_names`) writes it anew, after a deliberate change only: people's programs rely on
these. `test_public_names.py` compares. Signatures are read from the source, so that they are the same text under every
version of Python.
"""

import ast
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import troth

GOLDEN = Path(__file__).parents[1] / "golden" / "public-names.txt"

# Of these only this much is promised; the rest serves other packages of Troth.
PROMISED = {
    "troth.attacks": ("ATTACKS", "AttackError", "GradientAttack", "make_attack"),
    "GradientAttack": ("needs_honest", "check", "poison", "begin", "forge"),
    "Identity": ("generate", "save", "load", "peer"),
    "Manifest": ("name", "task", "steps", "founders", "folder", "load", "to_toml", "name_of", "founder", "make_task"),
    "Stream": ("integers", "uniform", "normal", "permutation", "sample", "words"),
}
_OPERATORS = ("__iter__", "__next__", "__enter__", "__bool__")  # users make no object of ours by hand


def described(module: ModuleType, indent: str = "") -> Iterator[str]:
    """One line for each public name, and below a class one for each of its parts."""
    for name in PROMISED.get(module.__name__, module.__all__):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            yield f"{indent}module {name}"
            yield from described(value, indent + "    ")
        elif inspect.isclass(value):
            yield f"{indent}class {name}({', '.join(base.__name__ for base in _public_bases(value))})"
            hidden = [line for base in value.__bases__ if base.__name__.startswith("_") for line in _parts(base)]
            yield from (f"{indent}    {line}" for line in _unique_names([*_parts(value), *hidden]))
        elif inspect.isfunction(value):
            yield f"{indent}{_signature(_definition(value), name)}"
            yield from (f"{indent}    {line}" for line in _options(value))
        else:
            yield f"{indent}{name}: {type(value).__name__}"


def _public_bases(kind: type) -> Iterator[type]:
    """Its bases; of one that is private, the bases of that."""
    for base in kind.__bases__:
        if base is not object:
            yield from _public_bases(base) if base.__name__.startswith("_") else [base]


def _unique_names(lines: list[str]) -> list[str]:
    """The first line of each field: a class says again what its private base has."""
    return list({line.split(":")[0].split("(")[0]: line for line in reversed(lines)}.values())[::-1]


def _parts(kind: type) -> Iterator[str]:
    """Fields, methods, and attributes that the constructor sets."""
    promised = PROMISED.get(kind.__name__)
    for node in _definition(kind).body:
        if isinstance(node, ast.AnnAssign):
            lines = {ast.unparse(node.target): ast.unparse(node)}
        elif isinstance(node, ast.FunctionDef):
            lines = {node.name: _signature(node, node.name)}
            if node.name == "__init__":
                lines |= _attributes(node)
        else:
            continue
        for name, line in lines.items():
            public = not name.startswith("_") or name in _OPERATORS
            if public and (promised is None or name in promised):
                yield line


def _options(function: Any) -> Iterator[str]:
    """The keyword arguments that a function takes as a typed dictionary."""
    for kind in map(typing.get_args, inspect.get_annotations(function).values()):
        if kind and typing.is_typeddict(kind[0]):
            yield from (f"{line}" for line in _parts(kind[0]))


def _attributes(constructor: ast.FunctionDef) -> dict[str, str]:
    targets = [
        target
        for node in constructor.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    names = [target.attr for target in targets if isinstance(target, ast.Attribute)]
    return {name: f"attribute {name}" for name in names}


def _signature(node: Any, name: str) -> str:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    kind = "property" if "property" in marks else "def"
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{kind} {name}({ast.unparse(node.args)}){result}"


def _definition(value: Any) -> Any:
    value = inspect.unwrap(value)
    tree = ast.parse(Path(inspect.getfile(value)).read_text(encoding="utf-8"))
    return next(node for node in ast.walk(tree) if getattr(node, "name", None) == value.__name__)


def text() -> str:
    return "\n".join(described(troth)) + "\n"


def main() -> None:
    same = GOLDEN.exists() and GOLDEN.read_text(encoding="utf-8") == text()
    GOLDEN.write_text(text(), encoding="utf-8")
    print(f"{GOLDEN.relative_to(Path.cwd())}: {'unchanged' if same else 'WRITTEN'}")


if __name__ == "__main__":
    main()
