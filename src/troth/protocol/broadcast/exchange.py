"""Parts and blobs of other peers, kept by slot until a step asks for them: bounded, and not yet checked."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.link import Outlet
from troth.protocol.core.channel import Delivery, ProvenParts, Showing
from troth.protocol.core.parts import ProvenPart
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.frames import BlobSent, Frame, Packet, PartSent, PartShown

_BOOKKEEPING = 1024  # bytes that every packet counts beside its own: else a flood of tiny packets would be free
_OLD_STEPS = 8  # earlier steps whose blobs are kept for observers: slow links take longer than quick steps
_OLD_BYTES = 1 << 26  # most bytes of these blobs


class MemoryQuota:
    """Memory that other peers take up here: one quota each, whatever kinds of frames they send (SPEC M3). A packet counts by its
    length on the wire, from its arrival until nothing of it is kept any more."""

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


@dataclass(frozen=True)
class _Held:
    blob: Blob
    sender: PeerId | None  # the peer whose quota it takes up; None if it is this peer's own
    size: int  # of the packet that brought it


class Blobs:
    """Aggregates by digest, of this step and, for observers, of earlier ones."""

    def __init__(self, send: Callable[[PeerId, Slot, Frame], None], memory: MemoryQuota) -> None:
        self._send = send
        self._quota = memory
        self._here: dict[Digest, _Held] = {}
        self._older: list[dict[Digest, _Held]] = []  # the last step first
        self._asked: Counter[PeerId] = Counter()  # requests in this step
        self._waiting: dict[Digest, set[PeerId]] = {}  # peers that asked for a blob that is not here yet

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._here

    def __getitem__(self, digest: Digest) -> Blob:
        return self._here[digest].blob

    def __len__(self) -> int:
        return len(self._here)

    def put(self, slot: Slot, blob: Blob) -> None:
        """Keep a blob of this peer's own."""
        self._hold(slot, blob.digest, _Held(blob, None, 0))

    def put_from(self, sender: PeerId, slot: Slot, blob: Blob, size: int) -> None:
        """Keep another peer's blob, if its quota has room: its blobs that are kept for observers go first."""
        while not self._quota.has(sender, size):
            if not self._drop_oldest(sender):
                return
        if blob.digest not in self._here and self._quota.take(sender, size):
            self._hold(slot, blob.digest, _Held(blob, sender, size))

    def _hold(self, slot: Slot, digest: Digest, held: _Held) -> None:
        """Keep a blob, and send it to peers that asked for it before it was here."""
        self._here.setdefault(digest, held)
        for peer in sorted(self._waiting.pop(digest, ())):
            self._send(peer, slot, BlobSent(held.blob.view))

    def hand_out(self, to: PeerId, slot: Slot, digest: Digest, *, most: int, may_come: bool) -> None:
        """Send a blob of this step or of the last ones; if it is not here yet, when it comes. At most `most` requests count."""
        self._asked[to] += 1
        if self._asked[to] > most:
            return
        held = next((blobs[digest] for blobs in (self._here, *self._older) if digest in blobs), None)
        if held is not None:
            self._send(to, slot, BlobSent(held.blob.view))
        elif may_come:
            self._waiting.setdefault(digest, set()).add(to)

    def next_step(self, *, watched: bool) -> None:
        most = _OLD_BYTES // (1 + sum(len(held.blob) for held in self._here.values())) if watched else 1
        keep = max(1, min(_OLD_STEPS, most))
        for blobs in [self._here, *self._older][keep:]:
            for held in blobs.values():
                self._let_go(held)
        self._older = [self._here, *self._older][:keep]
        self._here = {}
        self._waiting.clear()
        self._asked.clear()

    def _drop_oldest(self, of: PeerId) -> bool:
        """Drop the sender's oldest blob of an earlier step; return whether there was one."""
        for blobs in reversed(self._older):
            for digest, held in blobs.items():
                if held.sender == of:
                    del blobs[digest]
                    self._let_go(held)
                    return True
        return False

    def _let_go(self, held: _Held) -> None:
        if held.sender is not None:
            self._quota.give_back(held.sender, held.size)


class PartExchange:
    """Parts sent to this peer as their owner, parts disclosed to it, and blobs by digest."""

    def __init__(self, me: PeerId, outlet: Outlet, quota: MemoryQuota) -> None:
        self._me = me
        self._outlet = outlet
        self._quota = quota
        self.blobs = Blobs(outlet.send, quota)
        self._parts: dict[Slot, dict[int, dict[PeerId, ProvenPart]]] = defaultdict(lambda: defaultdict(dict))
        self._shown: dict[Slot, dict[Showing, dict[PeerId, ProvenPart]]] = defaultdict(lambda: defaultdict(dict))

    def keep(self, sender: PeerId, packet: Packet) -> None:
        """Keep a part or blob once, if the sender's quota has room."""
        slot, frame = packet.slot, packet.frame
        if isinstance(frame, BlobSent):
            self.blobs.put_from(sender, slot, Blob(frame.blob), packet.size)
            return
        if not isinstance(frame, PartSent | PartShown) or not self._quota.has(sender, packet.size):
            return  # before a table is created: even an empty one takes up memory
        part = ProvenPart(Blob(frame.blob), tuple(map(Digest, frame.path)))
        if isinstance(frame, PartSent):
            table, key = self._parts[slot][frame.part], sender
        else:
            table, key = self._shown[slot][frame.part, sender], PeerId(frame.contributor)
        if key not in table and self._quota.take(sender, packet.size, slot.step):
            table[key] = part

    # Parts for their owners

    def send_parts(self, slot: Slot, parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> None:
        for number, (owner, part) in parts.items():
            if owner == self._me:
                self._parts[slot][number][self._me] = part
            else:
                self._outlet.send(owner, slot, PartSent(number, part.path, part.blob.view))

    def missing(self, slot: Slot, expected: Mapping[int, frozenset[PeerId]], gone: frozenset[PeerId]) -> int:
        """Count expected parts that are not here and may still come."""
        here = self._parts[slot]
        return sum(len(senders - here[part].keys() - gone) for part, senders in expected.items())

    def received(self, slot: Slot, expected: Mapping[int, frozenset[PeerId]]) -> ProvenParts:
        here = self._parts[slot]
        return {
            part: {peer: here[part][peer] for peer in sorted(senders & here[part].keys())}
            for part, senders in expected.items()
        }

    # Parts for everyone

    def own(self, slot: Slot, mine: ProvenParts) -> list[PartShown]:
        """Note this peer's own disclosure; return the frames for everyone else."""
        shown = self._shown[slot]
        for part, contributions in mine.items():
            shown[part, self._me] = dict(contributions)
        return [
            PartShown(part, peer, one.path, one.blob.view)
            for part, contributions in mine.items()
            for peer, one in contributions.items()
        ]

    def are_shown(self, slot: Slot, wanted: Collection[Showing], count: int) -> bool:
        shown = self._shown[slot]
        return all(len(shown[showing]) >= count for showing in wanted)

    def shown(self, slot: Slot, wanted: Collection[Showing]) -> dict[Showing, dict[PeerId, ProvenPart]]:
        return {showing: dict(self._shown[slot][showing]) for showing in wanted}

    def forward(self, slot: Slot, parts: Mapping[Delivery, tuple[Sequence[PeerId], ProvenPart]]) -> None:
        for (number, contributor), (receivers, part) in sorted(parts.items(), key=lambda item: item[0]):
            for receiver in receivers:
                if receiver != self._me:
                    self._outlet.send(receiver, slot, PartShown(number, contributor, part.path, part.blob.view))

    def offered(
        self, slot: Slot, wanted: Collection[Delivery], fits: Callable[[Delivery, ProvenPart], bool]
    ) -> dict[Delivery, ProvenPart]:
        """For each delivery, the first forwarded part that fits. Tables of other parts, which anybody can fill, are met once."""
        tables: dict[int, list[dict[PeerId, ProvenPart]]] = {part: [] for part, _ in wanted}
        for (about, _), said in self._shown[slot].items() if wanted else ():
            if about in tables:
                tables[about].append(said)
        found: dict[Delivery, ProvenPart] = {}
        for part, contributor in wanted:
            offers = (said[contributor] for said in tables[part] if contributor in said)
            right = next((offer for offer in offers if fits((part, contributor), offer)), None)
            found.update({} if right is None else {(part, contributor): right})
        return found

    def forget(self, step: int, *, observed: bool) -> None:
        """Drop parts of this step, which has ended, and of earlier ones: nothing grows from step to step."""
        for kept in (self._parts, self._shown):
            for slot in [slot for slot in kept if slot.step <= step]:
                del kept[slot]
        self._quota.over(step + 1)
        self.blobs.next_step(watched=observed)
