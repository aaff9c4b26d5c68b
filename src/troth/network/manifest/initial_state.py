"""The initial state of a run, if it is not made from a seed: a checkpoint of another run, or a model from anywhere.

The state lies beside the manifest, in a file named after its digest; the manifest holds the digest.
"""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from troth.crypto import Digest
from troth.errors import OperatorError
from troth.protocol.wire.messages import Malformed
from troth.training.work import Training, TrainingWork


class InitialStateError(OperatorError):
    """There is no such state, or it does not fit the task; the message names the way out."""


def initial_state_file(folder: Path, digest: Digest) -> Path:
    return folder / f"initial-state-{digest.hex()[:16]}.safetensors"


def read_initial_state(work: TrainingWork, folder: Path, digest: Digest) -> Training:
    """The state that was agreed on, and no other."""
    path = initial_state_file(folder, digest)
    most = 64 * work.problem.size + (1 << 20)  # more than any optimizer holds for a parameter
    try:
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise InitialStateError(
            f"this run begins from a state that is not here: get {path.name} from whoever sent the manifest, and put it beside it"
        ) from error
    training = work.unpack(raw) if len(raw) <= most else Malformed("too long")
    if isinstance(training, Malformed) or work.digest(training) != digest:
        raise InitialStateError(
            f"{path} is not the state that was agreed on: get it again from whoever sent the manifest"
        )
    return _checked(work, training, path)


def import_initial_state(work: TrainingWork, path: Path) -> tuple[Digest, bytes]:
    """The content of a file as an initial state: a checkpoint with its optimizer, or a model, whose optimizer starts afresh."""
    if path.is_dir():
        path = _last_checkpoint(path)
    try:
        named = load(path.read_bytes())
    except OSError as error:
        raise InitialStateError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise InitialStateError(f"{path} is no safetensors file: {error}") from error
    training = _checked(work, _training(work, named, path), path)
    return work.digest(training), work.pack(training)


def _last_checkpoint(folder: Path) -> Path:
    found = sorted([*folder.glob("checkpoints/step-*.safetensors"), *folder.glob("step-*.safetensors")])
    if not found:
        raise InitialStateError(f"{folder} holds no checkpoint: name a peer's folder, or a .safetensors file")
    return found[-1]


def _training(work: TrainingWork, named: Mapping[str, Tensor], path: Path) -> Training:
    """A checkpoint has a vector `parameters`; anything else has to be a model of the task's shape."""
    fresh, layout = work.first(0), work.problem.layout
    if "parameters" in named:
        found = work.unpack(save(dict(named)))
        if isinstance(found, Malformed):
            raise InitialStateError(f"{path}: {found.reason}")
        same_optimizer = _shapes(found.optimizer) == _shapes(fresh.optimizer)
        return found if same_optimizer else Training(found.parameters_D, fresh.optimizer)
    wanted, given = _shapes(layout.views(fresh.parameters_D)), _shapes(named)
    if given != wanted:
        odd = sorted(set(wanted) ^ set(given)) or sorted(name for name in wanted if wanted[name] != given[name])
        raise InitialStateError(f"{path} is another model than the task's: they differ in {', '.join(odd[:4])}")
    flat_D = layout.flatten({name: piece.to(fresh.parameters_D.dtype) for name, piece in named.items()})
    return Training(flat_D, fresh.optimizer)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _checked(work: TrainingWork, training: Training, path: Path) -> Training:
    if len(training.parameters_D) != work.problem.size:
        raise InitialStateError(
            f"{path} holds {len(training.parameters_D):,} parameters, and the task's model has {work.problem.size:,}"
        )
    if not bool(training.parameters_D.isfinite().all()):
        raise InitialStateError(f"{path} holds something that is not a number")
    return training
