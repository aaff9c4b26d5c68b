"""Functions fit on a screen. Which room may import which is in pyproject.toml, for import-linter."""

import ast
from pathlib import Path

import troth

SOURCE = Path(troth.__file__).parent
MOST_FUNCTION_LINES = 64


def test_functions_fit_on_a_screen() -> None:
    """The command line's are lists of options with their help; their bodies are short."""
    long = {
        f"{path.relative_to(SOURCE)}:{node.name}": lines
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    }
    assert long == {}
