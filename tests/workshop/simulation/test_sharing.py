"""Many peers in one process share nothing that could decide anything."""

from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch

from tests.protocol.small_runs import APART, SMALL, finished
from troth.clip.blocks import Code
from troth.crypto import Identity, PeerId, Slot, derive, leaf_hash, tagged_hash
from troth.protocol.core.parts import commit_parts, part_bounds, rounding_key
from troth.protocol.core.records import decode_record
from troth.protocol.step import disputes
from troth.protocol.step.audits import AuditFinding, report_errors
from troth.protocol.wire.messages import ChargeKind, Envelope, Phase, ReportNumbers, Reveal
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives
from troth.training.work import TrainingWork
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.primitives import Cut, LockstepPrimitives, MemoPrimitives, Rounded


@pytest.mark.long
def test_with_the_memo_off_the_trace_is_the_same(attacked: ProtocolSimulation) -> None:
    """[S1] Every record, byte for byte, and the same evidence."""
    alone = finished(APART, share=False)
    assert type(alone.tools) is Primitives
    assert alone.trace == attacked.trace
    assert [e.text for e in alone.evidence] == [e.text for e in attacked.evidence]


@pytest.mark.long
def test_with_strangers_too_the_trace_is_the_same_without_the_memo() -> None:
    """[S1, J5] Candidates' gradients come with everyone's in one call, and their commitments are verified by each member."""
    strangers = "honest + noise + turns + leaves:stay=2"
    scenario = replace(SMALL, peers=5, byzantine=1, attack_start=6, probation=4, strangers=strangers, steps=24)
    together, alone = finished(scenario), finished(scenario, share=False)
    assert alone.trace == together.trace
    assert [e.text for e in alone.evidence] == [e.text for e in together.evidence]
    seen = [decode_record(raw) for raw in together.trace]
    assert any(record.admitted for record in seen)
    assert any(record.banned for record in seen)


@pytest.mark.long
def test_gradients_computed_one_by_one_give_the_same_trace(attacked: ProtocolSimulation) -> None:
    """[S1, R2] The batched call is no more than that: each row follows from its own seed."""
    alone = ProtocolSimulation(APART)
    alone.problem.why_one_by_one = "for this test"
    for _ in alone.steps():
        pass
    assert alone.trace == attacked.trace


@pytest.mark.long
def test_audits_and_votes_recompute_in_calls_of_their_own(monkeypatch: Any) -> None:
    """[S1, T3, D1] One recomputation per audit, another where something was found, and one per member and trial; none of them
    asks the pool."""
    calls = found = 0
    plain, concludes = TrainingWork.gradient_now, AuditFinding.accusation

    def counted(self: TrainingWork, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(self, *arguments)

    def noted(self: AuditFinding, *, bits_count: bool) -> ChargeKind | None:
        nonlocal found
        kind = concludes(self, bits_count=bits_count)
        found += kind is not None
        return kind

    monkeypatch.setattr(TrainingWork, "gradient_now", counted)
    monkeypatch.setattr(AuditFinding, "accusation", noted)
    simulation = ProtocolSimulation(SMALL)
    judged, alive = 0, SMALL.peers
    for report in simulation.steps():
        record = decode_record(simulation.trace[report.step - 1])
        judged += alive * len({(judgement.target, judgement.step) for judgement in record.judgements})
        alive = report.alive
    assert judged
    assert found % 2 == 0
    assert calls == simulation.audits + found // 2 + judged


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 3])
def test_a_machine_that_computes_wrongly_once_in_a_while_accuses_nobody(every: int, monkeypatch: Any) -> None:
    """[D1] As a kernel did that races: some recomputations have other last bits, no two of them the same."""
    calls, plain = 0, TrainingWork.gradient_now

    def glitches(self: TrainingWork, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        gradient_D = plain(self, *arguments)
        if calls % every == 0:
            gradient_D = gradient_D.clone()
            gradient_D[calls % len(gradient_D)] += 1e-3
        return gradient_D

    monkeypatch.setattr(TrainingWork, "gradient_now", glitches)
    simulation = finished(replace(SMALL, byzantine=0, steps=20))
    assert calls >= 20
    assert all(not decode_record(raw).judgements for raw in simulation.trace)
    assert not simulation.bans


def test_an_owner_that_computes_wrongly_once_in_a_while_accuses_nobody(monkeypatch: Any) -> None:
    """[V1] Every third time it finds a report wrong that is right."""
    calls = 0

    def glitches(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        errors_P = report_errors(*arguments)
        errors_P[0] += 1.0 if calls % 3 == 0 else 0.0
        return errors_P

    monkeypatch.setattr(disputes, "report_errors", glitches)
    simulation = finished(replace(SMALL, byzantine=0, steps=5))
    assert calls >= 20
    assert all(not decode_record(raw).judgements for raw in simulation.trace)


@pytest.mark.long
def test_equal_scenarios_give_equal_traces(attacked: ProtocolSimulation) -> None:
    """[S1]"""
    assert finished(APART).trace == attacked.trace


def test_only_functions_of_primitives_are_shared() -> None:
    """[S1] Each is a method with a plain implementation, which a peer on its own uses."""
    own = {"once", "once_for", "known_of", "drawn", "forget"}  # the memory itself, and filling it
    shared = {name for name in vars(MemoPrimitives) if not name.startswith("_")}
    assert shared - own <= vars(Primitives).keys()


def test_remembered_or_not_results_are_the_same() -> None:
    """[S1] Asked twice, the second time from memory; and what is shared cannot be changed."""
    plain, memo = Primitives(), MemoPrimitives()
    identity, slot = Identity.from_secret(derive(0, "sharing")), Slot(tagged_hash("run"), 3, Phase.REVEAL)
    good = seal(identity, slot, Reveal(bytes(32), b"\x01"))
    forged = Envelope(good.payload, bytes(64))
    envelopes = {identity.peer: good, PeerId(bytes(31) + b"\x09"): good, PeerId(bytes(31) + b"\x08"): forged}
    left, right = tagged_hash("left"), tagged_hash("right")
    reports = [ReportNumbers(np.arange(3.0) + k, np.ones(3), np.full((3, 4), 0.5 * k)) for k in range(5)]
    for _ in range(2):
        assert memo.leaf(2, 7, left) == plain.leaf(2, 7, left) == leaf_hash(2, 7, "float32", left)
        assert memo.node(left, right) == plain.node(left, right) != memo.node(right, left)
        assert memo.open_all(slot, envelopes) == plain.open_all(slot, envelopes)
        assert list(memo.open_all(slot, envelopes)) == [identity.peer]
        assert np.array_equal(memo.table(reports).about(1).lengths_P, plain.table(reports).about(1).lengths_P)
    assert memo.table(reports) is memo.table(list(reports))
    assert memo.table(reports[::-1]).reports == tuple(reports[::-1])
    later = slot._replace(step=4)
    assert memo.open_all(later, envelopes) == {}  # the same envelopes in another slot are worth nothing
    with pytest.raises(TypeError):
        memo.open_all(slot, envelopes)[identity.peer] = None  # type: ignore[index]


def test_a_gradient_that_was_cut_is_let_go() -> None:
    """Where everyone audits, hundreds of gradients are recomputed in one step: together many gigabytes of a large model's."""
    tools, bounds = LockstepPrimitives(), (0, 2, 5)
    gradient_D = torch.arange(5.0)
    assert tools.cut(gradient_D, bounds)[1] == Primitives().cut(gradient_D, bounds)[1]
    gone = ref(gradient_D)
    del gradient_D
    assert gone() is None


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_pieces_that_were_hashed_before_are_not_hashed_again(name: str) -> None:
    tools, code, gradient_D, seed = LockstepPrimitives(), Code.known[name], torch.arange(512.0), derive(1, "gradient")
    bounds = part_bounds(512, 2, code)
    key = rounding_key(code, seed)
    _, noted = Primitives().cut(gradient_D, bounds, code.rows, key)
    tools.was_cut(gradient_D, Cut(Rounded.begin(gradient_D, code.rows, key), bounds, noted))
    assert tools.cut(gradient_D, bounds, code.rows, key)[1] is noted
    assert tools.cut(gradient_D, (0, 255, 512), code.rows, key)[1] is not noted
    assert tools.cut(gradient_D.clone(), bounds, code.rows, key)[1] is not noted
    assert tools.cut(gradient_D, bounds, code.rows, derive(2, "rounding"))[1] is not noted, "rounded otherwise"
    committed = commit_parts(gradient_D, bounds, tools, code, seed).proven_parts
    assert all(one.blob is blob for one, blob in zip(committed, noted, strict=True)), "asked for by that very tensor"
