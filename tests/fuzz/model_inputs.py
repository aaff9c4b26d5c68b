"""Inputs of the check of `model.json`, and what it may do with them."""

from functools import cache
from random import Random

import msgspec

from tests.evidence.closed_runs import ClosedRun
from tests.fuzz.drawn import drawn
from tests.fuzz.evidence_inputs import bytes_of, text_of
from tests.fuzz.message_inputs import one_input
from tests.fuzz.mutate import damaged
from tests.fuzz.sessions import Fed
from troth.evidence.file_format import UnprovedError, to_text
from troth.evidence.model_file import ModelFile, from_text
from troth.evidence.verify_model import verify_model
from troth.protocol.core.records import StepRecord
from troth.protocol.wire.frames import CertifiedRecord


@cache
def closed() -> ClosedRun:
    return ClosedRun()


@cache
def _right_text() -> str:
    return closed().text()


def model_bytes(_random: Random) -> bytes:
    return bytes_of(_right_text())


def hostile_model_bytes(random: Random) -> bytes:
    """Damaged text, odd values in the right places, or odd records that all members signed."""
    match random.randrange(3):
        case 0:
            return damaged(model_bytes(random), random)
        case 1:
            made = msgspec.structs.replace(drawn(ModelFile, random), founding=closed().file().founding)
            return bytes_of(to_text(made))
        case _:
            return bytes_of(closed().text(last=_odd_record(random)))


def _odd_record(random: Random) -> CertifiedRecord:
    run, made = closed(), drawn(StepRecord, random)
    kept = {name: getattr(run.closing, name) for name in made.__struct_fields__ if random.random() < 0.7}
    odd = msgspec.structs.replace(made, **kept)
    return run.signed(odd, [one for one in (*run.founders, run.successor) if one.peer in run.members])


def feed_model(raw: bytes) -> Fed:
    text = text_of(raw)
    try:
        proof = verify_model(text)
    except UnprovedError:
        return one_input(False)
    assert to_text(from_text(text)) == text, "a file has one form"
    assert proof.record.closing
    assert proof.record.members == proof.roster.members
    assert proof.sentence()
    return one_input(True)
