"""ByzFL's attacks as an independent oracle."""

import importlib
from types import ModuleType

import pytest

from tests.aggregation import conftest as of_rules

byzfl = of_rules.byzfl  # which makes the package importable


@pytest.fixture(scope="session")
def byzfl_attacks(request: pytest.FixtureRequest) -> ModuleType:
    request.getfixturevalue("byzfl")
    return importlib.import_module("byzfl.attacks")
