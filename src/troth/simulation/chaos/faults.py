"""Faults without lies: slow links, lost and doubled packets, cuts that heal, clocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from troth.crypto import PeerId, Seed, stream
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
