"""Gradients and aggregates that travel as codes: what is committed to, what is malformed, and that all promises hold. [C4]"""

import dataclasses

import numpy as np
import pytest
import torch

from tests.protocol.small_runs import SMALL, finished
from troth.clip.blocks import BLOCK, INT8, INT16, Blocks, Code
from troth.clip.kernels import LARGE
from troth.crypto import PeerId, Seed, derive
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.door import most_members
from troth.protocol.core.parts import ProvenPart, commit_parts, opens, part_bounds, rows_of
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Parameters, Run, RunError
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import ProtocolSimulation

# D coordinates

SIZE = 7 * BLOCK + 11
CODED = dataclasses.replace(SMALL, task=f"quadratic:dimension={8 * BLOCK - 3}", code="int8")
CODE, SEED = Code.known["int8"], Seed(bytes(range(32)))


def gradient(seed: int = 1) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("parts", [1, 2, 5, 8])
def test_parts_begin_where_blocks_do_and_open_the_root(parts: int) -> None:
    """[C4, R5] So that numbers mean the same however many parts there are."""
    bounds = part_bounds(SIZE, parts, CODE)
    assert all(bound % BLOCK == 0 for bound in bounds[:-1])
    assert bounds[-1] == SIZE
    assert max(np.diff(bounds)) - min(np.diff(bounds)) <= 2 * BLOCK
    committed = commit_parts(gradient(), bounds, code=CODE, seed=SEED)
    whole = b"".join(bytes(proven.blob.view) for proven in committed.proven_parts)
    assert whole == bytes(INT8.pack(CODE.round_row(gradient(), derive(SEED, "rounding"))))
    for part, proven in enumerate(committed.proven_parts):
        assert opens(proven, part, bounds, committed.root, code=CODE)
        assert not opens(proven, part, bounds, committed.root), "the leaf binds the form"
        received = [ProvenPart(proven.blob.anew(), proven.path)]
        row_D = committed.numbers_D[bounds[part] : bounds[part + 1]]
        assert torch.equal(rows_of(received, code=CODE)[0], row_D)


def test_rounding_follows_from_the_seed_and_nothing_else() -> None:
    """[C4, R2] Else an auditor could not repeat it, or a contributor could choose it."""
    bounds = part_bounds(SIZE, 3, CODE)
    one = commit_parts(gradient(), bounds, code=CODE, seed=SEED)
    assert commit_parts(gradient(), bounds, code=CODE, seed=SEED).root == one.root
    assert commit_parts(gradient(), bounds, code=CODE, seed=derive(SEED, "other")).root != one.root


def test_a_gradient_that_is_not_finite_is_zeros() -> None:
    """[R2] Only a liar hands one in; its own program does not fall over it."""
    bad_D = gradient()
    bad_D[3] = float("nan")
    committed = commit_parts(bad_D, part_bounds(SIZE, 2, CODE), code=CODE, seed=SEED)
    assert not committed.numbers_D.any()


def _wasteful(form: Blocks, packed: bytes) -> bytes:
    """The same with an exponent that is larger than it has to be, and codes half as large."""
    codes = np.frombuffer(packed[1 : form.length(BLOCK)], f"<i{form.bits // 8}") // 2
    return bytes([packed[0] + 1]) + codes.tobytes() + packed[form.length(BLOCK) :]


@pytest.mark.parametrize("settles", [0, 1 << 60])
def test_of_a_malformed_part_nothing_is_left(settles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[C4] Compiled loops come to the last block, which is malformed, after they have written the others."""
    monkeypatch.setattr("troth.protocol.core.parts.SETTLES_BYTES", settles)
    right = bytes(INT8.pack(torch.ones(LARGE + 1)))
    wrong = right[:-1] + b"\x80"
    rows_PD = rows_of([ProvenPart(Blob(one), ()) for one in (wrong, right)], code=CODE)
    assert rows_PD.sum(dim=1).tolist() == [0, LARGE + 1]


@pytest.mark.parametrize("settles", [0, 1 << 60])
def test_a_malformed_part_counts_as_zeros(settles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[C4] For owners, jurors and whoever recomputes: an exponent that is larger than it has to be, −128, one beyond the last."""
    monkeypatch.setattr("troth.protocol.core.parts.SETTLES_BYTES", settles)
    right = bytes(INT8.pack(CODE.round_row(gradient(), bytes(8))))
    wasteful, lowest, beyond = _wasteful(INT8, right), bytearray(right), bytearray(right)
    lowest[1] = 0x80
    beyond[0] = 255
    blobs = [Blob(right), *(Blob(bytes(one)) for one in (wasteful, lowest, beyond))]
    rows_PD = rows_of([ProvenPart(blob, ()) for blob in blobs], code=CODE)
    assert rows_PD.any(dim=1).tolist() == [True, False, False, False]


def test_an_aggregate_that_is_malformed_or_announced_with_another_rounding_is_no_aggregate() -> None:
    """[A2, A3] Else an owner could choose its tolerance."""
    tools, center_D = Primitives(), CODE.round_center(gradient())
    blob = Blob.of(center_D, INT16)
    assert tools.rounding(blob, INT16) == CODE.rounding(center_D) > 0
    assert tools.aggregate_norm(Blob(_wasteful(INT16, bytes(blob.view))), INT16) is None
    assert tools.aggregate_norm(blob.anew(), INT16) == tools.aggregate_norm(Blob.of(center_D))


def test_every_contributor_owns_a_block() -> None:
    """[R5, C4]"""
    parameters = Parameters(2 * BLOCK + 1, 1.0, 0, code="int8")
    assert most_members(parameters) == 3
    Run(_keys(3), b"", parameters, bytes(32))
    with pytest.raises(RunError, match="cannot be split among 4 in blocks of 255"):
        Run(_keys(4), b"", parameters, bytes(32))


def _keys(count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(bytes([k]) * 32) for k in range(count))


def test_a_code_needs_audits_that_compare_bits() -> None:
    with pytest.raises(RunError, match="needs audits that compare bits"):
        Parameters(10_000, 1.0, 0, code="int8", deviation=0.01)
    with pytest.raises(RunError, match="must be one of float32, int8"):
        Parameters(10_000, 1.0, 0, code="int4")


def test_a_run_with_float32_is_named_as_before() -> None:
    assert "code" not in Parameters(10, 1.0, 0).plain()
    coded = Parameters(10, 1.0, 0, code="int8")
    assert Parameters.from_plain(coded.plain()) == coded


@pytest.fixture(scope="module")
def coded() -> ProtocolSimulation:
    return finished(CODED)


def test_liars_are_banned_as_ever_and_anyone_recomputes_it(coded: ProtocolSimulation) -> None:
    """[C4, D1, E3, E6] Rounding hides which bits a machine computes, so the accused's own Commit says it."""
    assert coded.agreement
    assert {ban.peer for ban in coded.bans} == {*coded.byzantine}
    for evidence in coded.evidence:
        proof = verify_ban(evidence.text, coded.run.id)
        assert recompute(proof, evidence.training) is Recomputed.CONFIRMED


@pytest.mark.long
def test_the_trace_is_the_same_when_nothing_is_shared(coded: ProtocolSimulation) -> None:
    """[S1]"""
    alone = finished(CODED, share=False)
    assert alone.trace == coded.trace


def test_rounding_alone_brings_no_trial() -> None:
    """[V2] Of 60 steps with 420 parts not one looks wrong."""
    quiet = finished(dataclasses.replace(CODED, byzantine=0, steps=60))
    assert not [judgement for raw in quiet.trace for judgement in decode_record(raw).judgements]


@pytest.mark.parametrize(
    "attack",
    ["wrong-aggregate", "wrong-aggregate:border=true", "covered-aggregate", "wrong-report", "withheld-aggregate"],
)
@pytest.mark.long
def test_lies_about_coded_aggregates_and_reports(attack: str) -> None:
    """[V1, V2, T6, T7] No honest ban, and agreement."""
    simulation = finished(dataclasses.replace(CODED, attack=attack))
    assert simulation.agreement
    assert {ban.peer for ban in simulation.bans} <= {*simulation.byzantine}
