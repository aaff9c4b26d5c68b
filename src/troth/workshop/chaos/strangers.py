"""A stranger's way through a world: it comes to the door, honestly or to cheat, takes part once it is in, and may go away
and come again meanwhile (SPEC J3–J7)."""

from dataclasses import replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, signed_bytes, tagged_hash
from troth.protocol.broadcast.link import PacketLink, SignedSlots
from troth.protocol.core.door import Door, best_nonce, probe_bytes, signed_ticket
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.run import LeftOutError, StalledError
from troth.protocol.history import record_of
from troth.protocol.recovery.member import Member, RemovedError
from troth.protocol.wire.frames import (
    ChunkWanted,
    Frame,
    HistoryWanted,
    Packet,
    ProbeShown,
    StateWanted,
    SyncShown,
    SyncWanted,
    TicketShown,
    TipWanted,
)
from troth.protocol.wire.messages import Phase, Probe, Ticket
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training
from troth.workshop.chaos.peers import NotedLink
from troth.workshop.chaos.plan import HONEST
from troth.workshop.chaos.world import FORGED, Stage
from troth.workshop.simulation.exchange import PowerCutError

_JOIN_HASHES = 1 << 8  # its world asks for little work
# Of a flood
_ROUNDS = 12
_PAUSE = 2.0  # seconds
_TICKET_HASHES = 64  # for a ticket


async def run_stranger(stage: Stage, number: int) -> None:
    """One newcomer from its arrival to the last step."""
    arrives, how = stage.plan.strangers[number]
    if arrives:
        await stage.link(number).off(arrives)
    await (Flood(stage, number) if how == "flood" else Stranger(stage, number)).run()


class Stranger:
    """A newcomer that asks for a seat; `run` is its coroutine."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number
        self.behaviour = stage.plan.strangers[number][1]
        self._leave = stage.plan.leaves.get(number)
        self._identity = stage.identities[number]
        self._link = stage.link(number)
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
        steps = member.come_back(self._identity) if member.has_seat else member.join(hashes=_JOIN_HASHES)
        async for outcome in steps:
            if self.behaviour == HONEST:
                stage.world.step_ended(self._number, outcome, self._ports.opened.pacing.timeouts)
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
        return self._ports.member(peer, first, on_certified=partial(self._stage.world.certified, self._number))

    def _link_for(self, key: Identity) -> PacketLink:
        link: PacketLink = self._stage.link(self._number, key)
        if self.behaviour == "two":
            return TwoProbesLink(link, key, self._stage.tools)
        return NotedLink(link, key.peer, self._stage.world.said) if self.behaviour == HONEST else link


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


class Flood:
    """One machine under many names: it asks for everything there is, and takes slots that it leaves empty (SPEC J3, J4).

    Its names ask in turn; some show tickets with work in them, some made-up ones, or such for others' keys."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._run = stage.run
        self._names = stage.names[number]
        self._links = [stage.link(number, name) for name in self._names]
        others = [stage.identities[number].peer for number in stage.plan.strangers]
        self._victims = [*others, *(successor.peer for _, successor in sorted(stage.successors.items()))]
        self._door = Door.founding(stage.run)
        self._step = 0  # of the first record that it lacks

    async def run(self) -> None:
        for _ in range(_ROUNDS):
            for turn, name in enumerate(self._names):
                for frame in self._frames(turn, name):
                    slot = Slot(self._run.id, self._step, Phase.REJOIN)
                    for member in self._run.founders:
                        self._links[turn].send(member, Packet(slot, frame))
            until = self._links[0].now() + _PAUSE
            while (heard := await self._links[0].receive(until)) is not None:
                if isinstance(heard[1].frame, SyncShown):
                    self._learn([record_of(signed) for signed in heard[1].frame.certified])

    def _learn(self, records: list[StepRecord | None]) -> None:
        """Take the draw that tickets are made for from anybody: whoever believes a liar here has worked in vain."""
        for record in records:
            if record is not None and record.step >= self._step:
                self._step = record.step + 1
                if self._door.is_lottery(record.step):
                    self._door = replace(self._door, seed=Digest(record.randomness))

    def _frames(self, turn: int, name: Identity) -> list[Frame]:
        me = name.peer
        asks = signed_bytes(Slot(self._run.id, self._step, Phase.REJOIN), me, Digest(me))
        kinds: tuple[Frame, ...] = (
            HistoryWanted(0),
            TipWanted(bytes(32), self._step, bytes(32)),
            StateWanted(bytes(32)),
            ChunkWanted(bytes(32), turn),
            ProbeShown(Probe(PeerId(self._run.founders[0]), bytes(32), bytes(64))),
        )
        return [
            TicketShown(self._ticket(turn, name)),
            SyncWanted(self._step, me, name.sign(asks)),
            kinds[turn % len(kinds)],
        ]

    def _ticket(self, turn: int, name: Identity) -> Ticket:
        """One with work in it; one without; or one with work for the key of somebody who did not sign it."""
        run, seed, kind = self._run.id, self._door.seed, turn % 6
        if kind > 1:
            return signed_ticket(run, seed, name, turn, "")
        key = self._victims[turn % len(self._victims)] if kind else name.peer
        _, nonce = best_nonce(run, seed, key, "", range(_TICKET_HASHES))
        return msgspec.structs.replace(signed_ticket(run, seed, name, nonce, ""), key=key)
