"""A peer's answer to people who ask why nothing happens."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.network.manifest.plans import KEYS, PLAN
from troth.crypto import Digest, PeerId
from troth.network.mesh.session import Standing
from troth.network.node.waiting import farewell, waiting_for
from troth.protocol.core.door import Door
from troth.protocol.core.records import Candidate
from troth.protocol.core.roster import Roster


def member(*, missing: int = 0, busy: int = 0, members: int = 4, waits: bool = True) -> Any:
    """A member that stands before step 817."""
    roster = replace(Roster.founding(PLAN.run), members=PLAN.run.founders[:members])
    restart = SimpleNamespace(
        waits=waits, missing=frozenset(KEYS[4 - missing : 4]), busy=frozenset(KEYS[1 : 1 + busy]), least=3
    )
    return SimpleNamespace(restart=restart, state=SimpleNamespace(step=817, roster=roster), has_seat=True)


def stranger(*, candidate: bool, lacks: bool, step: int) -> Any:
    """One that follows the run and has come to this step, with a slot or without."""
    key = PeerId(bytes(32))
    slot = (Candidate(key, "", 5, 0, 0),) if candidate else ()
    roster = replace(Roster.founding(PLAN.run), door=Door(probation=16, slots=4, candidates=slot))
    state = SimpleNamespace(step=step, roster=roster, last=object() if step else None)
    peer, missing = SimpleNamespace(me=key), Digest(bytes(32)) if lacks else None
    return SimpleNamespace(restart=None, state=state, has_seat=False, peer=peer, lacks=missing)


def test_too_few_are_there_and_those_who_are_missing_are_named() -> None:
    assert waiting_for(member(missing=2), None, {}, None, PLAN.name_of) == (
        "stopped: 2 of 4 members are here, and with 3 the run goes on from step 817; nothing is lost. Missing: carol, dave; to "
        "come back, the same command as before is enough"
    )
    assert waiting_for(member(missing=1), None, {}, None, PLAN.name_of) == (
        "stopped: 3 of 4 members are here, enough to go on from step 817; waits a while for dave"
    )


def test_a_peer_that_comes_back_does_not_call_the_run_stopped_while_others_are_in_a_step() -> None:
    text = waiting_for(member(missing=3, busy=2), None, {}, None, PLAN.name_of)
    assert text == "before step 817, in none: bob, carol are in a step, and this peer waits until it ends"


def test_a_peer_that_lags_behind_asks_for_what_it_missed() -> None:
    standings = {KEYS[1]: Standing(True, True, 820), KEYS[2]: Standing(True, True, 817)}
    assert waiting_for(member(missing=3), None, standings, None, PLAN.name_of) == (
        "this peer is at step 817, the others at 820; asks bob for what it missed"
    )


def test_a_pause_without_steps_has_the_same_words_as_one_with_steps() -> None:
    resting: Any = SimpleNamespace(resting=True, waits_for=None)
    assert (
        waiting_for(member(waits=False), resting, {}, "paused: 2 of 4 are gone", PLAN.name_of)
        == "paused: 2 of 4 are gone"
    )


def test_a_stranger_is_told_how_far_it_is() -> None:
    told = {
        (False, True, 0): "following the run: asks the members that answer for its records",
        (False, True, 40): "knocking at step 40: 4 of 4 places are free, and go to the best tickets",
        (True, True, 40): "has a place on probation; fetches the model, and catches up from step 40 on",
        (True, False, 40): None,
    }
    for (candidate, lacks, step), words in told.items():
        who = stranger(candidate=candidate, lacks=lacks, step=step)
        reached = {KEYS[1]: Standing(True, True, 41)}
        assert waiting_for(who, None, reached, None, PLAN.name_of) == words
        alone = waiting_for(who, None, {}, None, PLAN.name_of)
        assert words is None or alone == f"{words}; but no member can be reached now: the run may be over"


def test_nothing_to_wait_for() -> None:
    assert waiting_for(None, None, {}, None, PLAN.name_of) is None
    assert waiting_for(member(waits=False), None, {}, None, PLAN.name_of) is None


def test_a_farewell_tells_what_becomes_of_the_run() -> None:
    assert farewell(member(), KEYS[0], 1, PLAN.name_of) == "the others go on"
    assert farewell(member(members=3), KEYS[0], 1, PLAN.name_of) == (
        "the 2 others cannot train without it (3 are needed): the run waits until enough are back, and nothing is lost"
    )
    assert farewell(None, KEYS[0], 1, PLAN.name_of) == "it had not begun to train"
