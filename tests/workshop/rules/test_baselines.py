"""Prior work's defences: against ByzFL 0.0.11 in float64, against readable references, by hand, and broken on purpose.

Where definitions differ:

* *Bulyan* is not in ByzFL. The reference is written here from the paper's text.
* *MDA* and *Meamed* are the same. Of several subsets of the smallest diameter both take the first in the order of the rows.
* *CAF.* ByzFL takes one power iteration from a random vector instead of the top eigenvector, so it gives another result at
  each call; where all rows lie on a line one iteration is exact. ByzFL also divides by the largest projection of *all* rows,
  we by that of rows that still have weight: with a far liar, whose weight is 0 after the first round, ByzFL's weights hardly
  change any more and the loop does not end. For one round both are the same. ByzFL returns None for f = 0, we the mean.
* *NNM* is the same. ByzFL applies it by hand before a rule, we by the option `rule`.
* *Bucketing* draws its own permutation in ByzFL, so only what does not depend on it is compared.
* *RFA* is ByzFL's geometric median with `nu=0.1, T=8`. Its default is T = 3.
* *Centred clipping from the last aggregate* is ByzFL's CenteredClipping, which keeps its state.
"""

import copy
import itertools
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.clip.oracle import gaussian_rows, norm
from troth.clip.exact import AggregationError
from troth.workshop.rules.memory import Setting
from troth.workshop.rules.memoryless import (
    bulyan,
    caf,
    geometric_median,
    krum,
    mda,
    meamed,
    mean,
    median,
    pairwise_distances,
    rfa,
    tightest_subset,
    trimmed_mean,
)
from troth.workshop.rules.remembering import Bucketing, CenteredClipMomentum, NearestNeighbourMixing, mix_nearest

# P peers, D coordinates

SHAPES = [(7, 1), (7, 10), (16, 3), (16, 200)]  # P×D, odd and even P
WITHIN = 1e-12


def same(ours_D: Tensor, theirs_D: object) -> None:
    np.testing.assert_allclose(ours_D, np.asarray(theirs_D), rtol=WITHIN, atol=WITHIN)


def rows_with_liars(seed: int, peers: int, width: int, liars: int) -> Tensor:
    rows_PD = gaussian_rows(seed, peers, width)
    rows_PD[:liars] = 5 * rows_PD[:liars] + 3
    return rows_PD


# ------------------------------------------------------------------------------------------------------- against ByzFL


@pytest.mark.parametrize("byzantine", [0, 1, 3])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_meamed(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = rows_with_liars(1, peers, width, byzantine)
    same(meamed(rows_PD, byzantine=byzantine), byzfl.Meamed(f=byzantine)(rows_PD.numpy()))


@pytest.mark.parametrize("byzantine", [0, 1, 3])
@pytest.mark.parametrize(("peers", "width"), [(7, 1), (8, 20)])  # ByzFL tries all subsets, and is slow at it
def test_mda(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = rows_with_liars(2, peers, width, byzantine)
    same(mda(rows_PD, byzantine=byzantine), byzfl.MDA(f=byzantine)(rows_PD.numpy()))


@pytest.mark.parametrize("seed", range(4))
def test_mda_ties_go_by_the_order_of_the_rows(byzfl: ModuleType, seed: int) -> None:
    """Whole numbers in few dimensions: many distances are equal, and many subsets are as tight as the tightest."""
    rows_PD = (2 * gaussian_rows(seed, 9, 2)).round()
    same(mda(rows_PD, byzantine=4), byzfl.MDA(f=4)(rows_PD.numpy()))


@pytest.mark.parametrize("peers", [7, 16])
@pytest.mark.parametrize("width", [1, 20])
def test_caf_on_a_line(byzfl: ModuleType, peers: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle makes one step of a power iteration from a random vector, on which its eigenvalue depends: on a line the
    right one is known."""
    along_P1, direction_D, start_D = (
        gaussian_rows(3, peers, 1),
        gaussian_rows(4, 1, width)[0],
        gaussian_rows(5, 1, width),
    )
    rows_PD = start_D + along_P1 * direction_D
    monkeypatch.setattr(np.random, "randn", lambda _width: direction_D.numpy())
    same(caf(rows_PD, byzantine=1), byzfl.CAF(f=1)(rows_PD.numpy()))


@pytest.mark.parametrize("byzantine", [0, 1, 3])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_mixing(byzfl: ModuleType, peers: int, width: int, byzantine: int) -> None:
    rows_PD = rows_with_liars(6, peers, width, byzantine)
    theirs_PD = byzfl.NNM(f=byzantine)(rows_PD.numpy())
    same(mix_nearest(rows_PD, byzantine=byzantine), theirs_PD)
    mixed_D = NearestNeighbourMixing().begin(Setting(peers, byzantine, 1.0, b""))(rows_PD, range(peers))
    same(mixed_D, byzfl.TrMean(f=byzantine)(theirs_PD))


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize(("peers", "width"), SHAPES)
def test_rfa(byzfl: ModuleType, peers: int, width: int, steps: int) -> None:
    rows_PD = rows_with_liars(7, peers, width, 3)
    same(rfa(rows_PD, steps=steps), byzfl.GeometricMedian(nu=0.1, T=steps)(rows_PD.numpy()))


@pytest.mark.parametrize("iterations", [1, 3])
def test_clipping_remembers_its_last_aggregate(byzfl: ModuleType, iterations: int) -> None:
    theirs = byzfl.CenteredClipping(m=None, L=iterations, tau=2.0)
    ours = CenteredClipMomentum(iterations).begin(Setting(7, 2, 2.0, b""))
    for step in range(5):
        rows_PD = rows_with_liars(step, 7, 10, 2)
        same(ours(rows_PD, range(7)), theirs(rows_PD.numpy()))


def test_buckets_of_one_and_of_all(byzfl: ModuleType) -> None:
    rows_PD = gaussian_rows(8, 9, 5)
    setting = Setting(9, 2, 1.0, b"seed")
    same(Bucketing("median", size=1).begin(setting)(rows_PD, range(9)), byzfl.Median()(rows_PD.numpy()))
    same(Bucketing("median", size=9).begin(setting)(rows_PD, range(9)), byzfl.Average()(rows_PD.numpy()))


# ---------------------------------------------------------------------------------------------- against references here


def reference_bulyan(rows_PD: Tensor, byzantine: int) -> Tensor:
    """Krum's own function in turn, then values sorted by their distance to the median."""
    left, chosen = list(range(len(rows_PD))), []
    for _ in range(len(rows_PD) - 2 * byzantine):
        if len(left) - byzantine - 2 >= 1:
            winner_D = krum(rows_PD[left], byzantine=byzantine)
            best = next(row for row in left if torch.equal(rows_PD[row], winner_D))
        else:  # Krum has no neighbour left to look at: the nearest one it is
            far_LL = pairwise_distances(rows_PD[left]).fill_diagonal_(float("inf"))
            best = left[int(far_LL.min(dim=1).values.argmin())]
        left.remove(best)
        chosen.append(best)
    columns = []
    for column in rows_PD[chosen].T.tolist():
        middle = float(np.median(column))
        columns.append(np.mean(sorted(column, key=lambda value: abs(value - middle))[: len(rows_PD) - 4 * byzantine]))
    return torch.tensor(columns, dtype=torch.float64)


@pytest.mark.parametrize(("peers", "byzantine"), [(7, 1), (11, 2), (16, 3), (16, 1), (15, 3)])
@pytest.mark.parametrize("width", [1, 12])
def test_bulyan(peers: int, byzantine: int, width: int) -> None:
    rows_PD = rows_with_liars(9, peers, width, byzantine)
    same(bulyan(rows_PD, byzantine=byzantine), reference_bulyan(rows_PD, byzantine))
    same(bulyan(rows_PD, byzantine=0), mean(rows_PD))


def reference_caf(rows_PD: Tensor, byzantine: int) -> Tensor:
    """The D×D covariance and its eigenvector, straight from the definition."""
    rows, c = rows_PD.numpy(), np.ones(len(rows_PD))
    best, least = rows.mean(axis=0), np.inf
    while c.sum() > len(rows) - 2 * byzantine:
        middle = c @ rows / c.sum()
        away = rows - middle
        values, vectors = np.linalg.eigh((c[:, None] * away).T @ away / c.sum())
        if values[-1] < least:
            best, least = middle, values[-1]
        along = np.where(c > 0, (away @ vectors[:, -1]) ** 2, 0.0)
        c = c * (1 - along / along.max())
    return torch.from_numpy(best)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), peers=st.integers(5, 16), width=st.integers(1, 12))
def test_caf_by_rows_is_caf_by_coordinates(seed: int, peers: int, width: int) -> None:
    byzantine = (peers - 1) // 2
    rows_PD = rows_with_liars(seed, peers, width, byzantine)
    torch.testing.assert_close(caf(rows_PD, byzantine=byzantine), reference_caf(rows_PD, byzantine), rtol=0, atol=1e-7)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), peers=st.integers(2, 9), width=st.integers(1, 4), data=st.data())
def test_the_tightest_subset_is_the_tightest(seed: int, peers: int, width: int, data: st.DataObject) -> None:
    distance_PP = pairwise_distances(gaussian_rows(seed, peers, width))
    keep = data.draw(st.integers(1, peers))

    def diameter(rows: tuple[int, ...]) -> float:
        return float(distance_PP[list(rows)][:, list(rows)].max())

    tried = list(itertools.combinations(range(peers), keep))
    assert tuple(tightest_subset(distance_PP, keep)) == min(tried, key=diameter)  # the first of the best


def test_a_search_that_would_take_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["troth.workshop.rules.memoryless"], "MOST_BRANCHES", 20)
    with pytest.raises(AggregationError, match="mda: the subset of smallest diameter takes more than 20 branches"):
        mda(gaussian_rows(10, 16, 100), byzantine=7)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), order=st.permutations(range(11)))
def test_order_matters_only_for_ties(seed: int, order: list[int]) -> None:
    """MDA's diameter does not depend on the order of the rows, whichever subset it takes."""
    rows_PD = gaussian_rows(seed, 11, 4)
    diameters = []
    for these_PD in (rows_PD, rows_PD[order]):
        distance_PP = pairwise_distances(these_PD)
        kept = tightest_subset(distance_PP, 6)
        diameters.append(float(distance_PP[kept][:, kept].max()))
    assert diameters[0] == pytest.approx(diameters[1], rel=1e-14)


# ---------------------------------------------------------------------------------------------------------- by hand


def test_small_cases_by_hand() -> None:
    line_P1 = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]], dtype=torch.float64)
    assert meamed(line_P1, byzantine=1).tolist() == [1.5]  # 0, 1, 2, 3 are nearest to 2
    assert meamed(line_P1, byzantine=2).tolist() == [2.0]
    assert mda(line_P1, byzantine=1).tolist() == [1.5]
    assert mda(line_P1, byzantine=2).tolist() == [1.0]  # 0, 1, 2 before 1, 2, 3
    assert mix_nearest(line_P1, byzantine=3).flatten().tolist() == [0.5, 0.5, 1.5, 2.5, 51.5]
    seven_P1 = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [1000.0]], dtype=torch.float64)
    # Krum takes 2, 3, 1 (or 4) … and never 1000, of which five are chosen; the three nearest to their median stay.
    assert bulyan(seven_P1, byzantine=1).item() == pytest.approx(2.0, abs=1.0)
    assert rfa(torch.tensor([[3.0, 4.0], [3.0, 4.0]]), steps=1).tolist() == [3.0, 4.0]
    # From zero, weights 1/1 and 1/4: (1·1 + 4·¼)/(1 + ¼).
    assert rfa(torch.tensor([[1.0], [4.0]], dtype=torch.float64), steps=1).item() == pytest.approx(1.6)
    # A row nearer than `smoothing` weighs 1/smoothing: (½·2 + 4·¼)/(2 + ¼), with smoothing ½ and a row at ½.
    near_P1 = torch.tensor([[0.5], [4.0]], dtype=torch.float64)
    assert rfa(near_P1, steps=1, smoothing=0.5).item() == pytest.approx(2 / 2.25)
    assert rfa(near_P1, steps=1, smoothing=1.0).item() == pytest.approx(1.5 / 1.25)


def test_caf_by_hand() -> None:
    """Mean 2, squares 4, 1, 1, 0, 16: weights 3/4, 15/16, 15/16, 1, 0. Their sum is above 5 − 2, so the next mean is tried."""
    rows_P1 = torch.tensor([[0.0], [1.0], [1.0], [2.0], [6.0]], dtype=torch.float64)
    weights = np.array([1 - 4 / 16, 1 - 1 / 16, 1 - 1 / 16, 1.0, 0.0])
    expected = float(weights @ rows_P1.flatten().numpy() / weights.sum())
    assert caf(rows_P1, byzantine=1).item() == pytest.approx(expected)


def test_clipping_from_the_last_aggregate_by_hand() -> None:
    aggregator = CenteredClipMomentum(iterations=1).begin(Setting(2, 0, 1.0, b""))
    rows_P1 = torch.tensor([[0.5], [4.0]], dtype=torch.float64)
    assert aggregator(rows_P1, range(2)).item() == 0.75  # from 0: (0.5 + 1)/2
    assert aggregator(rows_P1, range(2)).item() == 1.125  # from 0.75: (−0.25 + 1)/2 more


def test_krum_of_fourth_powers_is_another_rule() -> None:
    """Higher powers weigh the farthest neighbour more: on some rows the two choose differently, on others not."""
    differ = [
        not torch.equal(krum(rows_PD, byzantine=2), krum(rows_PD, byzantine=2, power=4))
        for rows_PD in (gaussian_rows(seed, 9, 2) for seed in range(40))
    ]
    assert 0 < sum(differ) < 40
    with pytest.raises(AggregationError, match="power must be at least 1"):
        krum(gaussian_rows(1, 9, 2), byzantine=2, power=0)


class TestBucketing:
    def test_every_step_has_its_own_permutation_from_the_seed(self) -> None:
        rows_PD = gaussian_rows(11, 8, 4)
        found = []
        for seed in (b"a", b"a", b"b"):
            aggregator = Bucketing("krum").begin(Setting(8, 1, 1.0, seed))
            found.append([aggregator(rows_PD, range(8)) for _ in range(4)])
        assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))
        assert any(not torch.equal(one, other) for one, other in zip(found[0], found[2], strict=True))
        assert any(not torch.equal(found[0][0], later) for later in found[0][1:])

    def test_a_copy_peeks_at_the_next_step(self) -> None:
        rows_PD = gaussian_rows(12, 8, 4)
        aggregator = Bucketing("krum").begin(Setting(8, 1, 1.0, b"a"))
        for _ in range(3):
            peek_D = copy.deepcopy(aggregator)(rows_PD, range(8))
            assert torch.equal(peek_D, aggregator(rows_PD, range(8)))

    def test_the_last_bucket_may_be_smaller(self) -> None:
        rows_PD = torch.eye(5, dtype=torch.float64)
        found_D = Bucketing("mean", size=2).begin(Setting(5, 0, 1.0, b"a"))(rows_PD, range(5))
        assert sorted(found_D.tolist()) == pytest.approx([1 / 6] * 4 + [1 / 3])

    def test_size(self) -> None:
        with pytest.raises(AggregationError, match="size must be at least 1"):
            Bucketing(size=0)


def test_how_many_liars_pre_aggregation_withstands() -> None:
    """A liar spoils one bucket: 16 rows are 8 buckets, of which Krum withstands 2 spoilt ones."""
    assert Bucketing("krum").most(16) == 2
    assert Bucketing("median", size=3).most(16) == 2
    assert NearestNeighbourMixing("krum").most(16) == 6
    assert NearestNeighbourMixing("mean").most(16) == 7
    with pytest.raises(AggregationError, match="no 'nothing'"):
        NearestNeighbourMixing("nothing").most(16)


# ------------------------------------------------------------------------------------------------- what breaks each rule

PEERS, WIDTH = 16, 20
CAREFUL = {"bulyan": bulyan, "mda": mda, "meamed": meamed, "caf": caf}


def attacked(liars: int, length: float) -> Tensor:
    rows_PD = gaussian_rows(13, PEERS, WIDTH) + 3
    rows_PD[:liars] = length * gaussian_rows(14, 1, WIDTH)[0]
    return rows_PD


@pytest.mark.parametrize("length", [1e3, -1e8, 1e30])
@pytest.mark.parametrize("name", CAREFUL)
def test_as_many_liars_as_promised_change_little(name: str, length: float) -> None:
    liars = 3 if name == "bulyan" else 7
    rows_PD = attacked(liars, length)
    honest_D = mean(rows_PD[liars:])
    reach = float(torch.linalg.vector_norm(rows_PD[liars:] - honest_D, dim=1).max())
    assert norm(CAREFUL[name](rows_PD, byzantine=liars) - honest_D) <= 2 * reach


@pytest.mark.parametrize("name", CAREFUL)
def test_more_liars_than_expected_break_it(name: str) -> None:
    """The expected failure: the rule expects three liars, and eight or nine send one row."""
    liars = 9 if name in ("caf", "mda") else 8
    rows_PD = attacked(liars, 1e8)
    assert norm(CAREFUL[name](rows_PD, byzantine=3) - mean(rows_PD[liars:])) > 1e6


def test_eight_steps_end_far_from_the_geometric_median() -> None:
    """Seven liars opposite to nine honest rows: each step leaves 7/9 of the way, and (7/9)⁸ is 13 %."""
    rows_PD = 3 + 0.01 * gaussian_rows(13, PEERS, WIDTH)
    rows_PD[:7] = -3.0
    honest_D = mean(rows_PD[7:])
    assert norm(rfa(rows_PD) - honest_D) > 0.1 * norm(honest_D)
    assert norm(geometric_median(rows_PD) - honest_D) < 0.01 * norm(honest_D)


def test_clipping_without_a_good_start_is_slow() -> None:
    """One step of radius 1 from zero cannot reach rows 13 away: it needs its memory."""
    rows_PD = attacked(0, 1.0)
    aggregator = CenteredClipMomentum().begin(Setting(PEERS, 0, 1.0, b""))
    distances = [norm(aggregator(rows_PD, range(PEERS)) - mean(rows_PD)) for _ in range(40)]
    assert distances[0] > 12
    assert distances[-1] < 1


def test_mimics_break_mixing_less_than_trimming() -> None:
    """Liars within the honest spread move coordinate-wise rules; mixed with their neighbours they move them less."""
    honest_HD = gaussian_rows(15, 9, 200)
    lie_D = honest_HD.mean(dim=0) - 0.8 * honest_HD.std(dim=0)
    rows_PD = torch.cat([lie_D.expand(7, 200), honest_HD])
    plain = norm(trimmed_mean(rows_PD, byzantine=7) - mean(honest_HD))
    mixed = norm(trimmed_mean(mix_nearest(rows_PD, byzantine=7), byzantine=7) - mean(honest_HD))
    assert plain > 1
    assert mixed != plain
    assert norm(median(rows_PD) - mean(honest_HD)) > 1
