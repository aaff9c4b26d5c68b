"""The initial state of a run, if it is not made from a seed: see `training.states.initial_state` for how it is made.

The state lies beside the manifest, in a file named after its digest; the manifest holds the digest.
"""

from pathlib import Path

from troth.crypto import Digest
from troth.evidence.errors import UnprovedError
from troth.evidence.file_format import MOST_BYTES
from troth.evidence.verify_model import ModelProof, check_parameters, verify_state
from troth.protocol.wire.messages import Malformed
from troth.training.states.initial_state import InitialStateError, checked, import_initial_state
from troth.training.work import Training, TrainingWork

__all__ = [
    "InitialStateError",
    "check_origin",
    "import_initial_state",
    "initial_state_file",
    "origin_file",
    "read_initial_state",
]


def initial_state_file(folder: Path, digest: Digest) -> Path:
    return folder / f"initial-state-{digest.hex()[:16]}.safetensors"


def origin_file(folder: Path, digest: Digest) -> Path:
    """The signatures over a state that comes from another run."""
    return initial_state_file(folder, digest).with_suffix(".json")


def check_origin(folder: Path, digest: Digest, run: Digest, training: Training) -> ModelProof:
    """What proves that the initial state comes from that run: the file beside it, trusting nothing in it but signatures."""
    path = origin_file(folder, digest)
    try:
        with path.open(encoding="utf-8") as file:
            proof = verify_state(file.read(MOST_BYTES + 1), run)
        check_parameters(proof, training)
    except (OSError, UnicodeDecodeError) as error:
        raise InitialStateError(
            f"this run continues another, whose signatures are not here: get {path.name} from whoever sent the manifest, and put "
            "it beside it"
        ) from error
    except UnprovedError as error:
        raise InitialStateError(
            f"{path.name} does not prove that this run continues run {run.hex()[:16]}: {error}; ask whoever sent the manifest"
        ) from error
    return proof


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
