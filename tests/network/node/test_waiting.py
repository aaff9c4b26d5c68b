"""A peer's answer to people who ask why nothing happens."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.network.manifest.plans import KEYS, PLAN
from troth.network.node.waiting import farewell, waiting_for
from troth.protocol.core.roster import Roster


def member(*, missing: int = 0, busy: int = 0, members: int = 4, waits: bool = True) -> Any:
    """A member that stands before step 817."""
    roster = replace(Roster.founding(PLAN.run), members=PLAN.run.founders[:members])
    restart = SimpleNamespace(
        waits=waits, missing=frozenset(KEYS[4 - missing : 4]), busy=frozenset(KEYS[1 : 1 + busy]), least=3
    )
    return SimpleNamespace(restart=restart, state=SimpleNamespace(step=817, roster=roster))


def test_too_few_are_there_and_those_who_are_missing_are_named() -> None:
    assert waiting_for(member(missing=2), None, PLAN.name_of) == (
        "stopped: 2 of 4 members are here, and with 3 the run goes on from step 817; nothing is lost. Missing: carol, dave; to "
        "come back, the same command as before is enough"
    )
    assert waiting_for(member(missing=1), None, PLAN.name_of) == (
        "stopped: 3 of 4 members are here, enough to go on from step 817; waits a while for dave"
    )


def test_a_peer_that_comes_back_does_not_call_the_run_stopped_while_others_are_in_a_step() -> None:
    text = waiting_for(member(missing=3, busy=2), None, PLAN.name_of)
    assert text == "before step 817, in none: bob, carol are in a step, and this peer waits until it ends"


def test_nothing_to_wait_for() -> None:
    assert waiting_for(None, None, PLAN.name_of) is None
    assert waiting_for(member(waits=False), None, PLAN.name_of) is None


def test_a_farewell_tells_what_becomes_of_the_run() -> None:
    assert farewell(member(), KEYS[0], 1, PLAN.name_of) == "the others go on"
    assert farewell(member(members=3), KEYS[0], 1, PLAN.name_of) == (
        "the 2 others cannot train without it (3 are needed): the run waits until enough are back, and nothing is lost"
    )
    assert farewell(None, KEYS[0], 1, PLAN.name_of) == "it had not begun to train"
