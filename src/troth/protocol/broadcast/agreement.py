"""The values of an announcement, and the bytes that its members sign (SPEC Q1–Q6, Q9)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from troth.crypto import Digest, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.wire.frames import Certificate, View
from troth.protocol.wire.messages import Envelope
from troth.protocol.wire.primitives import Primitives

Seen = tuple[bytes | None, tuple[bytes, ...]]  # content of a view: the digest of the values, and the missing members

_MOST_SECOND_VIEWS = 2  # from one bringer, of one signer

_Said = tuple[bytes | None, tuple[bytes, ...], tuple[bytes, ...]]  # values, missing, broken off


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
    """Tell whether all members but the missing and the broken-off ones signed the certificate's view, and the signers are a
    quorum (SPEC Q9)."""
    gone, broken_off = frozenset(certificate.gone), frozenset(certificate.broken_off)
    unsigned = gone | broken_off
    if unsigned and (quorum is None or len(certificate.views) < quorum or not unsigned <= members):
        return False
    signed = view_bytes(slot, certificate.values, certificate.gone, certificate.broken_off)
    return (
        not gone & broken_off
        and certificate.views.keys() == members - unsigned
        and all(tools.verify(PeerId(peer), signed, signature) for peer, signature in certificate.views.items())
    )


def with_chain(certificate: Certificate, chain: Mapping[bytes, bytes]) -> Certificate:
    return Certificate(certificate.values, certificate.views, dict(chain), certificate.gone, certificate.broken_off)


def _bytes(tag: str, slot: Slot, *parts: bytes) -> bytes:
    return tagged_hash(tag, signed_bytes(slot, PeerId(bytes(32)), Digest(bytes(32))), *parts)


def values_digest(digests: Mapping[PeerId, Digest]) -> Digest:
    """Digest of values and of whose they are: with other members it is another."""
    return tagged_hash("troth/values/1", *(part for peer in sorted(digests) for part in (peer, digests[peer])))


def view_bytes(slot: Slot, values: bytes | None, gone: Iterable[bytes] = (), broken_off: Sequence[bytes] = ()) -> bytes:
    if broken_off:  # another tag and a count: no first view is a second one, whoever is named
        count = len(broken_off).to_bytes(4, "big")
        return _bytes("troth/second-view/1", slot, values or b"", count, *broken_off, *gone)
    return _bytes("troth/view/2", slot, values or b"", *gone)


def chain_bytes(slot: Slot, originator: bytes, digest: bytes) -> bytes:
    return _bytes("troth/chain/1", slot, originator, digest)


class MoreThanHalf:
    """Senders heard so far, and the time at which they were more than half of the members."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._heard: set[PeerId] = set()
        self.at: float | None = None

    def hear(self, sender: PeerId, now: float) -> None:
        self._heard.add(sender)
        if self.at is None and 2 * len(self._heard) > self._members:
            self.at = now


class SecondViews:
    """Second views of one announcement, this peer's own included: members that break off between their value and their view are
    not waited for (SPEC Q9). The signatures were checked."""

    def __init__(self) -> None:
        self._signatures: dict[_Said, dict[PeerId, bytes]] = {}
        self._brought: Counter[tuple[PeerId, PeerId]] = Counter()
        self.mine: View | None = None

    def sign(self, me: PeerId, view: View) -> View:
        self.mine = view
        self._add(me, view)
        return view

    def hear(self, sender: PeerId, view: View, via: PeerId) -> None:
        self._brought[via, sender] += 1
        if self._brought[via, sender] <= _MOST_SECOND_VIEWS:
            self._add(sender, view)

    def _add(self, sender: PeerId, view: View) -> None:
        self._signatures.setdefault((view.values, view.gone, view.broken_off), {})[sender] = view.signature

    def certificate(self, spoke: frozenset[PeerId]) -> Certificate | None:
        """Equal second views of all members that spoke and have not broken off, if they are here."""
        mine = self.mine
        if mine is None or mine.values is None:
            return None
        signed = self._signatures[mine.values, mine.gone, mine.broken_off]
        wanted = sorted(spoke - set(mine.broken_off))
        if not all(peer in signed for peer in wanted):
            return None
        return Certificate(mine.values, {peer: signed[peer] for peer in wanted}, {}, mine.gone, mine.broken_off)
