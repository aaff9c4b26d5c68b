"""Aggregates that were rounded for a code: honest ones are acquitted, those bent within their rounding are not. [C4, T6, A7]"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.hostile_rows import KINDS, draw_rows
from tests.clip.nasty import PROPERTY, moderate, seeds
from tests.clip.oracle import gaussian_rows
from troth.clip.block_kernels import farthest_number
from troth.clip.blocks import BLOCK, INT16, PLAIN, Code
from troth.clip.centered_clip import judge_center, measure_center, residual_tolerance
from troth.clip.exact import exact_norm
from troth.clip.fast import acquitted_center, centered_clip
from troth.clip.rounded_center import CONVICT_ROUNDING, OTHER_BITS, acquits, farthest_by_torch

# P rows, D coordinates

INT8 = Code.known["int8"]
DARK = slice(BLOCK, BLOCK + 40)  # coordinates in which all rows are zero


def rows(tau_is_small: bool) -> tuple[Tensor, float]:
    rows_PD = gaussian_rows(1, 9, 3 * BLOCK + 7).float()
    rows_PD[0] *= 50
    rows_PD[:, DARK] = 0
    return rows_PD, 5.0 if tau_is_small else 1e4


@pytest.mark.parametrize("clipped", [True, False])
def test_an_honest_owner_is_acquitted_with_room_to_spare(clipped: bool) -> None:
    rows_PD, tau = rows(clipped)
    center_D = acquitted_center(rows_PD, tau=tau, code=INT8)
    assert center_D is not None
    assert not center_D[DARK].any()
    assert acquits(rows_PD, center_D, tau=tau, code=INT8, share=0.1)


@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("quanta", [-1, 1, 300])
def test_a_number_that_no_row_pulls_at_is_zero(clipped: bool, quanta: int) -> None:
    """One step of the code in one dark coordinate, step after step, steers a model; as a whole, the aggregate is right."""
    rows_PD, tau = rows(clipped)
    bent_D = INT8.round_center(centered_clip(rows_PD, tau=tau))
    quanta_D = INT16.quanta(bent_D)
    bent_D[DARK.start] += quanta * quanta_D[DARK.start]
    residual, tolerance = judge_center(rows_PD, bent_D, tau=tau, rounding=CONVICT_ROUNDING * INT8.rounding(bent_D))
    assert (residual <= tolerance) == (abs(quanta) == 1), "so the whole does not show it"
    assert not acquits(rows_PD, bent_D, tau=tau, code=INT8)


@pytest.mark.parametrize(("clipped", "steps"), [(True, 3), (False, 1)])
def test_numbers_that_are_rounded_the_other_way_are_wrong(clipped: bool, steps: int) -> None:
    """Of numbers that lie in the middle of two codes either is right; of others the farther one is not. Where rows are clipped,
    a number may move as much again, since rounding of the others changes how much."""
    rows_PD, tau = rows(clipped)
    center_D = centered_clip(rows_PD, tau=tau)
    rounded_D = INT8.round_center(center_D)
    quanta_D = INT16.quanta(rounded_D)
    off_D = (center_D.double().numpy() - rounded_D.double().numpy()) / quanta_D
    clear, middle = int(np.argmin(np.abs(off_D[:BLOCK]))), int(np.argmax(np.abs(off_D[:BLOCK])))
    for place, count, right in ((clear, steps, False), (middle, 1, True)):
        other_D = rounded_D.clone()
        other_D[place] += count * np.copysign(quanta_D[place], off_D[place])
        assert acquits(rows_PD, other_D, tau=tau, code=INT8) == right


def test_the_whole_is_judged_too() -> None:
    """All numbers off by 0.62 of a step, which is within the limit of each, lean one way together."""
    rows_PD, tau = rows(tau_is_small=False)
    rounded_D = INT8.round_center(centered_clip(rows_PD, tau=tau))
    away_D = torch.from_numpy(INT16.quanta(rounded_D) * 2).float()
    away_D[DARK] = 0
    residual, norms = measure_center(rows_PD, rounded_D + away_D, tau=tau)
    rounding = CONVICT_ROUNDING * INT8.rounding(rounded_D)
    norm = exact_norm(rounded_D)
    assert residual > residual_tolerance(norm, norms, tau=tau, size=len(rounded_D), rounding=rounding)
    assert not acquits(rows_PD, rounded_D + away_D, tau=tau, code=INT8)


def test_numbers_that_a_liar_put_between_two_codes_are_right() -> None:
    """A short row of its own is enough: honest rounding is then as bad as it can be, and within the room of owner and jury."""
    rows_PD = gaussian_rows(1, 9, 3 * BLOCK + 7).float()
    rows_PD[0] = 0
    for _ in range(4):
        center_D = centered_clip(rows_PD, tau=1e4)
        quanta_D = torch.from_numpy(INT16.quanta(center_D))
        between_D = ((center_D.double() / quanta_D).floor() + 0.5) * quanta_D
        rows_PD[0] += ((between_D - center_D.double()) * len(rows_PD)).float()
    assert rows_PD[0].norm() < 1e-3 * rows_PD[1].norm()
    found_D = acquitted_center(rows_PD, tau=1e4, code=INT8)
    assert found_D is not None
    lost = float((centered_clip(rows_PD, tau=1e4) - found_D).double().norm())
    assert 0.95 < lost / INT8.rounding(found_D) <= 1.01


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1))
def test_what_an_owner_says_of_any_rows_every_jury_acquits(kind: str, seed: int) -> None:
    """[A7] On other machines too, whose sums have other bits: half of the room is left."""
    rows_PD, tau = draw_rows(kind, seed)
    center_D = acquitted_center(rows_PD, tau=tau, code=INT8)
    if center_D is not None:
        assert acquits(rows_PD, center_D, tau=tau, code=INT8, share=0.75)
        assert acquits(rows_PD.double(), center_D, tau=tau, code=INT8)


@given(seeds, st.integers(1, 7), st.sampled_from([1, BLOCK - 1, BLOCK, 3 * BLOCK + 7, 700 * BLOCK + 1]))
@PROPERTY
def test_compiled_loops_find_the_same_number(seed: int, peers: int, size: int) -> None:
    """To the last bit, or jurors with and without them would judge one aggregate differently."""
    chance = np.random.default_rng(seed)
    rows_PD, center_D = (torch.from_numpy(moderate(count * size, seed + count)) for count in (peers, 1))
    share_P, drift_P = chance.random(peers), chance.random(peers) * 1e-3
    factors_B = np.exp2(chance.integers(-40, 40, -(-size // BLOCK))) / 1.01
    right = farthest_by_torch(rows_PD.view(peers, size), center_D, share_P, drift_P, factors_B)
    rows = rows_PD.view(peers, size).numpy()
    assert farthest_number(rows, center_D.numpy(), share_P, drift_P, factors_B, OTHER_BITS) == right


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.99, 1.01, 3.0]))
def test_with_float32_the_judge_is_the_residual(seed: int, share: float) -> None:
    rows_PD = gaussian_rows(seed, 5, 20).float()
    center_D = centered_clip(rows_PD, tau=1.0)
    away_D = center_D + 1e-6 * torch.randn(20, generator=torch.Generator().manual_seed(seed))
    residual, tolerance = judge_center(rows_PD, away_D, tau=1.0)
    assert acquits(rows_PD, away_D, tau=1.0, code=PLAIN, share=share) == (residual <= share * tolerance)
