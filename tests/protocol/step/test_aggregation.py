"""From parts to the aggregate, the projections and the reports."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.protocol.small_runs import SMALL, finished, last_audit_record
from troth.clip.centered_clip import judge_center
from troth.crypto import Digest, derive, project, projection_signs, tagged_hash
from troth.protocol.core.parts import commit_parts
from troth.protocol.core.records import decode_record
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import part_taus
from troth.protocol.step.audits import ACCUSE_AT, CONVICT_AT, make_report, relative_errors
from troth.protocol.wire.messages import Malformed, ReportNumbers
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import ProtocolSimulation

KEY = tagged_hash("test key")
BOUNDS = (0, 20, 40, 60)
TAUS = part_taus(0.5, BOUNDS)


def test_the_aggregate_is_the_clipped_centre_of_every_part(attacked: ProtocolSimulation) -> None:
    """[A1, A3] Recomputed from the contributors' public seeds, part by part, to the tolerance of the design."""
    kept = last_audit_record(attacked)
    batches = [attacked.problem.batch(gradient_seed(kept.seed_randomness, peer)) for peer in kept.contributors]
    _, rows_PD = attacked.problem.gradients(kept.training.parameters_D, batches)  # all liars are gone by now
    assert kept.tau == attacked.run.parameters.tau
    for (start, stop), tau in zip(pairwise(kept.bounds), part_taus(kept.tau, kept.bounds), strict=True):
        part_D, rows = kept.aggregate_D[start:stop], rows_PD[:, start:stop]
        residual, tolerance = judge_center(rows, part_D, tau=tau)
        assert residual <= tolerance / 8


def test_a_part_has_its_share_of_the_radius() -> None:
    """[A1] τ_p = τ√(d/D)."""
    assert part_taus(0.5, (0, 15, 60))[0] == pytest.approx(0.25)
    assert math.hypot(*TAUS) == pytest.approx(0.5)


def test_everyone_uses_the_announced_aggregates(attacked: ProtocolSimulation) -> None:
    """[A2, A3] Bit for bit the same aggregate at every honest peer."""
    aggregates = [last_audit_record(attacked, peer).aggregate_D for peer in attacked.honest]
    assert len(aggregates) == len(attacked.honest)
    assert all(torch.equal(aggregate_D, aggregates[0]) for aggregate_D in aggregates)


def test_projections_are_signs_that_nobody_could_foresee() -> None:
    """[A4] ±1, balanced, uncorrelated between rows, and entirely different under another key."""
    signs = torch.from_numpy(projection_signs(KEY, 16, 0, 40_000)).double()
    assert set(signs.flatten().tolist()) == {-1.0, 1.0}
    gram = signs @ signs.T / 40_000
    assert float((gram - torch.eye(16)).abs().max()) < 0.03
    assert float(signs.mean(dim=1).abs().max()) < 0.03
    other = torch.from_numpy(projection_signs(tagged_hash("other"), 16, 0, 40_000)).double()
    assert float((signs * other).mean(dim=1).abs().max()) < 0.03
    neighbours = (signs[:, 1:] * signs[:, :-1]).mean(dim=1)
    assert float(neighbours.abs().max()) < 0.03


def test_projections_of_a_range_are_a_slice_of_all() -> None:
    """[A4] Counter-based: a peer can make the signs of one part alone."""
    for rows, start in ((16, 100), (16, 3), (5, 7), (33, 1)):
        part_KD, all_KD = projection_signs(KEY, rows, start, 200), projection_signs(KEY, rows, 0, 300)
        assert np.array_equal(part_KD, all_KD[:, start:200])


@pytest.mark.parametrize(
    ("rows", "start", "width"), [(16, 0, 100_000), (16, 32_768, 5), (5, 7, 40_000), (64, 1, 33_000)]
)
def test_large_projections_are_those_of_the_same_signs(rows: int, start: int, width: int) -> None:
    """[A4, A5] Where K×D signs would be too many to hold."""
    vectors_PD = torch.randn(3, width, generator=torch.Generator().manual_seed(4)).double().numpy()
    signs_KD = projection_signs(KEY, rows, start, start + width).astype(np.float64)
    found_PK = project(KEY, rows, start, vectors_PD)
    assert found_PK.shape == (3, rows)
    assert np.abs(found_PK - vectors_PD @ signs_KD.T).max() < 1e-12 * width**0.5


def test_a_report_says_norm_and_clipped_projections() -> None:
    """[A5] Against a transcription with plain loops and fsum."""
    generator = torch.Generator().manual_seed(0)
    gradient_D, aggregate_D = torch.randn(60, generator=generator), torch.randn(60, generator=generator) / 10
    signs_KD = Primitives().projection(KEY, 16, 60)
    own = commit_parts(gradient_D, BOUNDS)
    report = make_report(own, aggregate_D, partial(Primitives().project, KEY, 16, 60), TAUS)
    for part in range(3):
        away = [float(gradient_D[j].double() - aggregate_D[j].double()) for j in range(20 * part, 20 * part + 20)]
        norm = math.sqrt(math.fsum(a * a for a in away))
        scale = min(1.0, 0.5 * math.sqrt(1 / 3) / norm)
        assert report.norms_P[part] == pytest.approx(norm, rel=1e-14)
        for k in range(16):
            signs = signs_KD[k, 20 * part : 20 * part + 20].tolist()
            expected = math.fsum(s * a * scale for s, a in zip(signs, away, strict=True))
            assert report.projections_PK[part, k] == pytest.approx(expected, abs=1e-14)


def test_the_mean_square_of_projections_is_the_squared_length() -> None:
    """[A5] So that K numbers stand for a vector: over 1600 keys the mean is within 3 %."""
    vector_D = torch.randn(500, generator=torch.Generator().manual_seed(3)).double().numpy()
    squares = [
        float(np.square(projection_signs(Digest(derive(5, k)), 16, 0, 500) @ vector_D).mean()) for k in range(1600)
    ]
    assert np.mean(squares) == pytest.approx(float(np.square(vector_D).sum()), rel=0.03)


def test_reports_survive_packing_and_wrong_lengths_are_refused() -> None:
    """[A5, M3]"""
    report = ReportNumbers(np.array([3.0, 0.0]), np.array([1.0, 2.0]), np.arange(6.0).reshape(2, 3))
    again = ReportNumbers.unpack(report.pack(), 2, 3)
    assert isinstance(again, ReportNumbers)
    assert np.array_equal(again.norms_P, report.norms_P)
    assert np.array_equal(again.projections_PK, report.projections_PK)
    assert isinstance(ReportNumbers.unpack(report.pack(), 3, 3), Malformed)


def test_how_far_a_report_may_be_off() -> None:
    """[D2] Convicting starts at 1e-9 of min(norm, τ), accusing at twice that."""
    gradient_D = torch.randn(60, generator=torch.Generator().manual_seed(1))
    own = commit_parts(gradient_D, BOUNDS)
    right = make_report(own, torch.zeros(60), partial(Primitives().project, KEY, 16, 60), TAUS)
    unit = min(right.norms_P[1], TAUS[1])
    for off, accused, convicted in ((0.5e-9, False, False), (1.5e-9, False, True), (2.5e-9, True, True)):
        projections = right.projections_PK.copy()
        projections[1, 3] += off * unit
        errors_P = relative_errors(ReportNumbers(right.lengths_P, right.norms_P, projections), right, np.array(TAUS))
        assert (errors_P[1] > ACCUSE_AT, errors_P[1] > CONVICT_AT) == (accused, convicted)
        assert errors_P[0] == errors_P[2] == 0
    norms = right.norms_P.copy()
    norms[2] *= 1 + 3e-9
    errors_P = relative_errors(ReportNumbers(right.lengths_P, norms, right.projections_PK), right, np.array(TAUS))
    assert errors_P[2] > ACCUSE_AT
    for off, accused, convicted in ((0.5e-9, False, False), (1.5e-9, False, True), (2.5e-9, True, True)):
        lengths = right.lengths_P.copy()
        lengths[0] *= 1 + off
        errors_P = relative_errors(ReportNumbers(lengths, right.norms_P, right.projections_PK), right, np.array(TAUS))
        assert (errors_P[0] > ACCUSE_AT, errors_P[0] > CONVICT_AT) == (accused, convicted)
        assert errors_P[1] == errors_P[2] == 0


def test_where_only_zero_is_right_any_difference_is_too_much() -> None:
    """[D2] A report about a gradient that equals the aggregate."""
    zero = ReportNumbers(np.zeros(1), np.zeros(1), np.zeros((1, 16)))
    for off in (
        ReportNumbers(np.zeros(1), np.zeros(1), np.full((1, 16), 1e-300)),
        ReportNumbers(np.zeros(1), np.full(1, 1e-300), np.zeros((1, 16))),
        ReportNumbers(np.full(1, 1e-300), np.zeros(1), np.zeros((1, 16))),
    ):
        assert relative_errors(off, zero, np.ones(1))[0] == np.inf
    assert relative_errors(zero, zero, np.ones(1))[0] == 0


def test_the_model_moves_by_the_aggregate_alone(attacked: ProtocolSimulation) -> None:
    """[U1] Every honest peer ends with the same bits, and the record names them."""
    digests = set()
    for peer in attacked.honest:
        state = attacked.states[peer]
        digests.add(attacked.peers[peer].work.digest(state.training))
    assert digests == {decode_record(attacked.trace[-1]).state_after}


@pytest.mark.long
def test_other_coins_give_another_run() -> None:
    """[A4, R1] The same scenario with another seed: other roles, other records."""
    one, other = finished(SMALL), finished(type(SMALL)(**{**SMALL.as_dict(), "seed": SMALL.seed + 1}))
    assert one.trace != other.trace
