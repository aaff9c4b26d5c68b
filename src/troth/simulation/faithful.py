"""Announcements that arrive: every member gets everyone's message, unchanged. What later issues take away."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from troth.crypto import Context, Digest, Identity, PeerId, Signature, signed_bytes
from troth.protocol.channel import PartParcels
from troth.protocol.messages import Announced, Envelope, Malformed, Message, seal, wire_bytes
from troth.protocol.parts import Parcel
from troth.protocol.primitives import Primitives
from troth.simulation.lockstep import Answer, Ask


@dataclass
class AskAnnounce(Ask):
    context: Context
    envelope: Envelope


@dataclass
class AskScatter(Ask):
    parcels: Mapping[int, tuple[PeerId, Parcel]]


@dataclass
class AskGather(Ask):
    mine: Mapping[int, bytes]
    wanted: Mapping[int, Digest]


@dataclass
class AskLayOpen(Ask):
    mine: PartParcels
    wanted: frozenset[int]


@dataclass
class AskSign(Ask):
    signature: Signature


class FaithfulChannel:
    """One member's end: it signs what it says, and checks the signature of everything it hears."""

    def __init__(self, identity: Identity, tools: Primitives) -> None:
        self._identity = identity
        self._tools = tools

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        envelopes = await AskAnnounce(context, seal(self._identity, context, message))
        opened: dict[PeerId, Announced] = {}
        for sender, envelope in envelopes.items():
            announced = self._tools.open(context, sender, envelope)
            assert not isinstance(announced, Malformed), f"malformed announcement: {announced}"
            opened[sender] = announced
        return opened

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        parcels_for_me: PartParcels = await AskScatter(parcels)
        return parcels_for_me

    async def lay_open(self, context: Context, mine: PartParcels, wanted: frozenset[int]) -> PartParcels:
        opened: PartParcels = await AskLayOpen(mine, wanted)
        return opened

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        blobs: Mapping[int, bytes] = await AskGather(mine, wanted)
        return blobs

    async def sign_record(self, context: Context, signature: Signature) -> Mapping[PeerId, Signature]:
        signatures: Mapping[PeerId, Signature] = await AskSign(signature)
        return signatures


class FaithfulExchange:
    """The other end: hands everything to everyone, and counts the bytes that one member receives."""

    def __init__(self, tools: Primitives) -> None:
        self._tools = tools
        self.announced_bytes = 0  # received by the first member, everyone's headers and signatures included
        self.bulk_bytes = 0

    def answers(self) -> dict[type[Ask], Answer]:
        return {
            AskAnnounce: self._announce,
            AskScatter: self._scatter,
            AskGather: self._gather,
            AskLayOpen: self._lay_open,
            AskSign: self._sign,
        }

    def _announce(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Mapping[PeerId, Envelope]]:
        contexts = {ask.context for ask in asks.values()}
        assert len(contexts) == 1, "members are in different places: lockstep is broken"
        first = min(asks)
        for sender, ask in asks.items():
            if sender != first:
                self.announced_bytes += _header_bytes(ask.context, sender) + len(wire_bytes(ask.envelope))
        everyone = {sender: asks[sender].envelope for sender in sorted(asks)}
        return dict.fromkeys(asks, everyone)

    def _scatter(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, dict[PeerId, Parcel]]]:
        received: dict[PeerId, dict[int, dict[PeerId, Parcel]]] = {peer: {} for peer in asks}
        for sender, ask in asks.items():
            for part, (owner, parcel) in ask.parcels.items():
                received[owner].setdefault(part, {})[sender] = parcel
        first = min((owner for owner, parts in received.items() if parts), default=None)
        for parcels in received[first].values() if first is not None else ():
            self.bulk_bytes += sum(_parcel_bytes(parcel) for sender, parcel in parcels.items() if sender != first)
        return received

    def _gather(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, bytes]]:
        by_digest = {self._tools.digest(blob): blob for ask in asks.values() for blob in ask.mine.values()}
        first = min(peer for peer, ask in asks.items() if ask.mine)
        own = {self._tools.digest(blob) for blob in asks[first].mine.values()}
        self.bulk_bytes += sum(len(by_digest[digest]) for digest in asks[first].wanted.values() if digest not in own)
        return {
            peer: {part: by_digest[digest] for part, digest in ask.wanted.items() if digest in by_digest}
            for peer, ask in asks.items()
        }

    def _lay_open(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, Mapping[PeerId, Parcel]]]:
        shown = {part: parcels for ask in asks.values() for part, parcels in ask.mine.items()}
        self.bulk_bytes += sum(_parcel_bytes(parcel) for parcels in shown.values() for parcel in parcels.values())
        return {peer: {part: shown[part] for part in ask.wanted if part in shown} for peer, ask in asks.items()}

    def _sign(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[PeerId, Signature]]:
        everyone = {peer: ask.signature for peer, ask in asks.items()}
        self.announced_bytes += sum(len(signature) + 32 for signature in everyone.values()) - 96
        return dict.fromkeys(asks, everyone)


def _header_bytes(context: Context, sender: PeerId) -> int:
    """What a message says beside its payload: all that is signed but the digest, which follows from the payload."""
    return len(signed_bytes(context, sender, Digest(b"")))


def _parcel_bytes(parcel: Parcel) -> int:
    return len(parcel.blob) + sum(map(len, parcel.path))
