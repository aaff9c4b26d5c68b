"""A cable with a rate carries one frame after the other, and loses those for which its queue is full."""

import os

import pytest

from tests.nettest.cable import Direction

FRAME = bytes(1000)


@pytest.fixture
def slow() -> Direction:
    """8 kB a second: a frame takes an eighth of a second, and arrives a sixteenth later."""
    _, sink = os.pipe()
    return Direction(source=-1, sink=sink, delay_s=0.0625, rate=8_000)


def _due(direction: Direction) -> list[float]:
    return [due for due, _ in direction.under_way]


def test_frames_that_come_together_arrive_one_after_the_other(slow: Direction) -> None:
    for _ in range(3):
        slow.take(FRAME, now=7.0)
    assert _due(slow) == [7.1875, 7.3125, 7.4375]


def test_a_line_that_was_idle_saves_nothing_up(slow: Direction) -> None:
    slow.take(FRAME, now=7.0)
    slow.take(FRAME, now=9.0)
    assert _due(slow) == [7.1875, 9.1875]


def test_a_frame_is_lost_that_would_wait_for_longer_than_half_a_second(slow: Direction) -> None:
    for _ in range(100):
        slow.take(FRAME, now=7.0)
    assert len(slow.under_way) == 5  # one on the line, four that wait
    slow.take(FRAME, now=7.125)
    assert len(slow.under_way) == 6


def test_frames_are_handed_over_when_they_are_due(slow: Direction) -> None:
    slow.take(FRAME, now=7.0)
    slow.take(FRAME, now=7.0)
    slow.deliver(now=7.2)
    assert _due(slow) == [7.3125]


def test_without_a_rate_frames_take_the_delay_alone() -> None:
    direction = Direction(source=-1, sink=-1, delay_s=0.0625)
    for _ in range(100):
        direction.take(FRAME, now=7.0)
    assert set(_due(direction)) == {7.0625}
