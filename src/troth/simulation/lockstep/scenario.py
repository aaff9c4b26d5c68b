"""Scenario: everything that determines a simulated run, checked once, and repeated in the summary."""

import dataclasses
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from troth.aggregation import RULES, AggregationError, bind_rule
from troth.attacks import AttackSchedule, GradientAttack, make_attack
from troth.crypto import stream
from troth.errors import OperatorError
from troth.protocol.core.run import most_byzantine
from troth.specs import build, parse_spec, pick
from troth.training import OPTIMIZERS, SCHEDULES, Optimizer, Schedule, Task, make_task, warmed_up

TROTH = "troth"  # name of the defence that is the protocol itself
ALSO = " + "  # between several attacks


class ScenarioError(OperatorError):
    """A scenario that cannot be run; the message names the option and what it takes."""


@dataclass(frozen=True)
class Scenario:
    """Options of a run; `None` takes the task's suggestion. Equal scenarios give equal summaries, byte for byte."""

    task: str = "digits"
    peers: int = 16
    byzantine: int = 0
    attack: str = "sign-flip"
    attack_start: int = 50
    attack_every: int = 1
    attack_probability: float = 1.0
    attack_stop: int | None = None
    defence: str = "troth"
    validators: int = 1
    beyond_guarantee: bool = False
    tau: float | None = None
    tau_auto: float | None = None
    hardware: int = 1
    deviation: float | None = None
    drop_outs: int = 0
    steps: int | None = None
    seed: int = 0
    optimizer: str | None = None
    rate: float | None = None
    schedule: str = "cosine"
    warmup: int = 0
    evaluate_every: int = 10
    device: str = "cpu"
    one_by_one: bool = False

    def __post_init__(self) -> None:
        if self.peers < 1:
            raise ScenarioError(f"`peers` must be at least 1, got {self.peers}")
        self._check_byzantine()
        for name, value, least in (
            ("`steps`", self.steps, 1),
            ("`evaluate_every`", self.evaluate_every, 1),
            ("`warmup`", self.warmup, 0),
            ("`validators`", self.validators, 0),
            ("`hardware`", self.hardware, 1),
            ("`drop_outs`", self.drop_outs, 0),
        ):
            if value is not None and value < least:
                raise ScenarioError(f"{name} must be at least {least}, got {value}")
        for name, number in (
            ("`tau`", self.tau),
            ("`rate`", self.rate),
            ("`tau_auto`", self.tau_auto),
            ("`deviation`", self.deviation),
        ):
            if number is not None and not (number > 0 and isfinite(number)):
                raise ScenarioError(f"{name} must be a positive number, got {number:g}")
        if not -(2**63) <= self.seed < 2**63:
            raise ScenarioError(f"`seed` must fit in 64 bits, got {self.seed}")
        self._check_defence()
        pick(SCHEDULES, self.schedule, "schedule")
        if self.optimizer is not None:
            self.make_optimizer()
        _check_device(self.device)
        self._check_protocol_options()
        task, attacks, schedule = make_task(self.task), self.make_attacks(), self.attack_schedule()
        if self.byzantine:
            if len(attacks) > self.byzantine:
                raise ScenarioError(f"`attack` is given {len(attacks)} times, for {self.byzantine} liars")
            for attack in attacks:
                if attack.needs_protocol and self.defence != TROTH:
                    raise ScenarioError(f"`attack` {self.attack} is an attack on the protocol: use `defence` {TROTH}")
                attack.check(task, honest=self.peers - self.byzantine, colluders=self.byzantine)
            steps = task.steps if self.steps is None else self.steps
            if schedule.start >= steps:
                raise ScenarioError(f"`attack_start` {schedule.start} is not before the end ({steps} steps)")

    def _check_byzantine(self) -> None:
        """Fewer liars than honest contributors, unless a researcher insists."""
        if self.byzantine < 0 or self.byzantine >= self.peers:
            raise ScenarioError(f"`byzantine` must be from 0 to below `peers` ({self.peers}), got {self.byzantine}")
        if self.defence == TROTH:
            most = most_byzantine(self.peers, self.validators)
            why = f"the guarantee needs 2b < n − m with m = {self.validators} validators"
        else:
            most, why = (self.peers - 1) // 2, "no rule helps unless the honest are more than half"
        if self.byzantine > most and not self.beyond_guarantee:
            raise ScenarioError(
                f"`byzantine` {self.byzantine} is too many for {self.peers} peers: {why}, so at most {most} "
                "(or `beyond_guarantee`)"
            )

    def _check_protocol_options(self) -> None:
        """Options that only the protocol has, and their limits."""
        if self.tau_auto is not None and self.tau_auto > 0.5:
            raise ScenarioError(f"`tau_auto` must be at most 0.5 (more runs away under attack), got {self.tau_auto:g}")
        if self.deviation is not None and self.deviation >= 0.2:
            raise ScenarioError(f"`deviation` must be below 0.2, got {self.deviation:g}: use one class instead")
        if self.hardware > 1 and self.deviation is None:
            raise ScenarioError("`hardware` needs `deviation`: 'troth doctor' measures it for a task")
        if self.drop_outs >= self.peers - self.byzantine:
            raise ScenarioError(f"`drop_outs` must leave an honest peer, got {self.drop_outs}")
        if self.defence != TROTH and (self.tau_auto or self.deviation or self.drop_outs):
            raise ScenarioError(f"`tau_auto`, `deviation` and `drop_outs` are the protocol's: use `defence` {TROTH}")

    def make_attacks(self) -> list[GradientAttack]:
        return [make_attack(spec) for spec in self.attack.split(ALSO)]

    def _check_defence(self) -> None:
        if self.defence == TROTH:
            return
        if self.defence not in RULES:
            pick({TROTH: None, **RULES}, self.defence, "defence")
        rule = bind_rule(RULES[self.defence], byzantine=self.byzantine, tau=self.tau or 1.0)
        try:
            rule(torch.zeros(self.peers, 1))
        except AggregationError as error:
            raise ScenarioError(f"`defence` {self.defence} cannot be used here: {error}") from error

    def resolved(self, task: Task) -> "Scenario":
        """The scenario with the task's suggestions filled in."""
        suggested: dict[str, Any] = {
            "tau": task.tau,
            "steps": task.steps,
            "optimizer": task.optimizer,
            "rate": task.rate,
        }
        missing = {name: value for name, value in suggested.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing) if missing else self

    @property
    def total_steps(self) -> int:
        assert self.steps is not None, "resolve the scenario first"
        return self.steps

    def byzantine_peers(self) -> list[int]:
        """Numbers of the liars, drawn from the seed, so that no rule profits from their order."""
        return sorted(stream(self.seed, "byzantine").sample(self.peers, self.byzantine).tolist())

    def attack_schedule(self) -> AttackSchedule:
        return AttackSchedule(self.attack_start, self.attack_every, self.attack_probability, self.attack_stop)

    def make_optimizer(self) -> Optimizer:
        assert self.optimizer is not None, "resolve the scenario first"
        name, options = parse_spec(self.optimizer)
        return build(pick(OPTIMIZERS, name, "optimizer"), options, self.optimizer)

    def rates(self) -> Schedule:
        assert self.rate is not None, "resolve the scenario first"
        return warmed_up(SCHEDULES[self.schedule](self.rate, self.total_steps), self.warmup)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def public(self) -> dict[str, Any]:
        """Options that the members of a run agree on beforehand: how it is trained, and nothing about liars."""
        agreed = ("task", "steps", "optimizer", "rate", "schedule", "warmup", "device", "one_by_one")
        return {name: getattr(self, name) for name in agreed}


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ScenarioError(f"`device` is cpu or cuda, got '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ScenarioError("`device` cuda: PyTorch sees no CUDA device here; use `device` cpu")
