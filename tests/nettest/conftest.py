import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Only who names this folder gets it: `pytest tests/nettest`."""
    return None if any("nettest" in argument for argument in config.args) else True
