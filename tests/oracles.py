"""ByzFL as an independent oracle, without the packages that its other half needs."""

import importlib
import importlib.util
import sys
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def byzfl() -> ModuleType:
    """`byzfl.aggregators`, imported past `byzfl/__init__.py`, which would pull in torchvision, seaborn and more.

    An empty package with ByzFL's search path takes the place of the real one, so only the aggregators are loaded.
    """
    spec = importlib.util.find_spec("byzfl")
    assert spec is not None, "byzfl is not installed: make .venv/installed-dev"
    assert spec.submodule_search_locations is not None
    shell = ModuleType("byzfl")
    shell.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = shell
    return importlib.import_module("byzfl.aggregators")


@pytest.fixture(scope="session")
def byzfl_attacks(byzfl: ModuleType) -> ModuleType:
    """`byzfl.attacks`, in the same empty package."""
    assert byzfl is not None
    return importlib.import_module("byzfl.attacks")
