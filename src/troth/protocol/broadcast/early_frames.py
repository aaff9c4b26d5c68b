"""Memory that other peers take up here: one bound for each of them, whatever kinds of frames it sends.

What counts is the length of a packet as it came off the line, from its arrival until nothing of it is kept any more.
"""

from collections import Counter, defaultdict

from troth.crypto import PeerId, Slot
from troth.protocol.wire.frames import Packet

_BOOKKEEPING = 1024  # bytes that every packet counts for beside its own: else very many tiny ones would be free


class MemoryQuota:
    """How many bytes of each sender are kept; nobody has more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[PeerId] = Counter()
        self._by_step: dict[int, Counter[PeerId]] = defaultdict(Counter)  # of what goes when its step is over

    def has(self, sender: PeerId, size: int) -> bool:
        return self._taken[sender] + size + _BOOKKEEPING <= self._most

    def take(self, sender: PeerId, size: int, step: int | None = None) -> bool:
        """Count a packet, if there is room for it: until it is given back, or until its step is over."""
        if not self.has(sender, size):
            return False
        self._taken[sender] += size + _BOOKKEEPING
        if step is not None:
            self._by_step[step][sender] += size + _BOOKKEEPING
        return True

    def give_back(self, sender: PeerId, size: int) -> None:
        self._return(sender, size + _BOOKKEEPING)

    def over(self, before: int) -> None:
        """Nothing is kept any more that was taken for steps before this one."""
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
        """Of everyone: their packets' lengths, and the same for the bookkeeping of each."""
        return self._taken.total()


class EarlyFrameBuffer:
    """Bounded buffer, per sender, for packets that arrive before this peer is where they belong."""

    def __init__(self, room: MemoryQuota) -> None:
        self._quota = room
        self._packets: dict[Slot, list[tuple[PeerId, Packet]]] = defaultdict(list)
        self._count: Counter[PeerId] = Counter()

    def put(self, sender: PeerId, packet: Packet, most: int) -> None:
        """Unless there is no room, or so many of this sender are here: each may cost a signature check when it is taken."""
        if self._count[sender] < most and self._quota.take(sender, packet.size):
            self._count[sender] += 1
            self._packets[packet.slot].append((sender, packet))

    def take(self, slot: Slot) -> list[tuple[PeerId, Packet]]:
        """What came for this place, in the order in which it did."""
        taken = self._packets.pop(slot, [])
        for sender, packet in taken:
            self._let_go(sender, packet)
        return taken

    def drop_before(self, step: int, of: PeerId | None = None) -> None:
        """Packets of earlier steps: of one sender, or of all."""
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
