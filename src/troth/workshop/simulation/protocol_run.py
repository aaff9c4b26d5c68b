"""The protocol among many peers in one process: every peer runs `protocol.step` on its own inputs.

Identities and coins follow from the scenario's seed, so that equal scenarios give equal traces. Nothing is decided
here: this file builds peers, lets them run, and looks at what they agreed on.
"""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from troth.clip.blocks import PLAIN, Code
from troth.clip.fast import centered_clip
from troth.crypto import Identity, PeerId, derive
from troth.events.kinds import Began
from troth.evidence.bans import BanEvidence, History, evidence_name, reason_for
from troth.protocol.core.channel import NOTHING_NOTICED, Noticed
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import encode_record
from troth.protocol.core.roles import SeededEntropy, draw_roles
from troth.protocol.core.roster import Roster, part_taus
from troth.protocol.core.run import CannotGoOnError, Parameters, Run, StalledError, usual_content_every
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.step.closing import close_run
from troth.protocol.step.step import run_step
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem, check_pure
from troth.training.hardware import Machine
from troth.training.initial_state import load_initial_state
from troth.training.work import MOST_NOT_FINITE, Training, TrainingWork
from troth.workshop.attacks import Coalition, Collusion, GradientAttack
from troth.workshop.simulation.exchange import (
    Answer,
    Ask,
    DroppingChannel,
    ReliableChannel,
    ReliableExchange,
    draw_drop_outs,
    run_together,
)
from troth.workshop.simulation.gradients import Ahead, AskGradient, GradientPool, PooledWork, same_bits
from troth.workshop.simulation.primitives import AskDigests, LockstepPrimitives, MemoPrimitives
from troth.workshop.simulation.report import SimulatedBan, StepReport, began
from troth.workshop.simulation.scenario import Scenario, ScenarioError
from troth.workshop.simulation.strangers import (
    TICKET_BITS,
    Company,
    Ear,
    OpenGradientPool,
    SimulatedStranger,
    make_parties,
)

# P contributors, D coordinates


class ProtocolSimulation:
    """One run. Iterate over `steps()`; every honest peer's state is in `states`."""

    def __init__(self, scenario: Scenario, *, share: bool = True, run: Run | None = None, prove: bool = True) -> None:
        """`run` replaces the one made from the scenario, where others have agreed on it. `prove`: evidence is made of bans."""
        task = scenario.make_task()
        self.scenario = scenario.resolved(task)
        self.problem = Problem(
            task,
            device=scenario.device,
            one_by_one=scenario.one_by_one,
            lanes_for=scenario.at_once,
            pad=scenario.pads,
        )
        _check_size(self.problem.size, scenario.peers, Code.known[scenario.code])
        check_pure(task, self.problem)
        Code.known[scenario.code].prepare(self.problem.size)
        self.byzantine = self.scenario.byzantine_peers()
        self.attacks = scenario.make_attacks()
        self.coalition = Coalition(
            self.attacks,
            scenario.attack_schedule(),
            self.byzantine,
            derive(scenario.seed, "coalition"),
            lambda rows_PD: foreseen_center(
                rows_PD, self.states[self._witness()].scales.tau, self.run.parameters.coding
            ),
            lambda: watched(self.run, self.states[self._witness()], self.colluders),
        )
        self.coalition.layout = self.problem.layout
        code, device = Code.known[scenario.code], self.problem.device
        self.tools = LockstepPrimitives(device) if share else Primitives(device)
        possible = share and scenario.local_steps == 1 and Ahead.possible(self.problem, scenario.peers)
        self._ahead = Ahead(self.problem, scenario.peers, code) if possible else None
        self.parties = make_parties(scenario.make_strangers(), scenario.peers, scenario.seed)
        self._build_peers(run)
        self.door: Company | None = None
        given = self.problem, self.coalition, self.numbers, self.tools, self._ahead, code
        if scenario.probation:
            self.door = self._open_door()
            seed = derive(scenario.seed, "hand-ins")
            self.pool: GradientPool = OpenGradientPool(*given, parties=self.parties, liars=self.colluders, seed=seed)
        else:
            self.pool = GradientPool(*given)
        self.exchange = ReliableExchange(share=share)
        self.proves = prove
        self.history = History(self.run)
        self.bans: list[SimulatedBan] = []
        self.gone: dict[PeerId, CannotGoOnError] = {}  # peers whose coroutine ended early, and why
        self.stalled: str | None = None  # reason why the honest could not go on, if so
        self.evidence: list[BanEvidence] = []
        self.absent: list[int] = []  # left the roster without a ban
        self.agreement = True
        self.audits = self.tolerant_audits = self.trials = self.attempts = self.attacked_steps = self.steps_done = 0
        self.updates = 0  # steps that moved the model
        self.not_finite = 0  # gradients of honest peers that counted as zero
        self.not_finite_since: int | None = None  # step since which no honest gradient is finite
        self.diverged_at: int | None = None
        self.trace: list[bytes] = []  # every step's record, as the first honest peer signed it

    def _build_peers(self, run: Run | None) -> None:
        scenario = self.scenario
        identities = [Identity.from_secret(derive(scenario.seed, "identity", k)) for k in range(scenario.peers)]
        self.numbers = {identity.peer: number for number, identity in enumerate(identities)}
        works = _works_of(scenario, self.problem, self.tools)
        training, origin = _first_training(scenario, works[0])
        self.run = run or _run_of(scenario, self.problem.size, tuple(sorted(self.numbers)), origin)
        first = State.first(self.run, training, works[0].digest(training))
        colluders = frozenset(peer for peer, number in self.numbers.items() if number in self.byzantine)
        self.honest = sorted(peer for peer in self.numbers if peer not in colluders)
        for party in self.parties:
            keys = [identity.peer for identity in party.identities]
            self.numbers |= dict(zip(keys, party.numbers, strict=True))
            colluders |= frozenset(keys if party.kind.lies else ())
        self.colluders = colluders
        self.liars = frozenset(self.numbers[peer] for peer in colluders)  # strangers among them
        self.ears = {peer: Ear(self.tools) for peer in self.numbers} if scenario.probation else {}
        drop_outs = draw_drop_outs(
            derive(scenario.seed, "drop-outs"), self.honest, scenario.drop_outs, scenario.total_steps
        )
        self.board: dict[Any, Any] = {}  # what liars tell each other
        self.peers: dict[PeerId, Peer[Training]] = {}
        self._work = works[0]
        for number, identity in enumerate(identities):
            peer = self._peer(number, identity, works[number])
            if identity.peer in colluders:
                attack, state = self.coalition.attack_of(number), partial(self._state_of, identity.peer)
                peer = self._lying(peer, attack, self.coalition.active, state)
            elif identity.peer in drop_outs:
                peer = replace(peer, channel=DroppingChannel(peer.channel, drop_outs[identity.peer]))
            self.peers[identity.peer] = peer
        self.states: dict[PeerId, State[Training]] = dict.fromkeys(self.peers, first)

    def _peer(self, number: int, identity: Identity, work: PooledWork) -> Peer[Training]:
        channel, entropy = ReliableChannel(identity, self.tools), SeededEntropy(self.scenario.seed, number)
        noticed: Noticed = self.ears.get(identity.peer, NOTHING_NOTICED)
        return Peer(identity, self.run, work.for_one(self._ahead), channel, entropy, self.tools, noticed)

    def _lying(
        self,
        peer: Peer[Training],
        attack: GradientAttack,
        active: Callable[[int], bool],
        state: Callable[[], State[Training]],
    ) -> Peer[Training]:
        collusion = Collusion(attack, self.colluders, self.run, active, self.board, state, self.problem)
        return replace(peer, channel=attack.behaviour(ReliableChannel(peer.identity, self.tools), peer.me, collusion))

    def _open_door(self) -> Company:
        """Let strangers come: liars shield the others, and attack when their kind says so."""
        for party in self.parties:
            for number, identity in zip(party.numbers, party.identities, strict=True):
                knocks = party.kind.knocks(len(party.strangers))
                stranger = SimulatedStranger(number, party.kind, knocks, self._peer(number, identity, self._work))
                if party.kind.lies:
                    stranger.peer = self._lying(stranger.peer, party.kind.lie(), stranger.attacks, stranger.held)
                party.strangers.append(stranger)
        return Company(self.run, self.parties, self.ears)

    def _state_of(self, peer: PeerId) -> State[Training]:
        return self.states[peer]

    @property
    def began(self) -> Began:
        return began(self.scenario, self.run, self.numbers, self.liars)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the model of an honest peer; the others hold the same bits, or `agreement` is false."""
        return self.problem.evaluate(self.parameters_D, self.scenario.make_metrics())

    @property
    def parameters_D(self) -> Tensor:  # noqa: N802  # shapes are in the names
        """The model of an honest peer."""
        return self.states[self._witness()].training.parameters_D

    @property
    def gradients_computed(self) -> int:
        """Gradients of contributors and candidates, and those that auditors computed again."""
        return self.pool.computed + self.audits

    @property
    def unused_shards(self) -> bool:
        """Whether the task would give peers data of their own. The protocol has none: a batch follows from a public seed."""
        task, peers = self.problem.task, self.scenario.peers
        honest = [peer for peer in range(peers) if peer not in self.byzantine]
        return any(task.shard(peer, peers, honest) is not task for peer in honest)

    def details(self) -> dict[str, Any]:
        """What the protocol did, for the summary."""
        banned, steps = {ban.peer for ban in self.bans}, max(1, self.steps_done)
        beside: dict[str, Any] = {} if self.door is None else {"door": self.door.chronicle.summary()}
        beside |= {"not_finite": self.not_finite} if self.not_finite else {}
        return {
            "attackers_active": sorted(self.pool.attackers),
            "banned": [asdict(ban) for ban in self.bans],
            "honest_banned": len(banned - self.liars),
            "absent": self.absent,
            "stalled": self.stalled,
            "agreement": self.agreement,
            "announced_bytes_per_step": self.exchange.announced_bytes // steps,
            "bulk_bytes_per_step": self.exchange.bulk_bytes // steps,
            "audits": self.audits,
            "tolerant_audits": self.tolerant_audits,
            "trials": self.trials,
            "attempts": self.attempts,
            "beyond_guarantee": self.scenario.beyond_guarantee,
            "final_record": self.trace[-1].hex() if self.trace else None,
            **beside,
        }

    def _witness(self) -> PeerId:
        """Honest member to look through; beyond the guarantee all of them may be gone, and a liar has to do."""
        banned = {judged for judged, number in self.numbers.items() if number in {ban.peer for ban in self.bans}}
        still = [peer for peer in (*self.honest, *self.peers) if peer not in banned and peer not in self.gone]
        return max(still or self.honest, key=lambda peer: self.states[peer].step)

    def steps(self) -> Iterator[StepReport]:
        """Train, reporting after every step; ends early when too few are left to decide anything, or the model has diverged."""
        scenario = self.scenario
        if self.stalled is not None or self.diverged_at is not None:
            return
        for step in range(self.steps_done, scenario.total_steps):
            before = self.states[self._witness()].roster
            seen = self._look_at(self._step(run_step))
            if seen is None:
                return
            outcomes, bans, at_door = [seen], self._new_bans(seen), self._at_door(seen, before)
            if step == scenario.total_steps - 1 and (ended := self._look_at(self._step(close_run))) is not None:  # [U4]
                outcomes.append(ended)
                bans += self._new_bans(ended)
                self._at_door(ended, seen.state.roster)
            liars_alive = not {ban.peer for ban in self.bans}.issuperset(self.byzantine)
            newcomers_attack = self.door is not None and self.door.attacks
            attacked = (self.coalition.active(step) and liars_alive) or newcomers_attack
            self.attacked_steps += attacked
            done = self.steps_done = step + 1
            due = done % scenario.evaluate_every == 0 or done == scenario.total_steps
            honest_losses = [loss for peer, loss in self.pool.losses.items() if peer not in self.liars]
            report = StepReport(
                step=done,
                loss=sum(honest_losses) / len(honest_losses) if honest_losses else float("nan"),
                attacked=attacked,
                alive=len(seen.state.roster.members),
                metrics=self.evaluate() if due else None,
                bans=bans,
                absent=tuple(self.numbers[peer] for peer in sorted(seen.record.leaving - set(seen.record.banned))),
                guarantee=seen.state.roster.liars,
                moved=seen.record.updated,
                notes=(*self._not_finite(step), *at_door),
                probation=self.door.chronicle.probation(seen.record) if self.door is not None else (),
            )
            yield report.told(self.run, scenario.total_steps, outcomes, self.numbers)
            if (alarm := outcomes[-1].state.roster.alarm) is not None:
                self.stalled = str(alarm)
            if self.stalled is not None or self.diverged_at is not None:
                return

    def _not_finite(self, step: int) -> tuple[str, ...]:
        """Count gradients of honest peers that are not finite. A run without any other has nothing to learn from."""
        count, honest = self.pool.take_not_finite()
        if not honest:
            return ()
        is_news = bool(count) and (not self.not_finite or (count == honest and self.not_finite_since is None))
        self.not_finite += count
        if count < honest:
            self.not_finite_since = None
        elif self.not_finite_since is None:
            self.not_finite_since = step
        elif step - self.not_finite_since == MOST_NOT_FINITE - 1:
            self.diverged_at = self.not_finite_since
        return (f"gradients of {count} of {honest} honest peers are not finite, and count as zero",) if is_news else ()

    def _step(self, run: Callable[..., Coroutine[Any, Any, Outcome[Training]]]) -> dict[PeerId, Outcome[Training]]:
        """All members run one step together; peers that were banned or are gone are not asked again. Candidates observe it."""
        state, observing = self.states[self._witness()], {}
        company = self.door
        if company is not None and run is run_step:
            company.begin_step(state, self.states)
            observing = company.observing()
        self.peers |= company.members() if company is not None else {}
        members = [peer for peer in state.roster.members if peer not in self.gone]
        coroutines = {peer: run(self.peers[peer], self.states[peer]) for peer in members} | observing
        with self._ahead.served_first() if self._ahead is not None else nullcontext():
            ended = run_together(coroutines, self._answers())
        self.states |= {peer: outcome.state for peer, outcome in ended.results.items()}
        self.gone |= ended.stopped
        if company is not None and run is run_step:
            company.end_step(ended.results)
        if isinstance(self.tools, MemoPrimitives):
            self.tools.forget()
        return ended.results

    def _answers(self) -> dict[type, Answer]:
        """All that peers may ask for."""
        answers: dict[type, Answer] = {
            AskGradient: self.pool.answer,
            AskDigests: self.pool.digests,
            **self.exchange.answers(),
        }
        return {kind: partial(self._answer, answer) for kind, answer in answers.items()}

    def _answer(self, answer: Answer, asks: Mapping[PeerId, Ask]) -> Mapping[PeerId, Any]:
        if self._ahead is not None:
            self._ahead.hash_begun()  # when all of them wait, they have begun all that they will begin
        return answer(asks)

    def _look_at(self, outcomes: dict[PeerId, Outcome[Training]]) -> Outcome[Training] | None:
        """Check agreement, count, and write down evidence, all as the first honest peer saw it; None if nobody went on."""
        took_part = [peer for peer, outcome in outcomes.items() if not outcome.observed]
        if not took_part:
            self.stalled = "; ".join(sorted({str(why) for why in self.gone.values() if isinstance(why, StalledError)}))
            return None
        seen = outcomes[min(took_part, key=lambda peer: (peer not in self.honest, peer))]
        honest = [outcomes[peer] for peer in sorted(outcomes) if peer not in self.colluders]  # candidates included
        self.agreement = self.agreement and _agree(honest)
        self.trace.append(encode_record(seen.record))
        for auditor, outcome in outcomes.items():
            self.audits += len(outcome.audited)
            self.tolerant_audits += sum(self._differ(auditor, audit.target) for audit in outcome.audited)
        self.trials += len(seen.record.judgements)
        self.attempts += seen.attempts
        self.updates += seen.record.updated
        self.evidence += self.history.add(seen) if self.proves else ()
        self.absent += [self.numbers[peer] for peer in sorted(seen.record.leaving - set(seen.record.banned))]
        return seen

    def _new_bans(self, seen: Outcome[Training]) -> tuple[SimulatedBan, ...]:
        """Bans of this step; their evidence comes with the next step."""
        bans: dict[int, SimulatedBan] = {}
        for judgement in seen.record.judgements:
            if judgement.banned is not None:
                number = self.numbers[judgement.banned]
                reason = reason_for(judgement, lambda peer: f"peer{self.numbers[peer]}")
                file = evidence_name(seen.record.step, f"peer{number}")
                bans.setdefault(number, SimulatedBan(number, seen.record.step, reason, file))
        self.bans += bans.values()
        return tuple(bans.values())

    def _at_door(self, seen: Outcome[Training], before: Roster) -> tuple[str, ...]:
        return () if self.door is None else self.door.chronicle.note(seen.record, before, seen.state.roster)

    def _differ(self, one: PeerId, other: PeerId) -> bool:
        """Whether two peers have hardware of different classes."""
        if self.scenario.deviation is None:
            return False
        return self.peers[one].work.hardware_class() != self.peers[other].work.hardware_class()


def _agree(honest: list[Outcome[Training]]) -> bool:
    """Whether all of them, and there are some, hold the same record, roster and model, bit for bit."""
    return bool(honest) and all(
        encode_record(other.record) == encode_record(honest[0].record)
        and other.state.roster == honest[0].state.roster
        and same_bits(other.state.training.parameters_D, honest[0].state.training.parameters_D)
        for other in honest[1:]
    )


def _check_size(size: int, peers: int, code: Code) -> None:
    if (most := -(-size // code.grain)) < peers:
        blocks = f" in blocks of {code.grain}, as `code` sends it" if code.grain > 1 else ""
        raise ScenarioError(
            f"`peers` {peers} is too many for a model of {size} parameters{blocks}: every peer looks after a part of it; "
            f"take at most {most} `peers`, or a larger model"
        )


def _works_of(scenario: Scenario, problem: Problem, tools: Primitives) -> list[PooledWork]:
    """Work of every founder by number. Peers of one class share an object, which computes the digest of their class once."""

    def work(machine: Machine | None = None) -> PooledWork:
        return PooledWork(
            problem,
            scenario.make_optimizer(),
            scenario.rates(),
            tools,
            machine=machine,
            local_steps=scenario.local_steps,
            outer=scenario.outer,
        )

    works = [work()] * scenario.peers
    first = scenario.peers
    for spec in reversed(scenario.make_machines()):  # the last peers by number, in the order of their machines
        works[first - spec.peers : first] = [work(Machine(problem.task, spec))] * spec.peers
        first -= spec.peers
    if scenario.deviation is not None:
        for each in works:
            each.hardware_class()
    return works


def _first_training(scenario: Scenario, work: TrainingWork) -> tuple[Training, str]:
    """The state before the first step, and where it is from, if not from the seed."""
    if scenario.initial_state is None:
        return work.first(derive(scenario.seed, "model")), ""
    training = work.begin(load_initial_state(work, scenario.initial_state))
    return training, work.digest(training).hex()


def _run_of(scenario: Scenario, size: int, founders: tuple[PeerId, ...], origin: str) -> Run:
    # `hardware` is part of the nonce's format, so that a scenario has the same bits in every version.
    options = json.dumps({**scenario.as_dict(), "hardware": 1}, sort_keys=True) + origin
    assert scenario.tau is not None
    return Run(
        founders=founders,
        description=json.dumps(scenario.public(), sort_keys=True).encode(),
        parameters=Parameters(
            size=size,
            tau=scenario.tau,
            byzantine=scenario.promised,
            validators=scenario.validators,
            beyond_guarantee=scenario.beyond_guarantee,
            tau_auto=scenario.tau_auto,
            deviation=scenario.deviation,
            content_every=usual_content_every(size),
            probation=scenario.probation,
            slots=scenario.slots,
            ticket_bits=TICKET_BITS,
            local_steps=scenario.local_steps,
            code=scenario.code,
        ),
        nonce=derive(scenario.seed, "run", options),
    )


# What liars can know beforehand: the centre of rows that they try, and whose work is audited in a step.


def foreseen_center(rows_PD: Tensor, tau: float, code: Code = PLAIN) -> Tensor:
    """The clipped centre, part by part with `τ√(d/D)`, one part for each contributor (SPEC A1).

    A part that is not finite counts as zeros (SPEC C3): it draws the centre to zero until its sender is banned.
    """
    bounds = part_bounds(rows_PD.shape[1], len(rows_PD), code)
    spans = zip(pairwise(bounds), part_taus(tau, bounds), strict=True)
    return torch.cat([centered_clip(_as_read(rows_PD[:, start:stop]), tau=radius) for (start, stop), radius in spans])


def watched(run: Run, state: State[Any], colluders: Set[PeerId]) -> bool:
    """Whether an honest member audits a colluder in the step that begins with this state: roles are public."""
    audits = draw_roles(run, state.roster, state.randomness, state.pending_audits).audits
    targets = {audit.target for auditor, theirs in audits.items() if auditor not in colluders for audit in theirs}
    return bool(targets & colluders)


def _as_read(part_PD: Tensor) -> Tensor:
    finite_P = torch.isfinite(part_PD).all(dim=1)
    return torch.where(finite_P[:, None], part_PD, torch.zeros_like(part_PD))
