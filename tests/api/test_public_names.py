"""`import troth`: its names are frozen, typed, documented, and cost nothing until they are used."""

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import troth
from tests.api.public_names import GOLDEN, text

MODULES = [troth, *(importlib.import_module(f"troth.{name}") for name in ("rules", "testing", "api.simulate"))]


def test_public_names_and_signatures_are_those_that_people_rely_on() -> None:
    """After a deliberate change: make vectors."""
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_importing_troth_imports_no_library() -> None:
    """A quarter of a second of NumPy, or seconds of PyTorch, are for those who use them."""
    code = "import sys, troth; print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    heavy = ["torch", "numpy", "cryptography", "msgspec", "typer", "matplotlib", "sklearn", "safetensors", "logging"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'troth' has no attribute 'simulat'"):
        troth.simulat  # type: ignore[attr-defined]  # noqa: B018
    assert set(troth.__all__) <= set(dir(troth))


def test_type_checkers_see_the_same_names() -> None:
    """The block for type checkers and the table of lazy imports say the same."""
    tree = ast.parse(Path(inspect.getfile(troth)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If)).body
    typed = {(node.module, one.name) for node in block if isinstance(node, ast.ImportFrom) for one in node.names}
    assert typed == {(module, name) for module, names in troth._HOMES.items() for name in names}
    submodules = {one.asname for node in block if isinstance(node, ast.Import) for one in node.names}
    assert submodules == set(troth._MODULES)
    assert {*(name for _, name in typed), *submodules, "__version__"} == set(troth.__all__)


def test_every_public_name_has_a_docstring() -> None:
    for name in troth.__all__:
        value = getattr(troth, name)
        if isinstance(value, str):
            continue
        assert inspect.getdoc(value), name
        for part, method in inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ():
            if not part.startswith("_") and value.__module__.startswith("troth.api"):
                assert inspect.getdoc(method), f"{name}.{part}"


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings_do_what_they_say(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"troth": troth})
    assert result.failed == 0
    assert result.attempted > 0 or module is troth


def test_errors_have_one_root() -> None:
    for name in ("IdentityError", "JoinError", "ManifestError", "NewRunError", "TaskError", "VerifyError"):
        assert issubclass(getattr(troth, name), troth.OperatorError)
    for name in ("BannedError", "ForkedError", "RemovedError"):
        assert issubclass(getattr(troth, name), troth.CannotGoOnError)
