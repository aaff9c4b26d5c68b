"""Records that name the content of a state only now and then (SPEC U5)."""

import dataclasses
from functools import partial
from typing import Any

import pytest

from tests.protocol.recovery.certified_records import past_steps, signed_again
from tests.protocol.scripted_world import plan, run_world
from tests.protocol.small_runs import SMALL, finished, records
from troth.crypto import Digest
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import aggregates_digest, chained_state, decode_record
from troth.protocol.core.run import Parameters
from troth.protocol.core.state import State
from troth.protocol.recovery.history import Followed, follow
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives
from troth.simulation import ProtocolSimulation
from troth.simulation.lockstep import protocol_run
from troth.simulation.lockstep.drop_outs import DropOut

EVERY = 3  # a record in three names the content
FACTOR, OTHER = 0.5, bytes(32)


def _followed(*certified: CertifiedRecord) -> Followed | None:
    run, right, _ = past_steps(EVERY)
    before = Digest(decode_record(right[0].record).state_before)
    return follow(run, State.first(run, None), before, certified, Primitives())


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
    monkeypatch.setattr(protocol_run, "Parameters", partial(Parameters, content_every=4))
    return finished(dataclasses.replace(SMALL, attack="sign-flip"))


def test_a_ban_for_work_at_a_chained_state_can_be_recomputed(chained_run: ProtocolSimulation) -> None:
    """[U5, E3] The record of the ban names the content, and another state is refused."""
    convicting = [record for record in records(chained_run) if record.judgements]
    chained = [record for record in convicting if record.disputed]
    assert chained, "else this test shows nothing"
    for evidence in chained_run.evidence:
        proof = verify_ban(evidence.text)
        assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
        assert proof.disputed is not None
        named = {step for record in chained if record.step == proof.step for step, _ in record.disputed}
        assert (proof.state != proof.disputed.state_before) == (proof.judgement.step in named)


def test_the_closing_record_names_the_content(chained_run: ProtocolSimulation) -> None:
    """[U5] Whatever its step: the model that a run leaves is proved by it."""
    state = chained_run.states[chained_run.honest[0]]
    assert state.closed
    assert state.content
    assert state.model == chained_run.peers[chained_run.honest[0]].work.digest(state.training)


@pytest.mark.parametrize("journal", [True, False])
def test_whoever_comes_back_waits_for_a_state_that_is_named_by_content(*, journal: bool) -> None:
    """[U5, B3] It takes the model at step 3k at the earliest, and is a member again before the run ends."""
    crashes = {4: DropOut(1, 4, 5.0, journal=journal)}
    made = dataclasses.replace(plan(liars=(), steps=14, crashes=crashes), content_every=4)
    seen = run_world(made).check_promises()
    back = [record for record in seen.records if record.returned]
    assert len(back) == 1
    assert back[0].content, "the record that lets somebody in names the content, in turn or not"
    assert back[0].step >= 4


@pytest.mark.parametrize(
    "content_every",
    [
        1,
        pytest.param(6, marks=pytest.mark.xfail(strict=True, reason="decision 22: why more than 1 is an experiment")),
    ],
)
def test_a_power_cut_for_all_costs_a_step(content_every: int) -> None:
    """[U5, B6] Two lose power amid Accuse, the others after the next Commit: those two lack the model of the last record."""
    blackout = {
        **{number: DropOut(2, 6, 5.0, amid=0.4) for number in (3, 4)},
        **{number: DropOut(3, 1, 5.0) for number in (0, 1, 2)},
    }
    made = dataclasses.replace(
        plan(liars=(), steps=6), content_every=content_every, byzantine=1, blackout=blackout, confirmed=1e5
    )
    assert len(run_world(made).records) == 6
