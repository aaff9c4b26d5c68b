"""Answers of the daemon and of relays, read without libp2p."""

import pytest

from troth.crypto import Identity
from troth.network.transport.libp2p_daemon import DaemonError, in_words, protobuf_fields


def test_a_relays_terms_are_read() -> None:
    limit = bytes.fromhex("0878") + b"\x10" + bytes.fromhex("808080808020")  # 120 s, 2**40 bytes
    answer = bytes.fromhex("0802") + b"\x22" + bytes([len(limit)]) + limit + bytes.fromhex("2864")
    assert protobuf_fields(answer) == {1: 2, 4: limit, 5: 100}
    assert protobuf_fields(limit) == {1: 120, 2: 2**40}
    assert protobuf_fields(b"") == {}


@pytest.mark.parametrize("raw", ["08", "0a05", "0d00000000", "80" * 20, "0aff" + "ff" * 9 + "01"])
def test_nonsense_is_not(raw: str) -> None:
    with pytest.raises(DaemonError):
        protobuf_fields(bytes.fromhex(raw))


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        ("failed to dial: peer id mismatch: expected 12D3", "another key answers than"),
        ("protocols not supported: [/troth/1]", "it does not speak Troth, or another version of it"),
        ("error opening relay circuit: NO_RESERVATION (204)", "the relay does not know it (any more)"),
        ("dial backoff", "it could not be reached a moment ago; waiting before the next attempt"),
        ("Connect failed. msg=no   route\nto host \x1b[2J", "cannot reach it: no route to host ?[2J"),
    ],
)
def test_complaints_are_told_in_words_for_people(complaint: str, words: str) -> None:
    said = in_words(complaint, Identity.from_secret(b"a" * 32).peer)
    assert said.startswith(words)
    assert said.isprintable()
