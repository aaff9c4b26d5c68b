"""One covered step: what passes the checks of announced numbers, and what it does to the model."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.protocol.small_runs import finished, kept_promises, records
from troth.clip.fast import centered_clip
from troth.crypto import stream
from troth.protocol.core.roster import lower_median
from troth.specs import SpecError
from troth.workshop.attacks import make_attack
from troth.workshop.attacks.cover import largest_passing_shift
from troth.workshop.simulation import Scenario

# C contributors, D coordinates
SIXTEEN = Scenario(
    task="quadratic:dimension=60", byzantine=7, attack_start=6, attack_stop=7, steps=8, evaluate_every=8, seed=1
)
TAU, HELPERS = 0.1, 7


def rows(count: int = 15, size: int = 32) -> torch.Tensor:
    drawn = stream(3, "rows").normal(count * size).reshape(count, size)
    return torch.from_numpy(0.3 + 0.05 * drawn).float()


def shift_of(rows_CD: torch.Tensor, helpers: int = HELPERS) -> tuple[float, torch.Tensor]:
    mean_D = rows_CD.double().mean(dim=0)
    towards_D = -mean_D / mean_D.norm()
    told_C = rows_CD.double().norm(dim=1).tolist()
    return largest_passing_shift(rows_CD, towards_D, tau=TAU, helpers=helpers, told_C=told_C), towards_D


def median_distance(rows_CD: torch.Tensor, aggregate_D: torch.Tensor) -> float:
    """As V3 sees it, if the seven nearest of fifteen lie about it."""
    away = (rows_CD.double() - aggregate_D).norm(dim=1).sort().values.tolist()
    return lower_median([0.0] * HELPERS + away[HELPERS:])


def test_the_edge_is_where_the_dispute_begins() -> None:
    """[V3] A hundredth less passes, a hundredth more does not."""
    rows_CD = rows()
    shift, towards_D = shift_of(rows_CD)
    center_D = centered_clip(rows_CD, tau=TAU).double()
    limit = 4 * max(lower_median(rows_CD.double().norm(dim=1).tolist()), TAU)
    assert median_distance(rows_CD, center_D + 0.99 * shift * towards_D) < limit
    assert median_distance(rows_CD, center_D + 1.01 * shift * towards_D) > limit


def test_without_helpers_nothing_passes() -> None:
    """[V2] Nobody absorbs what is missing: a shift is seen however small it is."""
    assert shift_of(rows(), helpers=0)[0] < 1e-6


def test_one_helper_of_many_absorbs_little() -> None:
    """[V2] Its report has a longest length, so it moves the aggregate by less than a radius."""
    one, seven = (shift_of(rows(), helpers=helpers)[0] for helpers in (1, 7))
    assert 0 < one < TAU < seven


def test_edge_and_any_number_are_options() -> None:
    assert make_attack("covered-once:scale=edge").length is None  # type: ignore[attr-defined]
    assert make_attack("covered-once:scale=12.5").length == 12.5  # type: ignore[attr-defined]
    for wrong in ("much", "0", "-1", "1e39", "nan"):
        with pytest.raises(SpecError, match="scale is 'edge', or a positive number"):
            make_attack(f"covered-once:scale={wrong}")


@pytest.mark.long
@pytest.mark.parametrize("scale", ["edge", "20.0"])
def test_public_numbers_do_not_show_it(scale: str) -> None:
    """[V2, T7] The step of the lie has no trial; an audit of it, later, has."""
    simulation = finished(dataclasses.replace(SIXTEEN, attack=f"covered-once:scale={scale}"))
    told = records(simulation)
    if scale == "edge":
        assert told[6].judgements == ()
        assert told[6].updated
    kept_promises(simulation)


@pytest.mark.long
def test_edge_turns_the_aggregate_round() -> None:
    """Of the whole vector, with seven of sixteen: against the honest mean, and longer than it."""
    lied, honest = (
        finished(dataclasses.replace(SIXTEEN, byzantine=liars, attack="covered-once:scale=edge")) for liars in (7, 0)
    )
    kept = [simulation.states[simulation.honest[0]].audit_records for simulation in (lied, honest)]
    forged_D, right_D = (each[6].aggregate_D.double().numpy() for each in kept)
    assert np.linalg.norm(forged_D - right_D) > np.linalg.norm(right_D)


@pytest.mark.long
def test_one_covered_step_does_bounded_harm() -> None:
    """Seven of sixteen, one step of 1e30: the model is not farther off than a few honest steps carry it."""
    simulation = finished(dataclasses.replace(SIXTEEN, attack="covered-once"))
    kept_promises(simulation)
    assert simulation.evaluate()["distance"] < 10
