"""Scenario: everything that determines a simulated run, checked once, and repeated in the summary; and rules as users name them.

A rule is a function of the vectors, `rule(vectors_PD) -> Tensor`, or a dataclass with such a `__call__`: by name, from a user's
file or an installed package, or as an object. Where it names `byzantine`, `tau` or `layout`, it is given them. Other keyword
parameters are its options. A rule that remembers is a dataclass that extends `RuleWithMemory`.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from troth.crypto import stream
from troth.errors import OperatorError
from troth.options import (
    BeyondGuarantee,
    CodeName,
    LocalSteps,
    OptimizerSpec,
    Option,
    Outer,
    Rate,
    ScheduleName,
    Steps,
    Tau,
    TauAuto,
    Validators,
    Warmup,
    check_bounds,
    check_outer,
)
from troth.plugins import PluginKind, blamed, find, in_one_line, made, name_of
from troth.protocol.core.run import most_byzantine
from troth.specs import ALSO, SpecError, convert_options, file_of, parse_spec, pick
from troth.training import SCHEDULES, TASKS, Optimizer, Schedule, Task, make_optimizer, make_task, warmed_up
from troth.training.fingerprint import code_digest
from troth.training.hardware import MachineSpec, make_machines
from troth.training.metrics import Metric, check_metrics, make_metric
from troth.workshop.attacks import ATTACKS, AttackSchedule, GradientAttack, make_attack
from troth.workshop.attacks.at_times import AtTimes
from troth.workshop.rules.memory import Aggregator, AnyRule, RuleEntry, RuleWithMemory, Setting, begin_rule
from troth.workshop.rules.remembering import PreAggregation
from troth.workshop.rules.table import RULES
from troth.workshop.simulation.stranger_specs import Strangers, attacks_of, check_door, check_strangers, make_strangers

# P peers, D coordinates

TROTH = "troth"  # name of the defence that is the protocol itself, and no rule
RULE_PLUGINS = "troth.rules"  # entry points of installed packages
_GIVEN = ("byzantine", "tau", "layout")


class DefenceError(OperatorError):
    """A rule that cannot be used; the message says why."""


def make_rule(defence: str | Callable[..., Tensor] | RuleWithMemory) -> AnyRule:
    """`krum`, `my_rule.py`, `my_rule.py:name:option=value`, the name of a package's rule; or a function, or an object."""
    if isinstance(defence, RuleWithMemory):
        return _filled(defence)
    if not isinstance(defence, str):
        return _entry(defence, {}, name_of(defence))
    thing, options = find(defence, RULE, {TROTH: None, **RULES}, RULE_PLUGINS)
    if isinstance(thing, RuleEntry):
        return replace(_entry(thing.function, options, defence), summary=thing.summary, most=thing.most)
    if isinstance(thing, type | RuleWithMemory):
        thing, options = made(thing, options, defence), {}
    return _filled(thing) if isinstance(thing, RuleWithMemory) else _entry(thing, options, defence)


def _filled(rule: RuleWithMemory) -> RuleWithMemory:
    """A rule with the one that it names inside it."""
    return rule.around(make_rule(_inside(rule.rule))) if isinstance(rule, PreAggregation) else rule


def _inside(spec: str) -> str:
    """An inner rule's spec: there a `;` stands for the commas between options."""
    return spec.replace(";", ",")


def specs_in(spec: str) -> list[str]:
    """A rule's spec, and those of the rules inside it."""
    name, options = (spec, {}) if file_of(spec) else parse_spec(spec)
    row = RULES.get(name)
    around = isinstance(row, type) and issubclass(row, PreAggregation) and "rule" in options
    return [spec, *specs_in(_inside(options["rule"]))] if around else [spec]


def _is_rule(thing: Any) -> bool:
    """Whether it is a function of one positional argument, a class or an object that is called so, or a rule with memory."""
    if isinstance(thing, type) and issubclass(thing, RuleWithMemory):
        return not inspect.isabstract(thing)
    if isinstance(thing, RuleWithMemory):
        return True
    if isinstance(thing, type):
        return "__call__" in vars(thing) and _takes_vectors(partial(thing.__call__, None))
    return callable(thing) and not inspect.ismodule(thing) and _takes_vectors(thing)


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some of torch's own say nothing of themselves
        return {}


def _takes_vectors(function: Callable[..., Any]) -> bool:
    parameters = _parameters_of(function).values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty and p.name not in _GIVEN]
    return len(needed) == 1 and positional[0] is needed[0]


RULE: PluginKind[Any] = PluginKind(
    "defence", "a function of one matrix, a class with such a __call__, or a RuleWithMemory", _is_rule
)


def _entry(function: Callable[..., Tensor], options: dict[str, str], spec: str) -> RuleEntry:
    """A rule with the parameters that it wants to be given, its options set."""
    if not callable(function) or isinstance(function, type):
        raise DefenceError(
            f"`defence` {spec} is no rule: give a name, a function of the vectors, or an object with __call__"
        )
    parameters = _parameters_of(function)
    kinds = {
        name: _kind(parameter)
        for name, parameter in list(parameters.items())[1:]
        if name not in _GIVEN and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    values = convert_options(options, kinds, spec)
    for name in kinds:
        if name not in values and parameters[name].default is inspect.Parameter.empty:
            raise SpecError(f"'{spec}' needs a value for its option '{name}': write {name}=…")
    needs = tuple(name for name in _GIVEN if name in parameters)
    about = (inspect.getdoc(function) or "").strip().splitlines()
    return RuleEntry(partial(function, **values) if values else function, needs, about[0] if about else "")


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of an option: as annotated, or else that of its default."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return str if parameter.default in (None, parameter.empty) else type(parameter.default)


AttackLike = str | GradientAttack
_YOUNGER = {  # than the format of summaries; by the option without which they mean nothing
    "code": ("code",),
    "probation": ("probation", "slots", "strangers"),
    "momentum": ("momentum", "momentum_average"),
    "metrics": ("metrics",),
    "machines": ("machines",),
    "initial_state": ("initial_state",),
    "local_steps": ("local_steps", "outer"),
}


class ScenarioError(OperatorError):
    """A scenario that cannot be run; the message names the option and what it takes."""


@dataclass(frozen=True)
class Scenario:
    """Options of a run; `None` takes the task's suggestion. Equal scenarios give equal summaries, byte for byte.

    Task, attack and defence are named (see `make_task`, `make_attack`, `make_rule`), or are objects; several attacks are a
    sequence, or a string with ` + ` between them.
    """

    task: Annotated[str | Task, Option("What to train: see 'troth tasks'; or your own my_task.py.")] = "digits"
    peers: Annotated[int, Option("How many peers, the liars included.", least=1)] = 16
    byzantine: Annotated[int, Option("How many of them lie; 0 is the run without attack.")] = 0
    attack: Annotated[
        AttackLike | Sequence[AttackLike],
        Option(
            "How they lie: see 'troth attacks'; with options: sign-flip:scale=10; or your own my_attack.py. Given several "
            "times, the liars are dealt among the attacks evenly.",
            shown="sign-flip",
        ),
    ] = "sign-flip"
    attack_start: Annotated[int, Option("First step of the attack.")] = 50
    attack_every: Annotated[int, Option("Attack at every k-th step from then on.")] = 1
    attack_probability: Annotated[float, Option("Attack with this probability at each of them.")] = 1.0
    attack_stop: Annotated[int | None, Option("The attack ends before this step.")] = None
    defence: Annotated[
        str | Callable[..., Tensor] | RuleWithMemory,
        Option("troth (the protocol), or a rule with a trusted server: see 'troth defences'; or your own my_rule.py."),
    ] = TROTH
    validators: Validators = 1
    beyond_guarantee: BeyondGuarantee = False
    tau: Tau = None
    tau_auto: TauAuto = None
    machines: Annotated[
        str | Sequence[str],
        Option(
            "Classes of hardware: with cpu:peers=4 the last four peers compute on the CPU, whatever --device is; options "
            "threads and float64. Can be given several times.",
            shown="none",
        ),
    ] = ""
    deviation: Annotated[
        float | None,
        Option(
            "How much gradients differ between classes: audits allow for it. 'troth doctor' measures it.",
            flag="hardware-deviation",
            positive=True,
        ),
    ] = None
    code: CodeName = "float32"
    drop_outs: Annotated[int, Option("So many honest peers vanish, each at a random moment.", least=0)] = 0
    probation: Annotated[
        int, Option("Open the door: strangers work so many steps, and are checked, before they are members.")
    ] = 0
    slots: Annotated[int, Option("How many strangers are on probation at a time.")] = 4
    strangers: Annotated[
        str | Sequence[str],
        Option(
            "Who comes to the door: honest, zeros, noise, old, copies, turns, leaves or names, as 'troth attacks' explains; "
            "with options: noise:at=20,count=3. Can be given several times.",
            shown="nobody",
        ),
    ] = ""
    momentum: Annotated[
        float, Option("Workers send m ← βm + g instead of gradients, with this β. Not with the defence troth.")
    ] = 0.0
    momentum_average: Annotated[bool, Option("They send m ← βm + (1−β)g: gradients' average, not their sum.")] = False
    steps: Steps = None
    seed: Annotated[int, Option("Everything random follows from it.")] = 0
    optimizer: OptimizerSpec = None
    rate: Rate = None
    schedule: ScheduleName = "cosine"
    warmup: Warmup = 0
    local_steps: LocalSteps = 1
    outer: Outer = 1.0
    evaluate_every: Annotated[int, Option("Evaluate the model every k steps.", least=1)] = 10
    metrics: Annotated[
        str | Sequence[str],
        Option(
            "A metric beside the task's own: backdoor (how many images with the trigger are taken for its target), or your own "
            "my_metric.py. Can be given several times.",
            flag="metric",
            shown="none",
        ),
    ] = ()
    device: Annotated[str, Option("cpu or cuda.")] = "cpu"
    one_by_one: Annotated[bool, Option("Compute gradients peer by peer instead of in one call.")] = False
    initial_state: Annotated[
        Path | None,
        Option(
            "Begin from this instead: a model of the task's form or a checkpoint, as safetensors, or a folder with one.",
            flag="from",
        ),
    ] = None

    def __post_init__(self) -> None:
        self._check_types()
        check_bounds(self, ScenarioError)
        self._check_byzantine()
        _check_momentum(self)
        if not -(2**63) <= self.seed < 2**63:
            raise ScenarioError(f"`seed` must fit in 64 bits, got {self.seed}")
        if self.defence != TROTH:
            setting = Setting(self.peers, self.byzantine, self.tau or 1.0, seed=b"")
            check_rule(self.make_rule(), self.defence_name, setting)
        pick(SCHEDULES, self.schedule, "schedule")
        if self.optimizer is not None:
            self.make_optimizer()
        _check_device(self.device)
        _check_protocol_options(self)
        strangers = self.make_strangers()
        check_door(self.probation, self.slots, strangers)
        task, attacks, schedule = self.make_task(), self.make_attacks(), self.attack_schedule()
        check_metrics(self.metrics, task)
        check_strangers(strangers, task, steps=self.steps or task.steps, honest=self.peers - self.byzantine)
        if self.byzantine:
            if len(attacks) > self.byzantine:
                raise ScenarioError(f"`attack` is given {len(attacks)} times, for {self.byzantine} liars")
            for attack in attacks:
                if attack.needs_protocol and self.defence != TROTH:
                    raise ScenarioError(
                        f"`attack` {self.attack_name} is an attack on the protocol: use `defence` {TROTH}"
                    )
                if attack.needs_code and self.code == Scenario.code:
                    raise ScenarioError(f"`attack` {self.attack_name} is an attack on codes: use `code` int8")
                attack.check(task, honest=self.peers - self.byzantine, colluders=self.byzantine)
            steps = task.steps if self.steps is None else self.steps
            if schedule.start >= steps:
                raise ScenarioError(
                    f"`attack_start` {schedule.start} is not before the end ({steps} steps): name an earlier one"
                )

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

    def _check_types(self) -> None:
        """Objects of the right kind; attacks that have names as one string, others as a tuple."""
        attacks = [("attack", attack, GradientAttack) for attack in self._attacks]
        for name, given, kind in (("task", self.task, Task), *attacks):
            if not isinstance(given, str | kind):
                raise ScenarioError(f"`{name}` is a name or a {kind.__name__}, got {_kind_in_words(given)}")
        if not self._attacks:
            raise ScenarioError("`attack` is empty: name one, or leave it out and set `byzantine` to 0")
        if not isinstance(self.attack, str | GradientAttack):
            plain = [attack for attack in self._attacks if isinstance(attack, str) and ALSO not in attack]
            object.__setattr__(self, "attack", ALSO.join(plain) if len(plain) == len(self._attacks) else self._attacks)
        metrics = self.metrics.split(ALSO) if isinstance(self.metrics, str) else self.metrics
        object.__setattr__(self, "metrics", tuple(filter(None, metrics)))
        for name in ("strangers", "machines"):
            if not isinstance(specs := getattr(self, name), str):
                object.__setattr__(self, name, ALSO.join(specs))

    # Its parts

    @property
    def _attacks(self) -> tuple[AttackLike, ...]:
        if isinstance(self.attack, str):
            return tuple(self.attack.split(ALSO))
        return tuple(self.attack) if isinstance(self.attack, Sequence) else (self.attack,)

    def make_task(self) -> Task:
        return make_task(self.task) if isinstance(self.task, str) else self.task

    def make_attacks(self) -> list[GradientAttack]:
        return [make_attack(one) if isinstance(one, str) else one for one in self._attacks]

    def make_metrics(self) -> dict[str, Metric]:
        """The metrics beside the task's own, by the names that they stand under."""
        return {spec: make_metric(spec) for spec in self.metrics}

    def make_strangers(self) -> list[tuple[str, Strangers]]:
        assert isinstance(self.strangers, str)
        return make_strangers(self.strangers)

    def make_machines(self) -> list[MachineSpec]:
        assert isinstance(self.machines, str)
        return make_machines(self.machines)

    @property
    def promised(self) -> int:
        """Liars that the run promises to withstand: those who lie, or, since strangers may, as many as it can."""
        return max(self.byzantine, most_byzantine(self.peers, self.validators)) if self.probation else self.byzantine

    @property
    def at_once(self) -> int:
        """Gradients that may be computed in one call: those of the founders, and of strangers on probation."""
        return self.peers + min(self.slots, sum(kind.count for _, kind in self.make_strangers()))

    def make_rule(self) -> AnyRule:
        return make_rule(self.defence)

    # Their names

    @property
    def attack_name(self) -> str:
        return ALSO.join(name_of(attack, ATTACKS) for attack in self._attacks)

    @property
    def defence_name(self) -> str:
        return name_of(self.defence, RULES)

    @property
    def task_name(self) -> str:
        return name_of(self.task, TASKS)

    def resolved(self, task: Task) -> "Scenario":
        """The scenario with the task's suggestions filled in."""
        missing = [name for name in ("tau", "steps", "optimizer", "rate") if getattr(self, name) is None]
        return replace(self, **{name: getattr(task, name) for name in missing}) if missing else self

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
        return make_optimizer(self.optimizer)

    def rates(self) -> Schedule:
        assert self.rate is not None, "resolve the scenario first"
        return warmed_up(SCHEDULES[self.schedule](self.rate, self.total_steps), self.warmup)

    def as_dict(self) -> dict[str, Any]:
        """Options as plain values: objects by name. An option that is younger than the format is left out where it is unset."""
        unset = {
            name
            for option, names in _YOUNGER.items()
            if getattr(self, option) == getattr(Scenario, option)
            for name in names
        }
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in unset}
        values |= {"task": self.task_name, "attack": self.attack_name, "defence": self.defence_name}
        return values if self.initial_state is None else {**values, "initial_state": str(self.initial_state)}

    def config(self) -> dict[str, Any]:
        """`as_dict`, and the digests of the user's own files, since the result follows from them too."""
        rules = specs_in(self.defence) if isinstance(self.defence, str) else []
        inside = [attack.attack for attack in self.make_attacks() if isinstance(attack, AtTimes)]
        chosen = (self.task, *self._attacks, *inside, *rules, *self.metrics, *attacks_of(self.make_strangers()))
        specs = [spec for spec in chosen if isinstance(spec, str)]
        files = {file: code_digest(Path(file)).hex()[:16] for spec in specs if (file := file_of(spec)) is not None}
        return {**self.as_dict(), "files": files} if files else self.as_dict()

    def public(self) -> dict[str, Any]:
        """Options that the members of a run agree on beforehand: how it is trained, and nothing about liars."""
        agreed = ("task", "steps", "optimizer", "rate", "schedule", "warmup", "outer", "device", "one_by_one")
        public = {name: value for name, value in self.as_dict().items() if name in agreed}
        return public | ({"pad": True} if self.pads else {})

    @property
    def pads(self) -> bool:
        """Whether an audit may take a call as wide as all peers' (see `troth.training.gradient_calls.settle`)."""
        return self.device != "cpu"


def _kind_in_words(given: object) -> str:
    """What somebody gave in place of a task or an attack, and how to make one of it."""
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, nn.Module):
        return f"the module {kind.__name__}: troth.task(model=…, data=…, loss=…) makes a task of it"
    return f"the class {kind.__name__}: make an object of it, {kind.__name__}(…)" if kind is given else repr(given)


def _check_momentum(scenario: Scenario) -> None:
    if not 0 <= scenario.momentum < 1:
        raise ScenarioError(f"`momentum` must be from 0 to below 1, got {scenario.momentum:g}")
    if scenario.momentum_average and not scenario.momentum:
        raise ScenarioError("`momentum_average` needs `momentum`")
    if scenario.momentum and scenario.defence == TROTH:
        raise ScenarioError(
            "`momentum` is for a trusted server: what a worker remembers does not follow from a seed, so nobody could recompute "
            "it; use a rule as `defence`, or the optimizer's momentum"
        )


def _check_protocol_options(scenario: Scenario) -> None:
    """Options that only the protocol has, and their limits."""
    is_rule = scenario.defence != TROTH
    if scenario.tau_auto is not None and scenario.tau_auto > 0.5:
        raise ScenarioError(f"`tau_auto` must be at most 0.5 (more runs away under attack), got {scenario.tau_auto:g}")
    if scenario.deviation is not None and scenario.deviation >= 0.2:
        raise ScenarioError(f"`deviation` must be below 0.2, got {scenario.deviation:g}: use one class instead")
    check_outer(scenario.outer, scenario.local_steps, ScenarioError)
    if is_rule and scenario.local_steps > 1:
        raise ScenarioError(f"`local_steps` is the protocol's: use `defence` {TROTH}")
    _check_machines(scenario)
    if scenario.drop_outs >= scenario.peers - scenario.byzantine:
        raise ScenarioError(f"`drop_outs` must leave an honest peer, got {scenario.drop_outs}")
    if scenario.probation and scenario.deviation is not None:
        raise ScenarioError("`probation` needs a run without `deviation`: strangers are checked bit by bit")
    if scenario.code != "float32" and scenario.deviation is not None:
        raise ScenarioError("`code` int8 needs a run without `deviation`: audits compare its bits")
    if is_rule and scenario.code != "float32":
        raise ScenarioError(f"`code` is the protocol's: use `defence` {TROTH}")
    if is_rule and scenario.probation:
        raise ScenarioError(f"`probation` is the protocol's: use `defence` {TROTH}")
    if is_rule and (scenario.tau_auto or scenario.deviation or scenario.drop_outs):
        raise ScenarioError(f"`tau_auto`, `deviation` and `drop_outs` are the protocol's: use `defence` {TROTH}")


def _check_machines(scenario: Scenario) -> None:
    machines = scenario.make_machines()
    if not machines:
        return
    if scenario.deviation is None:
        raise ScenarioError("`machines` needs `deviation`: 'troth doctor' measures it for a task")
    count = sum(machine.peers for machine in machines)
    if count >= scenario.peers:
        raise ScenarioError(
            f"`machines` must leave a peer on `device` {scenario.device}, got {count} of {scenario.peers}"
        )
    for machine in machines:
        _check_device(machine.device, "machines")


def _check_device(device: str, field: str = "device") -> None:
    if device not in ("cpu", "cuda"):
        raise ScenarioError(f"`{field}` is cpu or cuda, got '{device}'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ScenarioError(f"`{field}` cuda: PyTorch sees no CUDA device here; use `{field}` cpu")


# Rules that a trusted server applies, checked before a run.

_PROBE_WIDTH = 5


class _AnyLayout:
    """Of made-up vectors: whatever parameter a rule asks for, it is the whole row."""

    names, shapes = ("parameters",), ((_PROBE_WIDTH,),)
    slices: Mapping[str, slice] = defaultdict(lambda: slice(0, _PROBE_WIDTH), parameters=slice(0, _PROBE_WIDTH))


def check_rule(rule: AnyRule, name: str, setting: Setting) -> None:
    """Try a rule on made-up vectors: it must give one finite vector of their length."""
    peers, setting = setting.peers, replace(setting, layout=_AnyLayout())
    probe_PD = torch.from_numpy(stream(0, "rule probe").normal(peers * _PROBE_WIDTH)).float().view(peers, -1)
    try:
        found_D = apply_rule(begin_rule(rule, setting), probe_PD, range(peers), name)
    except DefenceError:
        raise
    except Exception as error:
        why = blamed(error) or (str(error) if isinstance(error, ValueError) else in_one_line(error))
        raise DefenceError(f"`defence` {name} cannot be used here: {why}") from error
    if not bool(torch.isfinite(found_D).all()):
        raise DefenceError(f"`defence` {name} gives something that is not finite for ordinary vectors")


def apply_rule(aggregator: Aggregator, vectors_PD: Tensor, senders: Sequence[int], name: str) -> Tensor:
    """Aggregate one step's rows, and refuse anything but one vector as long as those that went in."""
    found_D: Any = aggregator(vectors_PD, senders)
    width = vectors_PD.shape[1]
    if not isinstance(found_D, Tensor) or found_D.shape != (width,) or not found_D.is_floating_point():
        is_tensor = isinstance(found_D, Tensor)
        got = f"a tensor {tuple(found_D.shape)} of {found_D.dtype}" if is_tensor else type(found_D).__name__
        raise DefenceError(f"`defence` {name} must give one vector of {width} numbers for each matrix, and gave {got}")
    return found_D.to(vectors_PD)
