"""Evidence of a ban: everything a stranger needs to check it offline, in one JSON file.

It holds the run's founding data, the signed records that changed the roster, the accused's signed commitment, the
accusation, the votes, and the signed record that banned. `verify.py` checks it; nothing in it is to be believed without that.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from troth.crypto import PeerId, Signature
from troth.protocol.messages import Announced, Envelope, Verdict, Vote
from troth.protocol.records import Judgement, StepRecord, encode_record
from troth.protocol.run import Run
from troth.protocol.state import Kept, Outcome
from troth.training.work import Training

FORMAT = "troth ban evidence 1"


class SignedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step's record as bytes (hex) and the members' signatures over it."""

    record: str
    signatures: dict[str, str]


class SignedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An announcement as it was signed (all hex). Where it belongs follows from its place in the file."""

    sender: str
    payload: str
    signature: str


class Founding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the run's name is the hash of."""

    description: str
    founders: list[str]
    size: int
    tau: str  # as a hexadecimal float, so that it is exact
    byzantine: int
    validators: int
    projections: int
    beyond_guarantee: bool


class BanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `checksum` finds accidents; lies are found by the signatures."""

    format: str
    banned: str
    run: Founding
    history: list[SignedRecord]  # the records before this step that changed the roster
    before: SignedRecord  # the record of the step in which the disputed gradient was sent
    commit: SignedMessage  # the accused's, in that step
    control: (
        SignedMessage  # another contributor's, in that step: shows whether a recomputing machine gives the same bits
    )
    accusation: SignedMessage
    votes: list[SignedMessage]
    record: SignedRecord  # of the step that banned
    checksum: str


@dataclass(frozen=True)
class BanEvidence:
    """A file ready to be written, and the state that its recomputation starts from."""

    file: BanFile
    step: int
    training: Training

    def file_name(self, number: int) -> str:
        return f"ban-step{self.step}-peer{number}.json"

    @property
    def text(self) -> str:
        return to_text(self.file)


@dataclass
class History:
    """The signed records that changed the roster, and the last step: kept by whoever may have to prove a ban."""

    run: Run
    changes: list[SignedRecord] = field(default_factory=list)
    last: Outcome[Training] | None = None

    def add(self, outcome: Outcome[Training]) -> None:
        if outcome.record.banned:
            self.changes.append(sign_off(outcome.record, outcome.record_signatures))
        self.last = outcome


def ban_evidence(run: Run, history: History, seen: Outcome[Training], judgement: Judgement) -> BanEvidence:
    """Gather what proves this judgement, from what an honest member holds at the end of the step."""
    last, banned = history.last, judgement.banned
    assert banned is not None
    assert last is not None
    kept = last.state.kept
    assert kept is not None
    numbers = run.parameters
    changed_just_before = bool(last.record.banned)
    unsummed = BanFile(
        format=FORMAT,
        banned=banned.hex(),
        run=Founding(
            description=run.description.decode(),
            founders=[peer.hex() for peer in run.founders],
            size=numbers.size,
            tau=numbers.tau.hex(),
            byzantine=numbers.byzantine,
            validators=numbers.validators,
            projections=numbers.projections,
            beyond_guarantee=numbers.beyond_guarantee,
        ),
        history=history.changes[:-1] if changed_just_before else list(history.changes),
        before=sign_off(last.record, last.record_signatures),
        commit=_message(kept.commits[PeerId(judgement.target)]),
        control=_message(_control(kept, seen.votes, judgement)),
        accusation=_message(seen.accuses[PeerId(judgement.accuser)]),
        votes=[_message(vote) for _, vote in sorted(seen.votes.items())],
        record=sign_off(seen.record, seen.record_signatures),
        checksum="",
    )
    file = msgspec.structs.replace(unsummed, checksum=checksum(unsummed))
    return BanEvidence(file, seen.record.step, kept.training)


def sign_off(record: StepRecord, signatures: Mapping[PeerId, Signature]) -> SignedRecord:
    return SignedRecord(
        encode_record(record).hex(), {peer.hex(): signature.hex() for peer, signature in sorted(signatures.items())}
    )


def to_text(file: BanFile) -> str:
    """The one way to write it down: a file that is not exactly this is refused."""
    return json.dumps(msgspec.to_builtins(file), indent=1, sort_keys=True) + "\n"


def checksum(file: BanFile) -> str:
    return hashlib.sha256(to_text(msgspec.structs.replace(file, checksum="")).encode()).hexdigest()


def from_text(text: str) -> BanFile:
    """Parse strictly; raises ValueError for anything but exactly what `to_text` writes, checksum included."""
    try:
        builtins: Any = json.loads(text)
        file = msgspec.convert(builtins, BanFile, strict=True)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"this is not a ban evidence file: {error}") from error
    if to_text(file) != text:
        raise ValueError("the file is not written the one way evidence is written")
    if checksum(file) != file.checksum:
        raise ValueError("the checksum does not fit: the file was changed or damaged")
    return file


def envelope_of(message: SignedMessage) -> Envelope:
    return Envelope(bytes.fromhex(message.payload), bytes.fromhex(message.signature))


def _message(announced: Announced) -> SignedMessage:
    envelope = announced.envelope
    return SignedMessage(announced.sender.hex(), envelope.payload.hex(), envelope.signature.hex())


def _control(kept: Kept[Training], votes: Mapping[PeerId, Announced], judgement: Judgement) -> Announced:
    """A contributor that sided with the majority; the accused itself if there is no other."""
    for peer, announced in sorted(votes.items()):
        assert isinstance(announced.message, Vote)
        sided = any(
            (b.accuser, b.target) == (judgement.accuser, judgement.target)
            and b.verdict == (judgement.verdict or Verdict.ACCUSED)
            for b in announced.message.ballots
        )
        if sided and peer in kept.commits and peer != judgement.target:
            return kept.commits[peer]
    return kept.commits[PeerId(judgement.target)]
