"""Settings under which gradients repeat: held while one is computed, and given back afterwards."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.examples import Lines
from troth.crypto import derive
from troth.training import Batch, Model, Problem, TaskError, determinism
from troth.training.dataset_task import task
from troth.training.determinism import NotRepeatableError, check_environment, repeatable, settings, threads

CPU, CUDA = torch.device("cpu"), torch.device("cuda")  # settings for CUDA can be changed on a machine without
WARN, ERROR = 1, 2


def values() -> dict[str, Any]:
    return {f"{number} {setting.name}": setting.get() for number, setting in enumerate(settings("cuda", tf32=False))}


def wanted(device: torch.device, tf32: bool = False) -> list[Any]:
    return [setting.wanted for setting in settings(device.type, tf32)]


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    before = values()
    yield
    assert values() == before


class TestHeld:
    @pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
    @pytest.mark.parametrize("tf32", [False, True])
    def test_inside_they_are_as_wanted(self, device: torch.device, tf32: bool) -> None:
        with repeatable(device, tf32=tf32):
            assert [setting.get() for setting in settings(device.type, tf32)] == wanted(device, tf32)
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]

    def test_for_an_accelerator_there_is_no_way_around(self) -> None:
        with repeatable(CUDA):
            assert torch.get_deterministic_debug_mode() == ERROR
            assert torch.backends.cudnn.deterministic
            assert not torch.backends.cudnn.benchmark
            assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        with repeatable(CPU):
            assert torch.get_deterministic_debug_mode() == WARN

    def test_tf32_is_the_tasks_choice(self) -> None:
        names = [setting.name for setting in settings("cuda", tf32=False)]
        plain, asked = wanted(CUDA), wanted(CUDA, tf32=True)
        differing = {name for name, one, other in zip(names, plain, asked, strict=True) if one != other}
        assert differing
        assert differing <= {"matmul", "conv", "rnn", "allow_tf32"}
        assert wanted(CPU) == wanted(CPU, tf32=True)

    @pytest.mark.filterwarnings("ignore:Please use the new API settings")  # of versions 2.9 to 2.11, about this test
    @pytest.mark.parametrize("precision", ["high", "medium"])
    def test_what_the_user_had_set_does_not_count_inside_and_is_there_again_outside(self, precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = True
        torch.use_deterministic_algorithms(True)
        try:
            before = values()
            with repeatable(CUDA):
                assert [setting.get() for setting in settings("cuda", tf32=False)] == wanted(CUDA)
            with pytest.raises(KeyboardInterrupt), repeatable(CPU):
                raise KeyboardInterrupt
            assert values() == before
            assert torch.get_float32_matmul_precision() == precision
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.benchmark = False
            torch.set_float32_matmul_precision("highest")

    def test_inside_itself(self) -> None:
        with repeatable(CUDA):
            with repeatable(CUDA):
                pass
            assert torch.get_deterministic_debug_mode() == ERROR

    def test_threads_that_want_the_same_share_it_and_the_last_gives_it_back(self) -> None:
        inside, leave = threading.Barrier(2, timeout=10), threading.Event()
        seen: list[int] = []

        def stays() -> None:
            with repeatable(CUDA):
                inside.wait()
                assert leave.wait(10)
                seen.append(torch.get_deterministic_debug_mode())

        other = threading.Thread(target=stays)
        other.start()
        with repeatable(CUDA):
            inside.wait()
        leave.set()
        other.join(10)
        assert seen == [ERROR]

    def test_a_thread_that_wants_something_else_waits(self) -> None:
        started = threading.Event()
        order: list[str] = []

        def other() -> None:
            started.set()
            with repeatable(CUDA):
                order.append(f"other in {torch.get_deterministic_debug_mode()}")

        thread = threading.Thread(target=other)
        with repeatable(CPU):
            thread.start()
            assert started.wait(10)
            thread.join(0.05)  # time for it to do what it must not
            order.append(f"first out {torch.get_deterministic_debug_mode()}")
        thread.join(10)
        assert order == [f"first out {WARN}", f"other in {ERROR}"]


@dataclass(frozen=True)
class Looking(Lines):
    """Looks at the settings in its loss and in its backward pass."""

    def loss(self, model: Model, batch: Batch) -> Tensor:
        _SEEN.append(torch.get_deterministic_debug_mode())
        out: Tensor = _Look.apply(super().loss(model, batch))  # type: ignore[no-untyped-call]
        return out


_SEEN: list[int] = []


class _Look(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        _SEEN.append(torch.get_deterministic_debug_mode())
        return grad


@pytest.mark.parametrize("one_by_one", [False, True])
def test_every_gradient_is_computed_so(one_by_one: bool) -> None:
    problem = Problem(Looking(), one_by_one=one_by_one)
    assert (problem.why_one_by_one == "") is not one_by_one
    _SEEN.clear()
    problem.gradients(problem.initial(0), [problem.batch(derive(k)) for k in range(2)])
    problem.gradient(problem.initial(0), problem.batch(derive(0)))
    assert len(_SEEN) >= 4
    assert set(_SEEN) == {WARN}


class TestRefused:
    def test_an_operation_that_pytorch_refuses_is_named_with_its_line(self) -> None:
        with pytest.raises(NotRepeatableError) as caught, repeatable(CUDA):
            F.max_unpool2d(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.long), [2, 2])
        assert caught.value.operation == "'max_unpooling2d_forward_out'"
        said = str(caught.value)
        assert f"loss() or its backward pass at {__file__}:" in said
        assert "needs 'max_unpooling2d_forward_out', of which PyTorch has no deterministic version on cuda" in said
        assert "use another layer or function in its place" in said

    def test_other_errors_pass_through(self) -> None:
        with pytest.raises(RuntimeError, match=r"^mine$"), repeatable(CUDA):
            raise RuntimeError("mine")

    def test_where_only_batching_needs_such_an_operation_gradients_are_computed_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise NotRepeatableError("'scatter'", "cuda", "")

        monkeypatch.setattr(Problem, "_together", refuse)
        assert "needs 'scatter'" in Problem(Lines()).why_one_by_one

    def test_the_option_is_checked(self) -> None:
        made = task(model=lambda: nn.Linear(1, 1), data=[torch.ones(1)], loss=lambda model, x: model(x).sum())
        assert made.tf32 is False
        object.__setattr__(made, "tf32", "yes")
        with pytest.raises(TaskError, match=r"Task\.tf32 is True or False, got 'yes'"):
            Problem(made)


class TestEnvironment:
    @pytest.mark.long
    def test_cublas_is_told_when_the_training_side_is_imported(self) -> None:
        told = "import os; os.environ.pop('CUBLAS_WORKSPACE_CONFIG', 0); import troth.training; "
        told += "print(os.environ['CUBLAS_WORKSPACE_CONFIG'])"
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout == ":4096:8\n"

    def test_another_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        with pytest.raises(TaskError, match="CUBLAS_WORKSPACE_CONFIG is ':16:8' in the environment"):
            check_environment(CUDA)
        check_environment(CPU)

    def test_too_late_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        check_environment(CUDA)
        monkeypatch.setattr(determinism, "_TOO_LATE", True)
        with pytest.raises(TaskError, match="CUDA was used in this process before Troth could set"):
            check_environment(CUDA)
        check_environment(CPU)


def test_the_gradient_of_an_index_does_not_depend_on_which_thread_comes_first() -> None:
    """On a CPU: with several threads PyTorch adds it up atomically, in any order, unless told otherwise."""

    @dataclass(frozen=True)
    class Indexed(Lines):
        def model(self) -> nn.Module:
            return nn.ParameterList([nn.Parameter(torch.ones(4))])

        def loss(self, model: Model, batch: Batch) -> Tensor:
            rows = torch.arange(100_000) % 4
            weights = torch.sin(torch.arange(100_000).float()) * batch["x"].sum()
            out: Tensor = (model[0][rows] * weights).sum()  # type: ignore[index]
            return out

    problem = Problem(Indexed(), one_by_one=True)
    flat_D, batch = problem.initial(0), problem.batch(derive(0))
    with threads(1):
        _, expected_D = problem.gradient(flat_D, batch)
    with threads(4):
        for _ in range(5):
            assert torch.equal(problem.gradient(flat_D, batch)[1], expected_D)


@pytest.mark.long
def test_processes_that_share_a_gpu_by_a_service_take_fewer_of_its_queues(tmp_path: Path) -> None:
    def queues(**environment: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
        code = "import os, troth.training.determinism; print(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
        return subprocess.run(
            [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert queues(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path)) == "8"
    assert queues(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none")) == "32"
    assert queues(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path), CUDA_DEVICE_MAX_CONNECTIONS="4") == "4"
