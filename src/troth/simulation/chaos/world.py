"""World: the record of everything that happened when a plan was played, for checkers to look at."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from troth.crypto import Digest, PeerId, Seed, Slot
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import Roster, moves_with
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome
from troth.simulation.chaos.plan import HONEST, Plan
from troth.training.work import Training, TrainingWork

BOUNDS = Timeouts(stretch=4.0, memory=1 << 22)
FORGED = -10.0  # factor by which liars multiply their gradients


def forged(honest_D: Tensor, seed: Seed, spike: float) -> Tensor:
    """What a liar sends in place of this gradient: it turned around, or one number of it that is huge."""
    if not spike:
        return honest_D * FORGED
    sent_D = honest_D.clone()
    sent_D[int.from_bytes(seed[:4]) % len(sent_D)] = spike
    return sent_D


@dataclass
class World:
    """Everything that happened. Peers are named by their numbers, except where a key is given."""

    plan: Plan
    run: Run
    numbers: Mapping[PeerId, int]  # of every key, successor keys included
    work: TrainingWork  # to recompute right gradients
    outcomes: dict[int, dict[int, Outcome[Training]]] = field(default_factory=dict)  # of honest peers, by step
    # Every record that an honest peer ever wrote, by step and incarnation, and who wrote it.
    written: dict[tuple[int, int], dict[bytes, set[int]]] = field(default_factory=dict)
    stopped: Mapping[int, CannotGoOnError] = field(default_factory=dict)
    forged: set[tuple[bytes, int]] = field(default_factory=set)  # sender and step of every wrong gradient
    lies: Counter[str] = field(default_factory=Counter)
    power_back: dict[int, float] = field(default_factory=dict)  # when power came back, for peers that had lost it
    left_step: dict[int, float] = field(default_factory=dict)  # when a peer knew that the others went on or stopped
    said: dict[tuple[PeerId, Slot], set[Digest]] = field(default_factory=dict)  # by honest peers with a power cut
    most_held: int = 0  # bytes from others that a channel held at any time
    # Every record that an honest peer ever held certified, by step and incarnation.
    histories: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    packets: int = 0
    lost: int = 0
    duplicated: int = 0
    seconds: float = 0.0
    _gradients: dict[tuple[int, PeerId], Tensor] = field(default_factory=dict)
    step_ends: dict[int, float] = field(default_factory=dict)  # when the first peer had ended a step
    timeouts: dict[int, set[Timeouts]] = field(default_factory=dict)  # by step, of survivors: more than one is a bug
    incarnations: dict[int, int] = field(default_factory=dict)  # the last incarnation that made each step
    began: dict[int, float] = field(default_factory=dict)  # when the first peer entered each incarnation but the first

    def name(self, peer: bytes) -> str:
        """The peer's number, or "a stranger" for a key that no peer of this world has."""
        return str(self.numbers.get(PeerId(peer), "a stranger"))

    @cached_property
    def honest(self) -> frozenset[PeerId]:
        lying = self.plan.lying | {number for number, (_, how) in self.plan.strangers.items() if how != HONEST}
        return frozenset(peer for peer, number in self.numbers.items() if number not in lying)

    @cached_property
    def steady(self) -> frozenset[int]:
        """Honest peers that neither network nor power fails."""
        return frozenset(range(self.plan.peers)) - self.plan.lying - self.plan.shaky

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Peers there in the end: the steady ones, and after a blackout those whose power came back."""
        return self.steady | frozenset(self.plan.blackout)

    @cached_property
    def witness(self) -> list[Outcome[Training]]:
        """All outcomes of the survivor that saw the most steps, in order."""
        best = max((self.outcomes[number] for number in sorted(self.survivors)), key=len)
        return [best[step] for step in sorted(best)]

    @cached_property
    def records(self) -> list[StepRecord]:
        return [outcome.record for outcome in self.witness]

    @property
    def held(self) -> dict[int, dict[int, Outcome[Training]]]:
        """What each honest peer holds of every step, in the end. A stranger may have watched a step whose record nobody could
        prove, and that a restart made again: it goes on from there, as members do who were in both (SPEC B6)."""
        made = {outcome.record.step: outcome.record.incarnation for outcome in self.witness}

        def replaced(number: int, step: int, outcomes: dict[int, Outcome[Training]]) -> bool:
            mine, after = outcomes[step].record.incarnation, outcomes.get(step + 1)
            goes_on = after is not None and after.record.incarnation == mine
            return number in self.plan.strangers and mine < made.get(step, 0) and not goes_on

        return {
            number: {step: one for step, one in outcomes.items() if not replaced(number, step, outcomes)}
            for number, outcomes in self.outcomes.items()
        }

    def right_gradient(self, outcome: Outcome[Training], peer: PeerId) -> Tensor:
        """Gradient that the peer should have contributed to this step; computed once for all checkers."""
        step = outcome.record.step
        if (step, peer) not in self._gradients:
            seed = gradient_seed(Digest(outcome.record.seed_randomness), peer)
            self._gradients[step, peer] = self.work.gradient_now(outcome.state.audit_records[step].training, seed)
        return self._gradients[step, peer]

    @property
    def majority_lost(self) -> bool:
        """Whether too few steady members were left for the step after the last, or to certify its record (SPEC U2)."""
        step = len(self.records)
        roster = self.witness[-1].state.roster if step else Roster.founding(self.run)
        last = self.witness[-1].state.last if step else None
        crashed = {number for number, drop_out in self.plan.crashes.items() if drop_out.step <= step}
        gone = crashed | self.plan.network.unreached | self.plan.leaves.keys()
        steady = {peer for peer in self.honest if self.numbers[peer] not in gone}
        certifies = last is None or len(steady & set(last.record.members)) >= last.quorum
        return len(steady & set(roster.members)) < roster.quorum or not certifies

    @property
    def rests(self) -> bool:
        """Whether too few are left for an update, those who can still come back included (SPEC G3)."""
        if not self.records:
            return False
        roster = self.witness[-1].state.roster
        plan = self.plan
        for_good = {number for number, cut in plan.crashes.items() if cut.down is None} | plan.lying | plan.turncoats
        for_good |= {number for number, leave in plan.leaves.items() if leave.down is None}
        back = [
            gone for gone in roster.away if self.numbers.get(gone.peer) not in for_good | self.plan.network.loss.keys()
        ]
        count = len(roster.members) + len(back)
        return roster.paused and not moves_with(roster, count, self.run.parameters.validators)
