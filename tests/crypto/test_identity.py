"""Key files, and digests of large blobs."""

from pathlib import Path

import pytest

from troth.crypto import CHUNK_BYTES, Identity, KeyFileError, blob_digest, valid_peer, verify


def test_a_key_file_is_for_its_owner_only_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    identity = Identity.generate()
    identity.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.load(path).peer == identity.peer
    with pytest.raises(KeyFileError, match="exists already"):
        Identity.generate().save(path)
    assert Identity.load(path).peer == identity.peer


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    Identity.generate().save(path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Identity.load(path)


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    with pytest.raises(KeyFileError, match="cannot read"):
        Identity.load(path)
    path.write_text("nonsense")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="PEM"):
        Identity.load(path)


def test_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    path = tmp_path / "me.key"
    path.write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="another kind"):
        Identity.load(path)


def test_points_of_small_order_are_found_by_their_arithmetic() -> None:
    """Multiplying any point by the group's large order leaves a point of small order; all eight are refused."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    order = 2**252 + 27742317777372353535851937790883648493

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        t = d * a[0] * b[0] * a[1] * b[1] % p
        x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + t, -1, p) % p
        return x, (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, p) % p

    def times(k: int, point: tuple[int, int]) -> tuple[int, int]:
        total = (0, 1)
        while k:
            total = add(total, point) if k & 1 else total
            point, k = add(point, point), k >> 1
        return total

    small: set[tuple[int, int]] = set()
    for y in range(2, 40):
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = pow(square, (p + 3) // 8, p)
        x = x if (x * x - square) % p == 0 else x * pow(2, (p - 1) // 4, p) % p
        if (x * x - square) % p == 0:
            seed = times(order, (x, y))
            small |= {times(k, seed) for k in range(8)}
    assert len(small) == 8
    for x, y in small:
        assert not valid_peer((y | (x & 1) << 255).to_bytes(32, "little"))
        assert not valid_peer((y | (1 - (x & 1)) << 255).to_bytes(32, "little"))


def test_encodings_that_are_not_canonical_are_refused() -> None:
    assert not valid_peer((2**255 - 19 + 3).to_bytes(32, "little"))
    assert not valid_peer(bytes(31))
    assert valid_peer(Identity.generate().peer)


def test_verification_needs_the_same_message_key_and_signature() -> None:
    one, other = Identity.generate(), Identity.generate()
    signature = one.sign(b"message")
    assert verify(one.peer, b"message", signature)
    assert not verify(other.peer, b"message", signature)
    assert not verify(one.peer, b"massage", signature)
    assert not verify(one.peer, b"message", bytes(64))


def test_the_digest_of_a_blob_sees_every_chunk_and_the_length() -> None:
    blob = bytearray(3 * CHUNK_BYTES + 5)
    digests = {blob_digest(bytes(blob)), blob_digest(bytes(blob[:-1])), blob_digest(bytes(blob) + b"\0")}
    for where in (0, CHUNK_BYTES, 2 * CHUNK_BYTES - 1, len(blob) - 1):
        changed = bytearray(blob)
        changed[where] = 1
        digests.add(blob_digest(bytes(changed)))
    assert len(digests) == 7
