"""Worlds that broke a promise are made smaller, and what is left of them can be played again from a file."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.workshop.chaos.planted import planted
from troth.workshop.chaos.draws import draw_plan
from troth.workshop.chaos.judge import judge
from troth.workshop.chaos.plan import Cut, Network, Plan
from troth.workshop.chaos.plan_file import FORMAT, PlanFile, flaw, from_bytes, to_text
from troth.workshop.chaos.shrink import breaks_like, shrink
from troth.workshop.simulation.exchange import DropOut

EVERYTHING = Plan(
    seed=5,
    peers=11,
    steps=12,
    liars={1: frozenset({"mute", "late"}), 6: frozenset({"equivocate", "replay", "garbage"}), 9: frozenset()},
    forge_from={1: 3, 6: 2},
    attacks={9: "grind"},
    intensity={1: (0.3, 4), 6: (0.2, 1), 9: (0.5, 2)},
    crashes={0: DropOut(4, 3, 20.0, journal=False)},
    network=Network(
        latency=0.47,
        links=0.2,
        duplicated=0.1,
        bytes_per_second=3e6,
        loss={2: 0.1},
        cuts=(Cut(frozenset({2}), 10.0, 20.0),),
        clocks={k: (1.0 * k, 1e-4) for k in range(11)},
        slow={3: 0.5},
    ),
)


@pytest.mark.long
def test_a_planted_bug_is_found_in_a_smaller_world() -> None:
    """Only the one lie that the bug lets pass is left; without the bug the small world breaks nothing."""
    two = frozenset({"equivocate", "garbage"})
    network = Network(latency=0.4, duplicated=0.1, slow={3: 0.3})
    plan = Plan(17, 5, 4, {2: two}, {}, {}, {2: (0.9, 1)}, {}, network)
    with planted("the first of two equivocating values taken"):
        verdict = judge(plan)
        small = shrink(plan, breaks_like(verdict))
        left = judge(small).broken
    assert verdict.broken[0].split(":")[0] in {what.split(":")[0] for what in left}
    assert small.steps < plan.steps
    assert small.network == Network()
    (behaviours,) = small.liars.values()
    assert "equivocate" in behaviours
    assert judge(small).broken == []


def test_only_what_matters_is_left() -> None:
    def broken(plan: Plan) -> bool:
        return plan.steps >= 3 and any("equivocate" in behaviours for behaviours in plan.liars.values())

    small = shrink(EVERYTHING, broken)
    (liar,) = small.liars
    assert small == Plan(5, 4, 3, {liar: frozenset({"equivocate"})}, {}, {}, {liar: (1.0, 0)}, {}, Network())


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        (lambda plan: any(cut.isolated for cut in plan.network.cuts), "cuts"),
        (lambda plan: plan.network.loss.get(2, 0.0) > 0.05, "loss"),
        (lambda plan: plan.network.latency >= 0.4, "latency"),
        (lambda plan: plan.network.clocks.keys() >= {1, 2}, "clocks"),
        (lambda plan: plan.network.bytes_per_second is not None, "bytes_per_second"),
    ],
)
def test_faults_of_the_network_go_one_by_one(broken: Callable[[Plan], bool], left: str) -> None:
    small = shrink(EVERYTHING, broken, most_worlds=1000)
    assert broken(small)
    assert not small.liars
    assert not small.crashes
    only = replace(Network(), **{left: getattr(small.network, left)})
    assert small.network == only
    assert small.network.latency in (0.0, 0.4)


def test_peers_keep_what_is_theirs_when_others_go() -> None:
    def broken(plan: Plan) -> bool:
        isolated = frozenset(number for cut in plan.network.cuts for number in cut.isolated)
        return len(plan.crashes) == 1 and len(isolated) == 1 and plan.network.loss.keys() == isolated

    small = shrink(EVERYTHING, broken)
    assert broken(small)
    assert small.peers == 5  # two fail for a while, and must be fewer than half
    assert flaw(small) is None


def test_the_first_broken_step_is_found_by_halves() -> None:
    tried: list[int] = []

    def broken(plan: Plan) -> bool:
        tried.append(plan.steps)
        return plan.steps >= 700

    plan = Plan(0, 4, 1000, {}, {}, {}, {}, {}, Network())
    assert shrink(plan, broken).steps == 700
    assert len(tried) < 25


def test_it_ends() -> None:
    """After so many worlds, or so many seconds, with the smallest so far."""
    tried: list[Plan] = []
    seen: list[tuple[Plan, int]] = []

    def broken(plan: Plan) -> bool:
        tried.append(plan)
        return True

    small = shrink(EVERYTHING, broken, most_worlds=7, on_try=lambda best, count: seen.append((best, count)))
    assert len(tried) == 7
    assert seen[-1] == (small, 7)
    times = iter(range(1000))
    tried.clear()
    shrink(EVERYTHING, broken, most_s=5.0, clock=lambda: float(next(times)))
    assert len(tried) == 4


def test_what_cannot_be_smaller_stays() -> None:
    assert shrink(EVERYTHING, lambda _: False) == EVERYTHING


def test_equal_plans_are_tried_once_and_in_the_same_order() -> None:
    def run() -> list[Plan]:
        tried: list[Plan] = []

        def broken(plan: Plan) -> bool:
            tried.append(plan)
            return plan.steps > 2 and len(plan.liars) > 1

        shrink(EVERYTHING, broken)
        return tried

    first = run()
    assert first == run()
    assert all(plan not in first[:slot] for slot, plan in enumerate(first))


def test_nothing_is_tried_that_could_not_be_drawn() -> None:
    """[N4] Too many liars or failing peers would break promises that nobody made."""

    def broken(plan: Plan) -> bool:
        assert flaw(plan) is None
        failing = plan.lying | plan.shaky
        assert 2 * len(failing) < plan.peers or not plan.network.unreached
        assert not failing or plan.peers - len(failing) >= len(plan.lying) + 2
        return len(plan.shaky) == 2 and bool(plan.liars)

    assert shrink(EVERYTHING, broken).peers == 7


# Files


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_comes_back_from_its_file(seed: int) -> None:
    file = PlanFile(FORMAT, ("agreement: step 0",), draw_plan(seed), draw_plan(seed + 1))
    assert from_bytes(to_text(file).encode()) == file
    assert file.smallest == file.shrunk
    assert replace(file, shrunk=None).smallest == file.drawn


def test_a_file_without_a_smaller_plan() -> None:
    file = PlanFile(FORMAT, (), EVERYTHING)
    assert from_bytes(to_text(file).encode()) == file


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda file: file.pop("drawn"), "missing required field `drawn`"),
        (lambda file: file["drawn"].pop("liars"), "missing required field `liars`"),
        (lambda file: file.update(more=1), "unknown field 'more'"),
        (lambda file: file["drawn"].update(more=1), "unknown field 'more'"),
        (lambda file: file["drawn"]["network"].update(more=1), "unknown field 'more'"),
        (lambda file: file["drawn"]["crashes"]["0"].update(more=1), "unknown field 'more'"),
        (lambda file: file["drawn"]["network"]["cuts"][0].update({"\x1b[2J": 1}), "unknown field '?[2J'"),
        (lambda file: file.update(format="troth/chaos/9"), "its format is 'troth/chaos/9'"),
        (lambda file: file["drawn"].update(seed="5"), "Expected `int`, got `str`"),
        (lambda file: file["drawn"].update(peers=2.5), "Expected `int`, got `float`"),
        (lambda file: file["drawn"].update(peers=10**9), "peers must be from 1 to 24"),
        (lambda file: file["drawn"].update(steps=10**9), "steps must be from 1 to 10000"),
        (lambda file: file["drawn"].update(peers=10), "there is no peer 10"),
        (lambda file: file["drawn"]["crashes"].update({"-1": {"step": 0, "call": 0}}), "there is no peer -1"),
        (lambda file: file["drawn"]["network"]["cuts"][0].update(isolated=[40]), "there is no peer 40"),
        (lambda file: file["drawn"]["liars"].update({str(k): [] for k in range(10)}), "10 liars among 11 peers"),
        (lambda file: file["drawn"]["liars"].update({"1": ["fly"]}), "unknown behaviour 'fly'"),
        (lambda file: file["drawn"]["attacks"].update({"1": "__import__"}), "unknown attack '__import__'"),
        (lambda file: file["drawn"]["attacks"].update({"2": "grind"}), "must be of liars"),
        (lambda file: file["drawn"].update(intensity={}), "must be of liars"),
        (lambda file: file["drawn"]["network"].update(latency=-1), "numbers must be from 0"),
        (lambda file: file["drawn"]["network"].update(bytes_per_second=0), "bytes_per_second must be above 0"),
        (lambda file: file["drawn"]["network"]["clocks"].update({"0": [0, -1]}), "a clock may be"),
        (lambda file: file["drawn"]["intensity"].update({"1": [0.5, 10**12]}), "numbers must be from 0"),
    ],
)
def test_hostile_files_are_refused(change: Change, says: str) -> None:
    file = json.loads(to_text(PlanFile(FORMAT, (), EVERYTHING)))
    change(file)
    with pytest.raises(ValueError, match=says.replace("?", "\\?").replace("[", "\\[")):
        from_bytes(json.dumps(file).encode())


@pytest.mark.parametrize("raw", [b"", b"\xff\x00", b"[" * 100_000, b"null", b"{}", b"{" + b" " * (1 << 20) + b"}"])
def test_bytes_that_are_no_file(raw: bytes) -> None:
    with pytest.raises(ValueError):
        from_bytes(raw)
