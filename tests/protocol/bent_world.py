"""Worlds with liars made by hand: what one sends, hears and says is bent by a function, and everything else is honest code.

`play` draws from a seed what its liars do to packets; here a test says exactly which one goes wrong. A liar may also serve those
who come back, which needs a life of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest.mock import patch

from troth.crypto import Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import AgreedChannel, PacketLink
from troth.protocol.core.channel import Channel
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.records import StepRecord
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.member import Member
from troth.protocol.wire.frames import BlobSent, Chained, Packet, PartSent, PartShown, Value
from troth.protocol.wire.messages import Announced, Message
from troth.simulation.chaos import world as world_module
from troth.simulation.chaos.checkers.agreement import agreement
from troth.simulation.chaos.checkers.no_honest_ban import no_honest_ban
from troth.simulation.chaos.checkers.progress import progress
from troth.simulation.chaos.checkers.standing import standing
from troth.simulation.chaos.faults import Network
from troth.simulation.chaos.virtual_time import Watch
from troth.simulation.chaos.world import BOUNDS, Plan, World, Wrap, play
from troth.simulation.lockstep.drop_outs import DropOut
from troth.training.work import TrainingWork

LIARS_FROM = 2  # the step from which on liars lie
CALM = Network(latency=0.3)


class Bent:
    """A liar's line. `sends` sees each packet before it goes out, `hears` each that came in."""

    def __init__(self, link: PacketLink, identity: Identity, lies: "Lies") -> None:
        self._link = link
        self._lies = lies
        self.identity = identity
        self.me = identity.peer
        self.lies: dict[str, int] = {}
        self._held: list[tuple[float, PeerId, Packet]] = []  # until when

    def now(self) -> float:
        return self._link.now()

    def send(self, to: PeerId, packet: Packet) -> None:
        for sent in self._lies.sends(self, to, packet):
            self._link.send(to, sent)

    def slip(self, to: PeerId, packet: Packet) -> None:
        """Past its own lies."""
        self._link.send(to, packet)

    def later(self, seconds: float, to: PeerId, packet: Packet) -> None:
        self._held.append((self.now() + seconds, to, packet))

    def gone(self) -> frozenset[PeerId]:
        return self._link.gone()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        while True:
            wake = min((when for when, _, _ in self._held), default=until)
            heard = await self._link.receive(min(until, wake))
            due, self._held = (
                [h for h in self._held if h[0] <= self.now()],
                [h for h in self._held if h[0] > self.now()],
            )
            for _, to, packet in due:
                self._link.send(to, packet)
            if heard is None and self.now() < until:
                continue
            if heard is None or self._lies.hears(self, *heard):
                return heard


class Lies:
    """What all liars of a world do: nothing, unless a test says otherwise."""

    serves = False  # whether it answers those who come back

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        """What it sends in place of this packet."""
        return (packet,)

    def hears(self, link: Bent, sender: PeerId, packet: Packet) -> bool:
        """Whether its own code gets to see it."""
        return True

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        """What it announces in place of this."""
        return message


class _Saying:
    """A channel that announces something else."""

    def __init__(self, inner: Channel, me: PeerId, lies: Lies) -> None:
        self._inner, self._me, self._lies = inner, me, lies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        return await self._inner.announce(slot, self._lies.says(self._me, slot, message))


@dataclass(frozen=True)
class Seen:
    """A world, and which announcements took the slow path for honest peers."""

    world: World
    slow: Mapping[int, frozenset[Slot]]
    slots: frozenset[Slot] = frozenset()  # where something was announced
    bulk: Mapping[int, int] = field(default_factory=dict)  # bytes of parts and aggregates, by step

    @property
    def records(self) -> list[StepRecord]:
        return self.world.records

    @cached_property
    def seconds(self) -> list[float]:
        """What each step took."""
        ends = [self.world.step_ends[record.step] for record in self.records]
        return [end - start for start, end in zip([0.0, *ends], ends, strict=False)]

    @property
    def extra_attempts(self) -> list[int]:
        return [outcome.attempts - 1 for outcome in self.world.witness]

    def named(self, *fields: str) -> dict[int, list[int]]:
        """By step, whom these fields of the record name, as numbers."""
        found = {r.step: [self.world.numbers[p] for name in fields for p in getattr(r, name)] for r in self.records}
        return {step: numbers for step, numbers in found.items() if numbers}

    @property
    def link_disputes(self) -> dict[int, list[set[int]]]:
        pairs = {
            r.step: [{self.world.numbers[PeerId(k)] for k in pair} for pair in r.link_disputes] for r in self.records
        }
        return {step: found for step, found in pairs.items() if found}

    @property
    def returned(self) -> dict[int, list[int]]:
        found = {r.step: [self.world.numbers[PeerId(k.key)] for k in r.returned] for r in self.records}
        return {step: numbers for step, numbers in found.items() if numbers}

    def slow_steps(self) -> dict[int, int]:
        return {step: len(slots) for step, slots in sorted(self.slow.items())}

    def kept_promises(self) -> "Seen":
        """Steps all done, the same everywhere; no honest peer banned; none whom nothing failed struck, expelled or absent."""
        broken = [what for check in (agreement, no_honest_ban, standing, progress) for what in check(self.world)]
        assert broken == []
        assert len(self.records) == self.world.plan.steps
        return self


def keys(seed: int, count: int) -> list[PeerId]:
    """Of the peers of a world, by number."""
    return [Identity.from_secret(derive(seed, "identity", number)).peer for number in range(count)]


def plan(
    *,
    seed: int = 1,
    peers: int = 5,
    steps: int = 8,
    liars: Sequence[int] = (0,),
    behaviours: Iterable[str] = (),
    forge_from: Mapping[int, int] | None = None,
    crashes: Mapping[int, DropOut] | None = None,
    network: Network = CALM,
) -> Plan:
    """With everything that a test does not care about left out."""
    return Plan(
        seed=seed,
        peers=peers,
        steps=steps,
        liars={number: frozenset(behaviours) for number in liars},
        forge_from=forge_from or {},
        attacks={},
        intensity=dict.fromkeys({*liars, *(forge_from or {})}, (1.0, LIARS_FROM)),
        crashes=crashes or {},
        network=network,
    )


def see(made: Plan, lies: Lies | None = None, wrap: Wrap | None = None) -> Seen:
    """Play it, with hand-made liars if there are any."""
    slow: dict[int, set[tuple[PeerId, Slot]]] = defaultdict(set)

    slots: set[Slot] = set()
    bulk: Counter[int] = Counter()

    def watch(_now: float, sender: PeerId, _to: PeerId, packet: Packet, _delays: Sequence[float]) -> None:
        match packet.frame:
            case Chained():
                slow[packet.slot.step].add((sender, packet.slot))
            case Value():
                slots.add(packet.slot)
            case PartSent(blob=blob) | PartShown(blob=blob) | BlobSent(blob=blob):
                bulk[packet.slot.step] += len(blob)

    world = play(made, watch, wrap) if lies is None else _play_lies(made, lies, watch, wrap)
    honest = {step: frozenset(slot for who, slot in found if who in world.honest) for step, found in slow.items()}
    return Seen(world, {step: found for step, found in honest.items() if found}, frozenset(slots), bulk)


def _play_lies(made: Plan, lies: Lies, watch: Watch, wrap: Wrap | None) -> World:
    liars = {key for number, key in enumerate(keys(made.seed, made.peers)) if number in made.lying}

    def wrapped(peer: PeerId, channel: Channel) -> Channel:
        outer = channel if wrap is None else wrap(peer, channel)
        return _Saying(outer, peer, lies) if peer in liars else outer

    async def liar(stage: Any, number: int, identity: Identity) -> None:
        channel = AgreedChannel(identity, Bent(stage.time.link(identity.peer), identity, lies), BOUNDS, stage.tools)
        work = stage.work(TrainingWork)
        entropy, first = SeededEntropy(made.seed, number), work.first(derive(made.seed, "model"))
        peer = Peer(identity, stage.run, work, wrapped(identity.peer, channel), entropy, stage.tools)
        member = Member(peer, State.first(stage.run, first), lambda _: channel)
        async for outcome in member.take_part(channel):
            if not lies.serves:
                channel.catch_up.asking.clear()
            if outcome.record.step >= made.steps - 1:
                return

    with patch.object(world_module._Stage, "liar", liar):
        return play(made, watch, wrapped)
