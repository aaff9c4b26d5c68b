"""Gradients as strangers hand them in, and commitments of one that signs two."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, tagged_hash
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.core.door import probe_bytes
from troth.protocol.wire.frames import Packet, ProbeShown
from troth.protocol.wire.messages import Probe
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.world import FORGED
from troth.training.work import Training, TrainingWork

# D coordinates


class StrangeWork(TrainingWork):
    """Nothing, noise, an old gradient, one of somebody else's seed, or a lie once its maker is in."""

    def __init__(
        self,
        *training: Any,
        behaviour: str,
        copied_seed: Callable[[], Seed],
        lies: Callable[[int], bool],  # whether it lies in this step, which is noted
    ) -> None:
        super().__init__(*training)
        self._behaviour = behaviour
        self._copied_seed = copied_seed
        self._lies = lies
        self._old_D: Tensor | None = None

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        honest_D = await super().gradient(training, seed, step)
        match self._behaviour:
            case "noise":
                return torch.sin(honest_D * 1000 + step)
            case "zeros":
                return torch.zeros_like(honest_D)
            case "old":
                self._old_D = honest_D if self._old_D is None else self._old_D
                return self._old_D
            case "copy":
                return self.gradient_now(training, self._copied_seed())
            case "turns" if self._lies(step):
                return honest_D * FORGED
        return honest_D


class TwoProbesLink:
    """Commits to one gradient before some, and to another one before the rest (SPEC J5)."""

    def __init__(self, link: PacketLink, identity: Identity, tools: Primitives) -> None:
        self._link = link
        self._identity = identity
        self._tools = tools
        self._sides: dict[PeerId, int] = {}  # members, in the order in which it met them
        self.now, self.receive, self.gone = link.now, link.receive, link.gone

    def send(self, to: PeerId, packet: Packet) -> None:
        frame = packet.frame
        if isinstance(frame, ProbeShown) and self._sides.setdefault(to, len(self._sides)) % 2:
            me, root = self._identity.peer, Digest(tagged_hash("another root", frame.probe.root))
            signed = self._identity.sign(probe_bytes(packet.slot, me, root, self._tools))
            packet = Packet(packet.slot, ProbeShown(Probe(me, root, signed)))
        self._link.send(to, packet)
