"""Announcements that arrive: whatever a member says reaches every other unchanged, and so does its silence."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from troth.crypto import Context, Digest, Identity, PeerId, signed_bytes
from troth.protocol.core.channel import Blame, Delivery, Doubles, Entry, PartParcels, Showing
from troth.protocol.core.parts import Parcel
from troth.protocol.wire.messages import Announced, Envelope, Knocking, Malformed, Measured, Message, seal, wire_bytes
from troth.protocol.wire.primitives import Primitives
from troth.simulation.lockstep.lockstep import Answer, Ask


@dataclass
class AskAnnounce(Ask):
    context: Context
    choose: Callable[[Mapping[PeerId, Envelope]], Envelope | None]  # given what was said before; None is silence
    last: bool = False  # liars may speak last


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
    wanted: Collection[Showing]


@dataclass
class AskPassOn(Ask):
    parcels: Mapping[Delivery, tuple[PeerId, Parcel]]


class FaithfulChannel:
    """One member's end: it signs what it says, and checks the signature of everything it hears."""

    def __init__(self, identity: Identity, tools: Primitives) -> None:
        self._identity = identity
        self._tools = tools

    def enter(self, entry: Entry) -> None:
        """Nobody has to wait here: whatever is said and sent has arrived when all have spoken."""

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        envelope = seal(self._identity, context, message)
        return self._opened(context, await AskAnnounce(context, lambda _: envelope))

    async def announce_last(
        self, context: Context, choose: Callable[[Mapping[PeerId, Announced]], Message | None]
    ) -> Mapping[PeerId, Announced]:
        """For liars: say something, or nothing, knowing what the others have said."""

        def answer(said: Mapping[PeerId, Envelope]) -> Envelope | None:
            message = choose(self._opened(context, said))
            return None if message is None else seal(self._identity, context, message)

        return self._opened(context, await AskAnnounce(context, answer, last=True))

    def _opened(self, context: Context, envelopes: Mapping[PeerId, Envelope]) -> dict[PeerId, Announced]:
        """What is malformed or not signed by its sender was not said (SPEC M3)."""
        opened = {sender: self._tools.open(context, sender, envelope) for sender, envelope in envelopes.items()}
        return {sender: said for sender, said in opened.items() if not isinstance(said, Malformed)}

    def doubles(self, step: int) -> Doubles:
        """Here everyone hears the same."""
        return {}

    async def scatter(self, context: Context, parcels: Mapping[int, tuple[PeerId, Parcel]]) -> PartParcels:
        parcels_for_me: PartParcels = await AskScatter(parcels)
        return parcels_for_me

    def blame(self) -> Blame:
        """Here nobody has to wait."""
        return Blame()

    def knocks(self, step: int) -> list[Knocking]:
        """Who is gone stays away."""
        return []

    def took(self) -> Measured | None:
        """There is no time here."""
        return None

    async def lay_open(
        self, context: Context, mine: PartParcels, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, Parcel]]:
        opened: Mapping[Showing, Mapping[PeerId, Parcel]] = await AskLayOpen(mine, wanted)
        return opened

    async def pass_on(
        self,
        context: Context,
        parcels: Mapping[Delivery, tuple[PeerId, Parcel]],
        wanted: Collection[Delivery],
        fits: Callable[[Delivery, Parcel], bool],
    ) -> Mapping[Delivery, Parcel]:
        offered: Mapping[Delivery, list[Parcel]] = await AskPassOn(parcels)
        right = {delivery: [p for p in offered.get(delivery, ()) if fits(delivery, p)] for delivery in wanted}
        return {delivery: parcels[0] for delivery, parcels in right.items() if parcels}

    async def gather(
        self, context: Context, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]
    ) -> Mapping[int, bytes]:
        blobs: Mapping[int, bytes] = await AskGather(mine, wanted)
        return blobs


class FaithfulExchange:
    """The other end: hands everything to everyone, and counts the bytes that one member receives."""

    def __init__(self, tools: Primitives) -> None:
        self._tools = tools
        self.announced_bytes = 0  # received by the first member, everyone's headers and signatures included
        self.bulk_bytes = 0

    def answers(self) -> dict[type[Ask], Answer]:
        return {
            AskScatter: self._scatter,
            AskGather: self._gather,
            AskLayOpen: self._lay_open,
            AskPassOn: self._pass_on,
            AskAnnounce: self._announce,
        }

    def _announce(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Mapping[PeerId, Envelope]]:
        contexts = {ask.context for ask in asks.values()}
        assert len(contexts) == 1, "members are in different places: lockstep is broken"
        said: dict[PeerId, Envelope] = {}
        for last in (False, True):
            before = dict(said)
            for sender in sorted(peer for peer, ask in asks.items() if ask.last == last):
                envelope = asks[sender].choose(before)
                said |= {sender: envelope} if envelope is not None else {}
        first, context = min(asks), contexts.pop()
        for sender, envelope in said.items():
            if sender != first:
                self.announced_bytes += _header_bytes(context, sender) + len(wire_bytes(envelope))
        everyone = {sender: said[sender] for sender in sorted(said)}
        return dict.fromkeys(asks, everyone)

    def _scatter(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, dict[PeerId, Parcel]]]:
        received: dict[PeerId, dict[int, dict[PeerId, Parcel]]] = {peer: {} for peer in asks}
        for sender, ask in asks.items():
            for part, (owner, parcel) in ask.parcels.items():
                if owner in received:  # else it is gone, and nobody knows yet
                    received[owner].setdefault(part, {})[sender] = parcel
        first = min((owner for owner, parts in received.items() if parts), default=None)
        for parcels in received[first].values() if first is not None else ():
            self.bulk_bytes += sum(_parcel_bytes(parcel) for sender, parcel in parcels.items() if sender != first)
        return received

    def _gather(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[int, bytes]]:
        by_digest = {self._tools.digest(blob): blob for ask in asks.values() for blob in ask.mine.values()}
        first = min(asks)
        own = {self._tools.digest(blob) for blob in asks[first].mine.values()}
        fetched = [by_digest[digest] for digest in asks[first].wanted.values() if digest in by_digest.keys() - own]
        self.bulk_bytes += sum(map(len, fetched))
        return {
            peer: {part: by_digest[digest] for part, digest in ask.wanted.items() if digest in by_digest}
            for peer, ask in asks.items()
        }

    def _lay_open(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[Showing, Mapping[PeerId, Parcel]]]:
        shown: dict[PeerId, dict[Showing, Mapping[PeerId, Parcel]]] = {
            peer: {(part, owner): asks[owner].mine.get(part, {}) if owner in asks else {} for part, owner in ask.wanted}
            for peer, ask in asks.items()
        }
        received = shown[min(asks)].values()
        self.bulk_bytes += sum(_parcel_bytes(parcel) for parcels in received for parcel in parcels.values())
        return shown

    def _pass_on(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, dict[Delivery, list[Parcel]]]:
        passed: dict[PeerId, dict[Delivery, list[Parcel]]] = {peer: {} for peer in asks}
        for ask in asks.values():
            for delivery, (owner, parcel) in ask.parcels.items():
                if owner in passed:
                    passed[owner].setdefault(delivery, []).append(parcel)
        return passed


def _header_bytes(context: Context, sender: PeerId) -> int:
    """What a message says beside its payload: all that is signed but the digest, which follows from the payload."""
    return len(signed_bytes(context, sender, Digest(b"")))


def _parcel_bytes(parcel: Parcel) -> int:
    return len(parcel.blob) + sum(map(len, parcel.path))
