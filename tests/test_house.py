"""The size of rooms and furniture: what a stranger can take in at once. Exceptions are listed here, with their reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import troth

SOURCE = Path(troth.__file__).parent
MOST_FUNCTION_LINES, MOST_MODULE_LINES, MOST_MODULES = 64, 400, 15
MOST_CLASS_LINES = 320  # a state machine belongs in one place

EXCEPTIONS: dict[str, str] = {}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def definitions() -> Iterator[tuple[str, ast.AST, int]]:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                assert node.end_lineno is not None
                yield f"{name_of(path)}:{node.name}", node, node.end_lineno - node.lineno + 1


def test_functions_fit_on_a_screen() -> None:
    """The command line's are lists of options with their help; their bodies are short."""
    long = {
        name: lines
        for name, node, lines in definitions()
        if not isinstance(node, ast.ClassDef) and lines > MOST_FUNCTION_LINES and not name.startswith("cli/")
    }
    assert long.keys() - EXCEPTIONS.keys() == set(), long


def test_classes_have_one_job() -> None:
    long = {
        name: lines
        for name, node, lines in definitions()
        if isinstance(node, ast.ClassDef) and lines > MOST_CLASS_LINES
    }
    assert long.keys() - EXCEPTIONS.keys() == set(), long


def test_modules_can_be_read_in_one_sitting() -> None:
    lengths = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in modules()}
    long = {name: lines for name, lines in lengths.items() if lines > MOST_MODULE_LINES}
    assert long.keys() - EXCEPTIONS.keys() == set(), long


def test_packages_can_be_read_from_ls() -> None:
    packages = {path.parent for path in modules()}
    counts = {
        name_of(package): sum(path.name != "__init__.py" for path in package.glob("*.py")) for package in packages
    }
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}


def test_no_exception_is_out_of_date() -> None:
    assert EXCEPTIONS.keys() <= {name for name, _, _ in definitions()} | {name_of(path) for path in modules()}
