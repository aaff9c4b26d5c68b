"""Format of `model.json`: the proof of where the weights beside it come from (SPEC E4).

It holds the run's founding data, the signed records that changed the roster, the last signed record, and the digests that the
state's digest in that record is made of. Nothing in it is to be believed before `verify_model.py` has checked it.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from troth.evidence.file_format import Founding, parsed
from troth.evidence.signed_records import founding_of
from troth.protocol.core.records import decode_record
from troth.protocol.core.run import Run
from troth.protocol.history import SignedRecord
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Step
from troth.training.work import TensorDigest, digest_of_tensors

FORMAT = "troth model 4"
_MOST_TENSORS = 1000  # of an optimizer; AdamW has three
_MOST_NAME = 1000


class ListedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of the state: number format, shape, and the digest of its bytes (hex)."""

    dtype: Annotated[str, msgspec.Meta(max_length=_MOST_NAME)]
    shape: Annotated[list[Step], msgspec.Meta(max_length=8)]
    digest: str


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model.json`."""

    format: str
    run: str  # the id
    founding: Founding
    step: Step  # the next one
    state_digest: str
    closed: bool  # whether the record below is the one that closes the run
    tensors: Annotated[dict[str, ListedTensor], msgspec.Meta(max_length=_MOST_TENSORS)]  # model and optimizer
    history: list[SignedRecord]  # the records that changed the roster, before the last one
    record: str  # the last certified record (hex); empty if there is none
    signatures: dict[str, str]  # of its members


def model_file(
    run: Run,
    step: int,
    tensors: Mapping[str, TensorDigest],
    history: Sequence[CertifiedRecord],
    last: CertifiedRecord | None,
) -> ModelFile:
    """The proof of a state whose tensors these are, from the certified records that a member holds."""
    signed = SignedRecord("", {}) if last is None else SignedRecord.of(last)
    return ModelFile(
        format=FORMAT,
        run=run.id.hex(),
        founding=founding_of(run),
        step=step,
        state_digest=digest_of_tensors(tensors).hex(),
        closed=last is not None and decode_record(last.record).closing,
        tensors={name: ListedTensor(one.dtype, list(one.shape), one.digest.hex()) for name, one in tensors.items()},
        history=[SignedRecord.of(change) for change in history],
        record=signed.record,
        signatures=signed.signatures,
    )


def from_text(text: str) -> ModelFile:
    """Parse a model's proof strictly; raise ValueError for anything but exactly what `to_text` writes."""
    return parsed(text, ModelFile, "proof of a model")
