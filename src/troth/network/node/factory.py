"""The parts that an honest peer is made of."""

import secrets
from collections.abc import Callable

from troth.crypto import Identity
from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.protocol.broadcast.channel import BroadcastChannel, OnAnnounced
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlots
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel, Entropy
from troth.protocol.core.coins import Coins
from troth.protocol.core.run import Run
from troth.protocol.wire.primitives import Primitives
from troth.resting import RESTS_FROM
from troth.training import Problem
from troth.training.work import TrainingWork


class SystemEntropy:
    """Coins from the system's generator, which nobody can guess."""

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(secrets.token_bytes(32), secrets.token_bytes(32))


class PeerFactory:
    """Makes the parts of an honest peer. A rehearsal overrides some of them, to repeat coins or to lie."""

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        return manifest.work(problem, tools)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        """The work as the protocol's steps see it. It begins gradients before they are asked for, unless vectors are so large
        that they rest in files: the next model and two gradients would take four of them in memory."""
        return GradientsAhead(work, allowed_s if work.problem.size < RESTS_FROM else None)

    def entropy(self) -> Entropy:
        return SystemEntropy()

    def link(self, link: PacketLink, identity: Identity) -> PacketLink:
        return link

    def channel(
        self,
        identity: Identity,
        link: PacketLink,
        bounds: Timeouts,
        tools: Primitives,
        slots: SignedSlots,
        *,
        observing: bool,
        on_announced: OnAnnounced,
    ) -> BroadcastChannel:
        return BroadcastChannel(identity, link, bounds, tools, slots, observing=observing, on_announced=on_announced)

    def outside(self, channel: BroadcastChannel, identity: Identity, run: Run) -> Channel:
        """The channel as the protocol's steps see it."""
        return channel
