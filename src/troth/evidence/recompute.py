"""With the state at hand: repeating the computation that a ban was about."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file

from troth.choices import parse_spec
from troth.crypto import Digest, PeerId
from troth.evidence.verify import Proof
from troth.protocol.parts import commit_parts, part_bounds
from troth.protocol.primitives import Primitives
from troth.protocol.roles import gradient_seed
from troth.training.layout import Layout
from troth.training.optimizers import SGD
from troth.training.problem import Problem
from troth.training.schedules import constant
from troth.training.task import Task
from troth.training.tasks import TASKS, make_task
from troth.training.work import Training, TrainingWork


class Recomputed(Enum):
    CONFIRMED = "recomputed here: its gradient is indeed not the one that follows from its seed"
    REFUTED = "recomputed here: its gradient is the one that follows from its seed, so the ban was wrong"
    OTHER_CLASS = "not recomputed: this machine computes other bits than the run's members (the control differs too)"


class StateError(ValueError):
    """The gradient cannot be recomputed from what is at hand; the message says why."""


class _Description(msgspec.Struct):
    """The part of a run's description that gradients depend on."""

    task: str
    device: str
    one_by_one: bool


def _described(proof: Proof) -> _Description:
    try:
        return msgspec.json.decode(proof.run.description, type=_Description)
    except msgspec.MsgspecError as error:
        raise StateError(f"the run's description does not say what it trains: {error}") from error


def _check_size(task: Task, training: Training, size: int) -> None:
    """Without allocating anything: a description could ask for more memory than there is."""
    with torch.device("meta"):
        described = Layout.of(task.model()).size
    if not described == training.parameters_D.numel() == size:
        raise StateError(
            f"the task has {described} parameters, the state {training.parameters_D.numel()}, the run agreed on {size}"
        )


@dataclass(frozen=True)
class StateFile:
    """Model and optimizer at the step of the disputed gradient, named after their digest."""

    digest: Digest

    @property
    def name(self) -> str:
        return f"state-{self.digest.hex()[:16]}.safetensors"

    def save(self, training: Training, folder: Path) -> None:
        tensors = {f"optimizer.{name}": tensor.contiguous() for name, tensor in training.optimizer.items()}
        save_file({"parameters": training.parameters_D.contiguous(), **tensors}, folder / self.name)

    def load(self, folder: Path) -> Training | None:
        path = folder / self.name
        if not path.is_file():
            return None
        try:
            tensors = load_file(path)
        except Exception as error:  # the reader has no error type of its own
            raise StateError(f"{path} is damaged: {error}") from error
        if "parameters" not in tensors:
            raise StateError(f"{path} holds no parameters")
        optimizer = {name.removeprefix("optimizer."): t for name, t in tensors.items() if name != "parameters"}
        return Training(tensors["parameters"], optimizer)


def recompute(proof: Proof, training: Training, task_file: str | None = None) -> Recomputed:
    """Repeat the accused's gradient from its public seed, and a control's, to see what this machine's bits are worth.

    The description comes with the evidence, so it is hostile: it may name a built-in task, of the size that was signed, but never
    a file to run. Whoever trusts the task's file passes it in.
    """
    described = _described(proof)
    if task_file is None and parse_spec(described.task)[0] not in TASKS:
        raise StateError(
            f"the run trains a task of its own ('{described.task}'): if you trust its file, name it with --task"
        )
    task = make_task(task_file or described.task)
    _check_size(task, training, proof.run.parameters.size)
    problem = Problem(
        task,
        device=described.device,
        one_by_one=described.one_by_one,
        lanes_for=len(proof.run.founders),
    )
    work = TrainingWork(problem, SGD(), constant(1.0, 1), Primitives())
    if work.digest(training) != proof.before.state_before:
        raise StateError("the state is not the one that the members signed")
    bounds = part_bounds(proof.run.parameters.size, len(proof.before.contributors))

    def root_of(peer: PeerId) -> Digest:
        seed = gradient_seed(Digest(proof.before.seed_randomness), peer)
        return commit_parts(work.gradient_now(training, seed), bounds, Primitives()).root

    control, commit = proof.control
    if root_of(control) != commit.root:
        return Recomputed.OTHER_CLASS
    wrong = root_of(PeerId(proof.judgement.target)) != proof.commit.root
    accused_banned = proof.banned == proof.judgement.target
    return Recomputed.CONFIRMED if wrong == accused_banned else Recomputed.REFUTED
