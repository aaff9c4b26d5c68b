"""Worlds in which too many stop at once, and begin anew (SPEC B5, B6)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import pytest

from tests.protocol.scripted_world import WorldRun, peer_ids, plan, run_world
from troth.crypto import Digest
from troth.evidence.bans import History
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import encode_record
from troth.protocol.recovery import builder
from troth.protocol.recovery.catch_up import CatchUp
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.recovery.member import Member
from troth.workshop.chaos.draws import draw_plan
from troth.workshop.chaos.judge import judge
from troth.workshop.chaos.plan import Cut, Network
from troth.workshop.simulation.exchange import DropOut

T = TypeVar("T")
REVEAL_CALL = 4  # a call of the channel in a quiet step


def blackout(call: int, amid: Sequence[float] = (0.0,) * 5) -> WorldRun:
    """Five honest peers; all stop in step 3, so many seconds after a call of the channel, and have power again a little later."""
    cuts = {number: DropOut(3, call, 5.0 + number, True, seconds) for number, seconds in enumerate(amid)}
    return run_world(replace(plan(liars=(), steps=8), blackout=cuts)).check_promises()


def test_all_stop_and_all_go_on() -> None:
    """[B6, R6] The step that was not finished is made again, with fresh coins, and everyone audits the one before: a draw
    may have been thrown away."""
    seen = blackout(REVEAL_CALL)
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert seen.named("absent", "expelled", "struck") == {}
    audits = {step: sum(len(o[step].audited) for o in seen.world.outcomes.values()) for step in range(2, 5)}
    by_all = {step + 1: 4 * len(seen.records[step].contributors) for step in (2, 3)}  # all others audit each of them
    assert audits == {2: 1, **by_all}, "the step that was made again too"


def certifying(amid: Sequence[float], downs: Sequence[float] = (5.0, 6.0, 7.0, 8.0, 9.0), steps: int = 8) -> WorldRun:
    """Five peers, without liars; all stop in the Commit of step 4, so many seconds after it began: it certifies step 3."""
    cuts = {
        number: DropOut(4, 0, down, True, seconds)
        for number, (down, seconds) in enumerate(zip(downs, amid, strict=True))
    }
    return run_world(replace(plan(liars=(), steps=steps, network=Network(latency=0.3)), blackout=cuts))


@pytest.mark.long
@pytest.mark.parametrize("holds", [{0}, {1, 4}, {0, 1, 2, 3}])
def test_a_certified_record_is_not_made_again_though_one_member_alone_has_it(holds: set[int]) -> None:
    """[B6, U2] Some have the agreed Commits of step 4 when the power goes, the rest borrows the record of step 3 from them."""
    seen = certifying([0.95 if number in holds else 0.3 for number in range(5)]).check_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert seen.named("absent") == {}


@pytest.mark.long
def test_without_borrowing_the_run_would_not_go_on_with_all() -> None:
    """[B5] So that the test above can fail."""
    with patch.object(CatchUp, "_borrow", lambda *_: None):
        seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3])
    assert seen.world.outcomes[1][3].record.incarnation == 1


@pytest.mark.long
def test_a_record_that_nobody_can_prove_is_made_again() -> None:
    """[U2, B6] All hold the record of step 3, and none the signatures of a quorum: nobody could show it to others."""
    seen = certifying([0.2] * 5).check_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert seen.named("absent") == {}


@pytest.mark.long
def test_a_certificate_outlives_the_step_that_brought_it() -> None:
    """[U2] The Commits of step 4 were agreed; the power goes for all two phases later."""
    cuts = {number: DropOut(4, REVEAL_CALL, 5.0 + number) for number in range(5)}
    seen = run_world(replace(plan(liars=(), steps=8), blackout=cuts)).check_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.long
def test_a_member_that_alone_holds_a_certified_record_and_comes_too_late_takes_the_other_one() -> None:
    """[B2, B5] People let the others begin without it, and these made the step again: of two records of one step the one of the
    later incarnation counts, with the proof that it began."""
    seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3], downs=(150.0, 5.0, 6.0, 7.0, 8.0), steps=60)
    late = seen.world.outcomes[0]
    assert seen.world.outcomes[1][3].record.incarnation == 1
    assert 3 not in late, "what the others made again, and had to, is not held against anyone"
    assert seen.named("absent") == {3: [0]}
    assert list(seen.returned.values()) == [[0]]
    assert late[max(late)].record == seen.records[-1]


def test_a_member_that_is_behind_does_not_observe_where_nobody_goes_on() -> None:
    """[B5] Some who wait show the same as a liar: that does not make it the run that goes on."""
    seen = certifying([0.95, 0.95, 0.95, 0.3, 0.3])
    assert len(seen.records) == 8
    assert not any(outcome.observed for outcomes in seen.world.outcomes.values() for outcome in outcomes.values())


@pytest.mark.long
def test_a_record_whose_model_nobody_hands_out_is_given_back() -> None:
    """[B6] A member that alone holds it could keep everyone waiting."""
    forgotten = property(lambda _: None, lambda _, __: None)  # else all who ended the step have the model themselves
    with patch.object(CatchUp, "_complete", no_model), patch.object(Ledger, "_unproved", forgotten, create=True):
        seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3], downs=(5.0,) * 5)
    assert len(seen.records) == 8
    assert seen.world.outcomes[1][3].record.incarnation == 1


async def no_model(*_: Any) -> None:
    pass


def test_a_member_that_lacks_the_model_borrows_it() -> None:
    """[B5] A large model is not written down with every step."""
    victim, lacked = peer_ids(1, 5)[3], []

    class Forgets(Member[T]):
        def __init__(self, peer: Any, state: Any, opened: Any, ends: Any = None, **given: Any) -> None:
            if given.get("certified") and peer.me == victim:
                lacked.append(peer.work.digest(state.training))
                state = replace(state, training=peer.work.update(state.training, state.training.parameters_D, 0))
                given["lacks"] = lacked[0]
            super().__init__(peer, state, opened, ends, **given)

    with patch.object(builder, "Member", Forgets):
        seen = blackout(REVEAL_CALL)
    assert lacked == [Digest(seen.records[2].state_after)]
    assert seen.records[3].incarnation == 1
    assert seen.named("absent") == {}


@pytest.mark.long
def test_a_network_in_pieces_that_heals_goes_on() -> None:
    """[B5, N4] Nobody loses power; but no piece has a majority, so all stop, and nobody has to be asked to go on."""
    cuts = (Cut(frozenset({0, 1}), 12.0, 90.0), Cut(frozenset({2, 3}), 12.0, 90.0))
    made = replace(plan(liars=(), steps=12, network=Network(latency=0.3, cuts=cuts)), blackout={4: DropOut(99, 0)})
    seen = run_world(made)
    assert len(seen.records) == 12
    assert seen.records[-1].incarnation >= 1
    assert seen.named("absent", "banned", "expelled") == {}


@pytest.mark.long
def test_a_ban_after_a_new_beginning_is_proved_by_its_evidence() -> None:
    """[B5, E1] Messages of one incarnation are worth nothing in another."""
    cuts = {number: DropOut(2, 3, 5.0) for number in range(1, 5)}
    made = replace(plan(liars=(0,), steps=14, forge_from={0: 4}), blackout=cuts)
    world = run_world(made).world
    history, records = History(world.run), {outcome.record.step: outcome.record for outcome in world.witness}
    found = [evidence for outcome in world.witness for evidence in history.add(outcome)]
    (evidence,) = found
    record = records[evidence.step]
    assert record.incarnation == 1
    assert verify_ban(evidence.text).banned == peer_ids(1, 5)[0]
    forged = encode_record(msgspec.structs.replace(record, incarnation=0)).hex()
    with pytest.raises(UnprovedError):
        verify_ban(evidence.text.replace(encode_record(record).hex(), forged))


@pytest.mark.long
@pytest.mark.parametrize("seed", [9, 41, 86, 94])
def test_drawn_blackouts_break_no_promise(seed: int) -> None:
    """[B5] With liars that come back too, and lie about where they wait."""
    verdict = judge(draw_plan(seed))
    assert verdict.broken == []
    assert verdict.counts["blackouts"] == 1
    assert verdict.counts["restarts"] >= 1
