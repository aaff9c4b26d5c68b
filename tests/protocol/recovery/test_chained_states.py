"""Records that name the content of a state only now and then (SPEC U5)."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
import pytest

from tests.protocol.channel_wrappers import AlteringChannel
from tests.protocol.recovery.certified_records import past_steps, signed_again
from tests.protocol.scripted_world import WorldRun, peer_ids, plan, run_world
from tests.protocol.small_runs import SMALL, finished, records
from troth.crypto import Digest, Slot
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import StepRecord, aggregates_digest, chained_state, decode_record
from troth.protocol.core.state import State
from troth.protocol.history import Followed, follow
from troth.protocol.recovery import models
from troth.protocol.step.conclude import Ending
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import NO_BASIS, Commit, Message
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.check_history import agreement
from troth.workshop.simulation import ProtocolSimulation, protocol_run
from troth.workshop.simulation.exchange import DropOut

EVERY = 3  # a record in three names the content
FACTOR, OTHER = 0.5, bytes(32)


def _followed(*certified: CertifiedRecord) -> Followed | None:
    run, right, _ = past_steps(EVERY)
    before = Digest(decode_record(right[0].record).state_before)
    followed = follow(run, State.first(run, None), before, certified, Primitives())
    return followed if isinstance(followed, Followed) else None


def _changed(step: int, **changes: Any) -> tuple[CertifiedRecord, ...]:
    """Records up to this step, the last with changes that all members signed."""
    run, right, who = past_steps(EVERY)
    return (*right[:step], signed_again(right[step], who.values(), run, **changes))


def test_a_record_names_the_content_of_every_kth_state() -> None:
    """[U5] The others are chained."""
    run, certified, _ = past_steps(EVERY)
    assert run.parameters.content_every == EVERY
    made = [decode_record(signed.record) for signed in certified]
    assert [record.content for record in made] == [False, False, True, False, False]
    assert _followed(*certified) is not None


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"step": 1, "state_after": OTHER}, id="another chain"),
        pytest.param({"step": 1, "aggregates": OTHER}, id="other aggregates"),
        pytest.param({"step": 1, "factor": FACTOR}, id="another factor"),
        pytest.param({"step": 1, "content": True}, id="a chained digest called content"),
        pytest.param({"step": 1, "content": True, "state_after": OTHER}, id="content out of turn"),
        pytest.param({"step": 2, "content": False}, id="no content where it is due"),
    ],
)
def test_a_chain_that_does_not_follow_is_refused(forged: dict[str, Any]) -> None:
    """[U5, B2] Even if all members signed it: what it should be can be computed."""
    assert _followed(*_changed(**forged)) is None
    assert _followed(*_changed(forged["step"])) is not None, "the right record, signed again"


def test_a_chain_follows_from_all_that_the_update_depends_on() -> None:
    """[U5]"""
    before, aggregates = Digest(b"b" * 32), aggregates_digest([Digest(b"1" * 32), Digest(b"2" * 32)])
    turned = aggregates_digest([Digest(b"2" * 32), Digest(b"1" * 32)])
    chains = {
        chained_state(before, aggregates, 1.0, 5),
        chained_state(aggregates, before, 1.0, 5),
        chained_state(before, turned, 1.0, 5),
        chained_state(before, aggregates, FACTOR, 5),
        chained_state(before, aggregates, 1.0, 6),
    }
    assert len(chains) == 5


@pytest.fixture
def chained_run(monkeypatch: pytest.MonkeyPatch) -> ProtocolSimulation:
    monkeypatch.setattr(protocol_run, "usual_content_every", lambda _size: 4)
    return finished(dataclasses.replace(SMALL, attack="sign-flip"))


def test_a_ban_for_work_at_a_chained_state_can_be_recomputed(chained_run: ProtocolSimulation) -> None:
    """[U5, E3] The judgement names the content, as the jurors did, and another state is refused."""
    convicting = [record for record in records(chained_run) if record.judgements]
    chained = [j for record in convicting for j in record.judgements if j.state != NO_BASIS]
    assert chained, "else this test shows nothing"
    for evidence in chained_run.evidence:
        proof = verify_ban(evidence.text)
        assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
        assert proof.disputed is not None
        assert (proof.state != proof.disputed.state_before) == (proof.judgement in chained)


def test_the_closing_record_names_the_content(chained_run: ProtocolSimulation) -> None:
    """[U5] Whatever its step: the model that a run leaves is proved by it."""
    state = chained_run.states[chained_run.honest[0]]
    assert state.closed
    assert state.content
    assert state.model == chained_run.peers[chained_run.honest[0]].work.digest(state.training)


@pytest.mark.long
@pytest.mark.parametrize("journal", [True, False])
def test_whoever_comes_back_makes_the_updates_that_it_missed(*, journal: bool) -> None:
    """[U5, J2, B3] From its own model, or the first one, and the aggregates that others hand out."""
    crashes = {4: DropOut(1, 4, 5.0, journal=journal)}
    made = dataclasses.replace(plan(liars=(), steps=14, crashes=crashes), content_every=20)
    seen = run_world(made).check_promises()
    back = [record for record in seen.records if record.returned]
    assert len(back) == 1
    assert back[0].content, "the record that lets somebody in names the content, in turn or not"


@pytest.mark.long
def test_whoever_is_too_far_behind_waits_for_a_state_that_is_named_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """[U5, J2] Where members keep no aggregates that it needs, it takes the model at step 4k."""
    monkeypatch.setattr(models, "most_kept", lambda _size, _every: 0)
    made = dataclasses.replace(plan(liars=(), steps=14, crashes={4: DropOut(1, 4, 5.0)}), content_every=4)
    seen = run_world(made).check_promises()
    (back,) = [record for record in seen.records if record.returned]
    assert back.step >= 4


@pytest.mark.parametrize("content_every", [1, 6])
def test_a_power_cut_for_all_costs_a_step(content_every: int) -> None:
    """[U5, J2, B6] Two lose power amid Accuse, the others after the next Commit: those two lack the model of the last record."""
    blackout = {
        **{number: DropOut(2, 6, 5.0, amid=0.4) for number in (3, 4)},
        **{number: DropOut(3, 1, 5.0) for number in (0, 1, 2)},
    }
    made = dataclasses.replace(
        plan(liars=(), steps=6), content_every=content_every, byzantine=1, blackout=blackout, confirmed=1e5
    )
    assert len(run_world(made).records) == 6


def _leaves_the_ban_unsigned(slot: Slot, message: Message) -> Message:
    unsigned = isinstance(message, Commit) and slot.step > 3
    return msgspec.structs.replace(message, signature=None) if unsigned else message


def _cut_amid_a_lie(content_every: int) -> WorldRun:
    """Of eight members three lose power amid Accuse and have no audit record of that step, in which a liar forged; four have one,
    and with the liar's own vote they convict it. It does not sign that record, so all seven others have to write the same."""
    liar = peer_ids(1, 8)[0]
    blackout = {
        **{number: DropOut(2, 6, 5.0, amid=0.4) for number in (5, 6, 7)},
        **{number: DropOut(3, 1, 5.0) for number in (1, 2, 3, 4)},
    }
    made = dataclasses.replace(
        plan(peers=8, liars=(0,), steps=8, forge_from={0: 2}),
        content_every=content_every,
        byzantine=1,
        blackout=blackout,
        confirmed=1e5,
        liars_return=True,
    )
    return run_world(
        made,
        wrap=lambda peer, channel, _noticed: (
            AlteringChannel(channel, _leaves_the_ban_unsigned) if peer == liar else channel
        ),
    )


@pytest.mark.long
@pytest.mark.parametrize("content_every", [1, 6])
def test_a_liar_that_convicts_itself_does_not_part_those_who_hold_the_audit_record_from_the_rest(
    content_every: int,
) -> None:
    """[U5, B6] All read the state that the work was done at off the votes."""
    seen = _cut_amid_a_lie(content_every)
    assert len(seen.records) == 8
    assert agreement(seen.world) == []
    judged = [judgement for judgement in seen.records[3].judgements if judgement.banned is not None]
    assert judged, "else nobody was convicted"
    assert all((judgement.state != NO_BASIS) == (content_every > 1) for judgement in judged)


@pytest.mark.long
def test_records_that_follow_from_what_their_writer_holds_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """[U5] The same world, and members that name the state only if they have it: the checker sees what was given up later."""
    right: Callable[[Ending[Any]], StepRecord] = vars(Ending)["record"].func

    def from_own_audit_records(ending: Ending[Any]) -> StepRecord:
        record, kept = right(ending), ending.attempt.context.state.audit_records
        judged = [msgspec.structs.replace(j, state=j.state if j.step in kept else NO_BASIS) for j in record.judgements]
        return msgspec.structs.replace(record, judgements=tuple(judged))

    wrong = cached_property(from_own_audit_records)
    wrong.__set_name__(Ending, "record")
    monkeypatch.setattr(Ending, "record", wrong)
    assert "honest peers wrote 2 different records" in " ".join(agreement(_cut_amid_a_lie(6).world))
