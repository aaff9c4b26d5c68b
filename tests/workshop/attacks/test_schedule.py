"""When a coalition attacks."""

import pytest

from troth.crypto import derive
from troth.workshop.attacks import AttackError, AttackSchedule


def active_steps(schedule: AttackSchedule, steps: int, seed: int = 0) -> list[int]:
    return [step for step in range(steps) if schedule.active(step, derive(seed, "coalition"))]


def test_always_by_default() -> None:
    assert active_steps(AttackSchedule(), 5) == [0, 1, 2, 3, 4]


def test_start() -> None:
    assert active_steps(AttackSchedule(start=3), 6) == [3, 4, 5]


def test_stop_is_the_first_quiet_step() -> None:
    assert active_steps(AttackSchedule(start=2, stop=4), 10) == [2, 3]


def test_every_counts_from_the_start() -> None:
    assert active_steps(AttackSchedule(start=5, every=4), 20) == [5, 9, 13, 17]


def test_probability_follows_from_the_seed() -> None:
    schedule = AttackSchedule(start=10, probability=0.3)
    steps = active_steps(schedule, 4010)
    assert steps == active_steps(schedule, 4010)
    assert steps != active_steps(schedule, 4010, seed=1)
    assert min(steps) >= 10
    assert len(steps) / 4000 == pytest.approx(0.3, abs=0.036)  # 5 standard deviations


def test_probability_applies_to_every_kth_step_only() -> None:
    steps = active_steps(AttackSchedule(every=10, probability=0.5), 2000)
    assert all(step % 10 == 0 for step in steps)
    assert 60 < len(steps) < 140


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": -1}, "`attack_start` must not be negative, got -1"),
        ({"every": 0}, "`attack_every` must be at least 1, got 0"),
        ({"probability": 0}, "`attack_probability` must be above 0 and at most 1, got 0"),
        ({"probability": 2}, "`attack_probability` must be above 0 and at most 1, got 2"),
        ({"start": 5, "stop": 5}, "`attack_stop` must be after `attack_start`, got 5 and 5"),
    ],
)
def test_errors(options: dict[str, int], message: str) -> None:
    with pytest.raises(AttackError, match=f"^{message}$"):
        AttackSchedule(**options)


def test_a_probability_that_is_no_number() -> None:
    with pytest.raises(AttackError, match="got nan"):
        AttackSchedule(probability=float("nan"))
