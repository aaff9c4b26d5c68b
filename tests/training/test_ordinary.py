"""Ordinary models work unchanged: dropout, frozen and tied weights, BatchNorm, accumulation, mixed precision."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from tests.training.examples import Lines
from tests.training.ordinary import Accumulated, HalfFrozen, Mixed, MixedAccumulated, Sums, Tied
from troth.crypto import derive
from troth.training import Problem, Task, TaskError, check_pure, make_task

ALL = [Sums(), Tied(), HalfFrozen(), MixedAccumulated()]


def name(task: object) -> str:
    return type(task).__name__


@pytest.mark.parametrize("task", ALL, ids=name)
class TestEveryOne:
    def test_is_pure(self, task: Task) -> None:
        check_pure(task)

    @pytest.mark.parametrize("one_by_one", [False, True])
    def test_an_auditor_gets_the_contributors_bits(self, task: Task, one_by_one: bool) -> None:
        lanes = None if one_by_one else 4
        contributor, auditor = (Problem(task, one_by_one=one_by_one, lanes_for=lanes) for _ in range(2))
        flat_D, seeds = contributor.initial(1), [derive(9, k) for k in range(4)]
        _, gradients_PD = contributor.gradients(flat_D, [contributor.batch(seed) for seed in seeds])
        torch.manual_seed(5)  # the global generator has no part in it
        for seed, gradient_D in zip(seeds, gradients_PD, strict=True):
            assert torch.equal(auditor.gradients(flat_D, [auditor.batch(seed)])[1][0], gradient_D)
        assert not torch.equal(gradients_PD[0], gradients_PD[1])

    def test_together_is_as_one_by_one(self, task: Task) -> None:
        together, alone = Problem(task), Problem(task, one_by_one=True)
        assert (together.why_one_by_one == "") == (task.autocast is None)
        flat_D = together.initial(1)
        batches = [together.batch(derive(9, k)) for k in range(4)]
        losses_P, gradients_PD = together.gradients(flat_D, batches)
        alone_P, alone_PD = alone.gradients(flat_D, batches)
        near = 0.02 if task.autocast else 1e-5
        torch.testing.assert_close(losses_P, alone_P, rtol=near, atol=near)
        torch.testing.assert_close(gradients_PD, alone_PD, rtol=near, atol=near)

    def test_the_trained_module_is_the_users_own(self, task: Task) -> None:
        problem = Problem(task)
        flat_D = problem.initial(2) * 1.1
        module = problem.module(flat_D)
        assert type(module) is type(task.model())
        assert not module.training
        with torch.no_grad():
            assert task.evaluate(module) == problem.evaluate(flat_D)

    def test_the_state_dict_is_complete(self, task: Task) -> None:
        problem = Problem(task)
        flat_D = problem.initial(2) * 1.1
        state = problem.state_dict(flat_D)
        fresh = task.model().eval()
        fresh.load_state_dict(state, strict=True)
        with torch.no_grad():
            assert task.evaluate(fresh) == problem.evaluate(flat_D)
        assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == len(state)
        assert all(tensor.is_contiguous() for tensor in state.values())
        assert torch.equal(problem.flat_of(state), flat_D)
        assert torch.equal(problem.flat_of(problem.layout.views(flat_D)), flat_D)


class TestFrozen:
    def test_frozen_parameters_are_constants_equal_for_everyone(self) -> None:
        first, second = Problem(HalfFrozen()), Problem(HalfFrozen())
        assert first.size == 3 + 3 + 3 + 1
        assert first.frozen == 12
        torch.rand(7)
        states = [problem.state_dict(problem.initial(seed)) for problem, seed in ((first, 1), (second, 2))]
        assert torch.equal(states[0]["0.weight"], states[1]["0.weight"])
        assert not torch.equal(states[0]["2.weight"], states[1]["2.weight"])

    def test_others_values_of_them_are_refused(self) -> None:
        problem = Problem(HalfFrozen())
        state = problem.state_dict(problem.initial(0))
        with pytest.raises(TaskError, match=r"'0.weight' is not trained and has other values than model\(\) gives it"):
            problem.flat_of({**state, "0.weight": state["0.weight"] + 1})


class TestTied:
    def test_a_tied_tensor_counts_once_and_has_both_its_names(self) -> None:
        tied, loose = Problem(Tied()), Problem(Sums())
        assert loose.size - tied.size == 7 * 8
        state = tied.state_dict(tied.initial(0))
        assert torch.equal(state["embed.weight"], state["head.weight"])

    def test_either_name_will_do_and_both_must_agree(self) -> None:
        problem = Problem(Tied())
        flat_D = problem.initial(0)
        state = problem.state_dict(flat_D)
        for missing in ("embed.weight", "head.weight"):
            assert torch.equal(problem.flat_of({k: v for k, v in state.items() if k != missing}), flat_D)
        with pytest.raises(TaskError, match=r"'embed\.weight' has several names in the model and different values"):
            problem.flat_of({**state, "head.weight": state["head.weight"] + 1})

    def test_the_gradient_is_that_of_both_uses(self) -> None:
        problem = Problem(Tied())
        flat_D, batch = problem.initial(0), problem.batch(derive(1, "x"))
        direction_D = torch.zeros(problem.size)
        direction_D[3] = 1e-2
        _, gradient_D = problem.gradient(flat_D, batch)
        ahead, _ = problem.gradient(flat_D + direction_D, batch)
        behind, _ = problem.gradient(flat_D - direction_D, batch)
        assert (ahead - behind) / 2e-2 == pytest.approx(float(gradient_D[3]), rel=0.05, abs=1e-3)


class TestWeightsThatDoNotFit:
    def test_every_difference_is_named(self) -> None:
        problem = Problem(make_task("digits"))
        state = problem.state_dict(problem.initial(0))
        wrong = {
            "1.weight": torch.zeros(2, 2),
            "1.bias": state["1.bias"] / 0,
            "extra": torch.zeros(1),
            "3.bias": state["3.bias"],
        }
        with pytest.raises(TaskError) as caught:
            problem.flat_of(wrong)
        for part in (
            "'1.weight' has the shape (2, 2)",
            "'1.bias' holds numbers that",
            "'3.weight' is missing",
            "'extra' is not in",
        ):
            assert part in str(caught.value)


class TestBatchNorm:
    def test_the_exported_statistics_give_the_same_accuracy(self) -> None:
        task = make_task("digits-cnn")
        problem = Problem(task)
        flat_D = problem.initial(3)
        state = problem.state_dict(flat_D)
        fresh = task.model().eval()
        with torch.no_grad():
            fresh.load_state_dict(problem.layout.views(flat_D), strict=False)
            without = task.evaluate(fresh)
            fresh.load_state_dict(state, strict=True)
            assert task.evaluate(fresh) == problem.evaluate(flat_D) != without
        assert int(state["1.num_batches_tracked"]) == 32


class TestAccumulation:
    def test_is_the_mean_over_micro_batches_with_streams_of_their_own(self) -> None:
        plain, accumulated = Problem(Sums()), Problem(Accumulated())
        flat_D, seed = plain.initial(0), derive(4, "x")
        loss, gradient_D = accumulated.gradient(flat_D, accumulated.batch(seed))
        results = [plain.gradient(flat_D, plain.batch(derive(seed, "micro-batch", k))) for k in range(3)]
        assert loss == pytest.approx(sum(loss for loss, _ in results) / 3, rel=1e-6)
        torch.testing.assert_close(gradient_D, torch.stack([g for _, g in results]).mean(dim=0))
        assert not torch.equal(results[0][1], results[1][1])

    @pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
    def test_a_senseless_number_is_refused(self, count: object) -> None:
        task = Accumulated()
        object.__setattr__(task, "accumulate", count)
        with pytest.raises(TaskError, match="accumulate is a number of micro-batches"):
            Problem(task)


class TestMixedPrecision:
    def test_computes_in_bfloat16_and_keeps_float32(self) -> None:
        seen: list[torch.dtype] = []

        class Looking(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                out = super().forward(x)
                seen.append(out.dtype)
                return out

        @dataclass(frozen=True)
        class Half(Lines):
            autocast = "bfloat16"

            def model(self) -> nn.Module:
                return Looking(3, 1)

        problem = Problem(Half(), one_by_one=True)
        _, gradient_D = problem.gradient(problem.initial(0), problem.batch(derive(0)))
        assert seen == [torch.bfloat16]
        assert gradient_D.dtype == torch.float32

    def test_other_formats_are_refused(self) -> None:
        task = replace(Mixed())
        object.__setattr__(task, "autocast", "float16")
        with pytest.raises(TaskError, match="autocast is None or"):
            Problem(task)
