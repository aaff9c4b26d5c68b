"""The world behind docs/door.md: the short cut holds, attackers get what the rules say, and the page has all of it."""

import re
from dataclasses import replace
from math import isinf
from statistics import mean, stdev

import numpy as np
import pytest

from benchmarks import door as page
from benchmarks.door_world import FOUNDERS, Scene, World, drawn_race, mined_race, without_door
from troth.crypto import Digest, PeerId, derive
from troth.protocol.core.roster import Roster
from troth.workshop.simulation.stranger_specs import STRATEGIES, Due, fakes, stretches, turns, works

SMALL = Scene(0.3, 20, probation=16, ticket_bits=4, every=16, edge=1.0, hashes=8, steps=160)


def names(*numbers: int) -> list[PeerId]:
    return [PeerId(bytes([number]) * 32) for number in numbers]


# The race


def test_drawn_tickets_win_as_often_as_mined_ones() -> None:
    """Three strangers with 30 hashes each against 90 hashes under six names, for two slots of 3 bits: per lottery, the number of
    slots that the six names win, and the number that anybody wins, agree within four standard errors."""
    scene = replace(SMALL, slots=2, ticket_bits=3)
    honest, mine = scene.keys("honest", 3), scene.keys("attacker", 6)
    spent = {**dict.fromkeys(honest, 30.0), **dict.fromkeys(mine, 15.0)}
    found: dict[str, list[tuple[int, int]]] = {"drawn": [], "mined": []}
    for lottery in range(400):
        roster = Roster.founding(scene.run)
        roster = replace(roster, door=replace(roster.door, seed=Digest(derive(lottery, "seed"))))
        for how, race in (("drawn", drawn_race), ("mined", mined_race)):
            won = [ticket.key for ticket in race(scene.run, roster, spent, np.random.default_rng(lottery))]
            found[how].append((len(won), sum(key in mine for key in won)))
    for drawn, mined in zip(zip(*found["drawn"], strict=True), zip(*found["mined"], strict=True), strict=True):
        error = (stdev(drawn) ** 2 + stdev(mined) ** 2) ** 0.5 / 400**0.5
        assert abs(mean(drawn) - mean(mined)) <= 4 * error
    assert 0.8 < mean(won for _, won in found["mined"]) < 1.2, "half of the hashes win half of the slots"


def test_a_ticket_needs_enough_work_in_it() -> None:
    """One hash seldom has 16 zeros, neither drawn nor mined."""
    roster, generator = Roster.founding(replace(SMALL, ticket_bits=16).run), np.random.default_rng(0)
    spent = dict.fromkeys(SMALL.keys("honest", 20), 1.0)
    assert drawn_race(SMALL.run, roster, spent, generator) == mined_race(SMALL.run, roster, spent, generator) == []


@pytest.mark.long
def test_a_run_with_mined_tickets_goes_as_one_with_drawn_ones() -> None:
    """Over ten seeds: the attacker's share of the seats at the end."""
    ends = {
        race: [float(World(replace(SMALL, seed=seed), race).play().shares[-1]) for seed in range(10)]
        for race in (drawn_race, mined_race)
    }
    drawn, mined = ends.values()
    error = ((stdev(drawn) ** 2 + stdev(mined) ** 2) / 10) ** 0.5
    assert mean(mined) > 0
    assert abs(mean(drawn) - mean(mined)) <= 4 * error


# Strategies


def test_strategies_spend_no_more_machines_than_there_are() -> None:
    seats, begun, fresh = names(1, 2, 3), names(4), names(5, 6, 7)
    due = Due(seats=3, contributors=seats, begun=begun, fresh=fresh)
    assert works(due, 5).worked == {*seats, *begun, fresh[0]}
    assert works(due, 4).worked == {*seats, *begun}
    assert works(due, 5).faked == fakes(due, 5).worked == set()
    assert fakes(due, 5).faked == {*seats, *begun, *fresh}
    assert turns(due, 5).worked == {*begun, *fresh, seats[0]}
    assert turns(due, 5).faked == set(seats[1:])
    assert turns(due, 2).worked == {*begun, fresh[0]}
    busy = Due(seats=3, contributors=seats, begun=names(*range(10, 18)), fresh=fresh, spare=names(10, 11))
    assert stretches(busy, 11).worked == {*seats, *names(*range(12, 18)), fresh[0], names(10)[0]}
    assert stretches(due, 4).worked == {*seats, *begun}


def test_whoever_works_is_never_banned_and_has_no_more_seats_than_machines() -> None:
    course = World(SMALL).play()
    assert course.banned == 0
    assert max(course.seats) > 0
    assert all(seats <= round(SMALL.machines(step)) for step, seats in enumerate(course.seats))


def test_whoever_lets_its_candidates_miss_steps_in_turn_has_no_more_seats() -> None:
    """[J5, J7] A ninth candidate for eight machines: each takes longer, and a seat costs as many gradients."""
    rich = replace(SMALL, share=0.5, names=200, hashes=1 << 10, edge=4.0, steps=300)
    works_best, stretched = (World(replace(rich, strategy=how)).play() for how in ("works", "stretches"))
    assert stretched.banned == 0
    assert max(stretched.seats) > 0
    assert all(seats <= round(rich.machines(step)) for step, seats in enumerate(stretched.seats))
    assert mean(stretched.shares) <= mean(works_best.shares) * 1.05


def test_whoever_fakes_is_banned() -> None:
    course = World(replace(SMALL, strategy="fakes")).play()
    assert course.banned > 5
    assert course.seats[-1] <= 1


def test_whoever_turns_gains_nothing_even_by_a_short_probation() -> None:
    """[R6] Where T is far below n/m, seats are cheap; but faked gradients of members fall together when the first is found."""
    short = replace(SMALL, probation=8, hashes=1 << 10, names=200, steps=300)
    ends = {how: mean(World(replace(short, strategy=how)).play().shares[-100:]) for how in ("works", "turns")}
    assert ends["turns"] < ends["works"]


def test_nobody_attacks() -> None:
    course = World(replace(SMALL, share=0.0, names=0, hashes=1 << 10)).play()
    assert set(course.seats) == {0}
    assert course.members[-1] > FOUNDERS
    assert SMALL.probation <= course.wait < 4 * SMALL.probation
    assert course.lost is None


def test_hash_power_keeps_the_honest_outside() -> None:
    """The goal that the door misses: slots left empty belong to whoever hashes most."""
    assert isinf(World(replace(SMALL, share=0.1, edge=1000.0)).play().wait)


@pytest.mark.long
def test_whoever_hashes_as_laptops_do_has_its_share_of_the_seats() -> None:
    """[J3, J4, J5] At the end of a long run. With four slots it has half of the seats for 40 % of the compute."""
    few, usual = (World(Scene(0.4, 1000, edge=1.0, slots=slots)).play() for slots in (4, None))
    assert usual.shares[-1] <= page.GOAL * 0.4 < few.shares[-1]
    assert usual.wait < np.inf


def test_honest_strangers_that_are_kept_away_are_missing_among_the_seats() -> None:
    """What no rule of the door can mend: it cannot count machines that it does not hear of."""
    course = World(replace(SMALL, kept_away=True)).play()
    assert isinf(course.wait)
    assert course.members[-1] == FOUNDERS + course.seats[-1]
    assert course.shares[-1] > World(SMALL).play().shares[-1]


def test_a_machine_that_is_faster_than_the_pace_counts_for_so_many() -> None:
    """A seat costs a gradient in a step: three seats on one machine are as good as three machines."""
    quick = replace(SMALL, share=0.1, speed=3.0)
    assert quick.compute == pytest.approx(0.25)
    assert quick.machines(0) == pytest.approx(replace(SMALL, share=0.25).machines(0))


@pytest.mark.parametrize("count", [10, 1000])
def test_without_the_door_names_are_seats(count: int) -> None:
    scene = Scene(0.1, count)
    assert without_door(scene).shares[0] == count / (count + FOUNDERS + 1)
    assert without_door(scene).shares[-1] < without_door(scene).shares[0]


# The page


@pytest.mark.long
def test_best_strategy_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SEEDS", range(2))
    found = page.best(SMALL)
    assert set(found.tried) == set(STRATEGIES)
    assert len(found.courses) == 2
    others = [page.Outcome([World(replace(SMALL, strategy=how)).play()]) for how in ("works", "fakes", "turns")]
    assert found.courses[0].shares[-40:].mean() >= 0.5 * max(other.late_share for other in others)
    assert found.row.count("|") == page.HEAD.splitlines()[0].count("|")


def test_the_page_has_a_row_for_each_share_and_way() -> None:
    text = page.RESULTS.read_text(encoding="utf-8")
    ways = text.partition("## Who comes, and how")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| \d+% ", ways, re.MULTILINE)) == len(page.SHARES) * len(page.WAYS)
    assert f"above {page.GOAL} times" in text
    assert page.PICTURE.stat().st_size < 150_000
