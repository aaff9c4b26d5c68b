"""Timeline of a world for a person to read: packets, decisions with their reasons, and what came of them.

Everything is seen from outside: packets as the network takes them, and the calls that each peer makes of its channel.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from troth.crypto import PeerId, Slot, tagged_hash
from troth.protocol.core.channel import Channel, Noticed
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.frames import Packet
from troth.protocol.wire.messages import Announced
from troth.simulation.chaos.plan import Plan
from troth.simulation.chaos.virtual_time import VirtualTime
from troth.simulation.chaos.world import World
from troth.simulation.narrate.events import Clock, Event, Finding, Headline
from troth.simulation.narrate.lines import LEGEND, event_lines
from troth.simulation.narrate.packets import PacketLog
from troth.simulation.narrate.phrases import Phrases, spaced, where
from troth.simulation.narrate.tracing import TracedChannel, TracedLink


class Timeline:
    """`play(plan, timeline.watch, timeline.wrap)`, then `timeline.lines(world)`; without a world if playing it raised."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.phrases = Phrases(plan)
        self._clock = Clock()
        self._events: list[Event] = []
        self._packets = PacketLog(self.phrases, self._clock, self._events)
        self._findings: dict[tuple[object, ...], Finding] = {}
        self._steps: set[int] = set()  # that have a headline
        self._wrapped: set[int] = set()
        self._down: set[int] = set()
        self._returned: dict[int, float] = {}  # when each peer's last call ended

    def watch(self, now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        """For `play`: everything that goes onto the network."""
        self._packets.watch(now, sender, to, packet, delays)

    def wrap(self, peer: PeerId, channel: Channel, noticed: Noticed) -> Channel:
        """For `play`: listen to the calls of every peer's channel, and see what a liar's link bends."""
        for thing in list(_inside(channel)):
            if isinstance(thing, VirtualTime):
                self._clock.time = thing
            for name, link in list(vars(thing).items()):
                if _lies_for(peer, link):
                    setattr(thing, name, TracedLink(link, peer, self))
        number = self.phrases.numbers.get(peer)
        if number is None:  # one of a stranger's many names
            return channel
        if number in self._wrapped:
            self.tell(peer, "started again" if number in self._down else "observed, to come back")
        self._wrapped.add(number)
        self._down.discard(number)
        return TracedChannel(channel, noticed, peer, self)

    def lines(self, world: World | None) -> Iterator[str]:
        yield f"seed {self._plan.seed}: {self._plan}"
        yield LEGEND
        self._place_stops(world)
        yield from event_lines(self._events, world, self.phrases)

    def _place_stops(self, world: World | None) -> None:
        """A peer that stopped outside a call stopped when its last call had ended."""
        for number, why in sorted(world.stopped.items() if world is not None else ()):
            if number not in self._down:
                self._down.add(number)
                when = self._returned.get(number, 0.0)
                stop = Finding(when, _stopped(why), None, b"", {number: when})
                self._events.insert(bisect_right(self._events, when, key=lambda event: event.time), stop)

    # Reports of traced channels and links

    def means(
        self, sender: PeerId, to: PeerId, packet: Packet, lies: Mapping[str, int], send: Callable[[], None]
    ) -> None:
        self._packets.means(sender, to, packet, lies, send)

    def enters(self, peer: PeerId, members: frozenset[PeerId]) -> None:
        self._packets.enters(peer, members)

    def begins(self, step: int, members: Collection[PeerId]) -> None:
        """The first peer in a step opens it with a headline."""
        if step in self._steps:
            return
        self._steps.add(step)
        plan, present = self._plan, {self.phrases.numbers.get(peer) for peer in members}
        lies: dict[str, list[int]] = defaultdict(list)
        for number, start in sorted(plan.forge_from.items()):
            lies["wrong gradients"] += [number] if start <= step and number in present else []
        for number, attack in sorted(plan.attacks.items()):
            lies[attack] += [number] if plan.intensity[number][1] <= step and number in present else []
        listed = "".join(f"; {lie}: {spaced(numbers)}" for lie, numbers in lies.items() if numbers)
        text = f"step {step}, members {self.phrases.several(members)}{listed}"
        self._events.append(Headline(self._clock.now, text))

    def tell(
        self, peer: PeerId, text: str, slot: Slot | None = None, values: bytes = b"", record: int | None = None
    ) -> None:
        """Peers that do or find the same for the same slot share a finding."""
        now = self._clock.now
        key = (text, slot, values) if slot is not None else (text, peer, now)
        if key not in self._findings:
            self._findings[key] = Finding(now, text, slot, values, record=record)
            self._events.append(self._findings[key])
        self._findings[key].peers.setdefault(self.phrases.numbers[peer], now)

    def decided(
        self,
        peer: PeerId,
        slot: Slot,
        members: Collection[PeerId],
        said: Mapping[PeerId, Announced],
        equivocations: Collection[PeerId],
    ) -> bool:
        """Note a decision; return whether it was by a certificate.

        Members that are in no map said, in a certified decision, something that is no message.
        """
        sent = self._packets.kinds(peer, slot)
        certified = "Certificate" in sent or "View" not in sent
        rest = set(members) - said.keys() - set(equivocations)
        quiet = "said nothing that counts" if certified else "silent"
        found = [f"{self.phrases.several(rest)} {quiet}"] if rest else []
        found += [f"{self.phrases.several(equivocations)} said two things"] if equivocations else []
        summary = ", ".join(found) or f"all {len(members)} said something"
        rounds = (len(members) + 1) // 2
        by_chains = f"by chains after {rounds} round{'s' if rounds != 1 else ''}: {summary}"
        values = tagged_hash("timeline", *(part for who in sorted(said) for part in (who, said[who].envelope.payload)))
        text = f"decided {where(slot)}: {f'{summary} (certificate)' if certified else by_chains}"
        self.tell(peer, text, slot, values)
        return certified

    def returns(self, peer: PeerId) -> None:
        self._returned[self.phrases.numbers[peer]] = self._clock.now

    def stops(self, peer: PeerId, why: CannotGoOnError) -> None:
        self._down.add(self.phrases.numbers[peer])
        self.tell(peer, _stopped(why))


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


def _lies_for(peer: PeerId, link: Any) -> bool:
    """Whether this is the link that the peer lies through: one that counts its lies. Liars may know each other's."""
    counts = isinstance(getattr(link, "lies", None), dict) and not isinstance(link, TracedLink)
    return counts and getattr(getattr(link, "_identity", None), "peer", peer) == peer


def _stopped(why: CannotGoOnError) -> str:
    return f"stopped: {str(why).removeprefix('stopped ')}"
