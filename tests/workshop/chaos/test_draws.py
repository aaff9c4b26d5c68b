"""Draws: classic worlds stay as they were, wide ones have more in them, and beyond ones promise safety alone."""

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from troth.workshop.attacks.door import DOOR_LIES
from troth.workshop.chaos.draws import (
    CODE_ATTACKS,
    DRAWS,
    LATER_BEHAVIOURS,
    WIDE_ATTACKS,
    draw_beyond,
    draw_door,
    draw_plan,
    draw_slow,
    draw_wide,
)
from troth.workshop.chaos.judge import judge
from troth.workshop.chaos.plan import BEHAVIOURS, TASKS, Departure, Network, Plan
from troth.workshop.chaos.plan_file import FORMAT, PlanFile, flaw, from_bytes, to_text
from troth.workshop.chaos.shrink import shrink
from troth.workshop.simulation.exchange import DropOut

WIDE = [draw_wide(seed) for seed in range(400)]
BEYOND = [draw_beyond(seed) for seed in range(200)]
DOOR = [draw_door(seed) for seed in range(200)]
SLOW = [draw_slow(seed) for seed in range(200)]


def test_the_worlds_of_old_stay_as_they_were() -> None:
    def described(plan: Plan) -> str:
        liars = sorted((number, sorted(behaviours)) for number, behaviours in plan.liars.items())
        drawn = (plan.forge_from, plan.attacks, plan.intensity, plan.crashes)
        items = [sorted(each.items()) for each in drawn]
        fields = (plan.seed, plan.peers, plan.steps, liars, *items, plan.network, sorted(plan.blackout.items()))
        return repr(fields)

    digest = hashlib.sha256("".join(described(draw_plan(seed)) for seed in range(200)).encode()).hexdigest()
    assert digest == "29ce4c5b69360ce8911f4a2bda1d60e8ae815dd0c55ccb5e33a49dbe362af63a"


@pytest.mark.parametrize("plans", [WIDE, BEYOND, DOOR, SLOW], ids=["wide", "beyond", "door", "slow"])
def test_every_world_can_be_played_and_written_down(plans: list[Plan]) -> None:
    assert [flaw(plan) for plan in plans if flaw(plan)] == []
    for plan in plans[:40]:
        text = to_text(PlanFile(FORMAT, ("x",), plan)).encode()
        assert from_bytes(text).drawn == plan


def test_some_worlds_have_local_steps_and_are_else_as_they_were() -> None:
    """[R2] A seed's other draws do not depend on it."""
    assert {plan.local_steps for plan in WIDE} == {plan.local_steps for plan in DOOR} == {1, 2, 3, 4}
    assert 0.15 < sum(plan.local_steps > 1 for plan in WIDE) / len(WIDE) < 0.35
    assert {draw_plan(seed).local_steps for seed in range(50)} == {1}
    assert flaw(replace(WIDE[0], local_steps=0)) == "local_steps must be from 1 to 16, got 0"


def test_wide_worlds_have_what_others_lack() -> None:
    large = [plan for plan in WIDE if plan.peers > 16]
    long = [plan for plan in WIDE if plan.steps > 64]
    assert 0.04 < len(large) / len(WIDE) <= 0.1
    assert 0.04 < len(long) / len(WIDE) <= 0.1
    assert not [plan for plan in large if plan.steps > 64]
    assert max(plan.peers for plan in WIDE) > 30
    assert {plan.task for plan in WIDE} == set(TASKS)
    assert {attack for plan in WIDE for attack in plan.attacks.values()} == {*WIDE_ATTACKS, *CODE_ATTACKS}
    assert {behaviour for plan in WIDE for liar in plan.liars.values() for behaviour in liar} >= LATER_BEHAVIOURS
    counts = Counter(
        waits=sum(plan.waits for plan in WIDE),
        auto=sum(plan.tau_auto is not None for plan in WIDE),
        returns=sum(plan.liars_return for plan in WIDE),
        small=sum(plan.tau < 0.1 for plan in WIDE),
        within=sum(plan.within and bool(plan.crashes) for plan in WIDE),
        safety=sum(not plan.within and not plan.fair for plan in WIDE),
    )
    assert min(counts.values()) > 5


def test_on_slow_lines_are_codes_and_local_steps() -> None:
    """With everything that other worlds have: liars that codes make room for, strangers, crashes, blackouts."""
    coded = [plan for plan in SLOW if plan.code == "int8"]
    both = [plan for plan in coded if plan.local_steps > 1]
    assert not [plan for plan in SLOW if plan.code != "int8" and plan.local_steps == 1]
    assert len(both) > len(SLOW) / 2
    assert {attack for plan in SLOW for attack in plan.attacks.values()} >= {*CODE_ATTACKS}
    assert not [plan for plan in [*WIDE, *DOOR, *SLOW] if plan.leans and (plan.spikes or plan.strangers)]
    counts = Counter(
        leans=sum(plan.leans for plan in coded),
        strangers=sum(bool(plan.strangers) for plan in both),
        crashes=sum(bool(plan.crashes) for plan in both),
        blackouts=sum(bool(plan.blackout) for plan in both),
        within=sum(plan.within and bool(plan.liars) for plan in both),
    )
    assert min(counts.values()) > 5
    lies = plan_of(attacks={0: "bend"})
    assert "unknown attack 'bend'" in (flaw(lies) or ""), "without a code there is nothing to lie about"
    assert flaw(replace(lies, code="int8", task=TASKS[5])) is None


def test_beyond_the_guarantee_are_all_liars_and_a_crash() -> None:
    assert not any(plan.within for plan in BEYOND)
    assert all(plan.crashes and len(plan.lying) == plan.promised for plan in BEYOND)
    assert all(set(range(plan.peers)) - plan.lying - plan.shaky for plan in BEYOND), "somebody stays to tell"
    assert sum(plan.fair for plan in BEYOND) < len(BEYOND) / 5


def test_at_the_door_everything_comes_together() -> None:
    """Strangers of every kind, that stay or leave and come again; liars at the door; power cuts, crashes, key changes inside."""
    strangers = [how for plan in DOOR for _, how in plan.strangers.values()]
    assert set(strangers) == set(BEHAVIOURS)
    assert 0.4 < strangers.count("honest") / len(strangers) < 0.7
    assert {lie for plan in DOOR for liar in plan.liars.values() for lie in liar} >= set(DOOR_LIES)
    leaves = [leave for plan in DOOR for leave in plan.leaves.values()]
    assert {(leave.inside, leave.down is None, leave.journal) for leave in leaves} == set(
        product((False, True), repeat=3)
    )
    back = [cut for plan in DOOR for cut in plan.crashes.values() if cut.down is not None]
    assert len(back) / 3 < sum(not cut.journal for cut in back) < len(back)
    counts = Counter(
        within=sum(plan.within for plan in DOOR),
        turned=sum(plan.within and bool(plan.turncoats) for plan in DOOR),
        left=sum(plan.within and bool(plan.leaves) for plan in DOOR),
        dark=sum(bool(plan.blackout) for plan in DOOR),
        both=sum(bool(plan.crashes and plan.leaves) for plan in DOOR),
    )
    assert min(counts.values()) > 5
    assert min(plan.steps for plan in DOOR) == 32


def test_some_go_one_by_one_until_liars_are_most_of_those_left() -> None:
    """In no step so many that the run stops before."""
    squeezed = [plan for plan in BEYOND if len(plan.shaky) == len(plan.crashes) >= plan.peers - plan.promised - 2]
    lasting = [plan for plan in squeezed if all(_goes_on(plan, step) for step in range(plan.steps))]
    assert len(lasting) > 30
    assert any(2 * len(plan.lying) > plan.peers - len(plan.crashes) for plan in lasting)


def _goes_on(plan: Plan, step: int) -> bool:
    """With a quorum of those who are left (SPEC G1)."""
    members = plan.peers - sum(cut.step < step for cut in plan.crashes.values())
    gone = sum(cut.step == step for cut in plan.crashes.values())
    return members - gone >= max(members // 2 + 1, plan.promised + 1)


def test_some_stay_in_the_dark_for_longer_than_others_wait() -> None:
    dark = [plan for plan in WIDE if plan.blackout]
    long = [plan for plan in dark if max(cut.down or 0.0 for cut in plan.blackout.values()) > 30]
    assert len(dark) / 4 < len(long) < len(dark)


def test_what_nobody_could_prove_and_all_made_again_is_no_disagreement() -> None:
    """[B6] Whoever comes back when all is over still holds what it signed before the blackout."""
    assert judge(replace(draw_wide(911, steps=12), steps=4)).broken == []


def plan_of(**given: object) -> Plan:
    liars = {0: frozenset[str](), 1: frozenset[str]()}
    plan = Plan(1, 7, 4, liars, {}, {}, dict.fromkeys(liars, (1.0, 1)), {}, Network())
    return replace(plan, **given)  # type: ignore[arg-type]


def test_a_plan_knows_its_tier() -> None:
    """At most b of the members ever admitted are faulty, lying or gone; a promise with slack covers a crash."""
    one_gone = {2: DropOut(1, 0, 5.0)}
    assert plan_of().within
    assert not plan_of(crashes=one_gone).within
    assert plan_of(crashes=one_gone, liars={0: frozenset()}, intensity={0: (1.0, 1)}, byzantine=2).within
    assert not plan_of(probation=4, strangers={7: (0.0, "turns")}).within, (
        "whoever turns once it is in is a liar like others"
    )
    assert not plan_of(probation=4, strangers={7: (0.0, "honest")}, leaves={7: Departure(1.0)}).within
    assert plan_of(probation=4, strangers={7: (0.0, "noise")}).within, "the lazy never are members"
    assert not plan_of(blackout={number: DropOut(1, 0, 5.0) for number in range(2, 7)}).within


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"task": "/tmp/evil.py"}, "unknown task"),
        ({"byzantine": 1}, "byzantine must be from 2"),
        ({"byzantine": 3}, "byzantine must be from 2"),
        ({"tau": 0.0}, "tau must be above 0"),
        ({"tau_auto": 0.7}, "tau must be above 0"),
        ({"peers": 25}, "peers must be from 1 to 24"),
        ({"peers": 0}, "peers must be from 1 to 24"),
        ({"peers": 37, "code": "int8", "task": TASKS[5]}, "peers must be from 1 to 36"),
        ({"strangers": {7: (0.0, "honest")}}, "strangers need a probation"),
        ({"probation": 4, "leaves": {3: Departure(1.0)}}, "nobody else leaves"),
        ({"probation": 4, "strangers": {7: (0.0, "polite")}}, "no stranger behaves like 'polite'"),
    ],
)
def test_plans_that_cannot_be_played_are_refused(given: dict[str, object], why: str) -> None:
    assert why in (flaw(plan_of(**given)) or "")


def test_shrinking_takes_away_what_is_new_and_promises_no_less() -> None:
    """Everything at its default, if that breaks too; never a world of which less is promised."""
    large = plan_of(task=TASKS[2], tau=0.01, tau_auto=0.25, waits=True, liars_return=True, byzantine=2)
    small = shrink(large, lambda plan: plan.peers >= 5, most_worlds=300)
    assert (small.task, small.tau, small.tau_auto) == (TASKS[0], 0.1, None)
    assert not small.waits
    assert not small.liars_return
    assert small.within


def test_shrinking_takes_strangers_away() -> None:
    """Whoever is left is numbered anew, and leaves as before."""
    strangers = {7: (1.0, "noise"), 8: (2.0, "honest"), 9: (3.0, "zeros")}
    large = plan_of(probation=4, strangers=strangers, leaves={8: Departure(5.0, inside=True)}, byzantine=2)
    small = shrink(large, lambda plan: any(leave.inside for leave in plan.leaves.values()), most_worlds=300)
    assert [how for _, how in small.strangers.values()] == ["honest"]
    assert small.leaves.keys() == small.strangers.keys() == {small.peers}


def test_safety_alone_is_promised_beyond() -> None:
    """And counted as such."""
    plan = next(plan for plan in (draw_beyond(seed, most_peers=5, steps=3) for seed in range(9)) if not plan.fair)
    counts = judge(plan).counts
    assert counts["worlds of which safety alone is promised"] == counts["worlds beyond the full guarantee"] == 1
    assert counts["worlds within the full guarantee"] == 0


def test_each_draw_has_a_name() -> None:
    assert list(DRAWS) == ["classic", "wide", "beyond", "door", "slow"]
