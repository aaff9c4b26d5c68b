"""ByzFL's attacks as an independent oracle."""

import importlib
from types import ModuleType

import pytest

from tests.aggregation.conftest import byzfl

__all__ = ["byzfl"]


@pytest.fixture(scope="session")
def byzfl_attacks(byzfl: ModuleType) -> ModuleType:
    return importlib.import_module("byzfl.attacks")
