"""Strangers take turns: however many flood, an honest one has its share, and all of them together cost so much (SPEC M4)."""

from heapq import heapify, heapreplace

from troth.network.mesh import _BURST_S, _STRANGERS_PER_SECOND, StrangersTurns


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_has_so_many_turns_in_a_second_and_each_connection_its_share() -> None:
    """[M4] 63 connections say the next thing as soon as they may, one twice in a second: it hardly waits."""
    clock = Clock()
    turns, begin, heard, waited = StrangersTurns(clock), clock.now, 0, []
    due = [(begin, k) for k in range(64)]  # the time at which each takes its next turn; 0 is the honest one
    heapify(due)
    while due[0][0] < begin + 10:
        clock.now, who = due[0]
        wait_s = turns.take()
        heard += who > 0
        if who == 0:
            waited.append(wait_s)
        heapreplace(due, (clock.now + wait_s + (0.5 if who == 0 else 0.0), who))
    assert heard <= (10 + _BURST_S) * _STRANGERS_PER_SECOND + 64
    assert len(waited) >= 10
    assert max(waited) <= 64 / _STRANGERS_PER_SECOND + 1e-6


def test_nobody_waits_while_few_speak() -> None:
    """[M4]"""
    clock = Clock()
    turns = StrangersTurns(clock)
    for _ in range(1000):
        clock.now += 2 / _STRANGERS_PER_SECOND
        assert turns.take() == 0.0
