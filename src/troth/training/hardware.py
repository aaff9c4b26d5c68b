"""Real classes of hardware in one process: peers that compute their gradients on another device, or in another way.

Such a peer has nothing of the run's device but the bytes that would have reached it over a network: it copies the
parameters, draws its batch from the public seed, and computes with a `Problem` of its own.
"""

import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from troth.crypto import Digest, Seed, Stream, derive, stream, tagged_hash
from troth.protocol.wire.blob import Blob
from troth.specs import ALSO, build, parse_spec, pick
from troth.training.determinism import settings, threads
from troth.training.problem import Problem
from troth.training.task import Batch, Task

# D coordinates


_MOST_THREADS = 1024


@dataclass(frozen=True)
class MachineSpec:
    """So many peers that compute on one kind of machine."""

    peers: int = 1
    threads: int = 0  # of PyTorch's, on a CPU; 0: as many as the process has
    float64: bool = False  # in float64, rounded to float32 at the end: other bits where nothing else gives any

    device: ClassVar[str]

    def __post_init__(self) -> None:
        if self.peers < 1:
            raise ValueError(f"peers must be at least 1, got {self.peers}")
        if not 0 <= self.threads <= _MOST_THREADS:
            raise ValueError(f"threads must be from 0 to {_MOST_THREADS}, got {self.threads}")


class OnCPU(MachineSpec):
    device = "cpu"


class OnCUDA(MachineSpec):
    device = "cuda"


MACHINES: dict[str, type[MachineSpec]] = {"cpu": OnCPU, "cuda": OnCUDA}


def make_machines(specs: str) -> list[MachineSpec]:
    """`cpu:peers=4`, or several with ` + ` between them; none for an empty string."""
    named = [(spec, *parse_spec(spec)) for spec in specs.split(ALSO) if spec]
    return [build(pick(MACHINES, name, "machine"), options, spec) for spec, name, options in named]


class GradientJob(NamedTuple):
    """A gradient to compute."""

    parameters_D: Tensor  # wherever they lie
    batch: Batch  # drawn by the machine's own problem


class Machine:
    """Computes gradients as peers of one class do. Bits depend on parameters and batch, not on what is computed beside them."""

    def __init__(self, task: Task, spec: MachineSpec) -> None:
        self._task, self._spec = task, spec
        self._threads = spec.threads or torch.get_num_threads()
        self.problem = self._problem()
        self._problems = [self.problem]  # one for each worker: a module takes the parameters of one call at a time

    def gradient(self, parameters_D: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """Loss and gradient of one batch: float32, as it travels, on this machine."""
        return self.gradients([GradientJob(parameters_D, batch)])[0]

    def gradients(self, jobs: Sequence[GradientJob]) -> list[tuple[float, Tensor]]:
        """The same of several batches, side by side where each of them needs a core and no more."""
        workers = min(len(jobs), os.cpu_count() or 1) if self._threads == 1 and self.problem.device.type == "cpu" else 1
        device, dtype = self.problem.device, self.problem.dtype  # copied once, by this thread, on its stream
        copies = {id(job.parameters_D): job.parameters_D.detach().to(device, dtype) for job in jobs}
        here = [GradientJob(copies[id(job.parameters_D)], job.batch) for job in jobs]
        if workers <= 1:
            return [self._computed(self.problem, job) for job in here]
        self._problems += [self._problem() for _ in range(workers - len(self._problems))]

        def share_of(worker: int) -> list[tuple[float, Tensor]]:
            return [self._computed(self._problems[worker], job) for job in here[worker::workers]]

        shares = list(self._aside.map(share_of, range(workers)))
        return [shares[number % workers][number // workers] for number in range(len(here))]

    @cached_property
    def class_digest(self) -> Digest:
        """Digest of the class, as `class_digest` makes it of a peer's own problem."""
        batch = self.problem.batch(PROBE_SEED)
        return digest_of_class(self.problem, self.gradient(self.problem.initial(0), batch)[1])

    @cached_property
    def _aside(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="machine")

    def _problem(self) -> Problem:
        dtype = torch.float64 if self._spec.float64 else torch.float32
        return Problem(self._task, device=self._spec.device, dtype=dtype, one_by_one=True)

    def _computed(self, problem: Problem, job: GradientJob) -> tuple[float, Tensor]:
        with threads(self._threads):
            loss, gradient_D = problem.gradient(job.parameters_D, job.batch)
        return loss, gradient_D.float()


# Classes of hardware: machines that compute the same bits, told by a public gradient and by what an accelerator is made of.
#
# docs/decisions/0021-deterministic-accelerators.md says what counts, and why a CPU's name does not.


PROBE_SEED = derive(0, "hardware probe")


class MachineFact(NamedTuple):
    """One line of what a machine computes with."""

    name: str
    value: str
    counts: bool  # whether machines that differ in it are of different classes, even if a probe sees no difference
    shown: bool = True  # in the short description


def class_digest(problem: Problem, hardware: str = "") -> Digest:
    """Digest of a public gradient and of the facts that count. Peers with equal digests audit each other exactly."""
    return digest_of_class(problem, gradient_on(problem, hardware, problem.initial(0), PROBE_SEED))


def digest_of_class(problem: Problem, gradient_D: Tensor) -> Digest:
    """The digest of the class that computes this as the gradient of `PROBE_SEED`."""
    facts = [part for fact in facts_of(problem) if fact.counts for part in (fact.name.encode(), fact.value.encode())]
    return tagged_hash("troth/class/1", Blob.of(gradient_D).digest, *facts)


def describe(problem: Problem) -> str:
    """The class in one line, for people: where two machines differ, this is what to compare."""
    return ", ".join(fact.value for fact in facts_of(problem) if fact.shown)


def facts_of(problem: Problem) -> tuple[MachineFact, ...]:
    """What decides the bits of a gradient here, beside the task."""
    on_cuda = problem.device.type == "cuda"
    return (
        *(_cuda_facts(problem) if on_cuda else _cpu_facts(problem)),
        MachineFact("precision", _precision(problem), True),
    )


def _cpu_facts(problem: Problem) -> tuple[MachineFact, ...]:
    """For people alone: kernels of a CPU follow from shapes, so a probe runs the very ones that training runs."""
    threads = torch.get_num_threads()
    return (
        MachineFact(
            "device", f"{problem.device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})", False
        ),
        MachineFact("torch", f"PyTorch {torch.__version__}", False),
        MachineFact("threads", f"{threads} thread{'s' if threads > 1 else ''}", False),
    )


def _cuda_facts(problem: Problem) -> tuple[MachineFact, ...]:
    """An accelerator's libraries choose kernels by tables of their version and device; a probe sees one choice of each."""
    major, minor = torch.cuda.get_device_capability(problem.device)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    held = ", ".join(f"{setting.name}={setting.wanted}" for setting in settings("cuda", problem.task.tf32))
    return (
        MachineFact("device", torch.cuda.get_device_name(problem.device), True),
        MachineFact("compute capability", f"compute capability {major}.{minor}", True),
        MachineFact("torch", f"PyTorch {torch.__version__}", True),
        MachineFact("cuda", f"CUDA {torch.version.cuda}", True),
        MachineFact("cudnn", f"cuDNN {cudnn}", True),
        MachineFact("settings", held, True, shown=False),
        MachineFact("cublas workspace", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""), True, shown=False),
        MachineFact("blas", str(torch.backends.cuda.preferred_blas_library()), True, shown=False),
        MachineFact("tf32 override", os.environ.get("NVIDIA_TF32_OVERRIDE", ""), True, shown=False),
    )


def _precision(problem: Problem) -> str:
    kind = str(problem.dtype).removeprefix("torch.")
    if problem.task.tf32 and problem.device.type != "cpu":
        kind += " with TensorFloat-32"
    return f"{kind} with {problem.task.autocast} autocast" if problem.task.autocast else kind


# Gradients as a machine of another class would compute them.


# Four units in the last place of a float32: with them a class differs from this machine on digits as a CPU and an H200
# do, by a median of 3·10⁻⁶ of a gradient.
_ROUNDING = 4 * 2.0**-23
STRESS = 1024  # times stronger than hardware's rounding


def gradient_on(problem: Problem, hardware: str, parameters_D: Tensor, seed: Seed) -> Tensor:
    """The gradient of a seed as a machine of this class would compute it; "" is this machine.

    Another class is imitated: its inputs are off by a few units in the last place, as class and seed decide. The network then
    treats these like any rounding errors: it carries them along, and now and then flips a ReLU.
    """
    return _shaken_gradient(problem, hardware, parameters_D, seed, times=1.0 if hardware else 0.0)


def bent_gradient(problem: Problem, parameters_D: Tensor, seed: Seed) -> Tensor:
    """`g + (g(2v) − 2g(v) + g)`: off from the gradient by its jumps alone, under much stronger shaking v."""
    own_D, near_D, far_D = (
        _shaken_gradient(problem, "stress", parameters_D, seed, times=times).cpu().double()
        for times in (0, STRESS / 2, STRESS)
    )
    return far_D - 2 * near_D + 2 * own_D


def _shaken_gradient(problem: Problem, hardware: str, parameters_D: Tensor, seed: Seed, *, times: float) -> Tensor:
    batch = problem.batch(seed)
    if times:
        # The seed counts too: hardware rounds every batch in another way, it does not add one fixed error.
        key = derive(seed, "hardware", hardware)
        batch = {name: _shaken(tensor, stream(key, "batch", name), times) for name, tensor in batch.items()}
        parameters_D = _shaken(parameters_D, stream(key, "parameters"), times)
    return problem.gradients(parameters_D, [batch])[1][0]


def _shaken(numbers: Tensor, draw: Stream, times: float) -> Tensor:
    if not numbers.is_floating_point():
        return numbers
    shares = torch.from_numpy(2 * draw.uniform(numbers.numel()) - 1).view(numbers.shape).to(numbers.device)
    return (numbers.double() * (1 + shares * (times * _ROUNDING))).to(numbers.dtype)
