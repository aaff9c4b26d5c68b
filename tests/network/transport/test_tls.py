"""Identity in TLS: the leaf key is the peer, and nothing else counts."""

import os
import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from troth.crypto.identity import Identity
from troth.network.transport import tcp
from troth.network.transport.tcp import PROTOCOL, client_context, leaf_certificate, peer_of, server_context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides in memory: the server's, the client's. Raises what either side raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(8):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends[1], ends[0]


def forged(*, authority: bool = True) -> ssl.SSLContext:
    """A client with a leaf of another make: an elliptic-curve key, signed by the known authority or by itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    signer = tcp._AUTHORITY if authority else Ed25519PrivateKey.generate()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(tcp._AUTHORITY_NAME)
        .issuer_name(tcp._AUTHORITY_NAME)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(tcp._FROM)
        .not_valid_after(tcp._UNTIL)
        .sign(signer, None)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=tcp._authority_certificate().decode())
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.flush()
        context.load_cert_chain(file.name)
    return context


def test_each_side_learns_the_key_of_the_other() -> None:
    server, client = Identity.generate(), Identity.generate()
    at_server, at_client = handshake(server_context(server), client_context(client))
    assert peer_of(at_server) == client.peer
    assert peer_of(at_client) == server.peer
    assert at_server.version() == "TLSv1.3"
    assert at_server.selected_alpn_protocol() == at_client.selected_alpn_protocol() == PROTOCOL


def test_nothing_is_resumed() -> None:
    at_server, at_client = handshake(server_context(Identity.generate()), client_context(Identity.generate()))
    assert not at_server.session_reused
    assert not at_client.session_reused
    assert at_client.session is None or not at_client.session.has_ticket


def test_a_client_without_a_certificate_is_refused() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError):
        handshake(server_context(Identity.generate()), bare)


def test_an_older_tls_is_refused() -> None:
    old = client_context(Identity.generate())
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server_context(Identity.generate()), old)


def test_a_leaf_of_another_authority_is_refused() -> None:
    with pytest.raises(ssl.SSLError):
        handshake(server_context(Identity.generate()), forged(authority=False))


def test_another_kind_of_key_is_no_peer() -> None:
    at_server, _ = handshake(server_context(Identity.generate()), forged())
    assert peer_of(at_server) is None


def test_a_certificate_alone_proves_nothing() -> None:
    """The attack: present the victim's certificate, which anyone can make, with a key of one's own."""
    victim, thief = Identity.generate(), Identity.generate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    password = b"x" * 32
    with tempfile.NamedTemporaryFile() as file:
        file.write(leaf_certificate(victim.peer) + thief.sealed_key(password))
        file.flush()
        with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
            context.load_cert_chain(file.name, password=password)


def test_certificates_outlive_wrong_clocks_and_are_the_same_every_time() -> None:
    peer = Identity.from_secret(bytes(range(32))).peer
    certificate = x509.load_pem_x509_certificate(leaf_certificate(peer))
    assert certificate.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc.year == 9999
    assert leaf_certificate(peer) == leaf_certificate(peer)


def test_the_key_is_on_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    secret = os.urandom(32)
    seen: list[bytes] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, name: str, password: bytes) -> None:
        path = Path(name)
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o600
        seen.append(path.read_bytes())
        load(context, name, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    server_context(Identity.from_secret(secret))
    (contents,) = seen
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in contents
    assert b"BEGIN PRIVATE KEY" not in contents
    assert list(tmp_path.iterdir()) == []


def test_a_sealed_key_opens_with_its_password_only() -> None:
    identity = Identity.generate()
    sealed = identity.sealed_key(b"a password of one use")
    opened = serialization.load_pem_private_key(sealed, password=b"a password of one use")
    assert isinstance(opened, Ed25519PrivateKey)
    assert Identity(opened).peer == identity.peer
    with pytest.raises(ValueError):
        serialization.load_pem_private_key(sealed, password=b"another")
