"""Worlds in processes of their own: all verdicts come, deaths are noticed, and nothing is left running."""

import multiprocessing
import os
import time

import pytest

from troth import processes
from troth.workshop.chaos import judge as workers
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.draws import draw_plan
from troth.workshop.chaos.judge import WorldVerdict, judge, judge_all
from troth.workshop.chaos.plan import Network, Plan


def quick(seed: int) -> Plan:
    return Plan(seed, 4, 1, {}, {}, {}, {}, {}, Network())


def endless() -> Plan:
    return Plan(0, 12, 1000, {}, {}, {}, {}, {}, Network())


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have imported everything already, as those of a swarm: seconds less for each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["troth.workshop.swarm_ready"])
    monkeypatch.setattr(processes, "_SPAWN", context)


@pytest.mark.long
def test_the_same_verdicts_as_in_this_process() -> None:
    plans = [draw_plan(seed, most_peers=5, steps=2) for seed in range(3)]
    found = {verdict.seed: verdict for verdict in judge_all(plans, 2)}
    assert found == {plan.seed: judge(plan) for plan in plans}
    assert not multiprocessing.active_children()


def test_nothing_to_do() -> None:
    assert list(judge_all([], 2)) == []


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_closing_ends_what_is_running() -> None:
    verdicts = judge_all([quick(1), endless(), quick(2)], 2)
    assert next(verdicts).broken == []
    assert multiprocessing.active_children()
    verdicts.close()
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_the_time_is_up() -> None:
    assert list(judge_all([endless(), endless()], 2, time.monotonic() + 1.0)) == []
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_process_that_dies_is_a_broken_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the worlds after it are played all the same."""
    monkeypatch.setattr(workers, "judge", _die_of_seed_7)
    found = {verdict.seed: verdict.broken for verdict in judge_all([quick(7), quick(8)], 1)}
    assert found == {7: ["crash: the process that played it ended with exit code 3"], 8: []}


def _die_of_seed_7(plan: Plan) -> WorldVerdict:
    if plan.seed == 7:
        os._exit(3)
    return judge(plan)


def test_a_checker_that_falls_over_is_a_broken_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall(_: object) -> list[str]:
        raise RuntimeError("over this")

    monkeypatch.setitem(CHECKERS, "falling", fall)
    assert judge(quick(1)).broken == ["crash: RuntimeError: over this"]
