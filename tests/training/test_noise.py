"""Dropout and noise that follow from the batch's seed."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from tests.training.examples import Lines
from troth.crypto import derive
from troth.training import Batch, Model, Problem, TaskError, check_pure
from troth.training.random_answers import SeededNoise, seed_tensor

SEEDS = [seed_tensor(derive(0, "noise", k)) for k in range(8)]
ONES = torch.ones(300, 100)


def drawn(function: Any, seed: Tensor = SEEDS[0]) -> Any:
    with SeededNoise(seed):
        return function()


def dropped(seed: Tensor, calls: int = 1, p: float = 0.3) -> Tensor:
    """The mask of the last of so many calls."""
    masks = drawn(lambda: [F.dropout(ONES, p) == 0 for _ in range(calls)], seed)
    mask: Tensor = masks[-1]
    return mask


class TestMasks:
    @pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_the_share_that_is_dropped(self, p: float) -> None:
        share = torch.stack([dropped(seed, p=p) for seed in SEEDS]).double().mean()
        assert float(share) == pytest.approx(p, abs=4 * (p * (1 - p) / (8 * ONES.numel())) ** 0.5)

    def test_the_rest_is_scaled_up(self) -> None:
        assert set(drawn(lambda: F.dropout(ONES, 0.75)).unique().tolist()) == {0.0, 4.0}

    def test_equal_seeds_give_equal_masks_and_others_independent_ones(self) -> None:
        assert torch.equal(dropped(SEEDS[0]), dropped(SEEDS[0].clone()))
        near = SEEDS[0] + torch.tensor([1, 0])  # one bit is enough
        for other in (SEEDS[1], near, SEEDS[0].flip(0)):
            both = (dropped(SEEDS[0]) & dropped(other)).double().mean()
            assert float(both) == pytest.approx(0.09, abs=0.007)

    def test_calls_have_independent_masks(self) -> None:
        for calls in (2, 3, 65):
            both = (dropped(SEEDS[0]) & dropped(SEEDS[0], calls)).double().mean()
            assert float(both) == pytest.approx(0.09, abs=0.007)

    def test_neighbours_are_independent(self) -> None:
        for mask in map(dropped, SEEDS[:3]):
            for left, right in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1])):
                assert float((left & right).double().mean()) == pytest.approx(0.09, abs=0.007)

    def test_bits_are_pinned(self) -> None:
        """Peers with other versions of Troth would drop other units: a deliberate change only."""
        words = SeededNoise(torch.tensor([1, 2])).words(torch.Size([4]), torch.device("cpu"))
        assert words.tolist() == [3800931737, 1250371519, 2366722033, 3941576598]


class TestFunctions:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: F.dropout(x, 0.5),
            lambda x: F.dropout(x * 1, 0.5, inplace=True),
            lambda x: torch.dropout(x, 0.5, True),
            lambda x: F.dropout1d(x.view(2, 3, 4)),
            lambda x: F.dropout2d(x.view(2, 3, 2, 2)),
            lambda x: F.dropout3d(x.view(2, 3, 2, 2, 1)),
            lambda x: F.alpha_dropout(x, 0.5, training=True),
            lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
            lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
            lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5, is_causal=True, scale=1.0),
            lambda x: F.gumbel_softmax(x),
            lambda x: x + torch.rand_like(x),
            lambda x: x + torch.randn_like(x),
            lambda x: x + torch.rand(6, 4) + torch.randn((6, 4)),
            lambda x: x + torch.empty_like(x).uniform_(-1, 1) + torch.empty_like(x).normal_(0, 2),
            lambda x: x + torch.empty_like(x).exponential_() + torch.empty_like(x).bernoulli_(0.5),
            lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
            lambda x: x[torch.randperm(6)],
            lambda x: x * torch.randint(1, 9, (6, 4)),
            lambda x: x * torch.randint(low=1, high=9, size=(6, 4)),
            lambda x: x * torch.randint(1, high=9, size=(6, 4)),
        ],
    )
    def test_follow_the_seed_and_go_through_grad_and_vmap(self, function: Any) -> None:
        x = torch.linspace(0.1, 2, 24).view(6, 4)

        def loss(x: Tensor, seed: Tensor) -> Tensor:
            with SeededNoise(seed):
                out: Tensor = (function(x) ** 2 * torch.arange(24).view_as(function(x))).sum()
                return out

        before = torch.get_rng_state()
        seeds = torch.stack(SEEDS[:3])
        single = [grad(loss)(x, seed) for seed in seeds]
        together = vmap(grad(loss))(x.expand(3, 6, 4), seeds)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(single[0], grad(loss)(x, seeds[0]))
        assert not torch.equal(single[0], single[1])
        torch.testing.assert_close(together, torch.stack(single), rtol=1e-5, atol=1e-5)

    def test_have_the_right_moments(self) -> None:
        size = (200, 200)
        for function, mean, deviation in (
            (lambda: torch.rand(size), 0.5, 12**-0.5),
            (lambda: torch.randn(size), 0.0, 1.0),
            (lambda: torch.empty(size).exponential_(2.0), 0.5, 0.5),
            (lambda: torch.randint(0, 10, size).float(), 4.5, 8.25**0.5),
            (lambda: F.alpha_dropout(torch.randn(size), 0.3, training=True), 0.0, 1.0),
        ):
            numbers = drawn(function)
            assert float(numbers.mean()) == pytest.approx(mean, abs=0.03)
            assert float(numbers.std()) == pytest.approx(deviation, abs=0.03)

    def test_attention_without_dropout_is_pytorchs(self) -> None:
        q, k, v = torch.randn(3, 2, 4, 5, 8)
        for options in ({}, {"is_causal": True}, {"attn_mask": torch.randn(5, 5)}, {"attn_mask": torch.eye(5) > 0}):
            right = F.scaled_dot_product_attention(q, k, v, **options)
            kept = drawn(lambda o=options: F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, **o))
            torch.testing.assert_close(kept, right)

    def test_nothing_is_dropped_in_evaluation(self) -> None:
        module = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5)).eval()
        assert torch.equal(drawn(lambda: module(torch.ones(2, 2, 2, 2))), torch.ones(2, 2, 2, 2))


@dataclass(frozen=True)
class Splat(Lines):
    """Passes the whole batch by name: one tensor too many would be an error."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return self._of(model, **batch)

    def _of(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(F.dropout(model(x), 0.5), y)


class TestInATask:
    def test_the_loss_sees_its_own_batch_alone(self) -> None:
        check_pure(Splat())

    def test_seeds_decide_the_masks(self) -> None:
        problem = Problem(Splat())
        flat_D, batch = problem.initial(0), problem.batch(derive(0, "a"))
        other = {**problem.batch(derive(0, "b")), **problem.task_part(batch)}  # the same data, another seed
        assert problem.gradient(flat_D, batch) != problem.gradient(flat_D, other)

    def test_a_batch_without_a_seed_is_an_error(self) -> None:
        problem = Problem(Splat())
        batch = problem.batch(derive(0, "a"))
        with pytest.raises(TaskError, match=r"carries no seed .* take it from Problem.batch"):
            problem.gradient(problem.initial(0), problem.task_part(batch))
