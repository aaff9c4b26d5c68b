"""The protocol among many peers in one process: every peer runs `protocol.step` on its own inputs.

Identities and coins follow from the scenario's seed, so that equal scenarios give equal traces. Nothing is decided
here: this file builds peers, lets them run, and looks at what they agreed on.
"""

import json
from collections.abc import Iterator

from troth.attacks import Coalition, make_attack
from troth.crypto import Identity, PeerId, derive
from troth.evidence.bans import BanEvidence, History, ban_evidence
from troth.protocol.channel import Channel
from troth.protocol.coins import Coins
from troth.protocol.messages import Kind
from troth.protocol.primitives import Primitives
from troth.protocol.records import Judgement, encode_record
from troth.protocol.run import Parameters, Run
from troth.protocol.state import Outcome, Peer, State
from troth.protocol.step import run_step
from troth.simulation.faithful import FaithfulChannel, FaithfulExchange
from troth.simulation.lockstep import run_together
from troth.simulation.memo import MemoPrimitives
from troth.simulation.pool import AskGradient, GradientPool, PooledWork, same_bits
from troth.simulation.report import Ban, StepReport
from troth.simulation.scenario import Scenario
from troth.training import Problem, check_pure, make_task
from troth.training.work import Training

# D coordinates


REASONS = {
    Kind.GRADIENT: "its gradient of step {last} does not follow from its seed",
    Kind.AUDITED_REPORT: "its report of step {last} does not follow from its gradient",
    Kind.REPORT: "its report about part {part} does not follow from the gradient it committed to",
    Kind.AGGREGATE: "its aggregate of part {part} is wrong, or it let a wrong report about it pass",
    Kind.COVER: "it let a wrong report about part {part} pass in step {last}",
}


class SeededEntropy:
    """A peer's secrets in a simulation: unknown to the others, repeatable for us."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(*(derive(self._seed, "coin", which, self._number, step, attempt) for which in ("A", "B")))


class ProtocolSimulation:
    """One run. Iterate over `steps()`; every honest peer's state is in `states`."""

    def __init__(self, scenario: Scenario, *, share: bool = True) -> None:
        task = make_task(scenario.task)
        self.scenario = scenario.resolved(task)
        self.problem = Problem(task, device=scenario.device, one_by_one=scenario.one_by_one, lanes_for=scenario.peers)
        check_pure(task, self.problem)
        self.byzantine = self.scenario.byzantine_peers()
        self.attack = make_attack(scenario.attack)
        self.coalition = Coalition(
            self.attack, scenario.attack_schedule(), self.byzantine, derive(scenario.seed, "coalition")
        )
        self.tools = MemoPrimitives() if share else Primitives()
        self._build_peers()
        self.pool = GradientPool(self.problem, self.coalition, self.numbers)
        self.exchange = FaithfulExchange(self.tools)
        self.history = History(self.run)
        self.bans: list[Ban] = []
        self._banned: set[PeerId] = set()
        self.evidence: list[BanEvidence] = []
        self.agreement = True
        self.audits = self.trials = self.attempts = self.attacked_steps = self.steps_done = 0
        self.diverged_at: int | None = None
        self.trace: list[bytes] = []  # every step's record, as the first honest peer signed it

    def _build_peers(self) -> None:
        scenario = self.scenario
        identities = [Identity.from_secret(derive(scenario.seed, "identity", k)) for k in range(scenario.peers)]
        self.numbers = {identity.peer: number for number, identity in enumerate(identities)}
        assert scenario.tau is not None
        self.run = Run(
            founders=tuple(sorted(self.numbers)),
            description=json.dumps(scenario.public(), sort_keys=True).encode(),
            parameters=Parameters(
                size=self.problem.size,
                tau=scenario.tau,
                byzantine=scenario.byzantine,
                validators=scenario.validators,
                beyond_guarantee=scenario.beyond_guarantee,
            ),
            nonce=derive(scenario.seed, "run", json.dumps(scenario.as_dict(), sort_keys=True)),
        )
        work = PooledWork(self.problem, scenario.make_optimizer(), scenario.rates(), self.tools)
        first = State.first(self.run, work.first(derive(scenario.seed, "model")))
        colluders = frozenset(peer for peer, number in self.numbers.items() if number in self.byzantine)
        self.peers: dict[PeerId, Peer[Training]] = {}
        for number, identity in enumerate(identities):
            channel: Channel = FaithfulChannel(identity, self.tools)
            if identity.peer in colluders:
                channel = self.attack.conduct(channel, colluders, self.run, self.coalition.active)
            entropy = SeededEntropy(scenario.seed, number)
            self.peers[identity.peer] = Peer(identity, self.run, work, channel, entropy, self.tools)
        self.states: dict[PeerId, State[Training]] = dict.fromkeys(self.peers, first)
        self.honest = sorted(peer for peer in self.peers if peer not in colluders)

    def evaluate(self) -> dict[str, float]:
        """As the first honest peer would; the others hold the same bits, or `agreement` is false."""
        return self.problem.evaluate(self.states[self._witness()].training.parameters_D)

    def _witness(self) -> PeerId:
        """The honest member we look through; beyond the guarantee all of them may be gone, and a liar has to do."""
        return next(peer for peer in (*self.honest, *self.peers) if peer not in self._banned)

    def steps(self) -> Iterator[StepReport]:
        """Train, reporting after every step."""
        scenario = self.scenario
        for step in range(scenario.total_steps):
            witness, outcomes = self._witness(), self._step()
            seen = outcomes[witness]
            bans = self._look_at(seen, outcomes)
            attacked = self.coalition.active(step) and bool(self._liars_alive())
            self.attacked_steps += attacked
            done = self.steps_done = step + 1
            due = done % scenario.evaluate_every == 0 or done == scenario.total_steps
            honest_losses = [loss for peer, loss in self.pool.losses.items() if peer not in self.byzantine]
            yield StepReport(
                step=done,
                loss=sum(honest_losses) / len(honest_losses) if honest_losses else float("nan"),
                attacked=attacked,
                alive=len(seen.state.roster.members),
                metrics=self.evaluate() if due else None,
                bans=bans,
                guarantee=seen.state.roster.liars_left(self.run),
            )

    def _step(self) -> dict[PeerId, Outcome[Training]]:
        """All members run one step together; whoever was banned is not asked again."""
        members = self.states[self._witness()].roster.members
        coroutines = {peer: run_step(self.peers[peer], self.states[peer]) for peer in members}
        outcomes = run_together(coroutines, {AskGradient: self.pool.answer, **self.exchange.answers()})
        self.states |= {peer: outcome.state for peer, outcome in outcomes.items()}
        if isinstance(self.tools, MemoPrimitives):
            self.tools.forget()
        return outcomes

    def _look_at(self, seen: Outcome[Training], outcomes: dict[PeerId, Outcome[Training]]) -> tuple[Ban, ...]:
        """Check agreement, count, and write down evidence of new bans, all as the first honest peer saw it."""
        self.agreement = self.agreement and self._agree(outcomes)
        self.trace.append(encode_record(seen.record))
        self.audits += sum(outcome.audited is not None for outcome in outcomes.values())
        self.trials += len(seen.record.judgements)
        self.attempts += len(seen.accuses)
        bans: list[Ban] = []
        for judgement in seen.record.judgements:
            if judgement.banned is not None and self.numbers[judgement.banned] not in {ban.peer for ban in bans}:
                evidence = ban_evidence(self.run, self.history, seen, judgement)
                ban = self._ban(seen, judgement, evidence)
                self.evidence.append(evidence)
                bans.append(ban)
        self.history.add(seen)
        self.bans += bans
        self._banned |= set(seen.record.banned)
        return tuple(bans)

    def _agree(self, outcomes: dict[PeerId, Outcome[Training]]) -> bool:
        """The promise, checked: the same record, roster and model, bit for bit, at every honest peer."""
        honest = [outcomes[peer] for peer in self.honest if peer in outcomes]
        if not honest:
            return False
        first = honest[0]
        return all(
            encode_record(other.record) == encode_record(first.record)
            and other.state.roster == first.state.roster
            and same_bits(other.state.training.parameters_D, first.state.training.parameters_D)
            for other in honest[1:]
        )

    def _ban(self, seen: Outcome[Training], judgement: Judgement, evidence: BanEvidence) -> Ban:
        banned = judgement.banned
        assert banned is not None
        number = self.numbers[banned]
        if banned != judgement.target:
            reason = f"it accused peer {self.numbers[PeerId(judgement.target)]} falsely"
        else:
            reason = REASONS[judgement.kind].format(last=seen.record.step - 1, part=judgement.part)
        if judgement.accuser is not None and banned == judgement.target:
            reason += f" (found by peer {self.numbers[PeerId(judgement.accuser)]})"
        return Ban(number, seen.record.step, reason, evidence.file_name(number))

    def _liars_alive(self) -> list[int]:
        return [number for number in self.byzantine if number not in {ban.peer for ban in self.bans}]
