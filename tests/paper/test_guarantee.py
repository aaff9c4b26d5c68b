"""How many liars are covered, and when the model stands still."""

import pytest

from tests.paper.test_roles import KEYS, run_of
from troth.protocol.roster import Roster
from troth.protocol.run import Parameters, Run, RunError, most_byzantine


@pytest.mark.parametrize(
    ("members", "validators", "most"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 1), (5, 1, 1), (16, 1, 7), (16, 2, 6), (16, 0, 0)],
)
def test_how_many_liars_a_run_may_promise_to_withstand(members: int, validators: int, most: int) -> None:
    """[G1] 2b < n − m; without validators nobody is caught, so none."""
    assert most_byzantine(members, validators) == most
    run_of(members, validators, byzantine=most)
    with pytest.raises(RunError, match="2b < n − m"):
        run_of(members, validators, byzantine=most + 1)


def test_beyond_the_guarantee_must_be_said() -> None:
    """[G1]"""
    run = Run(KEYS, b"", Parameters(size=100, tau=1.0, byzantine=8, validators=1, beyond_guarantee=True), bytes(32))
    assert Roster.founding(run).liars_left(run) == 8


def test_the_guarantee_shrinks_with_bans() -> None:
    """[G1] b_t = min(b − bans, ⌈(n_t − m_t)/2⌉ − 1)."""
    run, roster = run_of(16, byzantine=7), Roster(KEYS)
    for bans in range(8):
        assert roster.liars_left(run) == 7 - bans
        roster = Roster(roster.members[1:], (*roster.banned, roster.members[0]))


def test_too_few_contributors_change_nothing() -> None:
    """[G2] 2·b_t + 1 of them, and more than half of the founders less bans."""
    run, roster = run_of(16, byzantine=7), Roster(KEYS)
    assert roster.enough(run, 15)
    assert not roster.enough(run, 14)
    calm = run_of(16)
    assert roster.enough(calm, 9)
    assert not roster.enough(calm, 8)
    assert Roster(KEYS[4:]).enough(calm, 9)


def test_no_update_while_liars_may_remain_and_nobody_can_validate() -> None:
    """[G2] Four members with one possible liar can spare a validator, three cannot."""
    run = run_of(4, byzantine=1)
    assert Roster(KEYS[:4]).enough(run, 3)
    assert not Roster(KEYS[:3]).enough(run, 3)
    assert run_of(3).parameters.byzantine == 0
    assert Roster(KEYS[:3]).enough(run_of(3), 3)


def test_the_run_id_names_everything_that_was_agreed() -> None:
    """[G1, U2] Another parameter, founder or description is another run."""
    base = Parameters(size=100, tau=1.0, byzantine=1)
    runs = [
        Run(KEYS, b"a", base, bytes(32)),
        Run(KEYS, b"b", base, bytes(32)),
        Run(KEYS, b"a", base, b"n" * 32),
        Run(KEYS[:-1], b"a", base, bytes(32)),
        Run(KEYS, b"a", Parameters(size=101, tau=1.0, byzantine=1), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.5, byzantine=1), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=2), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, validators=2), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, projections=8), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, beyond_guarantee=True), bytes(32)),
    ]
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0, "tau": 1.0, "byzantine": 0},
        {"size": 10, "tau": 0.0, "byzantine": 0},
        {"size": 10, "tau": float("nan"), "byzantine": 0},
        {"size": 10, "tau": 1e-300, "byzantine": 0},
        {"size": 10, "tau": 1.0, "byzantine": -1},
        {"size": 10, "tau": 1.0, "byzantine": 0, "projections": 65},
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    """[G1]"""
    with pytest.raises(RunError):
        Parameters(**wrong)  # type: ignore[arg-type]


def test_founders_are_sorted_distinct_and_no_more_than_parameters() -> None:
    """[R5]"""
    numbers = Parameters(size=100, tau=1.0, byzantine=0)
    for founders in ((), KEYS[::-1], (KEYS[0], KEYS[0])):
        with pytest.raises(RunError):
            Run(founders, b"", numbers, bytes(32))
    with pytest.raises(RunError, match="cannot be split"):
        Run(KEYS, b"", Parameters(size=3, tau=1.0, byzantine=0), bytes(32))
