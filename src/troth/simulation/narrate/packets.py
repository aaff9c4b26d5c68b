"""Log of packets, as the network takes them: bursts of equal frames, what is in them, and lies on the way."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from troth.crypto import PeerId, Slot, blob_digest
from troth.protocol.wire.frames import (
    Certificate,
    Chained,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    SyncWanted,
    Value,
    View,
)
from troth.simulation.narrate.events import Burst, Clock, Event
from troth.simulation.narrate.phrases import Phrases, decoded


@dataclass
class _Intent:
    """A packet that a liar's own code wanted to send, and the counts of its lies when they were last looked at."""

    sender: PeerId
    kind: str
    slot: Slot
    lies: Mapping[str, int]
    known: dict[str, int]
    doing: str = "made up"

    def fresh(self) -> list[str]:
        """Lies since then."""
        found = [lie for lie, count in self.lies.items() if count > self.known.get(lie, 0)]
        self.known = dict(self.lies)
        return found


class PacketLog:
    """Appends bursts to a timeline's events."""

    def __init__(self, phrases: Phrases, clock: Clock, events: list[Event]) -> None:
        self._phrases = phrases
        self._clock = clock
        self._events = events
        self._bursts: dict[tuple[object, ...], Burst] = {}
        self._said: dict[tuple[PeerId, Slot], list[bytes]] = defaultdict(list)  # digests of values that each announced
        self._arrivals: dict[tuple[PeerId, Slot], dict[PeerId, dict[bytes, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        # Kinds of frames that each peer sent for each slot; and, under None, that all of them did.
        self._kinds: dict[tuple[PeerId | None, Slot], set[str]] = defaultdict(set)
        self._members: dict[PeerId, frozenset[PeerId]] = {}  # of each peer's present attempt
        self._intent: _Intent | None = None

    def enters(self, peer: PeerId, members: frozenset[PeerId]) -> None:
        self._members[peer] = members

    def kinds(self, peer: PeerId, slot: Slot) -> set[str]:
        """Kinds of frames that the peer sent; those of all for an observer, which sends nothing and yet decides."""
        return self._kinds[peer, slot] or self._kinds[None, slot]

    def watch(self, now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        """Log a packet that goes onto the network."""
        self._clock.latest = now
        if to not in self._phrases.numbers:
            return  # a made-up key
        burst, number = self._burst(sender, packet), self._phrases.numbers[to]
        burst.to[number].append([now + delay for delay in delays])
        if isinstance(packet.frame, Value) and delays:
            arrived = self._arrivals[to, packet.slot][sender]
            arrived.setdefault(blob_digest(packet.frame.envelope.payload), now + min(delays))
        intent = self._intent
        if intent is None or intent.sender != sender:
            self._kinds[sender, packet.slot].add(burst.kind)
            self._kinds[None, packet.slot].add(burst.kind)
            return
        fresh = intent.fresh()
        intent.doing = fresh[-1] if fresh else intent.doing
        made_up = (burst.kind, burst.slot) != (intent.kind, intent.slot)
        for lie in fresh or ([intent.doing] if made_up else []):
            burst.lies[lie].add(number)

    def means(
        self, sender: PeerId, to: PeerId, packet: Packet, lies: Mapping[str, int], send: Callable[[], None]
    ) -> None:
        """Log what a liar's own code sends; `send` shows what its link makes of it."""
        self._kinds[sender, packet.slot].add(type(packet.frame).__name__)
        self._variant(sender, packet)  # the intended value is the first; what it says instead is another
        self._intent = _Intent(sender, type(packet.frame).__name__, packet.slot, lies, dict(lies))
        send()
        for lie in self._intent.fresh() if to in self._phrases.numbers else ():  # it put nothing on the wire
            self._burst(sender, packet).lies[lie].add(self._phrases.numbers[to])
        self._intent = None

    def _burst(self, sender: PeerId, packet: Packet) -> Burst:
        kind, now = type(packet.frame).__name__, self._clock.now
        key = (now, sender, kind, packet.slot, self._variant(sender, packet))
        if key not in self._bursts:
            others = self._members.get(sender, frozenset()) - {sender}
            known = frozenset(self._phrases.numbers[peer] for peer in others if peer in self._phrases.numbers)
            self._bursts[key] = Burst(now, self._phrases.numbers[sender], kind, packet.slot, known)
            self._events.append(self._bursts[key])
        before, item, after = self._about(sender, packet)
        self._bursts[key].about[before, after].setdefault(item)
        return self._bursts[key]

    def _variant(self, sender: PeerId, packet: Packet) -> object:
        """Different things to different peers are different bursts."""
        match packet.frame:
            case Value(envelope):
                said, digest = self._said[sender, packet.slot], blob_digest(envelope.payload)
                if digest not in said:
                    said.append(digest)
                return said.index(digest)
            case View(values=values, gone=gone, broken_off=broken_off):
                return values, gone, broken_off
            case _:
                return None

    def _about(self, sender: PeerId, packet: Packet) -> tuple[str, str, str]:
        """Texts before, of and after an item: frames that differ only in the item share a line."""
        phrases = self._phrases
        match packet.frame:
            case Value(envelope):
                brief = phrases.message(decoded(packet.slot, envelope.payload))
                again = "" if self._variant(sender, packet) == 0 else "another value"
                return ": ".join(filter(None, (again, brief))), "", ""
            case View(values=None):
                return f"incomplete: {self._why_incomplete(sender, packet.slot)}", "", ""
            case View(broken_off=broken_off) if broken_off:
                return f"again, since {phrases.several(broken_off)} broke off", "", ""
            case View(gone=gone) if gone:
                return f"without {phrases.several(gone)}", "", ""
            case Certificate(chain=chain):
                before = phrases.several(chain.keys() - {sender})
                return f"passed on by {before}" if before else "", "", ""
            case Chained(originator=originator, envelope=envelope, chain=chain):
                said = self._said[PeerId(originator), packet.slot]
                second = blob_digest(envelope.payload) in said[1:]
                signers = f"({len(chain)} signature{'s' if len(chain) != 1 else ''})"
                return "value of", phrases.number(originator) + ("'s second" if second else ""), signers
            case Relayed(originator=originator, frame=frame):
                return f"{type(frame).__name__.lower()} of", phrases.number(originator), ""
            case SyncWanted(since=since):
                return f"since step {since}", "", ""
            case PartSent(part=part):
                return "part", str(part), ""
            case PartShown(part=part, contributor=contributor):
                return f"part {part} of", phrases.number(contributor), ""
            case _:
                return "", "", ""

    def _why_incomplete(self, viewer: PeerId, slot: Slot) -> str:
        come = {
            sender: [digest for digest, arrives in values.items() if arrives <= self._clock.now]
            for sender, values in self._arrivals[viewer, slot].items()
        }
        missing = [peer for peer in self._members.get(viewer, frozenset()) - {viewer} if not come.get(peer)]
        double = [peer for peer, digests in come.items() if len(digests) > 1]
        reasons = [f"nothing of {self._phrases.several(missing)}"] if missing else []
        reasons += [f"two values of {self._phrases.several(double)}"] if double else []
        return ", ".join(reasons) or "without reason"
