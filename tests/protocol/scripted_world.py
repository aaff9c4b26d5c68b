"""Worlds with scripted liars: a script changes what a liar sends, hears and announces, and everything else is honest code.

`play` draws from a seed what its liars do to packets; here a test says exactly which one goes wrong. A liar may also serve
members that come back, so it is a whole `Member`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from unittest.mock import patch

from tests.protocol.channel_wrappers import AlteringChannel
from troth.crypto import Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.core.channel import Channel, Noticed
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.state import Peer
from troth.protocol.recovery.member import Member
from troth.protocol.wire.frames import BlobSent, Chained, Packet, PartSent, PartShown, Value
from troth.protocol.wire.messages import Message
from troth.workshop.chaos import judge as play_module
from troth.workshop.chaos.check_history import agreement, no_honest_ban
from troth.workshop.chaos.check_progress import progress, standing
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.virtual_time import Watch
from troth.workshop.chaos.world import BOUNDS, Stage, World, Wrap
from troth.workshop.simulation.exchange import DropOut

FIRST_LYING_STEP = 2
CALM_NETWORK = Network(latency=0.3)


class LiarLink:
    """A liar's link. Its script sees each packet before it goes out, and each that came in."""

    def __init__(self, link: PacketLink, identity: Identity, script: "LiarScript") -> None:
        self._link = link
        self._script = script
        self.identity = identity
        self.me = identity.peer
        self._held: list[tuple[float, PeerId, Packet]] = []  # the moment at which each goes out

    def now(self) -> float:
        return self._link.now()

    def send(self, to: PeerId, packet: Packet) -> None:
        for sent in self._script.sends(self, to, packet):
            self._link.send(to, sent)

    def send_unchanged(self, to: PeerId, packet: Packet) -> None:
        """Send past its own script."""
        self._link.send(to, packet)

    def send_later(self, seconds: float, to: PeerId, packet: Packet) -> None:
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
            if heard is None or self._script.hears(self, *heard):
                return heard


class LiarScript:
    """The script of all liars of a world; this one does nothing dishonest."""

    serves = False  # whether it answers members that come back

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        """Packets that a liar sends in place of this one."""
        return (packet,)

    def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
        """Whether the liar's own code gets to see the packet."""
        return True

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        """The message that a liar announces in place of this one."""
        return message


@dataclass(frozen=True)
class WorldRun:
    """A finished world, and what was watched in it."""

    world: World
    slow: Mapping[int, frozenset[Slot]]  # by step, announcements that took the fallback for honest peers
    slots: frozenset[Slot] = frozenset()  # slots in which something was announced
    bulk: Mapping[int, int] = field(default_factory=dict)  # bytes of parts and aggregates, by step

    @property
    def records(self) -> list[StepRecord]:
        return self.world.records

    @cached_property
    def seconds(self) -> list[float]:
        """Duration of each step."""
        ends = [self.world.step_ends[record.step] for record in self.records]
        return [end - start for start, end in zip([0.0, *ends], ends, strict=False)]

    @property
    def extra_attempts(self) -> list[int]:
        return [outcome.attempts - 1 for outcome in self.world.witness]

    def named(self, *fields: str) -> dict[int, list[int]]:
        """By step, the numbers of the peers that these fields of the record name."""
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
        """By step, the number of announcements that took the fallback."""
        return {step: len(slots) for step, slots in sorted(self.slow.items())}

    def check_promises(self) -> "WorldRun":
        """All steps are done, the same everywhere; no honest peer is banned, and none without a fault is struck or gone."""
        broken = [what for check in (agreement, no_honest_ban, standing, progress) for what in check(self.world)]
        assert broken == []
        assert len(self.records) == self.world.plan.steps
        return self


def peer_ids(seed: int, count: int) -> list[PeerId]:
    """Ids of the peers of a world, by number."""
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
    network: Network = CALM_NETWORK,
) -> Plan:
    """A plan with defaults for everything that a test does not care about."""
    return Plan(
        seed=seed,
        peers=peers,
        steps=steps,
        liars={number: frozenset(behaviours) for number in liars},
        forge_from=forge_from or {},
        attacks={},
        intensity=dict.fromkeys({*liars, *(forge_from or {})}, (1.0, FIRST_LYING_STEP)),
        crashes=crashes or {},
        network=network,
    )


def run_world(made: Plan, script: LiarScript | None = None, wrap: Wrap | None = None) -> WorldRun:
    """Play a plan, with scripted liars if a script is given."""
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

    world = play(made, watch, wrap) if script is None else _play_scripted(made, script, watch, wrap)
    honest = {step: frozenset(slot for who, slot in found if who in world.honest) for step, found in slow.items()}
    return WorldRun(world, {step: found for step, found in honest.items() if found}, frozenset(slots), bulk)


def _play_scripted(made: Plan, script: LiarScript, watch: Watch, wrap: Wrap | None) -> World:
    liars = {key for number, key in enumerate(peer_ids(made.seed, made.peers)) if number in made.lying}

    def wrapped(peer: PeerId, channel: Channel, noticed: Noticed) -> Channel:
        outer = channel if wrap is None else wrap(peer, channel, noticed)
        return AlteringChannel(outer, partial(script.says, peer)) if peer in liars else outer

    async def liar(stage: Stage, number: int) -> None:
        identity = stage.identities[number]
        link = LiarLink(stage.time.link(identity.peer), identity, script)
        channel = BroadcastChannel(identity, link, BOUNDS, stage.tools)
        work = stage.work()
        entropy = SeededEntropy(made.seed, number)
        peer = Peer(identity, stage.run, work, wrapped(identity.peer, channel, channel), entropy, stage.tools)
        member = Member(peer, stage.first_state(), lambda _: channel)
        async for outcome in member.take_part(channel):
            if not script.serves:
                channel.catch_up.asking.clear()
            if outcome.record.step >= made.steps - 1:
                return

    with patch.object(play_module, "run_liar", liar):
        return play(made, watch, wrapped)
