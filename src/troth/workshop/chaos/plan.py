"""Plan of a world: peers, liars, strangers, crashes, and the network with its faults, all drawn from one seed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from troth.crypto import PeerId, Seed, stream
from troth.protocol.core.run import Parameters
from troth.protocol.wire.frames import (
    BlobSent,
    Certificate,
    Chained,
    ChunkShown,
    Packet,
    PartSent,
    PartShown,
    StateIndex,
    Value,
)
from troth.workshop.simulation.exchange import DropOut

# Sender, receiver, packet, now → the delay of each copy that arrives.
Deliver = Callable[[PeerId, PeerId, Packet, float], Sequence[float]]


@dataclass(frozen=True)
class Cut:
    """A while in which isolated peers cannot reach the others, nor the others them."""

    isolated: frozenset[int]
    start: float
    end: float

    def parts(self, one: int, other: int, now: float) -> bool:
        return self.start <= now < self.end and (one in self.isolated) != (other in self.isolated)


@dataclass(frozen=True)
class Network:
    """Faults of a network, in units of delta. By default every packet arrives within delta, as the protocol assumes."""

    least: float = 0.001  # least delay of a packet
    latency: float = 0.0  # most delay beyond that, drawn for each packet, so that they overtake each other
    links: float = 0.0  # most extra delay of a link, drawn once for each
    far: Mapping[int, float] = field(default_factory=dict)  # extra delay of all packets to and from these peers
    duplicated: float = 0.0  # share of packets that come twice
    bytes_per_second: float | None = None  # upload rate of every peer
    loss: Mapping[int, float] = field(default_factory=dict)  # share of lost packets to and from these peers
    cuts: tuple[Cut, ...] = ()
    clocks: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # how far ahead, and how much faster
    slow: Mapping[int, float] = field(default_factory=dict)  # seconds that these peers need for a gradient

    @property
    def unreached(self) -> frozenset[int]:
        """Peers that the network treats worse than the protocol assumes."""
        return frozenset({*self.loss, *(number for cut in self.cuts for number in cut.isolated)})


def deliveries(
    network: Network, seed: Seed | int, numbers: Mapping[PeerId, int], late: Mapping[int, tuple[float, float]]
) -> Deliver:
    """The network as a function. Packets of liars in `late` come when they like: after a time between the two given."""
    draw, busy = stream(seed, "network"), dict.fromkeys(numbers, 0.0)
    chances: list[float] = []
    extra = (
        {
            (one, other): float(share) * network.links
            for one, row in zip(numbers, draw.uniform(len(numbers) ** 2).reshape(len(numbers), -1), strict=True)
            for other, share in zip(numbers, row, strict=True)
        }
        if network.links
        else {}
    )

    def chance() -> float:
        if not chances:
            chances.extend(draw.uniform(4096).tolist())
        return chances.pop()

    def delay(sender: PeerId, to: PeerId, packet: Packet, now: float) -> float:
        number = numbers[sender]
        if number in late:
            least, most = late[number]
            return least + chance() * (most - least)
        queued = 0.0
        if network.bytes_per_second is not None:
            busy[sender] = max(busy[sender], now) + size_of(packet) / network.bytes_per_second
            queued = busy[sender] - now
        far = network.far.get(number, 0.0) + network.far.get(numbers[to], 0.0)
        return network.least + queued + far + chance() * network.latency + extra.get((sender, to), 0.0)

    def deliver(sender: PeerId, to: PeerId, packet: Packet, now: float) -> Sequence[float]:
        if to not in numbers:
            return ()  # a key that was made up: nobody has it
        one, other = numbers[sender], numbers[to]
        if any(cut.parts(one, other, now) for cut in network.cuts):
            return ()
        if network.loss and chance() < max(network.loss.get(one, 0.0), network.loss.get(other, 0.0)):
            return ()
        if network.duplicated and chance() < network.duplicated:
            return delay(sender, to, packet, now), delay(sender, to, packet, now)
        return (delay(sender, to, packet, now),)

    return deliver


def size_of(packet: Packet) -> int:
    """Approximate bytes of a packet on the wire."""
    match packet.frame:
        case (
            PartSent(blob=blob)
            | PartShown(blob=blob)
            | BlobSent(blob=blob)
            | ChunkShown(blob=blob)
            | StateIndex(index=blob)
        ):
            return 300 + len(blob)
        case Value(envelope):
            return 200 + len(envelope.payload)
        case Chained(envelope=envelope, chain=chain):
            return 200 + len(envelope.payload) + 100 * len(chain)
        case Certificate(views=views, chain=chain):
            return 100 * (len(views) + len(chain))
        case _:
            return 200


TASKS = (  # that a world may train; the first unless its plan says otherwise
    "quadratic:dimension=24",
    "quadratic:dimension=48",
    "factors:dimension=24",
    "factors:dimension=48",
    "quadratic:dimension=24,noise=0.00001",
    "quadratic:dimension=9001",  # blocks for everybody, the last one short (SPEC C4)
    "quadratic:dimension=9001,noise=0.00001",
)
TAU = 0.1
HONEST = "honest"
LAZY = frozenset({"noise", "zeros", "old", "copy", "two"})  # strangers that commit to nothing that they computed
BEHAVIOURS = (HONEST, "noise", "zeros", "old", "copy", "two", "turns", "flood")  # of strangers


@dataclass(frozen=True)
class Departure:
    """A stranger's machine stops, whatever it is by then: at the door, on probation, or a member."""

    at: float  # seconds after its arrival
    down: float | None = None  # for so many seconds; None is for good
    journal: bool = True  # else it comes under another key: a successor key, or that of another stranger
    inside: bool = False  # seconds count from its admission


@dataclass(frozen=True)
class Plan:
    """Everything that determines a world. Peers are numbered from 0."""

    seed: int
    peers: int
    steps: int
    liars: Mapping[int, frozenset[str]]  # behaviours of each liar on the wire
    forge_from: Mapping[int, int]  # first step in which each of these liars sends a wrong gradient
    attacks: Mapping[int, str]  # attacks of liars on the protocol
    intensity: Mapping[int, tuple[float, int]]  # how often each liar lies on the wire, and from which step on
    crashes: Mapping[int, DropOut]
    network: Network
    blackout: Mapping[int, DropOut] = field(default_factory=dict)  # power cuts of all honest peers in one step
    confirmed: float = 60.0  # seconds until people confirm that the honest are enough to restart (SPEC B5)
    byzantine: int | None = None  # b, which the run promises to withstand; None: the number of liars
    task: str = TASKS[0]
    tau: float = TAU
    tau_auto: float | None = None
    waits: bool = False  # liars behave until somebody is gone
    liars_return: bool = False  # liars that were left out come back
    content_every: int = 1  # steps between records that name the content of the state (SPEC U5)
    probation: int = 0  # steps of work until a stranger is a member; 0: the door is closed (SPEC J3)
    strangers: Mapping[int, tuple[float, str]] = field(
        default_factory=dict
    )  # numbered after the peers: arrival, behaviour
    leaves: Mapping[int, Departure] = field(default_factory=dict)  # of strangers
    rekey_every: int = 0  # updates between changes of the keys that sign records; 0: nobody changes them (SPEC U6)
    code: str = Parameters.code  # in which gradients and aggregates are sent (SPEC C4)
    local_steps: int = 1  # gradients that a contribution is the mean of (SPEC R2)
    spikes: float = 0.0  # wrong gradients are right but for one number of this size; 0: they are turned around
    leans: bool = False  # wrong gradients are right but for their rounding, which leans one way (SPEC C4)

    @property
    def lying(self) -> frozenset[int]:
        return frozenset(self.liars) | frozenset(self.forge_from)

    @property
    def shaky(self) -> frozenset[int]:
        """Honest peers that power or network fails."""
        return (frozenset(self.crashes) | frozenset(self.blackout) | self.network.unreached) - self.lying

    def with_liars(self, stay: Collection[int]) -> "Plan":
        """The same with these liars alone; the others are honest."""
        of_liars = {name: getattr(self, name) for name in ("liars", "forge_from", "attacks", "intensity")}
        kept: dict[str, Any] = {name: {k: of[k] for k in of if k in stay} for name, of in of_liars.items()}
        return replace(self, **kept)

    @property
    def turncoats(self) -> frozenset[int]:
        """Strangers that lie once they are members. Those who are lazy before are never members."""
        return frozenset(number for number, (_, how) in self.strangers.items() if how == "turns")

    @property
    def promised(self) -> int:
        return len(self.lying) if self.byzantine is None else self.byzantine

    @property
    def within(self) -> bool:
        """Within the full guarantee: no more members are faulty, lying or gone at any time, than was promised. Strangers that
        come in count like founders, and b never shrinks with them (SPEC J7)."""
        return len(self.lying | self.shaky | self.turncoats | self.leaves.keys()) <= self.promised

    @property
    def fair(self) -> bool:
        """Whether the honest peers that stay outnumber the liars, and a peer that comes back still finds the run."""
        bad = len(self.lying | self.turncoats)
        shaky = len((self.shaky - self.blackout.keys()) | (self.leaves.keys() - self.turncoats))
        back = self.network.unreached or any(drop_out.down is not None for drop_out in self.crashes.values())
        if back and 2 * (bad + shaky) >= self.peers:
            return False
        return not bad + shaky or self.peers - bad - shaky >= bad + 2

    def __str__(self) -> str:
        """Everything but the seed that is unlike the plainest plan, in the same order in every process."""
        plain = {field.name: field.default for field in fields(self)}
        values = msgspec.to_builtins(self, str_keys=True, order="deterministic")
        return ", ".join(
            f"{name} {value}" for name, value in values.items() if value and value != plain[name] and name != "seed"
        )
