"""Memory that other peers take up here: one quota for each of them, whatever kinds of frames it sends (SPEC M3).

A packet counts by its length on the wire, from its arrival until nothing of it is kept any more.
"""

from collections import Counter, defaultdict

from troth.crypto import PeerId, Slot
from troth.protocol.wire.frames import Packet

_BOOKKEEPING = 1024  # bytes that every packet counts beside its own: else a flood of tiny packets would be free


class MemoryQuota:
    """Bytes kept of each sender, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[PeerId] = Counter()
        self._by_step: dict[int, Counter[PeerId]] = defaultdict(Counter)  # bytes that are freed when their step is over

    def has(self, sender: PeerId, size: int) -> bool:
        return self._taken[sender] + size + _BOOKKEEPING <= self._most

    def take(self, sender: PeerId, size: int, step: int | None = None) -> bool:
        """Count a packet, if there is room for it, until it is given back or its step is over."""
        if not self.has(sender, size):
            return False
        self._taken[sender] += size + _BOOKKEEPING
        if step is not None:
            self._by_step[step][sender] += size + _BOOKKEEPING
        return True

    def give_back(self, sender: PeerId, size: int) -> None:
        self._return(sender, size + _BOOKKEEPING)

    def over(self, before: int) -> None:
        """Free all bytes that were taken for steps before this one."""
        for step in [step for step in self._by_step if step < before]:
            for sender, size in self._by_step.pop(step).items():
                self._return(sender, size)

    def _return(self, sender: PeerId, size: int) -> None:
        self._taken[sender] -= size
        assert self._taken[sender] >= 0, "more was given back than was taken"
        if not self._taken[sender]:
            del self._taken[sender]

    @property
    def kept_bytes(self) -> int:
        """Bytes of all senders: the lengths of their packets, and the bookkeeping of each."""
        return self._taken.total()


class EarlyFrameBuffer:
    """Bounded buffer, per sender, for packets of slots that this peer has yet to reach."""

    def __init__(self, memory: MemoryQuota) -> None:
        self._quota = memory
        self._packets: dict[Slot, list[tuple[PeerId, Packet]]] = defaultdict(list)
        self._count: Counter[PeerId] = Counter()

    def put(self, sender: PeerId, packet: Packet, most: int) -> None:
        """Keep a packet if there is room, and fewer than `most` of its sender: each may cost a signature check later."""
        if self._count[sender] < most and self._quota.take(sender, packet.size):
            self._count[sender] += 1
            self._packets[packet.slot].append((sender, packet))

    def has(self, slot: Slot) -> bool:
        """Whether a packet of this slot is here."""
        return slot in self._packets

    def take(self, slot: Slot) -> list[tuple[PeerId, Packet]]:
        """Take out the packets of this slot, in the order of arrival."""
        taken = self._packets.pop(slot, [])
        for sender, packet in taken:
            self._let_go(sender, packet)
        return taken

    def drop_before(self, step: int, of: PeerId | None = None) -> None:
        """Drop packets of earlier steps: of one sender, or of all."""
        for slot in [slot for slot in self._packets if slot.step < step]:
            packets = self._packets.pop(slot)
            kept = [one for one in packets if of is not None and one[0] != of]
            for sender, packet in packets:
                if of is None or sender == of:
                    self._let_go(sender, packet)
            if kept:
                self._packets[slot] = kept

    def _let_go(self, sender: PeerId, packet: Packet) -> None:
        self._count[sender] -= 1
        if not self._count[sender]:
            del self._count[sender]
        self._quota.give_back(sender, packet.size)

    @property
    def frames(self) -> int:
        return self._count.total()
