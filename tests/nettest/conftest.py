import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect this folder only where it is named: `pytest tests/nettest`."""
    return None if any("nettest" in argument for argument in config.args) else True
