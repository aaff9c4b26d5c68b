"""The outside world as one peer sees it: the time, a way to send a packet to a peer, and the next packet that arrives; and the
memory of what it has signed there.

Simulation and network each bring their own `PacketLink`.
"""

from collections.abc import Iterable
from typing import Protocol

from troth.crypto import PeerId, Slot
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.wire.frames import Frame, Packet, RestartCertificate


class PacketLink(Protocol):
    """Clock and packets of one peer."""

    def now(self) -> float: ...

    def send(self, to: PeerId, packet: Packet) -> None: ...

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        """Wait for the next packet and its sender; None if none came until then, or as soon as `gone` has changed."""
        ...

    def gone(self) -> frozenset[PeerId]:
        """Peers that were connected, are not any more, and cannot be reached at once (SPEC Q9)."""
        ...


class Outlet:
    """Sends frames to one peer, or to several."""

    def __init__(self, link: PacketLink, me: PeerId) -> None:
        self._link = link
        self._me = me

    def send(self, to: PeerId, slot: Slot, frame: Frame) -> None:
        self._link.send(to, Packet(slot, frame))

    def send_each(self, slot: Slot, peers: Iterable[PeerId], frame: Frame) -> None:
        packet = Packet(slot, frame)  # one, so that it is encoded once
        for peer in peers:
            if peer != self._me:
                self._link.send(peer, packet)


class SignedBeforeError(CannotGoOnError):
    """This slot, or a later one, was signed before: to sign it again could be an equivocation."""


SlotKey = tuple[int, int, int, int]
NO_SLOT: SlotKey = (0, -1, 0, 0)


def slot_key(slot: Slot) -> SlotKey:
    """Key that sorts slots in the order in which they follow each other. Incarnations come first: a run that restarts may go back
    to an earlier step, and peers that signed later ones before must be able to sign it."""
    return slot.incarnation, slot.step, slot.attempt, slot.phase


class SignedSlots:
    """Memory of what a peer has signed, which it must never forget (SPEC B1), and of the last restart certificate. Slots follow
    each other, so the last one is enough. This one lasts as long as the object; a durable one overrides how they are kept."""

    def __init__(self) -> None:
        self._last = NO_SLOT
        self._begun: RestartCertificate | None = None

    def claim(self, slot: Slot) -> None:
        """Record a slot before anything is signed for it."""
        if (key := slot_key(slot)) <= self._last:
            raise SignedBeforeError(f"step {slot.step} was signed before")
        self._keep(key)
        self._last = key

    def _keep(self, key: SlotKey) -> None:
        """Write a slot down."""

    def begins(self, begun: RestartCertificate) -> None:
        """Record the proof that an incarnation began: members that were not there then would wait for it (SPEC B5)."""
        self._begun = begun

    @property
    def begun(self) -> RestartCertificate | None:
        """The last restart certificate."""
        return self._begun

    @property
    def last(self) -> SlotKey:
        return self._last

    @property
    def last_step(self) -> int:
        """The last step in which something was signed; -1 if there is none."""
        return self._last[1]

    @property
    def last_incarnation(self) -> int:
        """The run's incarnation in the last signed slot."""
        return self._last[0]


def next_incarnation(signed_slots: SignedSlots, now: int) -> int:
    """The first incarnation in which this peer has signed nothing yet."""
    return max(now, signed_slots.last_incarnation) + 1
