"""One machine under many names: it asks for everything there is, and takes slots that it leaves empty (SPEC J3, J4)."""

from dataclasses import replace

import msgspec

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes
from troth.protocol.core.door import Door, best_nonce, signed_ticket
from troth.protocol.core.records import StepRecord
from troth.protocol.history.record import record_of
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
from troth.simulation.chaos.stage import Stage

_ROUNDS = 12
_PAUSE = 2.0  # seconds
_HASHES = 64  # for a ticket


class Flood:
    """Its names ask in turn; some show tickets with work in them, some made-up ones, or such for others' keys."""

    def __init__(self, stage: Stage, number: int) -> None:
        home = stage.identities[number].peer
        self._run = stage.run
        self._names = stage.names[number]
        self._links = [stage.time.link(name.peer, home=home) for name in self._names]
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
        run, seed = self._run.id, self._door.seed
        if turn % 6 > 1:
            return signed_ticket(run, seed, name, turn, "")
        if turn % 6 == 1:
            other = self._victims[turn % len(self._victims)]
            _, nonce = best_nonce(run, seed, other, "", range(_HASHES))
            return msgspec.structs.replace(signed_ticket(run, seed, name, nonce, ""), key=other)
        _, nonce = best_nonce(run, seed, name.peer, "", range(_HASHES))
        return signed_ticket(run, seed, name, nonce, "")
