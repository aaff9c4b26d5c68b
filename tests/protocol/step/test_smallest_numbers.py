"""Numbers so small, or so close together, that float32 cannot hold what follows from them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.protocol.small_runs import finished, kept_promises, liars_gone, records
from troth.crypto import tagged_hash
from troth.protocol.core.parts import commit_parts, rows_of
from troth.protocol.step.audits import make_report, relative_errors, right_reports
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import ChargeKind
from troth.protocol.wire.primitives import Primitives
from troth.training.work import finite_or_zero, finite_or_zero_rows
from troth.workshop.simulation import Scenario

# P contributors, D coordinates, K projections

TASKS = Path(__file__).parents[1] / "tasks"
TINY = 2.0**-149  # the smallest float32 there is


@pytest.mark.long
@pytest.mark.parametrize(("task", "start", "seed"), [("embedding", 3, 2), ("zero_head", 0, 1)])
@pytest.mark.parametrize("size", [1e-45, 1e-38, 2e-38])
def test_one_liar_with_the_smallest_numbers_has_nobody_else_banned(
    task: str, start: int, seed: int, size: float
) -> None:
    """[C3, V2, T6] It once had an honest owner banned 16 : 0, and stalled step 0 of a head that starts at zero."""
    scenario = Scenario(
        task=str(TASKS / f"{task}.py"),
        peers=16,
        byzantine=1,
        attack=f"subnormal:size={size}",
        attack_start=start,
        steps=60,
        evaluate_every=100,
        seed=seed,
    )
    simulation = finished(scenario, until=liars_gone)
    assert simulation.stalled is None
    assert kept_promises(simulation) == {simulation.byzantine[0]: ChargeKind.GRADIENT}
    assert simulation.trials == 1, "the audit's, and none before it"
    assert not any(record.absent for record in records(simulation))


@pytest.mark.long
@pytest.mark.parametrize("tau", [1e-5, 1e-3])
def test_a_radius_far_below_the_gradient_convicts_nobody(tau: float) -> None:
    """[V2] Without any liar, ‖v‖ = 10⁵ τ and rows close together: step 0 once stalled."""
    simulation = finished(
        Scenario(task="quadratic:noise=0.00001", peers=8, tau=tau, steps=8, evaluate_every=100, seed=1)
    )
    assert simulation.stalled is None
    assert (simulation.trials, simulation.bans, len(simulation.trace)) == (0, [], 8 + 1)  # and the closing step


def test_a_gradient_is_flushed_before_it_is_committed_to() -> None:
    """[R2] Contributor and auditor take the same way, so one of them may have hardware that flushes by itself."""
    gradient_D = finite_or_zero(torch.tensor([1.0, TINY, -1e-40, 2.0**-126, 0.0]))
    assert gradient_D.tolist() == [1.0, 0.0, 0.0, 2.0**-126, 0.0]
    assert not finite_or_zero(torch.tensor([float("inf"), 1.0])).any()
    odd_PD = torch.tensor([[1.0, TINY], [float("nan"), 1.0], [2.0, -0.0], [float("-inf"), TINY]])
    for rows_PD in (odd_PD, odd_PD[2:3], odd_PD[:2], odd_PD.double()):  # all at once, as each by itself
        assert all(map(torch.equal, finite_or_zero_rows(rows_PD), map(finite_or_zero, rows_PD)))


def test_owners_jurors_and_reporters_read_subnormals_as_zero() -> None:
    """[C3] A liar may commit to them; what it stands for is the same to everyone, and its bits are not."""
    gradient_D = torch.tensor([1.0, TINY, -1e-40, 2.0**-126, -TINY, 3.0])
    bounds, tools = (0, 3, 6), Primitives()
    sent, right_D = commit_parts(gradient_D, bounds), finite_or_zero(gradient_D)
    assert sent.root != commit_parts(right_D, bounds).root, "an audit finds it"
    assert torch.equal(rows_of(sent.proven_parts).flatten(), right_D)
    assert tools.aggregate_norm(Blob.of(gradient_D)) is None, "no owner makes such an aggregate"
    assert tools.aggregate_norm(Blob.of(right_D)) == pytest.approx(10**0.5)

    def project(start: int, vectors_PD: np.ndarray) -> np.ndarray:
        return tools.project(tagged_hash("key"), 16, 6, start, vectors_PD)

    aggregate_D, taus = torch.zeros(6), np.array([1e-30, 1e-30])
    said = make_report(sent, aggregate_D, project, taus)
    for part in range(2):
        rows_PD, center_D = rows_of(sent.proven_parts[part : part + 1]), aggregate_D[3 * part : 3 * part + 3]
        right = right_reports(rows_PD, center_D, project, 3 * part, taus[part])
        assert relative_errors(said.part(part), right, taus[part : part + 1]).max() < 1e-14


@pytest.mark.long
@pytest.mark.parametrize("task", ["digits", str(TASKS / "transformer.py")])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("peers", [5, 8])
def test_no_trial_at_all_among_honest_peers(task: str, optimizer: str, peers: int) -> None:
    """[V2, T6] Nor a new attempt; the short version of 400 steps with 5, 8 and 16 peers."""
    rate = 0.003 if optimizer == "adamw" else None
    simulation = finished(
        Scenario(task=task, peers=peers, optimizer=optimizer, rate=rate, steps=25, evaluate_every=100)
    )
    assert (simulation.trials, simulation.bans, simulation.stalled) == (0, [], None)
    assert simulation.attempts == len(simulation.trace) == 25 + 1  # and the closing step
