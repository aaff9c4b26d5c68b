"""The outside world as one peer sees it: the time, a way to send a packet to a peer, and the next packet that arrives.

Simulation and network each bring their own `PacketLink`.
"""

from collections.abc import Iterable
from typing import Protocol

from troth.crypto import PeerId, Slot
from troth.protocol.wire.frames import Frame, Packet


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
