"""Files beside an evidence file: the state and the blobs that its recomputation starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from troth.crypto import Digest
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import Blobs, RecomputeError
from troth.evidence.verify import Proof
from troth.files import write_text
from troth.protocol.core.parts import part_bounds
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Malformed
from troth.training.work import Training, read_state, write_state

FILES = ("ban-*.json", "ban-*.blobs", "state-*.safetensors")  # of all files that are written


def save_evidence(path: Path, evidence: BanEvidence, state: Digest | None) -> None:
    """Write the companions, then the evidence file: a file that is there is whole. `state`: the one that is recomputed from."""
    if state is not None and evidence.training is not None:
        write_state(evidence.training, path.with_name(state_name(state)))
    if evidence.blobs:
        blobs = {digest.hex(): bytearray(blob.view) for digest, blob in evidence.blobs.items()}
        save_file({name: torch.frombuffer(raw, dtype=torch.uint8) for name, raw in blobs.items()}, blobs_of(path))
    write_text(path, evidence.text)


@dataclass(frozen=True)
class CompanionFiles:
    """State and blobs that were found beside an evidence file."""

    training: Training | None
    blobs: Blobs
    missing: str | None  # the file without which nothing can be recomputed


def load_companions(path: Path, proof: Proof) -> CompanionFiles:
    """Load the state and the blobs that this proof can be recomputed from, as far as they are there."""
    training, wanted, blobs = None, wanted_blobs(proof), blobs_of(path)
    if proof.state is not None:
        state = path.with_name(state_name(proof.state))
        if not state.is_file():
            return CompanionFiles(None, {}, state.name)
        training = _load_state(state, proof.run.parameters.size)
    if not wanted or not blobs.is_file():
        return CompanionFiles(training, {}, blobs.name if wanted else None)
    return CompanionFiles(training, _load_blobs(blobs, wanted), None)


def state_name(digest: Digest) -> str:
    """File with model and optimizer at the step of the disputed gradient, named after their digest."""
    return f"state-{digest.hex()[:16]}.safetensors"


def blobs_of(evidence: Path) -> Path:
    """File with the blobs that an evidence file names, each under its digest."""
    return evidence.with_suffix(".blobs")


def _load_state(path: Path, parameters: int) -> Training:
    training = read_state(path, parameters)
    if isinstance(training, Malformed):
        raise RecomputeError(f"{path} is damaged: {training.reason}")
    return training


def _load_blobs(path: Path, wanted: Mapping[Digest, int]) -> dict[Digest, Blob]:
    """Load the blobs of the expected lengths, and no others. Their digests are checked where they are used (`blob_of`)."""
    try:
        with safe_open(path, "np") as file:
            there = set(file.keys())
            shown = {digest: file.get_slice(digest.hex()) for digest in wanted if digest.hex() in there}
            return {
                digest: Blob(np.asarray(blob[:]).data)
                for digest, blob in shown.items()
                if (blob.get_dtype(), blob.get_shape()) == ("U8", [wanted[digest]])
            }
    except (OSError, ValueError, SafetensorError) as error:
        raise RecomputeError(f"{path} is damaged: {error}") from error


def wanted_blobs(proof: Proof) -> dict[Digest, int]:
    """Digests of the blobs that a recomputation needs, and the length that each must have."""
    shown, part = proof.exhibit, proof.judgement.part
    if shown is None:
        return {}
    code = proof.run.parameters.coding
    sizes = np.diff(part_bounds(proof.run.parameters.size, shown.step.parts, code)).tolist()
    if part is None or not shown.proven_parts:
        lengths = map(code.centers.length, sizes)
        return dict(zip(shown.aggregates, lengths, strict=False))  # none where they are not needed
    rows = dict.fromkeys((digest for digest, _ in shown.proven_parts.values()), code.rows.length(sizes[part]))
    return {**rows, shown.aggregates[part]: code.centers.length(sizes[part])}
