"""Standing: everything that members have in common but the model, under one digest in the record (SPEC J8).

Whoever follows only the records that changed the members knows who signs, and lacks strikes, disputes, scales and the door. With
the standing it begins from one record, as if it had followed all of them.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec

from troth.crypto import Digest, tagged_hash
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import Roster, scales_after
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales
from troth.protocol.wire.messages import NO_BASIS, Malformed


@dataclass(frozen=True)
class Standing:
    """The common state after a step, but for the model."""

    roster: Roster
    scales: Scales
    randomness: Digest
    earlier_randomness: Digest

    @classmethod
    def after(cls, record: StepRecord, roster: Roster, scales: Scales, randomness: Digest, run: Run) -> "Standing":
        """The standing after a record; the rest is that before it."""
        return cls(
            roster.after(record), scales_after(scales, record, roster, run), Digest(record.randomness), randomness
        )

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(_fields(self))

    @property
    def digest(self) -> Digest:
        return digest_of(self.encode())


def digest_of(encoded: bytes) -> Digest:
    return tagged_hash("troth/standing/1", encoded)


def decode_standing(raw: bytes) -> Standing | Malformed:
    """A standing as a peer sent it. Whoever uses it compares its digest."""
    try:
        return msgspec.msgpack.decode(raw, type=Standing, strict=True)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        return Malformed(f"not a standing: {error}")


def standing_digest(record: StepRecord, roster: Roster, scales: Scales, randomness: Digest, run: Run) -> Digest:
    """The digest that a record has to name: only where strangers may come."""
    if not run.parameters.probation or record.closing:
        return NO_BASIS
    return Standing.after(record, roster, scales, randomness, run).digest


def _fields(value: Any) -> Any:
    """The fields of a dataclass by name, and nothing that it remembers besides."""
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: _fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
