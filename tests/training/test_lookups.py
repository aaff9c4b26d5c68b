"""Lookups by an index: the rows and the gradient of PyTorch's embedding, wherever a loss calls it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from troth.crypto import Stream, derive
from troth.training import Batch, Model, Problem, Task, random_answers
from troth.training.random_answers import SeededNoise, by_index

# V rows of a table, E numbers of a row, B lookups

WEIGHT_VE = torch.arange(60.0).view(12, 5)
INDICES_B = torch.tensor([[3, 3, 0, 11], [3, 7, 0, 0]])


def weighed(rows: Tensor) -> Tensor:
    """A loss in which every number has another gradient."""
    return (rows * torch.arange(1.0, rows.numel() + 1).view(rows.shape)).sum()


@pytest.mark.parametrize("padding", [-1, 0, 3])
def test_it_has_the_rows_and_the_gradient_of_an_embedding(padding: int) -> None:
    def plain(weight_VE: Tensor) -> Tensor:
        return weighed(torch.embedding(weight_VE, INDICES_B, padding))

    def instead(weight_VE: Tensor) -> Tensor:
        return weighed(by_index(weight_VE, INDICES_B, padding))

    assert torch.equal(by_index(WEIGHT_VE, INDICES_B, padding), torch.embedding(WEIGHT_VE, INDICES_B, padding))
    right_VE = grad(plain)(WEIGHT_VE)
    assert torch.equal(grad(instead)(WEIGHT_VE), right_VE)
    assert padding < 0 or not right_VE[padding].any()
    assert right_VE[7].any()


def test_peers_that_are_computed_together_get_their_own_gradients() -> None:
    def loss(weight_VE: Tensor, indices: Tensor) -> Tensor:
        return weighed(by_index(weight_VE, indices, 0))

    together_PVE = vmap(grad(loss), in_dims=(None, 0))(WEIGHT_VE, INDICES_B)
    for found_VE, indices in zip(together_PVE, INDICES_B, strict=True):
        assert torch.equal(found_VE, grad(loss)(WEIGHT_VE, indices))


@dataclass(frozen=True)
class Words(Task):
    """A table of words, of which the first is none"""

    def model(self) -> nn.Module:
        return nn.Embedding(12, 5, padding_idx=-12)

    def batch(self, draw: Stream) -> Batch:
        return {"words": torch.from_numpy(draw.integers(12, 8)).long()}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        rows: Tensor = model(batch["words"])
        return rows.square().sum()


def test_a_loss_looks_up_that_way_where_the_other_gradient_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, which is not needed to see that every way of looking up ends there, with the padding as it was meant."""
    asked: list[tuple[int, int]] = []

    def noted(weight_VE: Tensor, indices: Tensor, padding_idx: int = -1, *_: Any) -> Tensor:
        asked.append((len(weight_VE), padding_idx))
        return by_index(weight_VE, indices, padding_idx)

    problem = Problem(Words(), one_by_one=True)
    flat_D, batch = problem.initial(1), problem.batch(derive(0, "words"))
    right_D = problem.gradient(flat_D, batch)[1]
    monkeypatch.setitem(random_answers.INSTEAD, torch.embedding, noted)
    assert torch.equal(problem.gradient(flat_D, batch)[1], right_D)
    assert set(asked) == {(12, 0)}
    asked.clear()
    with SeededNoise(None):
        F.embedding(INDICES_B, WEIGHT_VE)
        torch.embedding(WEIGHT_VE, INDICES_B)
        nn.Embedding(12, 5)(INDICES_B)
    assert asked == [(12, -1)] * 3


def test_a_call_with_names_is_understood() -> None:
    with SeededNoise(None):
        found = torch.embedding(weight=WEIGHT_VE, indices=INDICES_B, padding_idx=3)
    assert torch.equal(found, WEIGHT_VE[INDICES_B])


def test_one_word_for_each_peer_is_no_number_on_the_host() -> None:
    """An index without an axis would be read there, which `vmap` and recordings refuse."""
    found_PE = vmap(lambda index: by_index(WEIGHT_VE, index, 0))(torch.tensor([3, 0, 7]))
    assert torch.equal(found_PE, WEIGHT_VE[[3, 0, 7]])


def test_on_the_cpu_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_answers, "by_index", lambda *_: pytest.fail("another gradient than PyTorch's"))
    problem = Problem(Words(), one_by_one=True)
    problem.gradient(problem.initial(1), problem.batch(derive(0, "words")))
