"""Recorder: writes down in a World what its honest peers do, and takes out what the protocol lets them lose."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from troth.crypto import PeerId
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import Outcome
from troth.protocol.wire.frames import CertifiedRecord
from troth.simulation.chaos.virtual_time import VirtualTime
from troth.simulation.chaos.world import World
from troth.training.work import Training


class Recorder:
    """Honest peers report to it, each under its number."""

    def __init__(self, world: World, time: VirtualTime[Any]) -> None:
        self._world = world
        self._time = time
        self._certified: dict[int, set[bytes]] = defaultdict(set)  # records that each honest peer could prove
        self._stopped_at: float | None = None  # when a peer first knew that the run had stopped
        self.lies: dict[PeerId, Mapping[str, int]] = {}  # on the wire, by the liar's first key

    def step_ended(self, number: int, outcome: Outcome[Training], timeouts: Timeouts) -> None:
        world, record = self._world, outcome.record
        step = record.step
        self._discard_unproven(number, step)
        world.outcomes[number][step] = outcome
        world.written.setdefault((step, record.incarnation), {}).setdefault(encode_record(record), set()).add(number)
        if record.incarnation > world.incarnations.get(step, -1):  # earlier incarnations of the step were thrown away
            world.incarnations[step], world.step_ends[step] = record.incarnation, self._time.now
            world.timeouts.pop(step, None)
        latest = record.incarnation == world.incarnations[step]
        if number in world.survivors and not outcome.observed and latest:
            world.timeouts.setdefault(step, set()).add(timeouts)

    def certified(self, number: int, made: Sequence[CertifiedRecord]) -> None:
        """A peer holds these records with a quorum's signatures."""
        self._certified[number].update(link.record for link in made)
        for link in made:
            record = decode_record(link.record)
            self._world.histories.setdefault((record.step, record.incarnation), set()).add(link.record)

    def incarnation_began(self, incarnation: int) -> None:
        self._world.began.setdefault(incarnation, self._time.now)

    def held(self, bytes_held: int) -> None:
        self._world.most_held = max(self._world.most_held, bytes_held)

    def power_came_back(self, number: int) -> None:
        self._world.power_back[number] = self._time.now

    def left_step(self, number: int) -> None:
        """A peer knows that the others went on without it, or that the run has stopped."""
        self._world.left_step[number] = self._time.now
        self._stopped_at = self._time.now if self._stopped_at is None else self._stopped_at

    def confirmed(self) -> int | None:
        """Number of peers to restart with, once people have talked to each other and agreed on the honest ones."""
        plan = self._world.plan
        if self._stopped_at is None or self._time.now < self._stopped_at + plan.confirmed:
            return None
        return plan.peers - len(plan.lying)

    def count_lies(self, liar: PeerId, lies: Mapping[str, int]) -> None:
        """A liar goes on counting its lies on the wire here; they are summed up at the end."""
        self.lies[liar] = lies

    def finish(self) -> None:
        """Complete the world when time is over."""
        world, time = self._world, self._time
        for number in world.outcomes:
            self._discard_made_again(number)
        world.stopped = {world.numbers[peer]: why for peer, why in time.stopped.items()}
        world.packets, world.lost, world.duplicated = time.packets, time.lost, time.duplicated
        world.seconds = time.now
        for lies in self.lies.values():
            world.lies.update(lies)

    def _discard_unproven(self, number: int, step: int) -> None:
        """Drop what this peer held and could not prove, when it goes on elsewhere than right after it (SPEC U2)."""
        held = self._world.outcomes[number]
        if held and max(held) != step - 1:
            for old, outcome in list(held.items()):
                if old >= step or encode_record(outcome.record) not in self._certified[number]:
                    del held[old]

    def _discard_made_again(self, number: int) -> None:
        """Drop steps that the others had to make again, because this peer came too late to show them (SPEC B5, B6)."""
        held, founding = self._world.outcomes[number], Roster.founding(self._world.run)
        rosters = {step + 1: outcome.state.roster for step, outcome in held.items()}
        for step, outcome in list(held.items()):
            made_again = outcome.record.incarnation < self._world.incarnations[step]
            if made_again and self._may_be_lost(outcome.record, rosters.get(step, founding)):
                del held[step]

    def _may_be_lost(self, record: StepRecord, roster: Roster) -> bool:
        """Whether the peers that could prove it were too few to hold up the rest, and still without power then."""
        world, raw, quorum = self._world, encode_record(record), max(len(record.members) // 2, roster.liars) + 1
        proving = [number for number, certified in self._certified.items() if raw in certified]
        later = [when for incarnation, when in world.began.items() if incarnation > record.incarnation]
        began = min(later, default=math.inf)
        dark = {number for number in world.plan.blackout if world.power_back.get(number, math.inf) > began}
        return dark.issuperset(proving) and len(proving) < quorum - roster.liars
