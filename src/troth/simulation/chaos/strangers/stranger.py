"""A stranger's way through a world: it comes to the door, honestly or to cheat, takes part once it is in, and may go away
and come again meanwhile (SPEC J3–J7)."""

from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, tagged_hash
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlots
from troth.protocol.core.door import probe_bytes
from troth.protocol.core.errors import LeftOutError, StalledError
from troth.protocol.core.roles import gradient_seed
from troth.protocol.recovery.member import Member, RemovedError
from troth.protocol.wire.frames import Packet, ProbeShown
from troth.protocol.wire.messages import Probe
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.honest import NotedLink
from troth.simulation.chaos.plan import HONEST
from troth.simulation.chaos.stage import Stage
from troth.simulation.chaos.strangers.flood import Flood
from troth.simulation.chaos.world import FORGED
from troth.simulation.lockstep.drop_outs import PowerCutError
from troth.training.work import Training

_HASHES = 1 << 8  # its world asks for little work


async def run_stranger(stage: Stage, number: int) -> None:
    """One newcomer from its arrival to the last step."""
    arrives, how = stage.plan.strangers[number]
    if arrives:
        await stage.time.link(stage.identities[number].peer).off(arrives)
    await (Flood(stage, number) if how == "flood" else Stranger(stage, number)).run()


class Stranger:
    """A newcomer that asks for a seat; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self.behaviour = stage.plan.strangers[number][1]
        self._leave = stage.plan.leaves.get(number)
        self._first = self._identity = stage.identities[number]
        self._link = stage.time.link(self._first.peer)
        self._ports = replace(stage.ports(number), work=stage.work(self._hand_in), link=self._link_for)
        self._old_D: Tensor | None = None
        self._member = self._make_member()

    @property
    def is_member(self) -> bool:
        return self._identity.peer in self._member.state.roster.members

    async def run(self) -> None:
        leave, rebuffed = self._leave, False
        if leave is not None and not leave.inside:
            self._lose_power_in(leave.at)
        while True:
            try:
                await self._live()
                return
            except PowerCutError:
                if leave is None or leave.down is None:
                    raise
                await self._link.off(leave.down)
                if not leave.journal:
                    self._change_key()
            except RemovedError:
                if rebuffed or self.is_member:
                    raise
                rebuffed = True  # once more, under the key that was banned
            except (LeftOutError, StalledError):
                if not self._member.has_seat:
                    raise

    async def _live(self) -> None:
        """Come in, or come back; take part until the run is over."""
        member, stage = self._member, self._stage
        steps = member.come_back(self._identity) if member.has_seat else member.join(hashes=_HASHES)
        async for outcome in steps:
            if self.behaviour == HONEST:
                stage.recorder.step_ended(self._number, outcome, self._ports.opened.pacing.timeouts)
            if self._leave is not None and self._leave.inside and self.is_member:
                self._lose_power_in(self._leave.at)
            if outcome.record.step >= stage.plan.steps - 1:
                return

    # Power

    def _lose_power_in(self, seconds: float) -> None:
        self._link.break_in(seconds, PowerCutError("a stranger's machine stopped"))

    def _change_key(self) -> None:
        """Go on under another key: a successor key, if this peer has a seat, or as somebody else."""
        self._identity, self._leave = self._stage.successors[self._number], None
        if not self._member.has_seat:
            self._ports.slots, self._ports.record_keys = SignedSlots(), self._stage.record_keys(self._number)
            self._member = self._make_member()

    # Lies

    async def _hand_in(self, honest_D: Tensor, training: Training, _seed: Seed, step: int) -> Tensor:
        """Nothing, noise, an old gradient, one of somebody else's seed, or a lie once its maker is in."""
        match self.behaviour:
            case "noise":
                return torch.sin(honest_D * 1000 + step)
            case "zeros":
                return torch.zeros_like(honest_D)
            case "old":
                self._old_D = honest_D if self._old_D is None else self._old_D
                return self._old_D
            case "copy":  # of a founder in this step
                seed = gradient_seed(self._member.state.earlier_randomness, self._stage.identities[0].peer)
                return self._stage.world.work.gradient_now(training, seed)
            case "turns" if self.is_member:
                self._stage.world.forged.add((self._identity.peer, step))
                return honest_D * FORGED
        return honest_D

    # Its parts

    def _make_member(self) -> Member[Training]:
        self._old_D = None
        self._ports.open(self._identity)
        peer, first = self._ports.peer(self._identity), self._stage.first_state()
        if self.behaviour != HONEST:
            return self._ports.member(peer, first)
        return self._ports.member(peer, first, on_certified=partial(self._stage.recorder.certified, self._number))

    def _link_for(self, key: Identity) -> PacketLink:
        stage, link = self._stage, cast(PacketLink, self._link)
        if key is not self._first:
            link = stage.time.link(key.peer, home=self._first.peer)
        if self.behaviour == "two":
            return TwoProbesLink(link, key, stage.tools)
        return NotedLink(link, key.peer, stage.world.said) if self.behaviour == HONEST else link


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
