"""The initial state of a run, if it is not made from a seed: see `training.states.initial_state` for how it is made.

The state lies beside the manifest, in a file named after its digest; the manifest holds the digest.
"""

from pathlib import Path

from troth.crypto import Digest
from troth.protocol.wire.messages import Malformed
from troth.training.states.initial_state import InitialStateError, checked, import_initial_state
from troth.training.work import Training, TrainingWork

__all__ = ["InitialStateError", "import_initial_state", "initial_state_file", "read_initial_state"]


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
    return checked(work, training, path)
