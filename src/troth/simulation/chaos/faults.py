"""What goes wrong without anybody lying: slow links, lost and doubled packets, cuts that heal, clocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from troth.crypto import PeerId, Seed, stream
from troth.protocol.wire.frames import BlobSent, Certificate, Chained, Packet, PartSent, PartShown, StateShown, Value

Deliver = Callable[[PeerId, PeerId, Packet, float], Sequence[float]]  # from, to, what, when → after how long, each time


@dataclass(frozen=True)
class Cut:
    """For a while these cannot reach the others, nor the others them."""

    isolated: frozenset[int]
    start: float
    end: float

    def parts(self, one: int, other: int, now: float) -> bool:
        return self.start <= now < self.end and (one in self.isolated) != (other in self.isolated)


@dataclass(frozen=True)
class Network:
    """Times in units of delta. What is not named is as the protocol assumes: every packet arrives, in less than delta."""

    least: float = 0.001  # what every packet takes
    latency: float = (
        0.0  # the most that a packet takes beyond that, each its own time, so that they overtake each other
    )
    links: float = 0.0  # up to so much more on some links, always the same for a link
    far: Mapping[int, float] = field(default_factory=dict)  # what everything to and from these takes more
    doubled: float = 0.0  # how often a packet comes twice
    bytes_per_second: float | None = None  # of everyone's way out
    loss: Mapping[int, float] = field(default_factory=dict)  # how often what these send, or are sent, is lost
    cuts: tuple[Cut, ...] = ()
    clocks: Mapping[int, tuple[float, float]] = field(default_factory=dict)  # ahead by, and faster by
    slow: Mapping[int, float] = field(default_factory=dict)  # seconds that a gradient takes these

    @property
    def unreached(self) -> frozenset[int]:
        """Whom the network treats worse than the protocol assumes."""
        return frozenset({*self.loss, *(number for cut in self.cuts for number in cut.isolated)})

    @property
    def heals(self) -> float:
        """When the last cut is over."""
        return max((cut.end for cut in self.cuts), default=0.0)


def deliveries(
    network: Network, seed: Seed | int, numbers: Mapping[PeerId, int], late: Mapping[int, tuple[float, float]]
) -> Deliver:
    """The network as a function. Packets of liars in `late` come when they like: after a time between these two."""
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
            return ()  # a key that somebody made up: there is nobody
        one, other = numbers[sender], numbers[to]
        if any(cut.parts(one, other, now) for cut in network.cuts):
            return ()
        if network.loss and chance() < max(network.loss.get(one, 0.0), network.loss.get(other, 0.0)):
            return ()
        if network.doubled and chance() < network.doubled:
            return delay(sender, to, packet, now), delay(sender, to, packet, now)
        return (delay(sender, to, packet, now),)

    return deliver


def size_of(packet: Packet) -> int:
    """About as many bytes as it takes."""
    match packet.frame:
        case PartSent(blob=blob) | PartShown(blob=blob) | BlobSent(blob=blob) | StateShown(state=blob):
            return 300 + len(blob)
        case Value(envelope):
            return 200 + len(envelope.payload)
        case Chained(envelope=envelope, chain=chain):
            return 200 + len(envelope.payload) + 100 * len(chain)
        case Certificate(views=views, chain=chain):
            return 100 * (len(views) + len(chain))
        case _:
            return 200
