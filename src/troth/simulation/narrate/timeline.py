"""A world told for a person to read: who sent what to whom, who decided what and why, and what came of it.

Everything is seen from outside: packets as the network takes them, and the calls that each peer makes of its channel.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from troth.crypto import PeerId, Slot, blob_digest, tagged_hash
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.records import encode_record
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
from troth.protocol.wire.messages import Announced
from troth.simulation.chaos.virtual_time import VirtualTime
from troth.simulation.chaos.world import Plan, World
from troth.simulation.narrate.phrases import Phrases, by_number, decoded, spaced, where
from troth.simulation.narrate.tracing import TracedChannel, TracedLink

_LATE_S = Timeouts().delta  # what takes longer breaks what the protocol assumes
_LONGEST = 100  # characters about one burst: liars make things up


@dataclass
class _Burst:
    """Frames of one kind for one place that a peer sent in one moment."""

    time: float
    sender: int
    kind: str
    slot: Slot
    others: frozenset[int]  # who "all" are
    # To whom, and when each of the frames comes: not at all, once, or more often.
    to: dict[int, list[Sequence[float]]] = field(default_factory=lambda: defaultdict(list))
    about: dict[tuple[str, str], dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    lies: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # conduct → to whom


@dataclass
class _Traced:
    """What peers did or found, if they did or found the same."""

    time: float
    text: str
    slot: Slot | None
    values: bytes  # what was decided, where something was
    peers: dict[int, float] = field(default_factory=dict)  # and when
    record: int | None = None  # of which step it is the record


@dataclass
class _Headline:
    time: float
    text: str


@dataclass
class _Meant:
    """What a liar's own code wanted to send, and how often each lie had been told when it was last looked at."""

    sender: PeerId
    kind: str
    slot: Slot
    lies: Mapping[str, int]
    known: dict[str, int]
    doing: str = "made up"

    def fresh(self) -> list[str]:
        """The lies since then."""
        found = [lie for lie, count in self.lies.items() if count > self.known.get(lie, 0)]
        self.known = dict(self.lies)
        return found


class Timeline:
    """`play(plan, timeline.watch, timeline.wrap)`, then `timeline.lines(world)`; without a world if it fell over."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.words = Phrases(plan)
        self._entries: list[_Burst | _Traced | _Headline] = []
        self._bursts: dict[tuple[object, ...], _Burst] = {}
        self._told: dict[tuple[object, ...], _Traced] = {}
        self._decisions: dict[Slot | None, set[bytes]] = defaultdict(set)  # what was decided in each place
        self._said: dict[tuple[PeerId, Slot], list[bytes]] = defaultdict(list)  # the values that each announced
        self._arrivals: dict[tuple[PeerId, Slot], dict[PeerId, dict[bytes, float]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        # Kinds of frames that each peer sent in each place; and, under None, that all of them did.
        self._sent: dict[tuple[PeerId | None, Slot], set[str]] = defaultdict(set)
        self._among: dict[PeerId, frozenset[PeerId]] = {}
        self._steps: set[int] = set()
        self._wrapped: set[int] = set()
        self._down: set[int] = set()
        self._returned: dict[int, float] = {}  # when each peer's last call ended
        self._time: VirtualTime[Any] | None = None
        self._latest = 0.0
        self._meant: _Meant | None = None

    @property
    def _now(self) -> float:
        return self._latest if self._time is None else self._time.now

    # What is sent

    def watch(self, now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        """For `play`: everything that goes onto the network."""
        self._latest = now
        if to not in self.words.numbers:
            return  # to nobody
        burst, number = self._burst(sender, packet), self.words.numbers[to]
        burst.to[number].append([now + delay for delay in delays])
        if isinstance(packet.frame, Value) and delays:
            arrived = self._arrivals[to, packet.slot][sender]
            arrived.setdefault(blob_digest(packet.frame.envelope.payload), now + min(delays))
        meant = self._meant
        if meant is None or meant.sender != sender:
            self._sent[sender, packet.slot].add(burst.kind)
            self._sent[None, packet.slot].add(burst.kind)
            return
        fresh = meant.fresh()
        meant.doing = fresh[-1] if fresh else meant.doing
        made_up = (burst.kind, burst.slot) != (meant.kind, meant.slot)
        for lie in fresh or ([meant.doing] if made_up else []):
            burst.lies[lie].add(number)

    def means(
        self, sender: PeerId, to: PeerId, packet: Packet, lies: Mapping[str, int], send: Callable[[], None]
    ) -> None:
        """A liar's own code sends this; what becomes of it is up to the line that it lies through."""
        self._sent[sender, packet.slot].add(type(packet.frame).__name__)
        self._variant(sender, packet)  # what it means is the first value; what it says instead, another
        self._meant = _Meant(sender, type(packet.frame).__name__, packet.slot, lies, dict(lies))
        send()
        for lie in self._meant.fresh() if to in self.words.numbers else ():  # it put nothing on the wire
            self._burst(sender, packet).lies[lie].add(self.words.numbers[to])
        self._meant = None

    def _burst(self, sender: PeerId, packet: Packet) -> _Burst:
        kind = type(packet.frame).__name__
        key = (self._now, sender, kind, packet.slot, self._variant(sender, packet))
        if key not in self._bursts:
            others = self._among.get(sender, frozenset()) - {sender}
            known = frozenset(self.words.numbers[peer] for peer in others if peer in self.words.numbers)
            self._bursts[key] = _Burst(self._now, self.words.numbers[sender], kind, packet.slot, known)
            self._entries.append(self._bursts[key])
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
            case View(values=values, gone=gone):
                return values, gone
            case _:
                return None

    def _about(self, sender: PeerId, packet: Packet) -> tuple[str, str, str]:
        """What is worth knowing of a frame: frames that differ only in the second are told together."""
        match packet.frame:
            case Value(envelope):
                brief = self.words.message(decoded(packet.slot, envelope.payload))
                again = "" if self._variant(sender, packet) == 0 else "another value"
                return ": ".join(filter(None, (again, brief))), "", ""
            case View(values=None):
                return f"incomplete: {self._why_incomplete(sender, packet.slot)}", "", ""
            case View(gone=gone) if gone:
                return f"without {self.words.several(gone)}", "", ""
            case Certificate(chain=chain):
                before = self.words.several(chain.keys() - {sender})
                return f"passed on by {before}" if before else "", "", ""
            case Chained(originator=originator, envelope=envelope, chain=chain):
                said = self._said[PeerId(originator), packet.slot]
                second = blob_digest(envelope.payload) in said[1:]
                signers = f"({len(chain)} signature{'s' if len(chain) != 1 else ''})"
                return "value of", self.words.number(originator) + ("'s second" if second else ""), signers
            case Relayed(originator=originator, frame=frame):
                return f"{type(frame).__name__.lower()} of", self.words.number(originator), ""
            case SyncWanted(since=since):
                return f"since step {since}", "", ""
            case PartSent(part=part):
                return "part", str(part), ""
            case PartShown(part=part, contributor=contributor):
                return f"part {part} of", self.words.number(contributor), ""
            case _:
                return "", "", ""

    def _why_incomplete(self, viewer: PeerId, slot: Slot) -> str:
        come = {
            sender: [digest for digest, arrives in values.items() if arrives <= self._now]
            for sender, values in self._arrivals[viewer, slot].items()
        }
        missing = [peer for peer in self._among.get(viewer, frozenset()) - {viewer} if not come.get(peer)]
        double = [peer for peer, digests in come.items() if len(digests) > 1]
        reasons = [f"nothing of {self.words.several(missing)}"] if missing else []
        reasons += [f"two values of {self.words.several(double)}"] if double else []
        return ", ".join(reasons) or "without reason"

    # What peers do and find

    def wrap(self, peer: PeerId, channel: Channel) -> Channel:
        """For `play`: every peer's channel, to hear its calls; and a liar's line, to see what it bends."""
        for thing in list(_inside(channel)):
            if isinstance(thing, VirtualTime):
                self._time = thing
            for name, line in list(vars(thing).items()):
                if _lies_for(peer, line):
                    setattr(thing, name, TracedLink(line, peer, self))
        number = self.words.numbers[peer]
        if number in self._wrapped:
            self.tell(peer, "started again" if number in self._down else "looked on, to come back")
        self._wrapped.add(number)
        self._down.discard(number)
        return cast(Channel, TracedChannel(channel, peer, self))

    def enters(self, peer: PeerId, members: frozenset[PeerId]) -> None:
        self._among[peer] = members

    def begins(self, step: int, members: Collection[PeerId]) -> None:
        """Whoever gets there first opens the step."""
        if step in self._steps:
            return
        self._steps.add(step)
        plan, here = self._plan, {self.words.numbers.get(peer) for peer in members}
        lies: dict[str, list[int]] = defaultdict(list)
        for number, start in sorted(plan.forge_from.items()):
            lies["wrong gradients"] += [number] if start <= step and number in here else []
        for number, attack in sorted(plan.attacks.items()):
            lies[attack] += [number] if plan.intensity[number][1] <= step and number in here else []
        told = [f"; {lie}: {spaced(numbers)}" for lie, numbers in lies.items() if numbers]
        self._entries.append(_Headline(self._now, f"step {step}, members {self.words.several(members)}{''.join(told)}"))

    def tell(
        self, peer: PeerId, text: str, slot: Slot | None = None, values: bytes = b"", record: int | None = None
    ) -> None:
        """Peers that do or find the same in the same place share a line."""
        key = (text, slot, values) if slot is not None else (text, peer, self._now)
        self._decisions[slot] |= {values} - {b""}
        if key not in self._told:
            self._told[key] = _Traced(self._now, text, slot, values, record=record)
            self._entries.append(self._told[key])
        self._told[key].peers.setdefault(self.words.numbers[peer], self._now)

    def returns(self, peer: PeerId) -> None:
        self._returned[self.words.numbers[peer]] = self._now

    def decided(
        self,
        peer: PeerId,
        slot: Slot,
        members: Collection[PeerId],
        said: Mapping[PeerId, Announced],
        equivocations: Collection[PeerId],
    ) -> bool:
        """Told; and whether it was by a certificate. Those who are in no map then said something that is no message."""
        sent = self._sent[peer, slot] or self._sent[None, slot]  # whoever looks on sends nothing, but decides
        certified = "Certificate" in sent or "View" not in sent
        rest = set(members) - said.keys() - set(equivocations)
        found = [f"{self.words.several(rest)} {'said nothing that counts' if certified else 'silent'}"] if rest else []
        found += [f"{self.words.several(equivocations)} said two things"] if equivocations else []
        what = ", ".join(found) or f"all {len(members)} said something"
        rounds = (len(members) + 1) // 2
        by_chains = f"by chains after {rounds} round{'s' if rounds != 1 else ''}: {what}"
        values = tagged_hash("timeline", *(part for who in sorted(said) for part in (who, said[who].envelope.payload)))
        text = f"decided {where(slot)}: {f'{what} (certificate)' if certified else by_chains}"
        self.tell(peer, text, slot, values)
        return certified

    def stops(self, peer: PeerId, why: CannotGoOnError) -> None:
        self._down.add(self.words.numbers[peer])
        self.tell(peer, _stopped(why))

    # All of it

    def lines(self, world: World | None) -> Iterator[str]:
        yield f"seed {self._plan.seed}: {self._plan}"
        yield "→ sent   ! with a lie   • did or found   = is recorded; LATE is later than the protocol assumes"
        self._place_stops(world)
        recorded: set[int] = set()
        for line in self._merged():
            if isinstance(line, _Traced):
                yield self._told_line(line)
                if line.record is not None and world is not None:
                    recorded.add(line.record)
                    yield from self._record_lines(world, line.record)
            else:
                yield line
        if world is not None:
            ended = {step for outcomes in world.outcomes.values() for step in outcomes}
            for step in sorted(ended - recorded):  # which no step followed, so that nobody signed it
                yield from self._record_lines(world, step)
            yield f"{world.seconds:9.3f}  the end"

    def _place_stops(self, world: World | None) -> None:
        """Whoever stopped outside a call stopped when the last one had ended."""
        for number, why in sorted(world.stopped.items() if world is not None else ()):
            if number not in self._down:
                self._down.add(number)
                when = self._returned.get(number, 0.0)
                stop = _Traced(when, _stopped(why), None, b"", {number: when})
                self._entries.insert(bisect_right(self._entries, when, key=lambda entry: entry.time), stop)

    def _merged(self) -> Iterator["str | _Traced"]:
        """In order; those who send the same at the same time share a line."""
        first: dict[tuple[object, ...], list[int]] = {}
        rows: list[tuple[object, ...] | _Traced | _Headline] = []
        for entry in self._entries:
            if isinstance(entry, _Burst):
                key = _burst_row(entry)
                if key not in first:
                    first[key] = []
                    rows.append(key)
                first[key].append(entry.sender)
            else:
                rows.append(entry)
        recorded: set[int] = set()
        for row in rows:
            if isinstance(row, _Headline):
                yield ""
                yield f"── {row.text}"
            elif isinstance(row, _Traced):
                if row.record in recorded:
                    row.record = None
                elif row.record is not None:
                    recorded.add(row.record)
                yield row
            else:
                time, mark, to, kind, where, rest = row
                senders = " ".join(map(str, sorted(set(first[row]))))
                yield f"{time}  {mark} {f'{senders} → {to}':<18} {kind:<12} {where:<24} {rest}".rstrip()

    def _told_line(self, told: _Traced) -> str:
        values = f" [values {told.values.hex()[:6]}]" if len(self._decisions[told.slot]) > 1 and told.values else ""
        last = max(told.peers.values())
        until = f", the last at {last:.3f}" if last - told.time >= 0.0005 else ""
        return f"{told.time:9.3f}  • {' '.join(map(str, sorted(told.peers)))} {told.text}{values}{until}"

    def _record_lines(self, world: World, step: int) -> Iterator[str]:
        """As the honest hold it: once, unless they differ."""
        ended = {number: outcomes[step].record for number, outcomes in world.outcomes.items() if step in outcomes}
        holders: dict[bytes, list[int]] = defaultdict(list)
        for number, record in ended.items():
            holders[encode_record(record)].append(number)
        for numbers in holders.values():
            whose = f" as {spaced(numbers)} have it" if len(holders) > 1 else ""
            first, *more = self.words.record(ended[numbers[0]])
            yield f"{'':9}  = record of step {step}{whose}: {first}"
            yield from (f"{'':9}  =   {text}" for text in more)


def _burst_row(burst: _Burst) -> tuple[str, ...]:
    """Everything but the sender."""
    to = set(burst.to)
    missing = burst.others - to
    if not to:
        whom = "nobody"
    elif to >= burst.others and len(burst.others) > 1:  # beside them those who look on
        whom = " and ".join(filter(None, ("all", spaced(to - burst.others))))
    elif to < burst.others and len(missing) <= 2 < len(to):
        whom = f"all but {spaced(missing)}"
    else:
        whom = spaced(to)
    return (
        f"{burst.time:9.3f}",
        "!" if burst.lies else " ",
        whom,
        burst.kind,
        where(burst.slot),
        "; ".join(filter(None, (_about_text(burst), *_arrival_texts(burst), *_lie_texts(burst)))),
    )


def _about_text(burst: _Burst) -> str:
    groups = [
        " ".join(filter(None, (before, *sorted(items, key=by_number), after)))
        for (before, after), items in burst.about.items()
        if burst.kind != PartSent.__name__ or len(items) <= 2  # else to each owner its own, as always
    ]
    text = "".join(character if character.isprintable() else "?" for character in ", ".join(filter(None, groups)))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _arrival_texts(burst: _Burst) -> Iterator[str]:
    first = {number: [min(times) for times in frames if times] for number, frames in burst.to.items()}
    in_time = [time for times in first.values() for time in times if time - burst.time <= _LATE_S]
    late = {number: max(times) for number, times in first.items() if times and max(times) - burst.time > _LATE_S}
    lost = [number for number, frames in burst.to.items() if not all(frames)]
    equivocations = [number for number, frames in burst.to.items() if any(len(times) > 1 for times in frames)]
    if in_time:
        yield f"arrives by {max(in_time):.3f}"
    if late:
        yield f"LATE to {spaced(late)}, by {max(late.values()):.3f}"
    if lost:
        yield f"LOST to {spaced(lost)}"
    if equivocations:
        yield f"twice to {spaced(equivocations)}"


def _lie_texts(burst: _Burst) -> Iterator[str]:
    for lie, about in sorted(burst.lies.items()):
        yield f"! {lie}" + ("" if about == set(burst.to) else f" ({spaced(about)})")


def _inside(thing: Any) -> Iterator[Any]:
    """Everything of ours that it consists of."""
    seen: dict[int, Any] = {}
    found = [thing]
    while found:
        one = found.pop()
        if id(one) not in seen and hasattr(one, "__dict__") and type(one).__module__.startswith("troth."):
            seen[id(one)] = one
            found += vars(one).values()
    yield from seen.values()


def _lies_for(peer: PeerId, line: Any) -> bool:
    """Whether this is the line that a liar lies through: one that counts its lies. Liars may know each other's."""
    counts = isinstance(getattr(line, "lies", None), dict) and not isinstance(line, TracedLink)
    return counts and getattr(getattr(line, "_identity", None), "peer", peer) == peer


def _stopped(why: CannotGoOnError) -> str:
    return f"stopped: {str(why).removeprefix('stopped ')}"
