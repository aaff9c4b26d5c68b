"""A run's history, as everybody reads it who does not take part: one certified record, lines of a journal, and the records that
follow from a state that the reader knows (SPEC U2, E5, B2)."""

import json
import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from weakref import ref

import msgspec

from troth.crypto import Digest, PeerId, Signature, Slot, blob_digest, tagged_hash, valid_peer
from troth.protocol.core.records import (
    StepRecord,
    chained_state,
    decode_record,
    encode_record,
    names_content,
    record_bytes_to_sign,
)
from troth.protocol.core.roles import PendingAudits
from troth.protocol.core.roster import CommonState, Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import ATTEMPTS_PER_MEMBER, MOST_MEMBERS, Envelope, Incarnation, Phase, Step
from troth.protocol.wire.phases import PHASES, most_bytes
from troth.protocol.wire.primitives import Primitives


@dataclass(frozen=True)
class Flaw:
    """The reason why something is no part of a history."""

    reason: str


# One certified record: its one form as text, and what it has to be whoever reads it (SPEC U2).


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


def digest_of(text: str) -> Digest:
    """Parse a digest; refuse anything but 32 bytes."""
    return Digest(_exactly(32, text))


def key_of(text: str) -> PeerId:
    """Parse a public key; refuse bytes that are no valid one."""
    key = exact_bytes(text)
    if not valid_peer(key):
        raise ValueError("not a valid key")
    return PeerId(key)


def _exactly(count: int, text: str) -> bytes:
    raw = exact_bytes(text)
    if len(raw) != count:
        raise ValueError(f"not {count} bytes")
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


# Lines of a journal, decoded strictly: each has one form, and is chained to the one before (SPEC E5).
#
# Nothing in them is believed. The chain finds accidents and clumsy changes; whoever rewrites a journal can make a new chain, and
# then signatures are what is left.


FORMAT = "troth journal 6"
_LINE = re.compile(rb'\{"chain": "([0-9a-f]{64})", "what": (\{.*\})\}')
_ANNOUNCED = b'{"kind": "announced"'  # the beginning of such a line


class EntryError(ValueError):
    """A line that no peer writes; the message says why."""


@dataclass(frozen=True)
class Begin:
    """The first line of each file."""

    format: str
    run: str
    after: Digest  # end of the chain before this file


@dataclass(frozen=True)
class Said:
    """Everyone's announcement for a slot; nothing about the envelopes was checked."""

    step: int
    attempt: int
    phase: Phase
    incarnation: int
    envelopes: dict[PeerId, Envelope]

    def slot(self, run: Digest) -> Slot:
        return Slot(run, self.step, self.phase, self.attempt, self.incarnation)


@dataclass(frozen=True)
class Recorded:
    """A record as bytes."""

    raw: bytes


@dataclass(frozen=True)
class Signed:
    """Signatures under a record that stands before."""

    record: Digest
    signatures: dict[PeerId, bytes]

    def under(self, record: Recorded | None) -> CertifiedRecord | None:
        """The record with these signatures, if they are said to be under it."""
        fits = record is not None and blob_digest(record.raw) == self.record
        signatures = {bytes(peer): one for peer, one in self.signatures.items()}
        return CertifiedRecord(record.raw, signatures) if record is not None and fits else None


Entry = Begin | Said | Recorded | Signed


class _Line(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind"):
    pass


class _Begin(_Line, tag="begin"):
    format: str
    run: str
    after: str


_Attempt = Annotated[int, msgspec.Meta(ge=0, lt=ATTEMPTS_PER_MEMBER * MOST_MEMBERS)]
_Pair = tuple[str, str]


class _Announced(_Line, tag="announced"):
    slot: tuple[Step, _Attempt, Phase, Incarnation]
    said: Annotated[dict[str, _Pair], msgspec.Meta(max_length=MOST_MEMBERS)]


class _Record(_Line, tag="record"):
    record: str


class _Signatures(_Line, tag="signatures"):
    of: str
    signatures: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_MEMBERS)]


_DECODER = msgspec.json.Decoder(_Begin | _Announced | _Record | _Signatures, strict=True)


def chain_of(raw: bytes) -> tuple[Digest, bytes] | None:
    """The chain up to a line, as the line names it, and its content; None if this is no line. Whether the chain is right, its
    reader has to see (`next_digest`)."""
    found = _LINE.fullmatch(raw)
    return None if found is None else (Digest(bytes.fromhex(found[1].decode())), found[2])


def first_digest(run: Digest) -> Digest:
    """The chain before the first line."""
    return tagged_hash("troth/journal/1", run)


def next_digest(chain: Digest, content: bytes) -> Digest:
    """The chain up to a line with this content."""
    return tagged_hash("troth/journal/1", chain, content)


def is_announced(content: bytes) -> bool:
    """Whether a line holds announcements, which are most of a journal, by its first bytes."""
    return content.startswith(_ANNOUNCED)


def decode(content: bytes) -> Entry:
    """What a line says. Raises `EntryError` for anything but the one way in which it is written."""
    try:
        line = _DECODER.decode(content)
        written = json.dumps(msgspec.to_builtins(line), sort_keys=True).encode()
        if written != content:  # a key that stands there twice, for one
            raise EntryError("it is not written the one way lines are written")
        return _entry(line)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise EntryError(str(error)) from error


def _entry(line: _Begin | _Announced | _Record | _Signatures) -> Entry:
    match line:
        case _Begin():
            return Begin(line.format, line.run, digest_of(line.after))
        case _Announced():
            step, attempt, phase, incarnation = line.slot
            if phase not in PHASES:
                raise EntryError(f"nothing is announced in {phase.name}")
            envelopes = {key_of(peer): _envelope(phase, pair) for peer, pair in line.said.items()}
            return Said(step, attempt, phase, incarnation, envelopes)
        case _Record():
            return Recorded(exact_bytes(line.record))
        case _Signatures():
            signatures = {key_of(peer): _exactly(64, one) for peer, one in line.signatures.items()}
            return Signed(digest_of(line.of), signatures)


def _envelope(phase: Phase, pair: _Pair) -> Envelope:
    payload, signature = (b64decode(text, validate=True) for text in pair)
    if (b64encode(payload).decode(), b64encode(signature).decode()) != pair:
        raise EntryError("bytes are not written the one way they are written")
    if len(payload) > most_bytes(phase) or len(signature) != 64:
        raise EntryError("an envelope of the wrong size")
    return Envelope(payload, signature)


# Certified records, followed from a state that this peer knows: one voice is enough, since nothing is believed (SPEC B2).
#
# A quorum of its own members signed each record, and the last one holds the digest of the model.


T = TypeVar("T")


@dataclass(frozen=True)
class Followed:
    """Records that continue a known state, and the roster after them."""

    records: tuple[StepRecord, ...]
    roster: Roster

    @property
    def step(self) -> int:
        """Step after the last record."""
        return self.records[-1].step + 1

    @property
    def tip(self) -> bytes:
        return encode_record(self.records[-1])


class HistoryEnd(NamedTuple):
    """The end of a history: what its next record has to continue."""

    step: int
    model: Digest
    incarnation: int
    common: CommonState
    ended: bool = False

    @classmethod
    def of(cls, state: State[T], model: Digest) -> "HistoryEnd":
        """Where a peer stands in this state, with a model of this digest."""
        return cls(state.step, model, state.incarnation, state.common, state.closed)

    def after(self, record: StepRecord, run: Run) -> "HistoryEnd":
        """Where the record leads to."""
        model, common = Digest(record.state_after), self.common.after(record, run)
        return HistoryEnd(record.step + 1, model, record.incarnation, common, record.ends_run)

    def disagreement(self, record: StepRecord) -> str | None:
        """Why the record, whoever signed it, is not the next one; None if it may be."""
        if self.ended:
            return f"the run ended in step {self.step - 1}"
        scales = self.common.scales
        wanted: dict[str, Any] = {
            "step": self.step,
            "members": self.common.roster.members,
            "state before": self.model,
            "seed randomness": self.common.earlier_randomness,
            "tau": scales.tau,
            "updates": scales.updates + record.updated,
        }
        wrong = [name for name, value in wanted.items() if getattr(record, name.replace(" ", "_")) != value]
        if record.incarnation < self.incarnation:
            wrong.append("incarnation")
        return f"its {wrong[0]} does not continue the records before it" if wrong else None


_Way = list[tuple[CertifiedRecord, StepRecord, HistoryEnd]]  # records that were followed, each with where it led to


class FollowedBefore(Generic[T]):
    """The longest histories that were followed from the last two states. Members show the same records in every step, and one
    more: a peer that verified all of them each time would fall behind a quick run for ever."""

    def __init__(self) -> None:
        self._ways: deque[tuple[ref[State[T]], Digest, _Way]] = deque(maxlen=2)  # not the states: they are large

    def of(self, known: State[T], model: Digest) -> _Way:
        return next((way for state, name, way in self._ways if state() is known and name == model), [])

    def put(self, known: State[T], model: Digest, way: _Way) -> None:
        """Keep a history, if it is longer than the one kept: liars that show short ones must not have the rest verified anew."""
        before = self.of(known, model)
        if len(way) > len(before):
            kept = [one for one in self._ways if one[2] is not before]
            self._ways = deque([*kept, (ref(known), model, way)], maxlen=2)


def follow(
    run: Run,
    known: State[T],
    model: Digest,
    certified: Sequence[CertifiedRecord],
    tools: Primitives,
    before: FollowedBefore[T] | None = None,
) -> Followed | Flaw:
    """Records, if they continue this state and its model: each follows from the one before, and a quorum of its members signed
    it. A step that was made again has two records: those that continue the other one lead elsewhere (SPEC B5).

    Those that are the same, signatures included, as the ones followed `before` are not verified again."""
    known_way = [] if before is None else before.of(known, model)
    pairs = zip(known_way, certified, strict=False)
    way = [passed for passed, _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs)]
    here = way[-1][2] if way else HistoryEnd.of(known, model)
    for signed in certified[len(way) :]:
        record = open_next(run, here, signed, tools)
        if isinstance(record, Flaw):
            return record
        if record.standing != here.common.standing_after(record, run):
            return Flaw(f"the record of step {record.step}: it names another standing than it leads to")
        here = here.after(record, run)
        way.append((signed, record, here))
    if before is not None:
        before.put(known, model, way)
    return Followed(tuple(record for _, record, _ in way), here.common.roster) if way else Flaw("there is no record")


def open_next(run: Run, here: HistoryEnd, signed: CertifiedRecord, tools: Primitives) -> StepRecord | Flaw:
    """The record, if a history that ends here goes on with it, whatever standing it names (SPEC B2)."""
    record = record_of(signed)
    if record is None:
        return Flaw("this is no record")
    flaw = here.disagreement(record) or flaw_of(run, signed, record, here.common.roster, tools)
    if flaw is None and not names_state(run, record):
        flaw = "it does not name the state after it as it has to"
    return record if flaw is None else Flaw(f"the record of step {record.step}: {flaw}")


def follow_changes(run: Run, changes: Iterable[CertifiedRecord], tools: Primitives) -> Roster | Flaw:
    """The roster after the records that changed it, all of them from the founders on (SPEC J8)."""
    roster = Roster.founding(run)
    for signed in changes:
        record = open_record(run, signed, roster, tools)
        if isinstance(record, Flaw):
            return record
        if not record.changes_roster:
            return Flaw("the history holds more than changes of the members")
        roster = roster.after(record)
    return roster


def names_state(run: Run, record: StepRecord) -> bool:
    """Tell whether a record names the state after it as it has to: by content, or chained (SPEC U5)."""
    every, returned = run.parameters.content_every, bool(record.returned or record.admitted)
    has_to = record.closing or names_content(every, record.step, updated=record.updated, returned=returned)
    if record.content != has_to:
        return False
    before, aggregates = Digest(record.state_before), Digest(record.aggregates)
    return record.content or record.state_after == chained_state(before, aggregates, record.factor, record.updates)


def state_after(
    run: Run, state: State[T], records: Sequence[StepRecord], training: T, model: Digest, tools: Primitives
) -> State[T]:
    """The state after records that were followed, at least one. Audit records come from observing; of those that were here
    before, the ones stay that audits still need: they may be dealt to this peer (SPEC R7, K1). `model` is the digest of
    `training`, which may be another one than the last record names."""
    common = state.common
    for record in records:
        roster, common = common.roster, common.after(record, run)
    last = records[-1]
    needed = PendingAudits.after(last).owed_steps | {last.step - 1}
    kept = {step: kept for step, kept in state.audit_records.items() if step in needed}
    return State.after(last, roster, common, training, model, kept, tools)
