"""Limits check themselves."""

from dataclasses import replace

import pytest

from tests.network.transport.endpoints import LIMITS, MB


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"most_control_bytes": 0}, "most_control_bytes must be from 1"),
        ({"most_bulk_bytes": 2**32}, "most_bulk_bytes must be from 1"),
        ({"most_queued_bytes": MB}, "must hold the largest message"),
        ({"idle_s": 6.0}, "at least twice ping_s"),
        ({"ping_s": 0.0}, "ping_s must be a positive number"),
        ({"handshake_s": float("nan")}, "handshake_s must be a positive number"),
        ({"most_handshakes": 0}, "most_handshakes must be at least 1"),
        ({"bytes_per_second": 10.0}, "bytes_per_second must be at least"),
        ({"bytes_per_second": float("nan")}, "bytes_per_second must be at least"),
    ],
)
def test_limits_check_themselves(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(LIMITS, **wrong)  # type: ignore[arg-type]
