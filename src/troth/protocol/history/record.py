"""One certified record: its one form as text, and what it has to be whoever reads it (SPEC U2)."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from troth.crypto import PeerId, Signature
from troth.protocol.core.records import StepRecord, decode_record, encode_record, record_bytes_to_sign
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives


@dataclass(frozen=True)
class Flaw:
    """The reason why something is no part of a history."""

    reason: str


class SignedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certified record as text: its bytes and its members' signatures, all in hexadecimal digits."""

    record: str
    signatures: dict[str, str]

    @classmethod
    def of(cls, certified: CertifiedRecord) -> "SignedRecord":
        signatures = {peer.hex(): signature.hex() for peer, signature in sorted(certified.signatures.items())}
        return cls(certified.record.hex(), signatures)

    def certified(self) -> CertifiedRecord:
        """The same as bytes. Raises ValueError for any other spelling of them."""
        signatures = {exact_bytes(peer): exact_bytes(signature) for peer, signature in self.signatures.items()}
        return CertifiedRecord(exact_bytes(self.record), signatures)


def exact_bytes(text: str) -> bytes:
    """Decode hexadecimal; refuse other spellings of the same bytes, so that a text has one form."""
    raw = bytes.fromhex(text)
    if raw.hex() != text:
        raise ValueError("hexadecimal digits must be lower case and without spaces")
    return raw


def sign_off(record: StepRecord, signatures: Mapping[PeerId, Signature]) -> CertifiedRecord:
    """A record under these signatures."""
    signed = {bytes(peer): bytes(signature) for peer, signature in sorted(signatures.items())}
    return CertifiedRecord(encode_record(record), signed)


def record_of(signed: CertifiedRecord) -> StepRecord | None:
    """The record, unchecked; None if it is none."""
    try:
        return decode_record(signed.record)
    except msgspec.MsgspecError:
        return None


def step_of(signed: CertifiedRecord) -> int:
    """Step of a record that was checked before."""
    return decode_record(signed.record).step


def open_record(run: Run, signed: CertifiedRecord, roster: Roster, tools: Primitives) -> StepRecord | Flaw:
    """The record, if it is one of these members' and knows of their last change, and a quorum of them signed it (SPEC U2, J8).

    Records that changed nothing about the members may lie between: a quorum signed this one, and one of those is honest."""
    record = record_of(signed)
    if record is None:
        return Flaw("this is no record")
    flaw = flaw_of(run, signed, record, roster, tools)
    return record if flaw is None else Flaw(f"the record of step {record.step}: {flaw}")


def flaw_of(run: Run, signed: CertifiedRecord, record: StepRecord, roster: Roster, tools: Primitives) -> str | None:
    """Why the record is not a certified one of these members; None if it is."""
    flaw = _disagreement(record, roster) or unsigned(run, signed, record, roster, tools)
    # Only now: what follows takes seconds for the longest record, and anyone may show one that nobody signed.
    return flaw or _misshapen(signed, record) or roster.refuses(record)


def unsigned(run: Run, signed: CertifiedRecord, record: StepRecord, roster: Roster, tools: Primitives) -> str | None:
    """Why this is not certified by a quorum of the roster's members; None if it is.

    Every signature has to fit: a reader keeps the record as it was shown, and with a wrong signature in it, nobody would take
    it as a proof. No more are looked at than up to the first wrong one."""
    signers, digest, count = roster.signers, tools.digest(signed.record), len(signed.signatures)
    if count < roster.quorum:
        return f"fewer than {roster.quorum} of its {len(roster.members)} members signed it"
    if count > len(signers):
        return "there are more signatures than members"
    if strangers := signed.signatures.keys() - signers.keys():
        return f"the signature of {min(strangers).hex()} does not fit: it is no member's"
    for peer, signature in signed.signatures.items():
        member = PeerId(peer)
        if not tools.verify(signers[member], record_bytes_to_sign(run.id, record.step, member, digest), signature):
            return f"the signature of {peer.hex()} does not fit"
    return None


def _disagreement(record: StepRecord, roster: Roster) -> str | None:
    if record.members != roster.members:
        return "it is of another roster"
    if record.changed != roster.changed or record.step <= roster.changed:
        return "it does not follow the last change of members or keys: one is left out"
    return None


def _misshapen(signed: CertifiedRecord, record: StepRecord) -> str | None:
    """What no honest member signs."""
    if len(record.roots) != len(record.contributors):
        return "it does not say what everyone committed to"
    return None if encode_record(record) == signed.record else "it is not written the one way records are written"
