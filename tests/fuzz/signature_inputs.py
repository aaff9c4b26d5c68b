"""Inputs of the checks of signatures, keys and proven parts, and what these may do with them."""

from random import Random

import torch

from tests.fuzz.message_inputs import one_input
from tests.fuzz.mutate import damaged
from tests.fuzz.sessions import IDS, Fed
from troth.crypto import Digest, PeerId, Signature, valid_peer, verify
from troth.protocol.core.parts import ProvenPart, commit_parts, opens, part_bounds, rows_of
from troth.protocol.wire.blob import Blob

_MESSAGE = b"message"


_SIGNED = {(one.peer, _MESSAGE, one.sign(_MESSAGE)) for one in IDS}


_BOUNDS = part_bounds(50, 7)


_COMMITTED = commit_parts(torch.arange(50, dtype=torch.float32), _BOUNDS)


_ODD = 2**255 - 19  # the field's prime


_ORDER = 2**252 + 27742317777372353535851937790883648493


def pieces(raw: bytes, count: int) -> list[bytes]:
    """Read any bytes as so many pieces: two bytes of length before each but the last."""
    found = []
    for _ in range(count - 1):
        size = int.from_bytes(raw[:2], "big")
        found.append(raw[2 : 2 + size])
        raw = raw[2 + size :]
    return [*found, raw]


def joined(*parts: bytes) -> bytes:
    return b"".join((*(len(part).to_bytes(2, "big") + part for part in parts[:-1]), parts[-1]))


def signature_bytes(random: Random) -> bytes:
    return joined(*random.choice(sorted(_SIGNED)))


def hostile_signature_bytes(random: Random) -> bytes:
    peer, message, signature = random.choice(sorted(_SIGNED))
    match random.randrange(5):
        case 0:
            peer = PeerId(random.choice((odd_key(random), damaged(peer, random))))
        case 1:
            lenient = int.from_bytes(signature[32:], "little") + _ORDER  # the same number to those who do not look
            second = random.choice((odd_key(random), lenient.to_bytes(32, "little")))
            signature = Signature(random.choice((odd_key(random) + signature[32:], signature[:32] + second)))
        case 2:
            signature = Signature(damaged(signature, random))
        case 3:
            message = damaged(message, random)
        case _:
            return damaged(joined(peer, message, signature), random)
    return joined(peer, message, signature)


def feed_signature(raw: bytes) -> Fed:
    """Nobody but the key's owner can have made it, and there is but one signature: everything else is a forgery."""
    peer, message, signature = pieces(raw, 3)
    accepted = verify(PeerId(peer), message, signature)
    assert accepted is ((peer, message, signature) in _SIGNED)
    return one_input(accepted)


def odd_key(random: Random) -> bytes:
    """Numbers around the field's prime and zero, and noise."""
    number = random.choice((0, 1, 2, _ODD - 1, _ODD, _ODD + 1, 2**255 - 1, 2**255, 2**256 - 1, random.getrandbits(256)))
    return (number | random.choice((0, 1 << 255))).to_bytes(32, "little")


def key_bytes(random: Random) -> bytes:
    return random.choice(IDS).peer


def hostile_key_bytes(random: Random) -> bytes:
    return random.choice(
        (odd_key, lambda random: damaged(key_bytes(random), random), lambda random: random.randbytes(32))
    )(random)


def feed_key(raw: bytes) -> Fed:
    accepted = valid_peer(raw)
    assert accepted in (True, False)
    assert not accepted or (len(raw) == 32 and 1 < int.from_bytes(raw, "little") % 2**255 < _ODD - 1)
    return one_input(accepted)


def proven_part_bytes(random: Random) -> bytes:
    """A proven part as bytes: its number, the length of the path's pieces, the path, and the blob."""
    part = random.randrange(len(_BOUNDS) - 1)
    proven = _COMMITTED.proven_parts[part]
    return bytes([part, 32]) + joined(b"".join(proven.path), bytes(proven.blob.view))


def hostile_proven_part_bytes(random: Random) -> bytes:
    """A proven part that is damaged, or another's, or with the steps of its path in disorder."""
    part, proven = random.randrange(len(_BOUNDS) - 1), random.choice(_COMMITTED.proven_parts)
    path, blob = list(proven.path), bytes(proven.blob.view)
    match random.randrange(4):
        case 0:
            return damaged(proven_part_bytes(random), random)
        case 1:
            random.shuffle(path)
        case 2:
            path[random.randrange(len(path)) :] = random.choice(_COMMITTED.proven_parts).path * random.choice((0, 1, 9))
        case _:
            blob = b"".join(
                random.choice((bytes(4), b"\0\0\x80\x7f", random.randbytes(4))) for _ in range(len(blob) // 4)
            )
    return bytes([part, 32]) + joined(b"".join(path), blob)


def feed_proven_part(raw: bytes) -> Fed:
    """Only the committed blob and path open the root."""
    part, size = (raw[0] % (len(_BOUNDS) - 1), max(1, raw[1])) if len(raw) > 1 else (0, 32)
    path, blob = pieces(raw[2:], 2)
    proven = ProvenPart(Blob(blob), tuple(Digest(path[at : at + size]) for at in range(0, len(path), size)))
    accepted = opens(proven, part, _BOUNDS, _COMMITTED.root)
    assert accepted is (proven == _COMMITTED.proven_parts[part])
    if len(blob) == 4 * (_BOUNDS[part + 1] - _BOUNDS[part]):
        assert torch.isfinite(rows_of([proven, _COMMITTED.proven_parts[part]])).all()
    return one_input(accepted)
