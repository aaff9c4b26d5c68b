"""A task as functions of a flat vector: first parameters, gradients, evaluation."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import WITHOUT_DATA, Lines
from troth.crypto import Stream, derive, stream
from troth.training import Batch, Model, Problem, Task, TaskError, make_task

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def batches_of(problem: Problem, count: int) -> list[Batch]:
    return [problem.batch(derive(5, "test batch", k)) for k in range(count)]


def plain_gradient(task: Task, flat_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
    """By autograd on the module as its author wrote it."""
    module = task.model().to(flat_D).train()
    torch.nn.utils.vector_to_parameters(flat_D.clone(), module.parameters())
    loss = task.loss(module, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


class TestGradients:
    @pytest.mark.parametrize("name", WITHOUT_DATA)
    def test_a_gradient_is_autograds(self, name: str) -> None:
        task = make_task(name)
        problem = Problem(task, dtype=torch.float64)
        flat_D = problem.initial(3)
        for batch in batches_of(problem, 2):
            loss, gradient_D = problem.gradient(flat_D, batch)
            right_loss, right_D = plain_gradient(task, flat_D, batch)
            assert loss == pytest.approx(right_loss, rel=1e-12)
            torch.testing.assert_close(gradient_D, right_D, rtol=1e-10, atol=1e-12)
            assert gradient_D.norm() > 0

    @pytest.mark.parametrize("name", WITHOUT_DATA)
    def test_all_peers_in_one_call_equals_one_by_one(self, name: str) -> None:
        together = Problem(make_task(name), dtype=torch.float64)
        alone = Problem(make_task(name), dtype=torch.float64, one_by_one=True)
        assert together.why_one_by_one == ""
        assert alone.why_one_by_one == "asked for"
        flat_D, batches = together.initial(3), batches_of(together, 5)
        losses_P, gradients_PD = together.gradients(flat_D, batches)
        alone_P, alone_PD = alone.gradients(flat_D, batches)
        assert gradients_PD.shape == alone_PD.shape == (5, together.size)
        torch.testing.assert_close(losses_P, alone_P, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradients_PD, alone_PD, rtol=1e-10, atol=1e-10)
        assert not torch.equal(gradients_PD[0], gradients_PD[1])

    @pytest.mark.parametrize("name", WITHOUT_DATA)
    def test_with_lanes_an_auditor_gets_the_bits_of_the_whole_pool(self, name: str) -> None:
        problem = Problem(make_task(name), lanes_for=16)
        flat_D, batches = problem.initial(3), batches_of(problem, 16)
        losses_P, gradients_PD = problem.gradients(flat_D, batches)
        assert losses_P.shape == (16,)
        for first, last in [(peer, peer + 1) for peer in range(16)] + [(0, 15), (3, 9)]:
            _, some_PD = problem.gradients(flat_D, batches[first:last])
            assert torch.equal(some_PD, gradients_PD[first:last]), f"peers {first} to {last}"

    @pytest.mark.parametrize("device", DEVICES)
    def test_a_gradient_lies_where_the_problem_lies(self, device: str) -> None:
        problem = Problem(make_task("digits"), device=device)
        losses_P, gradients_PD = problem.gradients(problem.initial(0), batches_of(problem, 2))
        assert losses_P.device.type == gradients_PD.device.type == device
        assert gradients_PD.dtype == torch.float32

    def test_the_parameters_are_left_alone(self) -> None:
        problem = Problem(make_task("digits-cnn"))
        flat_D = problem.initial(0)
        before_D = flat_D.clone()
        problem.gradients(flat_D, batches_of(problem, 2))
        problem.evaluate(flat_D)
        assert torch.equal(flat_D, before_D)

    def test_a_batch_follows_from_its_seed(self) -> None:
        problem = Problem(Lines())
        seed = derive(1, "x")
        assert torch.equal(problem.batch(seed)["x"], problem.batch(seed)["x"])
        assert not torch.equal(problem.batch(seed)["x"], problem.batch(derive(1, "y"))["x"])

    def test_a_batch_is_cast_where_it_holds_numbers_and_kept_where_it_holds_indices(self) -> None:
        batch = Problem(make_task("digits"), dtype=torch.float64).batch(derive(0))
        assert batch["images"].dtype == torch.float64
        assert batch["labels"].dtype == torch.int64


@dataclass(frozen=True)
class ItemLoss(Lines):
    """Reads a number out of a tensor, which vmap cannot do."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        return loss * 3 if batch["x"].sum().item() > 6 else loss


@dataclass(frozen=True)
class BranchingLoss(Lines):
    """Branches on a tensor's value, which vmap cannot do."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        if batch["x"].sum() > 6:
            return loss * 3
        return loss


@dataclass(frozen=True)
class AskedOneByOne(Lines):
    one_by_one = True


class BrokenLossError(RuntimeError):
    pass


@dataclass(frozen=True)
class BrokenLoss(Lines):
    def loss(self, model: Model, batch: Batch) -> Tensor:
        raise BrokenLossError("no such layer")


@dataclass(frozen=True)
class RaggedBatch(Lines):
    def batch(self, draw: Stream) -> Batch:
        rows = 1 + int(draw.integers(1000, 1)[0])
        return {"x": torch.ones(rows, 3), "y": torch.ones(rows, 1)}


@dataclass(frozen=True)
class NoParameters(Lines):
    def model(self) -> nn.Module:
        return nn.Flatten()


class TestTasksThatVmapCannotHandle:
    @pytest.mark.parametrize(("task", "reason"), [(ItemLoss(), "item"), (BranchingLoss(), "control flow")], ids=str)
    def test_falls_back_with_a_reason_and_right_gradients(self, task: Task, reason: str) -> None:
        problem = Problem(task, dtype=torch.float64)
        assert reason in problem.why_one_by_one
        assert "\n" not in problem.why_one_by_one
        flat_D, batches = problem.initial(0), batches_of(problem, 8)
        sums = [float(batch["x"].sum()) for batch in batches]
        assert min(sums) < 6 < max(sums), "both branches are to be taken"
        losses_P, gradients_PD = problem.gradients(flat_D, batches)
        for loss, gradient_D, batch in zip(losses_P, gradients_PD, batches, strict=True):
            right_loss, right_D = plain_gradient(task, flat_D, batch)
            assert float(loss) == pytest.approx(right_loss, rel=1e-12)
            torch.testing.assert_close(gradient_D, right_D, rtol=1e-10, atol=1e-12)

    def test_the_task_may_say_so(self) -> None:
        assert Problem(AskedOneByOne()).why_one_by_one == "the task says so"

    def test_a_loss_that_is_wrong_in_itself_does_not_hide_behind_vmap(self) -> None:
        with pytest.raises(TaskError, match=r"loss\(\) fails at .*test_problem.py:\d+: BrokenLossError: no such layer"):
            Problem(BrokenLoss())

    def test_batches_of_different_shapes_are_refused(self) -> None:
        with pytest.raises(TaskError, match=r"batches of different seeds differ in shape .*: pad them"):
            Problem(RaggedBatch())

    def test_a_model_without_parameters_is_refused(self) -> None:
        with pytest.raises(TaskError, match="no parameters to train"):
            Problem(NoParameters())


class SumThenPReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bend = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        bent: Tensor = self.bend(x.sum(dim=1, keepdim=True))
        return bent


class TestInitial:
    @pytest.mark.parametrize("name", ["digits", "digits-cnn"])
    def test_follows_from_the_seed(self, name: str) -> None:
        problem = Problem(make_task(name))
        first_D = problem.initial(1)
        torch.rand(3)  # the global generator has no part in it
        assert torch.equal(first_D, problem.initial(1))
        assert torch.equal(first_D, Problem(make_task(name)).initial(1))
        assert not torch.equal(first_D, problem.initial(2))

    def test_has_pytorchs_default_bounds(self) -> None:
        problem = Problem(make_task("digits:hidden=256"))
        views = problem.layout.views(problem.initial(0))
        for name, fan_in in (("1.weight", 64), ("1.bias", 64), ("3.weight", 256), ("3.bias", 256)):
            bound = fan_in**-0.5
            assert 0.7 * bound < float(views[name].abs().max()) <= bound
        assert abs(float(views["1.weight"].std()) - 64**-0.5 / 3**0.5) < 0.002

    def test_leaves_batchnorm_at_one_and_zero(self) -> None:
        problem = Problem(make_task("digits-cnn"))
        views = problem.layout.views(problem.initial(0))
        assert views["1.weight"].tolist() == [1.0] * 8
        assert views["1.bias"].tolist() == [0.0] * 8

    def test_embeddings_are_normal(self) -> None:
        @dataclass(frozen=True)
        class Phrases(Lines):
            one_by_one = True

            def model(self) -> nn.Module:
                return nn.Embedding(1000, 20)

        first_D = Problem(Phrases()).initial(0)
        assert abs(float(first_D.mean())) < 0.03
        assert abs(float(first_D.std()) - 1) < 0.03

    def test_the_same_bits_in_every_number_format(self) -> None:
        single, double = Problem(make_task("digits")), Problem(make_task("digits"), dtype=torch.float64)
        assert torch.equal(single.initial(4).double(), double.initial(4))

    def test_an_overridden_rule_is_used(self) -> None:
        @dataclass(frozen=True)
        class Curved(Lines):
            def model(self) -> nn.Module:
                return SumThenPReLU()

            def initialise(self, model: nn.Module, draw: Stream) -> None:
                torch.nn.init.constant_(next(model.parameters()), 0.25 + float(draw.uniform(1)[0]))

        problem = Problem(Curved())
        assert problem.initial(0).item() == pytest.approx(0.25 + float(stream(0, "initialise").uniform(1)[0]))


@dataclass(frozen=True)
class Normalised(Task):
    """Inputs with mean 5 and deviation 2 through one BatchNorm; evaluation shows what it does to known inputs."""

    def model(self) -> nn.Module:
        return nn.BatchNorm1d(1)

    def batch(self, draw: Stream) -> Batch:
        return {"x": torch.from_numpy(5 + 2 * draw.normal(64)).float()[:, None]}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        out: Tensor = model(batch["x"])
        return (out**3).mean() + F.mse_loss(out, batch["x"])

    def evaluate(self, model: Model) -> dict[str, float]:
        five, seven = model(torch.tensor([[5.0], [7.0]])).flatten().tolist()
        alone = float(model(torch.tensor([[7.0]])))
        return {"five": five, "seven": seven, "seven alone": alone}


class TestBatchNorm:
    def test_training_uses_the_statistics_of_the_batch(self) -> None:
        problem = Problem(Normalised(), dtype=torch.float64)
        batch = problem.batch(derive(0, "x"))
        x = batch["x"]
        normal = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
        loss, _ = problem.gradient(torch.tensor([1.0, 0.0], dtype=torch.float64), batch)
        assert loss == pytest.approx(float((normal**3).mean() + ((normal - x) ** 2).mean()), rel=1e-9)

    def test_training_leaves_no_state(self) -> None:
        problem = Problem(make_task("digits-cnn"))
        flat_D, batches = problem.initial(0), batches_of(problem, 4)
        loss, gradient_D = problem.gradient(flat_D, batches[0])
        evaluated = problem.evaluate(flat_D)
        problem.gradients(flat_D, batches)
        for batch in batches:
            problem.gradient(flat_D, batch)
        again, again_D = problem.gradient(flat_D, batches[0])
        assert loss == again
        assert torch.equal(gradient_D, again_D)
        assert problem.evaluate(flat_D) == evaluated

    def test_evaluation_uses_calibrated_statistics(self) -> None:
        evaluated = Problem(Normalised()).evaluate(torch.tensor([1.0, 0.0]))
        # 32 batches of 64 inputs: the mean is known to about 2/√2048 = 0.044.
        assert evaluated["five"] == pytest.approx(0, abs=0.1)
        assert evaluated["seven"] == pytest.approx(1, abs=0.1)
        # With the statistics of the batch it would be ±1 for the two inputs, and 0 for one alone.
        assert evaluated["seven alone"] == pytest.approx(evaluated["seven"], abs=1e-6)

    def test_evaluating_twice_gives_the_same(self) -> None:
        problem = Problem(make_task("digits-cnn"))
        flat_D = problem.initial(0)
        assert problem.evaluate(flat_D) == problem.evaluate(flat_D)
        assert problem.evaluate(flat_D) != problem.evaluate(problem.initial(1))


class TestEvaluate:
    def test_default_is_the_mean_loss_of_sixteen_batches(self) -> None:
        task = Lines()
        problem = Problem(task)
        flat_D = problem.initial(0)
        losses = [problem.gradient(flat_D, task.batch(stream(0, "evaluate", k)))[0] for k in range(16)]
        assert problem.evaluate(flat_D)["loss"] == pytest.approx(sum(losses) / 16, rel=1e-6)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("name", WITHOUT_DATA)
    def test_works_in_every_format_and_place(self, name: str, dtype: torch.dtype, device: str) -> None:
        problem = Problem(make_task(name), device=device, dtype=dtype)
        plain = Problem(make_task(name))
        metrics, right = problem.evaluate(problem.initial(0)), plain.evaluate(plain.initial(0))
        assert metrics.keys() == right.keys()
        assert metrics["loss"] == pytest.approx(right["loss"], rel=1e-4)
