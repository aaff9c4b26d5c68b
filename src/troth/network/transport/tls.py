"""Mutual TLS 1.3 in which the certificate *is* the peer: its key is the Ed25519 identity.

The standard library can verify a client certificate against an authority only; it cannot accept an unknown self-signed
one and ask later. So there is an authority whose private key everybody knows (`_AUTHORITY`, below: **no secret, and it
proves nothing**). The proof is that a handshake needs the private key of the leaf. The leaf's key is read after the
handshake, and whether that peer is welcome is decided then.

The identity key thus signs two kinds of bytes. They cannot be confused: TLS 1.3 signs 64 spaces and a fixed text before
its transcript (RFC 8446 §4.4.3), Troth's own messages start with `troth/signed`.
"""

import os
import ssl
import tempfile
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from troth.crypto.identity import Identity, PeerId, valid_peer

PROTOCOL = "troth/1"  # that both sides must speak inside TLS (ALPN)

# Public on purpose: anyone can derive it, and anyone may sign a leaf with it.
_AUTHORITY = Ed25519PrivateKey.from_private_bytes(sha256(b"troth: the authority that everybody is").digest())
_AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "troth: no authority")])
# A wrong clock must not lock a peer out, and an identity does not expire: from the epoch, where machines without a
# battery wake up, until "no well-defined expiration date" (RFC 5280 §4.1.2.5).
_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def server_context(identity: Identity) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0  # every connection proves its key anew; nothing is resumed
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity)


def peer_of(connection: ssl.SSLObject | ssl.SSLSocket) -> PeerId | None:
    """The key that the other side proved to own; None if that is no key of a peer."""
    der = connection.getpeercert(binary_form=True)
    if der is None:
        return None
    try:
        public = x509.load_der_x509_certificate(der).public_key()
    except Exception:  # a stranger chose these bytes, and the parser has many ways to dislike them
        return None
    if not isinstance(public, Ed25519PublicKey):
        return None
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PeerId(raw) if valid_peer(raw) else None


def leaf_certificate(peer: PeerId) -> bytes:
    """The certificate of a peer, in PEM. It contains nothing secret; anyone could have made it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer.hex())])
    return _signed(name, Ed25519PublicKey.from_public_bytes(peer), authority=False)


def _context(kind: int, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a peer is its key; where it was found does not matter
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET
    context.set_alpn_protocols([PROTOCOL])
    context.load_verify_locations(cadata=_authority_certificate().decode("ascii"))
    _load(context, identity)
    return context


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """`ssl` reads keys from files only, so the file holds the key sealed under a password that never leaves memory."""
    password = os.urandom(32).hex().encode()
    with tempfile.NamedTemporaryFile(prefix="troth-") as file:  # mode 0600; gone when the block ends
        file.write(leaf_certificate(identity.peer) + identity.sealed_key(password))
        file.flush()
        context.load_cert_chain(file.name, password=password)


@lru_cache(maxsize=1)
def _authority_certificate() -> bytes:
    return _signed(_AUTHORITY_NAME, _AUTHORITY.public_key(), authority=True)


def _signed(subject: x509.Name, public: Ed25519PublicKey, *, authority: bool) -> bytes:
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    serial = int.from_bytes(sha256(b"troth/serial" + raw).digest()[:16], "big") | 1  # positive, at most 20 bytes
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY_NAME)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(_AUTHORITY.public_key()), critical=False)
        .sign(_AUTHORITY, None)
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
