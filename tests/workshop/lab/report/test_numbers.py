"""Means, spreads and intervals."""

import pytest
from scipy import stats

from troth.workshop.lab.tables import interval, number, spread, t_975


@pytest.mark.parametrize("freedom", [*range(1, 31), 40, 60, 120])
def test_the_table_of_quantiles(freedom: int) -> None:
    assert t_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-5)


@pytest.mark.parametrize("freedom", [31, 59, 100, 1000])
def test_between_two_entries_the_interval_is_the_wider(freedom: int) -> None:
    assert stats.t.ppf(0.975, freedom) < t_975(freedom) < stats.t.ppf(0.975, freedom) + 0.025


def test_an_interval_is_that_of_the_t_test() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, -0.2, 0.1, 0.5, 0.0, 0.3, 0.2]
    found = interval(differences)
    assert found is not None
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert [found.low, found.high] == pytest.approx([low, high], abs=1e-5)
    assert found.holds_zero == (low <= 0 <= high)
    assert interval([1.0]) is None


def test_a_spread_is_of_those_that_are_numbers() -> None:
    found = spread([1.0, None, 3.0])
    assert [found.mean, found.sd, found.n] == pytest.approx([2.0, 2**0.5, 2])
    assert spread([]).mean is None


@pytest.mark.parametrize(
    ("value", "digits", "text"), [(-0.04, 1, "0.0"), (-1.25, 1, "−1.2"), (None, 1, "–"), (5200, None, "5200")]
)
def test_numbers_for_a_reader(value: float | None, digits: int | None, text: str) -> None:
    assert number(value, digits) == text
