"""The values of an announcement, and the bytes that its members sign (SPEC Q1–Q6, Q9)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from troth.crypto import Digest, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.wire.frames import Certificate
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives

Seen = tuple[bytes | None, tuple[bytes, ...]]  # content of a view: the digest of the values, and the missing members


@dataclass(frozen=True)
class Timing:
    """Start and deadlines of an announcement for this peer."""

    start: float  # differs by at most delta between honest peers
    allowance: float  # for computing and for blobs, before values are due
    delta: float  # bound on the time of a frame between honest peers
    relayed: bool = False  # some frames are relayed across link disputes, and take longer (SPEC F2)

    @cached_property
    def values_due(self) -> float:
        return self.start + self.allowance + 2 * self.delta

    @cached_property
    def relayed_values_due(self) -> float:
        return self.values_due + 2 * self.delta

    @cached_property
    def views_due(self) -> float:
        return (self.relayed_values_due if self.relayed else self.values_due) + 2 * self.delta


@dataclass(frozen=True)
class Decision:
    """The end of an announcement, the same at every honest member. Members in neither map were silent."""

    said: Mapping[PeerId, Envelope]
    equivocations: Mapping[PeerId, tuple[Envelope, Envelope]]  # two different values, both signed: proof of a lie


def rounds(members: int, liars: int) -> int:
    """Number of rounds on the slow path (SPEC Q6). Members that are out may all be honest, so liars are no share of the rest."""
    return max(1, min(members - 1, max((members + 1) // 2, liars + 1)))


def proves(
    slot: Slot, members: frozenset[PeerId], certificate: Certificate, tools: Primitives, quorum: int | None
) -> bool:
    """Tell whether all members but the missing ones signed the certificate's view, and the signers are a quorum (SPEC Q9)."""
    gone = frozenset(certificate.gone)
    if gone and (quorum is None or len(certificate.views) < quorum or not gone <= members):
        return False
    return certificate.views.keys() == members - gone and all(
        tools.verify(PeerId(peer), view_bytes(slot, certificate.values, certificate.gone), signature)
        for peer, signature in certificate.views.items()
    )


def with_chain(certificate: Certificate, chain: Mapping[bytes, bytes]) -> Certificate:
    return Certificate(certificate.values, certificate.views, dict(chain), certificate.gone)


def _bytes(tag: str, slot: Slot, *parts: bytes) -> bytes:
    return tagged_hash(tag, signed_bytes(slot, PeerId(bytes(32)), Digest(bytes(32))), *parts)


def values_digest(digests: Mapping[PeerId, Digest]) -> Digest:
    """Digest of values and of whose they are: with other members it is another."""
    return tagged_hash("troth/values/1", *(part for peer in sorted(digests) for part in (peer, digests[peer])))


def view_bytes(slot: Slot, values: bytes | None, gone: Iterable[bytes] = ()) -> bytes:
    return _bytes("troth/view/2", slot, values or b"", *gone)


def chain_bytes(slot: Slot, originator: bytes, digest: bytes) -> bytes:
    return _bytes("troth/chain/1", slot, originator, digest)
