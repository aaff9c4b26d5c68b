"""Other hardware: imitated, told apart by a probe, and measured."""

import os
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import Stream, derive, stream
from troth.protocol.step.audits import CONVICT
from troth.protocol.wire.primitives import Primitives
from troth.training import SGD, Batch, Model, Problem, TaskError, make_task, measurement
from troth.training import hardware as classes
from troth.training.hardware import Machine, class_digest, describe, facts_of, gradient_on, make_machines
from troth.training.measurement import Measurement, distances, extrapolated, measure
from troth.training.work import TrainingWork


@dataclass(frozen=True)
class Edge(Lines):
    """A ReLU so near its kink that stress flips it and rounding hardly ever does"""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        for parameter in model.parameters():
            nn.init.ones_(parameter)

    def batch(self, draw: Stream) -> Batch:
        x = draw.uniform(8)
        x += (1e-4 * draw.normal(1) - 1 - x.sum()) / 8  # so that Σx + 1 is nearly nothing
        return {"x": torch.from_numpy(x).float()[None]}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        out: Tensor = model(batch["x"]).sum()
        return out + 0.01 * F.softplus(model(batch["x"] + 3)).sum()


class Smooth(Edge):
    """The same without a kink"""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


class Fitted(Lines):
    """One batch in four is fitted already, but for a millionth"""

    def initialise(self, model: nn.Module, draw: Stream) -> None:
        for parameter in model.parameters():
            nn.init.ones_(parameter)

    def batch(self, draw: Stream) -> Batch:
        x = torch.from_numpy(draw.uniform(3)).float()[None]
        off = 1.0 if draw.integers(4, 1)[0] else 1e-6
        return {"x": x, "y": (x.sum() + 1)[None, None] * (1 + off)}


class Diverging(Lines):
    rate = 1e30


@pytest.fixture(scope="module")
def digits() -> Problem:
    return Problem(make_task("digits"), lanes_for=4)


class TestImitation:
    def test_no_class_is_this_machine(self, digits: Problem) -> None:
        work = TrainingWork(digits, SGD(), (0.1,), Primitives())
        training, seed = work.first(3), derive(1)
        assert torch.equal(gradient_on(digits, "", training.parameters_D, seed), work.gradient_now(training, seed))

    @pytest.mark.parametrize("name", ["digits", "digits-cnn", "quadratic"])
    def test_a_class_is_near_and_not_the_same_and_always_itself(self, name: str) -> None:
        problem = Problem(make_task(name))
        parameters_D, seed = problem.initial(0), derive(1)
        here_D, there_D, again_D, elsewhere_D = (
            gradient_on(problem, hardware, parameters_D, seed) for hardware in ("", "a", "a", "b")
        )
        assert torch.equal(there_D, again_D)
        for other_D in (there_D, elsewhere_D, there_D - elsewhere_D + here_D):
            assert 0 < float((other_D - here_D).norm() / here_D.norm()) < 1e-4

    def test_every_seed_is_rounded_in_its_own_way(self) -> None:
        problem = Problem(make_task("quadratic:noise=0"))
        parameters_D = torch.ones(1000)
        one_D, other_D = (
            gradient_on(problem, "a", parameters_D, derive(k)) - gradient_on(problem, "", parameters_D, derive(k))
            for k in range(2)
        )
        assert abs(float(F.cosine_similarity(one_D, other_D, dim=0))) < 0.2

    def test_what_was_given_stays_as_it_was(self, digits: Problem) -> None:
        parameters_D, labels = digits.initial(0), digits.batch(derive(1))["labels"].clone()
        before_D = parameters_D.clone()
        gradient_on(digits, "a", parameters_D, derive(1))
        assert torch.equal(parameters_D, before_D)
        assert torch.equal(digits.batch(derive(1))["labels"], labels)


@dataclass(frozen=True)
class Mixed(Lines):
    autocast = "bfloat16"


@dataclass(frozen=True)
class Rounded(Lines):
    tf32 = True


class TestClass:
    def test_a_cpu_is_known_by_its_bits_and_described_by_its_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Laptops of several makers that compute the same bits train together, with exact audits."""
        problem, name = Problem(Lines()), platform.machine()
        here, described = class_digest(problem), describe(problem)
        monkeypatch.setattr("platform.machine", lambda: "abacus")
        assert class_digest(problem) == here
        assert describe(problem) == described.replace(name, "abacus") != described
        assert f"PyTorch {torch.__version__}" in described
        assert len(described) < 140, "two fit into a refusal"

    def test_precision_counts_even_if_the_probe_sees_none_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(classes, "gradient_on", lambda problem, *_: torch.zeros(problem.size))
        plain, mixed, rounded = (Problem(task, one_by_one=True) for task in (Lines(), Mixed(), Rounded()))
        assert class_digest(plain) != class_digest(mixed)
        assert "bfloat16 autocast" in describe(mixed)
        assert class_digest(plain) == class_digest(rounded), "a CPU has no TensorFloat-32"

    def test_what_an_accelerator_is_made_of_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without one: PyTorch's answers are put in."""
        answers: dict[str, Any] = {"capability": (9, 0), "name": "NVIDIA H200", "version": 91002}
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: answers["capability"])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: answers["name"])
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: answers["version"])
        monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda: "cublas")
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(classes, "gradient_on", lambda *_: torch.zeros(4))
        problem, other = Problem(Lines()), Problem(Rounded())
        monkeypatch.setattr(problem, "initial", lambda _: torch.zeros(4))
        monkeypatch.setattr(other, "initial", lambda _: torch.zeros(4))
        problem.device = other.device = torch.device("cuda")
        assert describe(problem) == (
            f"NVIDIA H200, compute capability 9.0, PyTorch {torch.__version__}, CUDA 13.0, cuDNN 91002, float32"
        )
        digests = [class_digest(problem), class_digest(other)]
        for name, value in (("name", "NVIDIA A100"), ("capability", (8, 0)), ("version", 91003)):
            monkeypatch.setitem(answers, name, value)
            digests.append(class_digest(problem))
        monkeypatch.setattr(torch.version, "cuda", "13.1")
        digests.append(class_digest(problem))
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        digests.append(class_digest(problem))
        assert len(set(digests)) == 7
        assert all(fact.counts for fact in facts_of(problem))


class TestProbe:
    def test_equal_digests_are_equal_classes(self, digits: Problem) -> None:
        again = Problem(make_task("digits"), lanes_for=4)
        assert class_digest(digits) == class_digest(again)
        assert class_digest(digits, "a") == class_digest(again, "a")
        assert len({class_digest(digits, name) for name in ("", "a", "b", "c")}) == 4
        assert all(len(class_digest(digits, name)) == 32 for name in ("", "a"))


class TestMeasure:
    def test_every_way_is_compared_for_every_seed_at_every_point(self) -> None:
        shown: list[tuple[int, int]] = []
        found = measure(
            Problem(make_task("quadratic:dimension=40")),
            peers=4,
            seeds=6,
            points=3,
            steps=5,
            on_progress=lambda done, total: shown.append((done, total)),
        )
        ways = {way.name: way for way in found.ways}
        assert {"1 thread", "one by one", "4 in one call", "float64", "shaken inputs"} <= set(ways)
        assert all(way.comparisons == 18 for way in (*found.ways, found.jumps))
        assert found.stands_for == 18 * 1024
        assert ways["1 thread"].same_bits
        assert ways["1 thread"].largest == 0
        assert not ways["float64"].same_bits
        assert 0 < ways["float64"].median < ways["float64"].largest < 1e-6
        assert 0 < ways["shaken inputs"].largest < 1e-4
        assert found.deviation >= 2 * ways["shaken inputs"].largest / CONVICT
        assert 0.05 < found.noise < 0.2, "the task's own is 0.1"
        assert [done for done, _ in shown] == sorted(done for done, _ in shown)
        assert shown[-1][0] == shown[-1][1]
        assert len({total for _, total in shown}) == 1

    def test_is_the_same_every_time(self) -> None:
        problem = Problem(Lines())
        first, second = (measure(problem, peers=2, seeds=2, points=1, steps=1) for _ in range(2))
        assert first == second

    def test_later_points_count_too(self) -> None:
        """Gradients shrink in training, so deviations grow."""
        problem = Problem(Lines())
        first, whole = (measure(problem, peers=2, seeds=4, points=points, steps=100) for points in (1, 2))
        assert _way(whole, "float64") > 10 * _way(first, "float64")

    def test_rare_jumps_are_provoked(self) -> None:
        found = measure(Problem(Edge()), peers=4, seeds=12, points=1, steps=1)
        assert _way(found, "shaken inputs") < 1e-4, "plain comparisons see nothing"
        assert found.jumps.largest > 0.5
        assert found.deviation >= 2 * found.jumps.largest / CONVICT

    def test_what_is_smooth_has_no_jumps(self) -> None:
        found = measure(Problem(Smooth()), peers=4, seeds=12, points=1, steps=1)
        assert found.jumps.largest < 1e-4

    def test_against_usual_norms_a_fitted_batch_counts_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = measure(Problem(Fitted()), peers=4, seeds=12, points=1, steps=1)
        monkeypatch.setattr(measurement, "_usual_norms", lambda norms_PP: np.zeros(norms_PP.shape[1]))
        alone = measure(Problem(Fitted()), peers=4, seeds=12, points=1, steps=1)
        assert _way(usual, "float64") < _way(alone, "float64") / 10

    def test_honest_pairs_of_classes_stay_below_conviction(self) -> None:
        problem = Problem(make_task("quadratic:dimension=100"))
        found = measure(problem, peers=4, seeds=12, points=1, steps=1)
        parameters_D = problem.initial(0)
        for k in range(100):
            left_D, right_D = (
                gradient_on(problem, name, parameters_D, derive(9, k)).double().view(4, 25) for name in ("a", "b")
            )
            assert ((left_D - right_D).norm(dim=1) / right_D.norm(dim=1)).max() < CONVICT * found.deviation

    @pytest.mark.parametrize("stop", [False, True])
    def test_threads_are_left_as_they_were(self, stop: bool) -> None:
        before, unusual = torch.get_num_threads(), (os.cpu_count() or 1) + 1

        def interrupt(done: int, _: int) -> None:
            if stop and done > 5:
                raise KeyboardInterrupt

        torch.set_num_threads(unusual)
        try:
            if stop:
                with pytest.raises(KeyboardInterrupt):
                    measure(Problem(Lines()), peers=2, seeds=2, steps=2, on_progress=interrupt)
            else:
                measure(Problem(Lines()), peers=2, seeds=2, steps=2, on_progress=interrupt)
            assert torch.get_num_threads() == unusual
        finally:
            torch.set_num_threads(before)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"peers": 1}, "`peers` must be at least 2 and at most 4, got 1"),
            ({"peers": 5}, "`peers` must be at least 2 and at most 4, got 5"),
            ({"seeds": 1}, "`seeds` must be at least 2, got 1"),
            ({"points": 0}, "`points` must be at least 1, got 0"),
            ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ],
    )
    def test_what_cannot_be_measured(self, options: dict[str, int], message: str) -> None:
        with pytest.raises(TaskError, match=message):
            measure(Problem(Lines()), **{"peers": 2, "steps": 2, **options})  # type: ignore[arg-type]

    def test_a_task_that_diverges(self) -> None:
        with pytest.raises(TaskError, match="training diverges at step"):
            measure(Problem(Diverging()), peers=2, seeds=2, steps=20)


class TestDistances:
    @pytest.mark.long
    def test_they_are_those_that_the_doctor_sees(self) -> None:
        """The same machine is at no distance, float64 at the doctor's."""
        task = make_task("digits:activation=tanh")
        problem, far = Problem(task, one_by_one=True), []
        for spec in ("cpu", "cpu:float64=true"):
            far.append(distances(problem, Machine(task, make_machines(spec)[0]), peers=4, seeds=10, steps=5))
        assert far[0] == [0.0] * 10
        ways = {way.name: way for way in measure(problem, peers=4, seeds=10, points=2, steps=5).ways}
        assert 0.2 < np.median(far[1]) / ways["float64"].median < 5
        assert len(far[1]) == 10

    def test_large_gradients_are_projected_alike(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = Problem(make_task("quadratic:dimension=40"))
        few = measure(problem, peers=4, seeds=3, points=1, steps=1)
        monkeypatch.setattr(measurement, "_FEW", 0)
        many = measure(problem, peers=4, seeds=3, points=1, steps=1)
        assert [way.largest for way in many.ways] == pytest.approx([way.largest for way in few.ways], rel=1e-9)


class TestTail:
    @pytest.mark.parametrize("slope", [0.3, 0.8])
    def test_a_power_law_is_carried_on(self, slope: float) -> None:
        """500 numbers with P(X > x) = x^(−1/γ): once in 500,000 they reach 500,000^γ."""
        estimates = [extrapolated((stream(k, "pareto").uniform(500) ** -slope).tolist()) for k in range(20)]
        assert 0.3 < np.median(estimates) / 500_000**slope < 3

    def test_never_below_the_largest_seen(self) -> None:
        assert extrapolated([1.0] * 50) == 1.0
        assert extrapolated([0.0] * 50) == 0.0
        assert extrapolated([0.0] * 49 + [0.3]) == 0.3
        assert extrapolated([1e-6] * 49 + [np.inf]) == np.inf


def _way(found: Measurement, name: str) -> float:
    return next(way.largest for way in found.ways if way.name == name)
