"""A peer's answer to people who ask why nothing happens."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.network.manifest.plans import KEYS, PLAN
from troth.crypto import Digest, PeerId, Slot
from troth.network.neighbour import Standing
from troth.network.node.founding import Presence
from troth.network.node.waiting import farewell, in_vain, waiting_for
from troth.protocol.core.door import Door
from troth.protocol.core.records import Candidate
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import Phase


def member(
    *,
    missing: int = 0,
    busy: int = 0,
    members: int = 4,
    waits: bool = True,
    left_s: float | None = None,
    stopped: int = 0,
) -> Any:
    """A member that stands before step 817."""
    roster = replace(Roster.founding(PLAN.run), members=PLAN.run.founders[:members])
    restart = SimpleNamespace(
        waits=waits,
        missing=frozenset(KEYS[4 - missing : 4]),
        busy=frozenset(KEYS[1 : 1 + busy]),
        least=3,
        seconds_left=left_s,
        waiting_at=lambda _step: list(KEYS[1 : 1 + stopped]),
    )
    state, peer = SimpleNamespace(step=817, roster=roster), SimpleNamespace(me=KEYS[0])
    return SimpleNamespace(restart=restart, state=state, has_seat=True, peer=peer)


def in_no_step(**how: Any) -> Any:
    """Reached by others that are where it is."""
    return waiting_for(member(**how), None, Presence({KEYS[1]: Standing(True, True, 817)}, {}, {}), None, PLAN.name_of)


def stranger(*, candidate: bool, lacks: bool, step: int) -> Any:
    """One that follows the run and has come to this step, with a slot or without."""
    key = PeerId(bytes(32))
    slot = (Candidate(key, "", 5, 0, 0),) if candidate else ()
    roster = replace(Roster.founding(PLAN.run), door=Door(probation=16, slots=4, candidates=slot))
    state = SimpleNamespace(step=step, roster=roster, last=object() if step else None)
    peer, missing = SimpleNamespace(me=key), Digest(bytes(32)) if lacks else None
    return SimpleNamespace(restart=None, state=state, has_seat=False, peer=peer, lacks=missing)


def test_too_few_are_there_and_those_who_are_missing_are_named() -> None:
    assert in_no_step(missing=2) == (
        "stopped: 2 of 4 members are here, and with 3 the run goes on from step 817; nothing is lost. Missing: carol, dave; to "
        "come back, the same command as before is enough"
    )
    assert in_no_step(missing=1, left_s=101.0) == (
        "stopped: 3 of 4 members are here, enough to go on from step 817; waits for dave, for 120 s at most"
    )
    assert in_no_step(missing=1) == (
        "stopped: 3 of 4 members are here, and others may have gone on from a later record; waits for more of dave"
    )


def test_members_that_went_back_a_step_together_do_not_call_each_other_ahead() -> None:
    """They said that they were at the next step while they still were; here they wait beside this one."""
    standings = {KEYS[1]: Standing(True, True, 818), KEYS[3]: Standing(True, True, 818)}
    text = waiting_for(member(missing=2), None, Presence(standings, {}, {}), None, PLAN.name_of)
    assert text == "this peer is at step 817, the others at 818; asks dave for what it missed"
    assert str(
        waiting_for(member(missing=1), None, Presence({KEYS[1]: Standing(True, True, 818)}, {}, {}), None, PLAN.name_of)
    ).startswith("stopped: 3 of 4 members are here")


def test_a_peer_that_no_restart_counts_says_so() -> None:
    """One that lost its folder, or was away, while the others have stopped."""
    assert in_no_step(waits=False, members=4, stopped=2) == (
        "before step 817, in none: this peer has yet to fetch the model, so it cannot restart the run; bob, carol are stopped "
        "there too"
    )
    lost = member(waits=False)
    lost.peer.me = PeerId(bytes(32))
    beside = waiting_for(lost, None, Presence({KEYS[1]: Standing(True, False, 817)}, {}, {}), None, PLAN.name_of)
    assert beside is not None
    assert beside.endswith("; bob is stopped there too"), "it says so by itself, where the restart does not count it"
    assert waiting_for(lost, None, Presence({KEYS[1]: Standing(True, True, 0)}, {}, {}), None, PLAN.name_of) == (
        "before step 817, in none: this peer is no member under this key, so it cannot restart the run; no other member has "
        "shown where it is"
    )


def test_a_founder_that_comes_back_after_the_end_is_told_where_the_model_is() -> None:
    for alone in (member(missing=3), member(waits=False)):
        text = waiting_for(alone, None, Presence({}, {}, {}), None, PLAN.name_of)
        assert text is not None
        assert text.endswith(
            "but no member can be reached now: the run may be over. Then each of their folders has its model (model.safetensors, "
            "and model.json, by which 'troth verify' checks it): ask one of them for both"
        )


def test_a_member_without_a_connection_is_named_with_the_reason() -> None:
    slot = Slot(PLAN.run.id, 3, Phase.COMMIT)
    channel: Any = SimpleNamespace(resting=False, waits_for=(slot, frozenset(KEYS[1:3])))
    troubles = {KEYS[1]: "cannot reach 10.0.0.2:7001: timed out"}
    assert waiting_for(None, channel, Presence({}, {}, troubles), None, PLAN.name_of) == (
        "step 3, commit: waits for bob (no connection: cannot reach 10.0.0.2:7001: timed out), carol"
    )


def test_a_peer_that_comes_back_does_not_call_the_run_stopped_while_others_are_in_a_step() -> None:
    text = in_no_step(missing=3, busy=2)
    assert text == "before step 817, in none: bob, carol are in a step, and this peer waits until it ends"


def test_a_peer_that_lags_behind_asks_for_what_it_missed() -> None:
    standings = {KEYS[1]: Standing(True, True, 820), KEYS[2]: Standing(True, True, 817)}
    assert waiting_for(member(missing=3), None, Presence(standings, {}, {}), None, PLAN.name_of) == (
        "this peer is at step 817, the others at 820; asks bob for what it missed"
    )


def test_a_pause_without_steps_has_the_same_words_as_one_with_steps() -> None:
    resting: Any = SimpleNamespace(resting=True, waits_for=None)
    paused = member()
    paused.restart = None
    assert (
        waiting_for(paused, resting, Presence({}, {}, {}), "paused: 2 of 4 are gone", PLAN.name_of)
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
        assert waiting_for(who, None, Presence(reached, {}, {}), None, PLAN.name_of) == words
        alone = waiting_for(who, None, Presence({}, {}, {}), None, PLAN.name_of)
        assert words is None or str(alone).startswith(
            f"{words}; but no member can be reached now: the run may be over. Then"
        )


def test_nothing_to_wait_for() -> None:
    assert waiting_for(None, None, Presence({}, {}, {}), None, PLAN.name_of) is None


def test_a_farewell_tells_what_becomes_of_the_run() -> None:
    assert farewell(member(), KEYS[0], 1, PLAN.name_of) == "the others go on"
    assert farewell(member(members=3), KEYS[0], 1, PLAN.name_of) == (
        "the 2 others cannot train without it (3 are needed): the run waits until enough are back, and nothing is lost"
    )
    assert farewell(None, KEYS[0], 1, PLAN.name_of) == "it had not begun to train"


def test_gradients_that_count_for_nothing_are_told() -> None:
    """[R2]"""
    assert in_vain(1, float("nan")) == "this peer's gradient counts as zero: the batch loss is nan"
    assert in_vain(2, 1.0) == "this peer's gradient counts as zero: it is zero, or not finite"
    assert in_vain(3, float("inf")) == in_vain(9, float("inf"))
    assert in_vain(3, float("inf")).startswith(
        "this peer's gradients have counted as zero for 3 steps or more: the batch loss is inf. If the others say so too"
    )
