"""Training with a trusted server: the setting of prior work, and the yardstick for the protocol.

The server draws everyone's seed, receives one gradient per peer, applies one rule, and steps the optimizer. It is
honest, it bans nobody, and it has to be trusted: that is what the protocol takes away.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from troth.crypto import PeerId, derive
from troth.events.kinds import Began, KnownPeer, Stepped
from troth.evidence.bans import BanEvidence
from troth.protocol.wire.primitives import Primitives
from troth.training import Batch, Problem, check_pure, rate_at
from troth.training.initial_state import load_initial_state
from troth.training.optimizers import bound
from troth.training.work import TrainingWork
from troth.workshop.attacks import Coalition
from troth.workshop.rules.memory import Aggregator, Setting, begin_rule, covered
from troth.workshop.simulation.report import StepReport
from troth.workshop.simulation.scenario import Scenario, apply_rule

# P peers, B colluders, H honest peers, D coordinates


class ServerSimulation:
    """One run. Iterate over `steps()`; afterwards `parameters_D` is the trained model."""

    # Of a run of the protocol; here peers have no keys, and nothing has to be agreed on.
    numbers: Mapping[PeerId, int] = MappingProxyType({})
    evidence: Sequence[BanEvidence] = ()
    stalled: str | None = None
    unused_shards = False

    def __init__(self, scenario: Scenario) -> None:
        task = scenario.make_task()
        self.scenario = scenario.resolved(task)
        self.problem = Problem(task, device=scenario.device, one_by_one=scenario.one_by_one)
        check_pure(task, self.problem)
        self.byzantine = self.scenario.byzantine_peers()
        self.honest = [peer for peer in range(scenario.peers) if peer not in self.byzantine]
        self._shards = [task.shard(peer, scenario.peers, self.honest) for peer in range(scenario.peers)]
        self.attacks = scenario.make_attacks()
        self.coalition = Coalition(
            self.attacks,
            scenario.attack_schedule(),
            self.byzantine,
            derive(scenario.seed, "coalition"),
            self._foresee,
        )
        self.coalition.layout = self.problem.layout
        self._begin_rule()
        optimizer, rates = self.scenario.make_optimizer(), self.scenario.rates()
        work = TrainingWork(self.problem, optimizer, rates, Primitives())
        start = scenario.initial_state
        first = work.first(derive(scenario.seed, "model")) if start is None else load_initial_state(work, start)
        self.parameters_D, self.optimizer_state = first.parameters_D, first.optimizer
        self.momentum_PD: Tensor | None = None
        self.diverged_at: int | None = None
        self.attacked_steps = self.gradients_computed = self.steps_done = 0

    def _begin_rule(self) -> None:
        scenario, rule = self.scenario, self.scenario.make_rule()
        assert scenario.tau is not None
        setting = Setting(
            scenario.peers, scenario.byzantine, scenario.tau, derive(scenario.seed, "rule"), self.problem.layout
        )
        assumed = covered(rule, setting).byzantine
        self.aggregator = begin_rule(rule, setting)
        self.assumed_byzantine = assumed if assumed < scenario.byzantine else None  # where the guarantee covers no more

    def details(self) -> dict[str, Any]:
        """For the summary: the number of liars that the rule was run for, where that is not the true one; and whom a rule that
        drops peers for good dropped, and when."""
        assumed, removed = self.assumed_byzantine, getattr(self.aggregator, "removed", None)
        details: dict[str, Any] = {} if assumed is None else {"assumed_byzantine": assumed}
        return (
            details if removed is None else details | {"removed": {str(peer): step for peer, step in removed.items()}}
        )

    @property
    def began(self) -> Began:
        scenario = self.scenario
        return Began(
            source="simulation",
            of=scenario.total_steps,
            peers=tuple(KnownPeer(name=f"peer{k}", liar=k in self.byzantine) for k in range(scenario.peers)),
            task=str(scenario.config()["task"]),
            defence=scenario.defence_name,
        )

    def evaluate(self) -> dict[str, float]:
        return self.problem.evaluate(self.parameters_D, self.scenario.make_metrics())

    def steps(self) -> Iterator[StepReport]:
        """Train, reporting after every step; ends early when an honest gradient is no longer finite."""
        scenario = self.scenario
        optimizer, rates = bound(scenario.make_optimizer(), self.problem.layout), scenario.rates()
        if self.diverged_at is not None:
            return
        for step in range(self.steps_done, scenario.total_steps):
            losses_P, sent_PD = self._sent_gradients(step)
            finite = finite_rows(sent_PD)
            if not all(finite[peer] for peer in self.honest):
                self.diverged_at = step
                return
            aggregate_D = self._aggregate(sent_PD, finite, self.aggregator)
            self.parameters_D, state = optimizer.update(
                self.parameters_D, aggregate_D, self.optimizer_state, rate_at(rates, step)
            )
            # No step is shortened here: prior work has no U7. A run that goes on from this state has its lengths all the same.
            self.optimizer_state = {**self.optimizer_state, **state}
            attacked = self.coalition.active(step)
            self.attacked_steps += attacked
            done = self.steps_done = step + 1
            due = done % scenario.evaluate_every == 0 or done == scenario.total_steps
            report = StepReport(
                step=done,
                loss=float(losses_P[self.honest].mean()),
                attacked=attacked,
                alive=scenario.peers,
                metrics=self.evaluate() if due else None,
            )
            yield replace(
                report,
                events=(
                    report.event(Stepped(step=step, updates=done, of=scenario.total_steps, members=scenario.peers)),
                ),
            )

    def _sent_gradients(self, step: int) -> tuple[Tensor, Tensor]:
        """All peers' honest computations in one call, then the colluders replace their rows."""
        batches = (self._batch(step, peer) for peer in range(self.scenario.peers))
        losses_P, sent_PD = self.problem.gradients(self.parameters_D, batches)
        self.gradients_computed += len(sent_PD)
        if self.scenario.momentum:
            sent_PD = self._with_momentum(sent_PD)
        if self.byzantine:
            own_BD, honest_HD = sent_PD[self.byzantine], sent_PD[self.honest]
            sent_PD[self.byzantine] = self.coalition.gradients(step, own_BD, honest_HD, self.byzantine, self.honest)
        return losses_P, sent_PD

    def _with_momentum(self, gradient_PD: Tensor) -> Tensor:
        """`m ← βm + g`, or `βm + (1 − β)g`, for every peer; the first m is g. Liars have theirs, too, before they forge."""
        beta, average = self.scenario.momentum, self.scenario.momentum_average
        if self.momentum_PD is None:
            self.momentum_PD = gradient_PD.clone()
        else:
            self.momentum_PD.mul_(beta).add_(gradient_PD, alpha=1 - beta if average else 1.0)
        return self.momentum_PD.clone()  # forged rows are written into it

    def _batch(self, step: int, peer: int) -> Batch:
        batch = self.problem.batch(derive(self.scenario.seed, "gradient", step, peer), self._shards[peer])
        if peer not in self.byzantine:
            return batch
        return self.coalition.batch(step, self.problem.task, batch, peer)

    def _foresee(self, rows_PD: Tensor) -> Tensor:
        """What the server would make of these rows, of the liars and then of the honest; nothing is kept of it."""
        sent_PD = torch.empty_like(rows_PD)
        sent_PD[[*self.byzantine, *self.honest]] = rows_PD
        finite = finite_rows(sent_PD)
        if not all(finite[peer] for peer in self.honest):
            return torch.zeros_like(rows_PD[0])  # the run ends here
        return self._aggregate(sent_PD, finite, deepcopy(self.aggregator))  # a memory must not hold what was only asked

    def _aggregate(self, sent_PD: Tensor, finite: list[bool], aggregator: Aggregator) -> Tensor:
        """Leave out what is not finite (a lie, since honest rows are), then apply the rule to the rest."""
        senders = [peer for peer, fine in enumerate(finite) if fine]
        kept_PD = sent_PD if len(senders) == len(sent_PD) else sent_PD[torch.tensor(senders, device=sent_PD.device)]
        return apply_rule(aggregator, kept_PD, senders, self.scenario.defence_name)


def finite_rows(vectors_PD: Tensor) -> list[bool]:
    """Rows that are finite, from one read of the matrix and one wait for it: NaN and infinities survive a maximum."""
    found: list[bool] = torch.isfinite(torch.linalg.vector_norm(vectors_PD, ord=float("inf"), dim=1)).tolist()
    return found
