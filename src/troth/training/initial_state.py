"""An initial state from a file: a checkpoint of a run, or a model from anywhere."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from troth.crypto import Digest
from troth.errors import OperatorError
from troth.protocol.wire.messages import Malformed
from troth.training.task import TaskError
from troth.training.work import RATE, Training, TrainingWork


class InitialStateError(OperatorError):
    """There is no such state, or it does not fit the task; the message names the way out."""


def import_initial_state(work: TrainingWork, path: Path, raw: bytes | None = None) -> tuple[Digest, bytes]:
    """The content of a file as an initial state: a checkpoint with its optimizer, or a model, whose optimizer starts afresh.
    `raw`: what was read there already."""
    training = load_initial_state(work, path, raw)
    return work.digest(training), work.pack(training)


def load_initial_state(work: TrainingWork, path: Path, raw: bytes | None = None) -> Training:
    """Read a file, or a folder's last checkpoint or model, and check that it fits the task."""
    try:
        path, raw = _read(path) if raw is None else (path, raw)
        named = load(raw)
    except OSError as error:
        raise InitialStateError(f"cannot read {error.filename}: {error.strerror}") from error
    except SafetensorError as error:
        raise InitialStateError(f"{path} is no safetensors file: {error}") from error
    return checked(work, _training(work, named, path), path).to(work.problem.device)


def checked(work: TrainingWork, training: Training, path: Path) -> Training:
    """Refuse a state of another size, or one that is not finite."""
    if len(training.parameters_D) != work.problem.size:
        raise InitialStateError(
            f"{path} holds {len(training.parameters_D):,} parameters, and the task's model has {work.problem.size:,}"
        )
    if not bool(training.parameters_D.isfinite().all()):
        raise InitialStateError(f"{path} holds something that is not a number")
    return training


def _read(path: Path) -> tuple[Path, bytes]:
    """A file, or the last one in a folder, and its content. A peer that trains there deletes its older ones: then there is a
    newer one."""
    while path.is_dir():
        last = _last_in(path)
        with suppress(FileNotFoundError):
            return last, last.read_bytes()
    return path, path.read_bytes()


def _last_in(folder: Path) -> Path:
    """The last checkpoint in a folder of a peer or a simulation, or else its model."""
    found = sorted([*folder.glob("checkpoints/step-*.safetensors"), *folder.glob("step-*.safetensors")])
    found = found or list(folder.glob("model.safetensors"))
    if not found:
        raise InitialStateError(f"{folder} holds no checkpoint: name a peer's folder, or a .safetensors file")
    return found[-1]


def _training(work: TrainingWork, named: Mapping[str, Tensor], path: Path) -> Training:
    """A checkpoint has a vector `parameters`; anything else has to be a model of the task's, complete or its trained part."""
    fresh = work.first(0)
    if "parameters" in named:
        found = work.unpack(save(dict(named)))
        if isinstance(found, Malformed):
            raise InitialStateError(f"{path}: {found.reason}")
        same_optimizer = _shapes(found.optimizer) == _shapes(fresh.optimizer)
        return found if same_optimizer else Training(found.parameters_D, fresh.optimizer)
    try:
        return Training(work.problem.flat_of(named), fresh.optimizer)
    except TaskError as error:
        raise InitialStateError(f"{path}: {error}") from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, but for what `begin` makes anew."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != RATE}
