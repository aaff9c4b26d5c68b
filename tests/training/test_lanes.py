"""Widths of calls: an auditor alone gets the bits that the pool's call gave, or everything is computed one by one."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from troth.crypto import derive
from troth.training import Problem, make_task
from troth.training.gradient_calls import Lanes, padded, settle
from troth.training.task import Batch

# P peers, D coordinates

PEERS = (2, 3, 4, 5, 16, 64)


def batches_of(count: int) -> list[Batch]:
    return [{"x": torch.full((3,), float(k + 1))} for k in range(count)]


class Kernels:
    """Stand-in for a task's gradients, with a last bit that depends on the shape of the call."""

    def __init__(self, last_bit: Callable[[int, int], int]) -> None:
        self._last_bit = last_bit  # of a row, by the call's width and the row's place
        self.widths: list[int] = []

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        self.widths.append(len(batches))
        rows_PD = torch.stack([batch["x"] for batch in batches])
        bits_P1 = torch.tensor([[self._last_bit(len(batches), place)] for place in range(len(batches))])
        return (rows_PD.view(torch.int32) + bits_P1).view(torch.float32)


@pytest.mark.parametrize("peers", PEERS)
def test_where_bits_depend_on_nothing_an_audit_takes_one_lane(peers: int) -> None:
    kernels = Kernels(lambda _, __: 0)
    lanes = settle(kernels, batches_of(peers), pad=False)
    assert lanes is not None
    assert lanes.alone == 1
    assert lanes.together[-1] == peers


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("peers", PEERS)
@pytest.mark.parametrize(
    "last_bit",
    [
        lambda width, _: int(width == 1),
        lambda width, _: int(width < 3),
        lambda width, _: int(width == 8),
        lambda width, _: width % 3,
        lambda width, place: place % 4 == width - 1,
        lambda _, place: place,
        lambda width, place: int(place == width - 1),
    ],
)
def test_whatever_kernels_do_all_calls_give_the_same_bits(
    last_bit: Callable[[int, int], int], peers: int, pad: bool
) -> None:
    """[R2, D1] Any number of contributors, anywhere among the members: a row is as an auditor computes it."""
    kernels, batches = Kernels(last_bit), batches_of(peers)
    lanes = settle(kernels, batches, pad=pad)
    if lanes is None:
        return
    audited_PD = torch.stack([kernels(padded([batch], lanes.width(1)))[0] for batch in batches])
    for first in range(peers):
        for count in range(1, peers - first + 1):
            some = batches[first : first + count]
            rows_PD = kernels(padded(some, lanes.width(count)))[:count]
            assert torch.equal(rows_PD, audited_PD[first : first + count])


def test_where_only_wide_calls_agree_an_audit_pads_or_all_compute_one_by_one() -> None:
    kernels = Kernels(lambda width, _: width)
    assert settle(kernels, batches_of(16), pad=False) is None
    assert settle(kernels, batches_of(16), pad=True) == Lanes(16, (16,))


def test_where_the_place_in_the_call_matters_all_compute_one_by_one() -> None:
    kernels = Kernels(lambda _, place: int(place == 5))
    assert settle(kernels, batches_of(16), pad=True) is None


def test_more_peers_take_no_more_calls() -> None:
    counts = []
    for peers in (16, 64, 256):
        kernels = Kernels(lambda width, _: width)
        settle(kernels, batches_of(peers), pad=True)
        counts.append(len(kernels.widths))
    assert max(counts) == min(counts) <= 9


@pytest.mark.long
def test_with_padding_every_audit_has_the_bits_of_the_pool() -> None:
    """[R2, D1] A real task whose audits take whole calls."""
    problem = Problem(make_task("digits"))
    problem.lanes = Lanes(8, (8,))
    flat_D, batches = problem.initial(3), [problem.batch(derive(0, k)) for k in range(8)]
    losses_P, gradients_PD = problem.gradients(flat_D, batches)
    for peer in range(8):
        loss_1, gradient_1D = problem.gradients(flat_D, batches[peer : peer + 1])
        assert torch.equal(gradient_1D, gradients_PD[peer : peer + 1])
        assert torch.equal(loss_1, losses_P[peer : peer + 1])
