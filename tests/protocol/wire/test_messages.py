"""Messages: their signed bytes, and how strictly they are read."""

import struct

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.protocol.wire.examples import EXAMPLES
from troth.crypto import Digest, Identity, PeerId, Slot, blob_digest, signed_bytes, verify
from troth.protocol.wire.messages import (
    Accusation,
    Accuse,
    Ballot,
    Center,
    ChargeKind,
    Clip,
    Commit,
    GuiltySide,
    Malformed,
    Message,
    Phase,
    Report,
    Ticket,
    Vote,
)
from troth.protocol.wire.phases import decode, encode, phase_of, seal
from troth.protocol.wire.primitives import Primitives

ALICE, BOB = (Identity.from_secret(bytes([k]) * 32) for k in (1, 2))
RUN = Digest(b"r" * 32)
COMMIT_SLOT = Slot(RUN, step=7, phase=Phase.COMMIT)


@pytest.mark.parametrize(
    "elsewhere",
    [
        Slot(Digest(b"s" * 32), 7, Phase.COMMIT),
        Slot(RUN, 8, Phase.COMMIT),
        Slot(RUN, 7, Phase.CLIP),
        Slot(RUN, 7, Phase.COMMIT, attempt=1),
        Slot(RUN, 7, Phase.COMMIT, incarnation=1),
    ],
)
def test_a_signature_is_worth_nothing_in_another_place(elsewhere: Slot) -> None:
    """[M1] Replays between runs, steps, phases, attempts and incarnations fail."""
    envelope, tools = seal(ALICE, COMMIT_SLOT, EXAMPLES[0]), Primitives()
    assert not isinstance(tools.open(COMMIT_SLOT, ALICE.peer, envelope), Malformed)
    assert isinstance(tools.open(elsewhere, ALICE.peer, envelope), Malformed)


def test_a_signature_is_worth_nothing_in_another_name() -> None:
    """[M1] Impersonation fails."""
    assert isinstance(Primitives().open(COMMIT_SLOT, BOB.peer, seal(ALICE, COMMIT_SLOT, EXAMPLES[0])), Malformed)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_changed_byte_of_a_payload_is_noticed(where: int, flip: int) -> None:
    """[M1] The digest of the raw payload is what is signed."""
    envelope = seal(ALICE, COMMIT_SLOT, EXAMPLES[0])
    payload = bytearray(envelope.payload)
    payload[where % len(payload)] ^= flip
    signed = signed_bytes(COMMIT_SLOT, ALICE.peer, blob_digest(bytes(payload)))
    assert not verify(ALICE.peer, signed, envelope.signature)


def test_signatures_are_verified_strictly() -> None:
    """[M2] A signature with S + L verifies leniently; here it does not, nor does a key of small order."""
    order = 2**252 + 27742317777372353535851937790883648493
    signature = ALICE.sign(b"message")
    assert verify(ALICE.peer, b"message", signature)
    s = int.from_bytes(signature[32:], "little") + order
    assert not verify(ALICE.peer, b"message", signature[:32] + s.to_bytes(32, "little"))
    assert not verify(ALICE.peer, b"message", signature[:-1])
    for y in (0, 1, 2**255 - 20):
        for sign in (0, 1 << 255):
            small = PeerId((y | sign).to_bytes(32, "little"))
            # The identity as key and R, S = 0: valid for every message, to a lenient verifier.
            assert not verify(small, b"anything", (1).to_bytes(32, "little") + bytes(32))


@pytest.mark.parametrize("message", EXAMPLES)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    """[M3]"""
    assert decode(phase_of(message), encode(message)) == message


@pytest.mark.long
@pytest.mark.parametrize("message", EXAMPLES)
@given(data=st.data())
def test_damaged_payloads_are_malformed_or_other_messages_but_never_crash(
    message: Message, data: st.DataObject
) -> None:
    """[M3] Any bytes at all give a message or a reason."""
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    result = decode(phase_of(message), bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    assert isinstance(result, (Malformed, type(message)))


@given(st.sampled_from([p for p in Phase if p < Phase.CLOSE]), st.binary(max_size=300))
def test_garbage_never_crashes(phase: Phase, payload: bytes) -> None:
    """[M3]"""
    decode(phase, payload)


@pytest.mark.parametrize(
    ("phase", "payload", "why"),
    [
        (Phase.COMMIT, bytes(20_000), "bytes"),
        (Phase.COMMIT, encode(Commit(b"short", b"b" * 32, b"c" * 32)), "length"),
        (Phase.COMMIT, encode(EXAMPLES[3]), ""),
        (Phase.CLIP, encode(Clip((Center(0, b"d" * 32, float("nan")),))), "finite"),
        (Phase.CLIP, encode(Clip((Center(0, b"d" * 32, -1.0),))), "finite"),
        (Phase.REPORT, encode(Report(struct.pack("<d", float("inf")))), "finite"),
        (Phase.REPORT, encode(Report(b"123")), "finite"),
        (Phase.ACCUSE, encode(Accuse((Accusation(b"f" * 32, ChargeKind.GRADIENT, 6),) * 3000, b"g" * 32)), ""),
        (Phase.CLIP, encode(Clip((Center(-1, b"d" * 32, 1.0),))), ""),
        (Phase.CLIP, encode(Clip((), missing=(b"short",))), "length"),
        (Phase.ACCUSE, encode(Accuse((Accusation(b"f" * 32, ChargeKind.GRADIENT, -1),), b"g" * 32)), ""),
        (Phase.VOTE, encode(Vote((Ballot(None, b"i" * 32, ChargeKind.REPORT, 2**62, 2, GuiltySide.ACCUSER),))), ""),
    ],
)
def test_numbers_that_are_too_large_or_none_are_malformed(phase: Phase, payload: bytes, why: str) -> None:
    """[M3] Bounded before it is parsed; finite."""
    result = decode(phase, payload)
    assert isinstance(result, Malformed)
    assert why in result.reason


def test_an_address_that_is_no_text_is_malformed() -> None:
    """[M3, J4] And not an error in whoever reads it: any stranger's ticket goes into everybody's Commit."""
    right = encode(Commit(None, bytes(32), bytes(32), tickets=(Ticket(bytes(32), 7, "host:1", bytes(64)),)))
    wrong = right.replace(b"host:1", b"host\xff1")
    assert right != wrong
    assert not isinstance(decode(Phase.COMMIT, right), Malformed)
    assert isinstance(decode(Phase.COMMIT, wrong), Malformed)
    assert isinstance(decode(Phase.COMMIT, right.replace(b"host:1", b"ho t\n1")), Malformed)
