"""Evidence of a ban: everything a stranger needs to check it offline, in one JSON file.

It holds the run's founding data, the signed records that changed the roster, the record of the step before (with what
contributors had committed to), the accusation, the votes that convict, and the signed record that banned. `verify.py` checks
it; nothing in it is to be believed without that.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from troth.crypto import PeerId, Signature
from troth.protocol.messages import Announced, Envelope, Kind, Vote, said_as
from troth.protocol.records import MOST_OWED, Judgement, StepRecord, encode_record
from troth.protocol.roster import Roster
from troth.protocol.run import Run
from troth.protocol.state import Outcome
from troth.training.work import Training

FORMAT = "troth ban evidence 5"
LAST_STEPS = MOST_OWED + 1  # whose work may be disputed: an audit comes a step later, and may come to nothing so often
MOST_BYTES = 64 << 20  # of a file; honest members' messages come to far less

_REASONS = {
    Kind.GRADIENT: "its gradient of step {step} does not follow from its seed",
    Kind.AUDITED_REPORT: "its report of step {step} does not follow from its gradient",
    Kind.REPORT: "its report about part {part} does not follow from the gradient it committed to",
    Kind.AGGREGATE: "its aggregate of part {part} is wrong, or it let a wrong report about it pass",
    Kind.COVER: "it let a wrong report about part {part} pass in step {step}",
    Kind.EQUIVOCATION: "it said two different things in one announcement of step {step}",
    Kind.DEVIATION: "its gradient of step {step} is farther off than other hardware explains",
}


def reason_for(judgement: Judgement, name: Callable[[PeerId], str]) -> str:
    """Why somebody is banned, for people."""
    if judgement.banned != judgement.target:
        return f"it accused {name(PeerId(judgement.target))} falsely"
    reason = _REASONS[judgement.kind].format(step=judgement.step, part=judgement.part)
    return reason if judgement.accuser is None else f"{reason} (found by {name(PeerId(judgement.accuser))})"


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

    nonce: str
    description: str
    founders: list[str]
    parameters: dict[str, int | bool | str | None]  # fractions in hexadecimal, so that they are exact


class BanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `checksum` finds accidents; lies are found by the signatures."""

    format: str
    banned: str
    run: Founding
    history: list[SignedRecord]  # the records before those that changed the roster
    before: list[SignedRecord]  # of the last steps: they hold what contributors committed to
    accusation: SignedMessage | None  # where there was an accuser
    votes: list[SignedMessage]  # where there was a vote: those that convict, as many as it takes
    twice: list[SignedMessage]  # where somebody said two things in one place
    phase: int  # of that place; 0 where there is none
    record: SignedRecord  # of the step that banned
    checksum: str


def evidence_name(step: int, who: str) -> str:
    return f"ban-step{step}-{who}.json"


@dataclass(frozen=True)
class BanEvidence:
    """A file ready to be written, and the state that its recomputation starts from."""

    file: BanFile
    step: int
    training: Training | None  # where the disputed gradient was taken; None at a peer that was not there then

    def file_name(self, who: str) -> str:
        return evidence_name(self.step, who)

    @property
    def text(self) -> str:
        return to_text(self.file)


@dataclass(frozen=True)
class Certified:
    """A step, and who signed its record."""

    seen: Outcome[Training]
    signed: SignedRecord


@dataclass
class History:
    """The signed records that changed the roster, and the last steps: kept by whoever may have to prove a ban.

    The signatures under a record come with the step after it, so evidence waits for that step (SPEC U2).
    """

    run: Run
    changes: list[SignedRecord] = field(default_factory=list)  # before the last ones
    last: tuple[Certified, ...] = ()  # the last steps: what may still be audited, and what a ban needs
    uncertified: Outcome[Training] | None = None  # the step after those

    def add(self, outcome: Outcome[Training]) -> list[BanEvidence]:
        """A step has ended: evidence of the bans in the step before, whose record it certifies. A record that a restart threw
        away is forgotten, and its bans with it: they are brought up again (SPEC B5)."""
        made = []
        before = self.uncertified
        if before is not None and before.record.step < outcome.record.step:
            made = self._certify(before, outcome.certificate)
        self.uncertified = outcome
        last = outcome.state.last
        closed = last is not None and len(outcome.closing) >= last.quorum  # else nobody could check it (SPEC U4)
        return made + (self._certify(outcome, outcome.closing) if closed else [])

    def _certify(self, seen: Outcome[Training], signatures: Mapping[PeerId, Signature]) -> list[BanEvidence]:
        certified = Certified(seen, sign_off(seen.record, signatures))
        banned: dict[PeerId, Judgement] = {}
        for judgement in seen.record.judgements:
            if judgement.banned is not None:
                banned.setdefault(judgement.banned, judgement)  # one is enough to be banned, and to prove it
        made = [ban_evidence(self.run, self, certified, judgement) for judgement in banned.values()]
        for old in self.last[: -LAST_STEPS + 1]:
            if old.seen.record.changes_roster:
                self.changes.append(old.signed)
        self.last = (*self.last[-LAST_STEPS + 1 :], certified)
        return made


def ban_evidence(run: Run, history: History, certified: Certified, judgement: Judgement) -> BanEvidence:
    """Gather what proves this judgement, from what an honest member holds when the step's record is certified."""
    seen = certified.seen
    banned = judgement.banned
    assert banned is not None
    accuser = None if judgement.accuser is None else seen.accuses[judgement.attempt][PeerId(judgement.accuser)]
    place, *twice = seen.doubles[banned] if judgement.kind == Kind.EQUIVOCATION else (None,)
    unsummed = BanFile(
        format=FORMAT,
        banned=banned.hex(),
        run=Founding(
            nonce=run.nonce.hex(),
            description=run.description.decode(),
            founders=[peer.hex() for peer in run.founders],
            parameters=run.parameters.plain(),
        ),
        history=list(history.changes),
        before=[last.signed for last in history.last],
        accusation=_message(accuser) if accuser else None,
        votes=[] if twice else _convicting(seen.votes.get(judgement.attempt, {}), judgement, _needed(run, history)),
        twice=[_signed(banned, envelope) for envelope in twice],
        phase=place.phase if place else 0,
        record=certified.signed,
        checksum="",
    )
    file = msgspec.structs.replace(unsummed, checksum=checksum(unsummed))
    return BanEvidence(file, seen.record.step, _state_at(judgement.step, history, seen))


def _needed(run: Run, history: History) -> int:
    return (history.last[-1].seen.state.roster if history.last else Roster.founding(run)).quorum


def _convicting(votes: Mapping[PeerId, Announced], judgement: Judgement, enough: int) -> list[SignedMessage]:
    """The shortest: a vote is signed as a whole, so what liars add to theirs stays out as long as others' are enough."""
    found = [vote for vote in votes.values() if convicts(said_as(vote, Vote), judgement)]
    shortest = sorted(found, key=lambda vote: (len(vote.envelope.payload), vote.sender))[:enough]
    return [_message(vote) for vote in sorted(shortest, key=lambda vote: vote.sender)]


def convicts(vote: Vote, judgement: Judgement) -> bool:
    """Whether this is a vote for what was judged. Who votes on one charge twice has no say in it."""
    charge = (judgement.accuser, judgement.target, judgement.kind, judgement.step, judgement.part)
    said = [b.verdict for b in vote.ballots if (b.accuser, b.target, b.kind, b.step, b.part) == charge]
    return said == [judgement.verdict]


def _state_at(step: int, history: History, seen: Outcome[Training]) -> Training | None:
    """The model at the start of that step, one of the last ones."""
    outcomes = (*(last.seen for last in history.last), seen)
    return next((one.state.kept[step].training for one in outcomes if step in one.state.kept), None)


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
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text):,} characters are too many: evidence of a ban has at most {MOST_BYTES:,}")
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


def exact_bytes(text: str) -> bytes:
    """Hexadecimal as we write it: other spellings of the same bytes are refused, so that a file has one form."""
    raw = bytes.fromhex(text)
    if raw.hex() != text:
        raise ValueError("hexadecimal digits must be lower case and without spaces")
    return raw


def envelope_of(message: SignedMessage) -> Envelope:
    return Envelope(exact_bytes(message.payload), exact_bytes(message.signature))


def _message(announced: Announced) -> SignedMessage:
    return _signed(announced.sender, announced.envelope)


def _signed(sender: PeerId, envelope: Envelope) -> SignedMessage:
    return SignedMessage(sender.hex(), envelope.payload.hex(), envelope.signature.hex())
