"""The golden vectors still come out as they were."""

import json

import pytest

from tests.vectors import VECTORS, golden_file


@pytest.mark.parametrize("name", VECTORS)
def test_golden(name: str) -> None:
    golden = json.loads(golden_file(name).read_text(encoding="utf-8"))
    assert VECTORS[name]() == golden, "after a deliberate change only: make vectors"
