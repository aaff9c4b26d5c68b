"""Inputs of the decoders of records, evidence and states, and what these may do with them."""

from random import Random

import msgspec

from tests.fuzz.drawn import drawn
from tests.fuzz.evidence import forger
from tests.fuzz.message_inputs import one_input
from tests.fuzz.sessions import TOOLS, Fed
from troth.crypto import Digest
from troth.evidence.file_format import BanFile, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.state import State
from troth.protocol.history import Flaw, follow
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Malformed


def record_bytes(random: Random) -> bytes:
    return encode_record(drawn(StepRecord, random))


def feed_record(raw: bytes) -> Fed:
    try:
        record = decode_record(raw)
    except msgspec.MsgspecError:
        return one_input(False)
    assert set(record.banned) <= record.leaving
    written = encode_record(record)  # compared as bytes, since not every number equals itself
    assert encode_record(decode_record(written)) == written
    return one_input(True)


def text_of(raw: bytes) -> str:
    """Read any bytes as some text, and the bytes of a text as that text."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def feed_text(raw: bytes) -> Fed:
    text = text_of(raw)
    try:
        file = from_text(text)
    except ValueError:
        return one_input(False)
    assert isinstance(file, BanFile)
    assert to_text(file) == text, "a file has one form"
    return one_input(True)


def feed_evidence(raw: bytes) -> Fed:
    text = text_of(raw)
    try:
        proof = verify_ban(text)
    except UnprovedError:
        return one_input(False)
    assert proof.banned.hex() == from_text(text).banned
    assert proof.banned.hex() in proof.sentence()
    return one_input(True)


def feed_certified_records(raw: bytes) -> Fed:
    """Certified records as a member that comes back is shown them."""
    try:
        certified = msgspec.msgpack.decode(raw, type=tuple[CertifiedRecord, ...])
    except msgspec.MsgspecError:
        return one_input(False)  # it would not have come through as a packet
    run, model = forger().run, Digest(decode_record(forger().certified[0].record).state_before)
    followed = follow(run, State.first(run, None), model, certified, TOOLS)
    if isinstance(followed, Flaw):
        return one_input(False)
    assert len(followed.records) == len(certified)
    assert followed.roster.members == tuple(sorted(set(followed.roster.members)))
    return one_input(True)


def feed_state(raw: bytes) -> Fed:
    """A state, of which nothing is known but its digest."""
    work = forger().work
    training = work.unpack(raw)
    if isinstance(training, Malformed):
        return one_input(False)
    assert len(work.digest(training)) == 32
    return one_input(True)
