"""Classes of hardware: machines that compute the same bits, told by a public gradient and by what an accelerator is made of.

docs/decisions/0021-deterministic-accelerators.md says what counts, and why a CPU's name does not.
"""

import os
import platform
from typing import NamedTuple

import torch
from torch import Tensor

from troth.crypto import Digest, derive, tagged_hash
from troth.protocol.wire.blob import Blob
from troth.training.determinism import settings
from troth.training.hardware.imitation import gradient_on
from troth.training.problem import Problem

PROBE_SEED = derive(0, "hardware probe")


# D coordinates


class Fact(NamedTuple):
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


def facts_of(problem: Problem) -> tuple[Fact, ...]:
    """What decides the bits of a gradient here, beside the task."""
    on_cuda = problem.device.type == "cuda"
    return (*(_cuda_facts(problem) if on_cuda else _cpu_facts(problem)), Fact("precision", _precision(problem), True))


def _cpu_facts(problem: Problem) -> tuple[Fact, ...]:
    """For people alone: kernels of a CPU follow from shapes, so a probe runs the very ones that training runs."""
    threads = torch.get_num_threads()
    return (
        Fact(
            "device", f"{problem.device.type} ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})", False
        ),
        Fact("torch", f"PyTorch {torch.__version__}", False),
        Fact("threads", f"{threads} thread{'s' if threads > 1 else ''}", False),
    )


def _cuda_facts(problem: Problem) -> tuple[Fact, ...]:
    """An accelerator's libraries choose kernels by tables of their version and device; a probe sees one choice of each."""
    major, minor = torch.cuda.get_device_capability(problem.device)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    held = ", ".join(f"{setting.name}={setting.wanted}" for setting in settings("cuda", problem.task.tf32))
    return (
        Fact("device", torch.cuda.get_device_name(problem.device), True),
        Fact("compute capability", f"compute capability {major}.{minor}", True),
        Fact("torch", f"PyTorch {torch.__version__}", True),
        Fact("cuda", f"CUDA {torch.version.cuda}", True),
        Fact("cudnn", f"cuDNN {cudnn}", True),
        Fact("settings", held, True, shown=False),
        Fact("cublas workspace", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""), True, shown=False),
        Fact("blas", str(torch.backends.cuda.preferred_blas_library()), True, shown=False),
        Fact("tf32 override", os.environ.get("NVIDIA_TF32_OVERRIDE", ""), True, shown=False),
    )


def _precision(problem: Problem) -> str:
    kind = str(problem.dtype).removeprefix("torch.")
    if problem.task.tf32 and problem.device.type != "cpu":
        kind += " with TensorFloat-32"
    return f"{kind} with {problem.task.autocast} autocast" if problem.task.autocast else kind
