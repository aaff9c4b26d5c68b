"""With the state at hand: repeating the computation that a ban was about."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors.torch import load_file, save_file

from troth.choices import ChoiceError, parse_spec
from troth.crypto import Digest, PeerId
from troth.evidence.verify import Proof
from troth.protocol.messages import Kind, Malformed
from troth.protocol.parts import commit_parts, part_bounds
from troth.protocol.primitives import Primitives
from troth.protocol.roles import gradient_seed
from troth.training.layout import Layout
from troth.training.optimizers import SGD
from troth.training.problem import Problem
from troth.training.schedules import constant
from troth.training.task import Task
from troth.training.tasks import TASKS, make_task
from troth.training.work import Training, TrainingWork, state_digest, training_of


class Recomputed(Enum):
    CONFIRMED = "recomputed here: its gradient is indeed not the one that follows from its seed"
    REFUTED = "recomputed here: its gradient is the one that follows from its seed, so the ban was wrong"
    OTHER_CLASS = "not recomputed: this machine computes other bits than the run's members"


class StateError(ValueError):
    """The gradient cannot be recomputed from what is at hand; the message says why."""


class _Description(msgspec.Struct):
    """The part of a run's description that gradients depend on."""

    task: str
    device: Literal["cpu", "cuda"]
    one_by_one: bool


def _described(proof: Proof) -> _Description:
    try:
        return msgspec.json.decode(proof.run.description, type=_Description)
    except (msgspec.MsgspecError, RecursionError) as error:
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
        training = training_of(tensors)
        if isinstance(training, Malformed):
            raise StateError(f"{path} is no state: {training.reason}")
        return training


def recompute(proof: Proof, training: Training, task_file: str | None = None) -> Recomputed:
    """Repeat the gradients of the disputed step from their public seeds.

    Most contributors' gradients must come out as they were committed to: else this machine's bits say nothing. The description
    comes with the evidence, so it is hostile: it may name a built-in task, of the size that was signed, but never a file to
    run. Whoever trusts the task's file passes it in.
    """
    before = proof.disputed
    if before is None or proof.judgement.kind != Kind.GRADIENT:
        raise StateError("only a disputed gradient can be recomputed, and this ban is about something else")
    if state_digest(training, Primitives()) != before.state_before:
        raise StateError("the state is not the one that the members signed")
    described = _described(proof)
    if described.device == "cuda" and not torch.cuda.is_available():
        return Recomputed.OTHER_CLASS
    task = _task(described, task_file)
    _check_size(task, training, proof.run.parameters.size)
    problem = Problem(task, device=described.device, one_by_one=described.one_by_one, lanes_for=len(proof.run.founders))
    work = TrainingWork(problem, SGD(), constant(1.0, 1), Primitives())
    here = Training(training.parameters_D.to(described.device), {})
    bounds = part_bounds(proof.run.parameters.size, before.parts)
    fits = {}
    for peer, root in zip(before.contributors, before.roots, strict=True):
        gradient_D = work.gradient_now(here, gradient_seed(Digest(before.seed_randomness), PeerId(peer)))
        fits[peer] = commit_parts(gradient_D, bounds, Primitives()).root == root
    others = [fit for peer, fit in fits.items() if peer != proof.judgement.target]
    if 2 * sum(others) <= len(others):
        return Recomputed.OTHER_CLASS
    accused_banned = proof.banned == proof.judgement.target
    return Recomputed.CONFIRMED if fits[proof.judgement.target] != accused_banned else Recomputed.REFUTED


def _task(described: _Description, task_file: str | None) -> Task:
    if task_file is None and parse_spec(described.task)[0] not in TASKS:
        raise StateError("the run trains a task of its own: if you trust its file, name it with --task")
    try:
        return make_task(task_file or described.task)
    except ChoiceError as error:
        raise StateError(str(error)) from error
