"""Files beside an evidence file: the state and the blobs that its recomputation starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from troth.crypto import Digest
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import Blobs, RecomputeError
from troth.evidence.verify import Proof
from troth.files import write_text
from troth.protocol.core.parts import part_bounds
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Malformed
from troth.training.work import Training, training_of

FILES = ("ban-*.json", "ban-*.blobs", "state-*.safetensors")  # of all files that are written

_HEADER = 1 << 20  # the most bytes of names and shapes in a state's file …
_BYTES_A_PARAMETER = 64  # … and of all its tensors for each parameter of the model; AdamW has 12


def save_evidence(path: Path, evidence: BanEvidence, proof: Proof) -> None:
    """Write the companions, then the evidence file: a file that is there is whole."""
    if proof.state is not None and evidence.training is not None:
        StateFile(proof.state).save(evidence.training, path.parent)
    if evidence.blobs:
        BlobsFile.of(path).save(evidence.blobs)
    write_text(path, evidence.text)


@dataclass(frozen=True)
class CompanionFiles:
    """State and blobs that were found beside an evidence file."""

    training: Training | None
    blobs: Blobs
    missing: str | None  # the file without which nothing can be recomputed


def load_companions(path: Path, proof: Proof) -> CompanionFiles:
    """Load the state and the blobs that this proof can be recomputed from, as far as they are there."""
    training, state, wanted = None, None, wanted_blobs(proof)
    if proof.state is not None:
        state = StateFile(proof.state)
        training = state.load(path.parent, most_bytes=_HEADER + _BYTES_A_PARAMETER * proof.run.parameters.size)
    blobs = BlobsFile.of(path)
    if state is not None and training is None:
        return CompanionFiles(None, {}, state.name)
    missing = blobs.path.name if wanted and not blobs.path.is_file() else None
    return CompanionFiles(training, blobs.load(wanted), missing)


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

    def load(self, folder: Path, most_bytes: int) -> Training | None:
        path = folder / self.name
        if not path.is_file():
            return None
        if path.stat().st_size > most_bytes:
            raise RecomputeError(f"{path} is too large to be a state of this run")
        try:
            tensors = load_file(path)
        except Exception as error:  # the reader has no error type of its own
            raise RecomputeError(f"{path} is damaged: {error}") from error
        training = training_of(tensors)
        if isinstance(training, Malformed):
            raise RecomputeError(f"{path} is no state: {training.reason}")
        return training


@dataclass(frozen=True)
class BlobsFile:
    """Blobs that an evidence file names, each under its digest."""

    path: Path

    @classmethod
    def of(cls, evidence: Path) -> "BlobsFile":
        return cls(evidence.with_suffix(".blobs"))

    def save(self, blobs: Blobs) -> None:
        tensors = {
            digest.hex(): torch.frombuffer(bytearray(blob.view), dtype=torch.uint8) for digest, blob in blobs.items()
        }
        save_file(tensors, self.path)

    def load(self, wanted: Mapping[Digest, int]) -> dict[Digest, Blob]:
        """Load the blobs of the expected lengths, and no others. Their digests are checked where they are used (`blob_of`)."""
        if not wanted or not self.path.is_file():
            return {}
        try:
            with safe_open(self.path, "np") as file:
                there = set(file.keys())
                shown = {digest: file.get_slice(digest.hex()) for digest in wanted if digest.hex() in there}
                return {
                    digest: Blob(np.asarray(blob[:]).data)
                    for digest, blob in shown.items()
                    if (blob.get_dtype(), blob.get_shape()) == ("U8", [wanted[digest]])
                }
        except (OSError, ValueError, SafetensorError) as error:
            raise RecomputeError(f"{self.path} is damaged: {error}") from error


def wanted_blobs(proof: Proof) -> dict[Digest, int]:
    """Digests of the blobs that a recomputation needs, and the length that each must have."""
    shown, part = proof.exhibit, proof.judgement.part
    if shown is None:
        return {}
    sizes = [4 * int(size) for size in np.diff(part_bounds(proof.run.parameters.size, shown.step.parts))]
    if part is None or not shown.proven_parts:
        return dict(zip(shown.aggregates, sizes, strict=False))  # none where they are not needed
    return dict.fromkeys((shown.aggregates[part], *(digest for digest, _ in shown.proven_parts.values())), sizes[part])
