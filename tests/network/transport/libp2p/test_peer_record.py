"""Records in the DHT, where anybody may write: signed, bounded, and kept only for members."""

import dataclasses
import hashlib
import struct
from dataclasses import dataclass

import msgspec
import pytest

from troth.crypto import Digest, Identity, PeerId
from troth.network.transport import libp2p_addresses as peer_record
from troth.network.transport.libp2p_addresses import (
    LASTS_S,
    LONGEST_S,
    MOST_ADDRESSES,
    Keeper,
    decode_peer_record,
    dht_id,
    dht_key,
    encode_peer_record,
    libp2p_name,
    worth_telling,
)

GOLDEN = "bfefdeb6266eac6d428da71d8886818fe335970c1c0718dbb1ddcb2cb64cfb14"
RUN, OTHER_RUN = Digest(bytes(range(32))), Digest(bytes(32))
NOW = 1_700_000_000.0
ALICE, MALLORY = Identity.from_secret(b"a" * 32), Identity.from_secret(b"m" * 32)
HOME = "/ip4/203.0.113.5/tcp/4001"
RELAYED = f"/ip4/203.0.113.9/tcp/4001/p2p/{libp2p_name(MALLORY.peer)}/p2p-circuit"


def test_loopback_is_told_only_if_there_is_nothing_else() -> None:
    local = "/ip4/127.0.0.1/tcp/4001"
    assert worth_telling([local]) == (local,)
    assert worth_telling([local, HOME, HOME, "/ip4/203.0.113.5/udp/1/quic"]) == (HOME,)
    through_local_relay = f"{local}/p2p/{libp2p_name(MALLORY.peer)}/p2p-circuit"
    assert worth_telling([local, through_local_relay]) == (through_local_relay,)
    assert len(worth_telling([f"/ip4/203.0.113.5/tcp/{port}" for port in range(1, 100)])) == MOST_ADDRESSES


def record(
    until: float = NOW + LASTS_S, by: Identity = ALICE, run: Digest = RUN, where: tuple[str, ...] = (HOME,)
) -> bytes:
    return encode_peer_record(by, run, until, where)


def test_a_record_is_read_as_it_was_written() -> None:
    found = decode_peer_record(record(where=(HOME, RELAYED)), RUN, NOW)
    assert found is not None
    assert (found.peer, found.until, found.addresses) == (ALICE.peer, NOW + LASTS_S, (HOME, RELAYED))


def test_the_signed_bytes_stay_as_they_are() -> None:
    """A change here makes peers of different versions invisible to each other."""
    assert hashlib.sha256(record()).hexdigest() == GOLDEN


@pytest.mark.parametrize("at", [0, 40, 64, 80, 96, 103, 104, -1])
def test_one_changed_byte_is_enough(at: int) -> None:
    raw = bytearray(record())
    raw[at] ^= 1
    assert decode_peer_record(bytes(raw), RUN, NOW) is None


def test_it_is_for_one_run() -> None:
    assert decode_peer_record(record(run=OTHER_RUN), RUN, NOW) is None


def test_nobody_speaks_for_another() -> None:
    forged = bytearray(record(by=MALLORY))
    forged[64:96] = ALICE.peer
    assert decode_peer_record(bytes(forged), RUN, NOW) is None


@pytest.mark.parametrize("until", [NOW, NOW - 1, NOW + LONGEST_S + 1, float("inf"), float("nan")])
def test_it_ends_and_not_too_late(until: float) -> None:
    assert decode_peer_record(record(until), RUN, NOW) is None


@pytest.mark.parametrize(
    "where", [(), ("/unix/run/docker.sock",), (HOME,) * (MOST_ADDRESSES + 1), (HOME, ""), (HOME, "x" * 5000)]
)
def test_its_own_key_does_not_excuse_what_it_says(where: tuple[str, ...]) -> None:
    assert decode_peer_record(record(where=where), RUN, NOW) is None


@pytest.mark.parametrize("raw", [b"", b"\0" * 103, b"\0" * 104, b"\xff" * 200, bytes(10_000)])
def test_noise_is_nothing(raw: bytes) -> None:
    assert decode_peer_record(raw, RUN, NOW) is None


# The keeper


@dataclass(frozen=True)
class Entry:
    key: bytes
    value: bytes
    expiration_time: float = NOW + LASTS_S
    subkey: bytes = msgspec.msgpack.encode(None)


def entry(by: Identity = ALICE, until: float = NOW + LASTS_S) -> Entry:
    return Entry(dht_id(dht_key(RUN, by.peer)), msgspec.msgpack.encode(record(until, by)), until)


def keeper(keeps: frozenset[PeerId] | None = None) -> Keeper:
    return Keeper(RUN, lambda peer: keeps is None or peer in keeps, lambda: NOW)


def test_a_record_in_its_own_place_is_kept() -> None:
    assert keeper().validate(entry())


@pytest.mark.parametrize(
    "change",
    [
        {"key": dht_id(dht_key(RUN, MALLORY.peer))},  # in another's place
        {"expiration_time": NOW + LASTS_S + 1},  # made to last by whoever passes it on
        {"subkey": msgspec.msgpack.encode("more")},  # a second record under the same key
        {"value": msgspec.msgpack.encode([record()])},
        {"value": record()},
        {"value": b"\xc1" * 50},
        {"value": b"\xc6\xff\xff\xff\xff"},
        {"value": b"\x91" * 1500},
        {"value": bytes(10_000_000)},
    ],
)
def test_anything_else_is_not(change: dict[str, bytes]) -> None:
    assert not keeper().validate(dataclasses.replace(entry(), **change))  # type: ignore[arg-type]


def test_only_for_whom_it_was_told_to_or_looks() -> None:
    strict = keeper(frozenset({ALICE.peer}))
    assert strict.validate(entry())
    assert not strict.validate(entry(MALLORY))
    strict.wanted.add(MALLORY.peer)
    assert strict.validate(entry(MALLORY))


def test_a_thousand_names_exhaust_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_record, "MOST_RECORDS", 8)
    names = [Identity.from_secret(struct.pack("!32s", bytes([n]))) for n in range(1, 20)]
    clock = NOW
    full = Keeper(RUN, lambda _: True, lambda: clock)
    assert [full.validate(entry(name)) for name in names] == [True] * 8 + [False] * 11
    assert full.validate(entry(names[3], NOW + LASTS_S + 5))  # who has a place renews it
    clock = NOW + LASTS_S + 1  # the others' time is over
    assert full.validate(entry(names[-1], clock + LASTS_S))
