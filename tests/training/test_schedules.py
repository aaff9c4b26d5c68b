"""Learning rates as tables."""

import math
from itertools import pairwise

import pytest

from troth.training import SCHEDULES, rate_at, warmed_up
from troth.training.optimizers import constant, cosine, linear, restarts


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 300, 1001])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01])
def test_cosine_follows_the_formula(rate: float, steps: int) -> None:
    table = cosine(rate, steps)
    assert len(table) == steps
    for step, ours in enumerate(table):
        assert abs(ours - rate * (1 + math.cos(math.pi * step / steps)) / 2) <= 1e-15


def test_cosine_ends() -> None:
    table = cosine(0.3, 1000)
    assert table[0] == 0.3
    assert table[500] == 0.15  # exactly half way, which math.cos would miss by a bit
    assert 0 < table[-1] < 1e-5
    assert all(later < earlier for earlier, later in pairwise(table))


def test_cosine_is_symmetric_about_its_middle() -> None:
    table = cosine(1.0, 64)
    assert all(abs(table[t] + table[64 - t] - 1) <= 1e-16 for t in range(1, 64))


def test_cosine_table_is_pinned() -> None:
    """A run names its rates by digest, so these bits may never change."""
    assert [rate.hex() for rate in cosine(0.1, 5)] == COSINE_OF_FIVE


COSINE_OF_FIVE = [
    "0x1.999999999999ap-4",
    "0x1.727c9716ffb77p-4",
    "0x1.0c1630b099510p-4",
    "0x1.1b06d1d200914p-5",
    "0x1.38e81414cf11bp-7",
]


def test_constant() -> None:
    assert constant(0.2, 3) == (0.2, 0.2, 0.2)


def test_linear() -> None:
    assert linear(1.0, 4) == (1.0, 0.75, 0.5, 0.25)


def test_step_divides_by_ten_at_three_quarters() -> None:
    assert SCHEDULES["step"](0.1, 8) == (0.1,) * 6 + (0.01,) * 2
    table = SCHEDULES["step"](0.1, 7800)  # 100 epochs of 78 steps: from the 76th on
    assert table.index(0.01) == 75 * 78


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_starts_at_the_rate_and_has_one_entry_per_step(name: str) -> None:
    table = SCHEDULES[name](0.7, 11)
    assert len(table) == 11
    assert table[0] == 0.7
    assert all(0 < rate <= 0.7 for rate in table)


def test_warm_up_rises_along_a_line_and_then_leaves_the_table_alone() -> None:
    assert warmed_up(constant(1.0, 6), 4) == (0.25, 0.5, 0.75, 1.0, 1.0, 1.0)


def test_warm_up_scales_the_table_it_is_given() -> None:
    table = linear(1.0, 4)
    assert warmed_up(table, 2) == (table[0] / 2, *table[1:])


def test_no_warm_up() -> None:
    table = cosine(0.1, 9)
    assert warmed_up(table, 0) == warmed_up(table, 1) == table


def test_warm_up_longer_than_the_run() -> None:
    assert warmed_up(constant(1.0, 2), 8) == (0.125, 0.25)


def test_rate_at() -> None:
    table = (3.0, 2.0, 1.0)
    assert [rate_at(table, step) for step in (0, 1, 2, 3, 1000)] == [3.0, 2.0, 1.0, 1.0, 1.0]


def test_restarts_are_five_stages_twice_as_long_at_half_the_rate() -> None:
    assert restarts(1.0, 31) == (1.0,) * 1 + (0.5,) * 2 + (0.25,) * 4 + (0.125,) * 8 + (0.0625,) * 16
    assert restarts(0.3, 310) == tuple(rate for rate in restarts(0.3, 31) for _ in range(10))


@pytest.mark.parametrize("steps", [1, 2, 30, 100, 1001])
def test_restarts_follow_the_formula(steps: int) -> None:
    assert restarts(0.3, steps) == tuple(0.3 / 2 ** math.floor(math.log2(1 + 31 * t / steps)) for t in range(steps))
