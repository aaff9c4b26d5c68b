"""One way to put a peer together: the protocol's own code over the ports that the world around it gives it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from troth.crypto import Identity
from troth.protocol.broadcast.channel import BroadcastChannel, OnAnnounced
from troth.protocol.broadcast.link import PacketLink, SignedSlots
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel, Entropy, Work
from troth.protocol.core.records import RecordKeys
from troth.protocol.core.run import Run
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.member import Member
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")


@dataclass
class PeerBuilder(Generic[T]):
    """The ports of one peer. A liar, a stranger or a drop-out is an honest peer with one of them wrapped."""

    run: Run
    work: Work[T]
    tools: Primitives
    bounds: Timeouts
    link: Callable[[Identity], PacketLink]  # clock and packets, under the peer's own key or a successor key
    slots: SignedSlots
    entropy: Entropy
    record_keys: RecordKeys | None = None
    channel: Callable[..., BroadcastChannel] = BroadcastChannel
    outside: Callable[[BroadcastChannel, Identity], Channel] = lambda opened, _key: opened  # the channel, for steps
    on_announced: OnAnnounced = lambda _slot, _said: None
    opened: BroadcastChannel = field(init=False)  # the channel that the peer is on

    def open(self, key: Identity, *, observing: bool = True) -> BroadcastChannel:
        """Open the channel that the peer is on from now on: a member's, or an observer's, which only listens."""
        given = key, self.link(key), self.bounds, self.tools, self.slots
        self.opened = self.channel(*given, observing=observing, on_announced=self.on_announced)
        return self.opened

    def peer(self, seat: Identity, key: Identity | None = None) -> Peer[T]:
        """The peer of a seat on the open channel; `key`: the one that it speaks under, if not the seat's own."""
        outside, keys = self.outside(self.opened, key or seat), self.record_keys
        return Peer(seat, self.run, self.work, outside, self.entropy, self.tools, self.opened, record_keys=keys)

    def member(self, peer: Peer[T], state: State[T], ends: int | None = None, **kept: Any) -> Member[T]:
        """The peer as a member; it opens a channel of its own whenever it comes back. `kept`: what it kept, and is to keep."""
        return Member(peer, state, self.open, ends, wrap=self.outside, **kept)
