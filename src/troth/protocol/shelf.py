"""What others have put here: bounded for each of them, so that nobody takes up more memory than its share, whatever it sends."""

from collections import Counter, defaultdict

from troth.crypto import Context, PeerId
from troth.protocol.frames import BlobSent, Chained, Decided, Frame, PartSent, PartShown, Value
from troth.protocol.messages import Envelope

_SMALL = 1024  # bytes that any frame counts for


class Shelf:
    """Frames for places that this peer has not reached yet. It counts the bytes of what is kept elsewhere, too."""

    def __init__(self, room: int) -> None:
        self._room = room  # bytes that one peer may take up in a step
        self._frames: dict[Context, list[tuple[PeerId, Frame]]] = defaultdict(list)
        self._count: Counter[PeerId] = Counter()  # of frames, by who sent them
        self._bytes: Counter[PeerId] = Counter()

    def has_room(self, sender: PeerId, frame: Frame) -> bool:
        """Counts it, too."""
        self._bytes[sender] += _size(frame)
        return self._bytes[sender] <= self._room

    def put(self, sender: PeerId, place: Context, frame: Frame, most: int) -> None:
        """Unless there are so many of this sender, or they are too large."""
        if self._count[sender] < most and self.has_room(sender, frame):
            self._count[sender] += 1
            self._frames[place].append((sender, frame))

    def take(self, place: Context) -> list[tuple[PeerId, Frame]]:
        """What came for this place, in the order in which it did."""
        taken = self._frames.pop(place, [])
        for sender, frame in taken:
            self._let_go(sender, frame)
        return taken

    def drop_before(self, step: int, of: PeerId) -> None:
        """One sender's frames of earlier steps."""
        for place in [place for place in self._frames if place.step < step]:
            kept = [(sender, frame) for sender, frame in self._frames[place] if sender != of]
            for sender, frame in self._frames.pop(place):
                if sender == of:
                    self._let_go(sender, frame)
            if kept:
                self._frames[place] = kept

    def _let_go(self, sender: PeerId, frame: Frame) -> None:
        self._count[sender] -= 1
        self._bytes[sender] -= _size(frame)

    def begin(self, step: int) -> None:
        """A step: nothing of those before it is kept, and everybody has all its room again."""
        for place in [place for place in self._frames if place.step < step]:
            del self._frames[place]
        self._bytes.clear()
        self._count = Counter(sender for frames in self._frames.values() for sender, _ in frames)

    @property
    def frames(self) -> int:
        return sum(map(len, self._frames.values()))

    @property
    def kept_bytes(self) -> int:
        """About."""
        return sum(self._bytes.values()) + _SMALL * sum(self._count.values())


def _size(frame: Frame) -> int:
    """About how many bytes it takes up."""
    match frame:
        case PartSent(blob=blob) | PartShown(blob=blob) | BlobSent(blob=blob):
            return len(blob) + _SMALL
        case Value(Envelope(payload=blob)) | Chained(envelope=Envelope(payload=blob)):
            return len(blob) + _SMALL
        case Decided(said=said):
            return sum(len(envelope.payload) + _SMALL for envelope in said.values())
        case _:
            return _SMALL
