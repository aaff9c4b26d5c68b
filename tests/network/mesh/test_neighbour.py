"""Messages for a peer that is not connected at the moment."""

import time

import pytest

from troth.network import mesh, neighbour
from troth.network.neighbour import Neighbour
from troth.network.transport.base import Lane


def test_held_messages_are_released_once_in_order_and_only_if_they_are_fresh() -> None:
    other, before = Neighbour("host:1"), time.monotonic()
    other.hold(Lane.CONTROL, b"one")
    other.hold(Lane.BULK, b"two")
    assert other.release(before) == [(Lane.CONTROL, b"one"), (Lane.BULK, b"two")]
    assert other.release(before) == []
    other.hold(Lane.CONTROL, b"old")
    assert other.release(time.monotonic() + 1.0) == []
    assert other.release(before) == [], "too old once, too old for ever"


def test_held_messages_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that never comes back must not fill our memory."""
    monkeypatch.setattr(neighbour, "_MOST_HELD", 10)
    other = Neighbour("host:1")
    for message in (bytes(6), bytes(5), bytes(4), bytes(1)):
        other.hold(Lane.BULK, message)
    assert [len(message) for _, message in other.release(0.0)] == [6, 4]
    other.hold(Lane.BULK, bytes(10))
    assert len(other.release(0.0)) == 1, "room comes back"


def test_a_peer_that_yields_dials_soon_after_a_connection_was_lost_as_at_the_beginning() -> None:
    """[Q9] Members wait for a dead one until they have dialled it in vain: what the larger key waits is the step's time."""
    redial = neighbour.Redial(mesh._YIELDING_S)
    assert not redial.is_due(time.monotonic(), 0.0)
    assert redial.is_due(time.monotonic() - 0.3, 0.0)
    redial.tried()
    redial.connected()
    assert not redial.is_due(time.monotonic(), 0.0)
    assert redial.is_due(time.monotonic() - 0.3, 0.0)
