"""`troth.simulate`: many peers in one process, some of them liars."""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from torch import Tensor, nn

from troth.api.steps import Ban, Step, use_threads
from troth.events.kinds import Began
from troth.events.phrases import metrics_in_words
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import RunSummary
from troth.files import claimed
from troth.specs import check_keywords
from troth.training import Task
from troth.workshop.attacks import GradientAttack
from troth.workshop.lab.results import EventWriter, save_results, write_curve
from troth.workshop.rules.memory import RuleWithMemory
from troth.workshop.simulation import Finished, Scenario, StepReport, start

Attack = str | GradientAttack
Defence = str | Callable[..., Tensor] | RuleWithMemory


class SimulationOptions(TypedDict, total=False):
    """The options that are seldom needed; `None` takes the task's suggestion."""

    attack_start: int  # first step of the attack
    attack_every: int
    attack_probability: float
    attack_stop: int | None
    validators: int  # peers that audit instead of contributing, each step
    beyond_guarantee: bool  # allow more liars than the guarantee covers
    tau: float | None  # clipping radius
    tau_auto: float | None
    machines: str | Sequence[str]  # classes of hardware: "cpu:peers=4" for the last four peers of a run on a GPU
    deviation: float | None  # that audits allow for between them
    code: Literal["float32", "int8"]  # what gradients and aggregates travel as
    local_steps: int  # gradients that a contribution is the mean of, met on a walk of the optimizer
    outer: float  # factor of the rate of the aggregate's step, times that of the local steps
    drop_outs: int  # honest peers that vanish
    probation: int  # steps that strangers work before they are members; 0: the door is closed
    slots: int  # strangers on probation at a time
    strangers: str | Sequence[str]  # who comes to the door: "honest:at=20", or several (see `troth attacks`)
    momentum: float  # of the workers, with a trusted server: they send m ← βm + g
    momentum_average: bool  # m ← βm + (1 − β)g instead
    optimizer: str | None
    rate: float | None
    schedule: str
    warmup: int
    evaluate_every: int
    metrics: str | Sequence[str]  # beside the task's own: "backdoor", "my_metric.py", or several
    device: str
    one_by_one: bool
    initial_state: Path | None  # a model or checkpoint to begin from; None: from the seed


@check_keywords
def simulate(
    task: str | Task = "digits",
    *,
    peers: int = 16,
    byzantine: int = 0,
    attack: Attack | Sequence[Attack] = "sign-flip",
    defence: Defence = "troth",
    steps: int | None = None,
    seed: int = 0,
    threads: int = 1,
    **options: Unpack[SimulationOptions],
) -> "Simulation":
    """A training run among `peers`, of whom `byzantine` lie, on this machine; iterate over its steps, or `run` it.

    >>> result = troth.simulate("quadratic", peers=7, byzantine=2, attack="sign-flip", attack_start=3, steps=12).run()
    >>> sorted({ban.peer for ban in result.bans}) == sorted(result.liars)
    True

    `task` is a spec as in `troth tasks` (`digits`, `my_task.py`) or a `Task`; `attack` a spec as in `troth attacks`, an
    object, or several of them; `defence` is `troth`, the protocol, or a rule that a trusted server applies: a spec as in
    `troth defences`, or a function of a matrix with one row for each peer. The same `seed` gives the same bits; they may
    depend on `threads` too, which is set for all of PyTorch in this process (0: left alone). Options are checked here: an
    `OperatorError` names the one that is wrong.
    """
    use_threads(threads)
    scenario = Scenario(
        task=task,
        peers=peers,
        byzantine=byzantine,
        attack=attack,
        defence=defence,
        steps=steps,
        seed=seed,
        **options,
    )
    return Simulation(scenario)


class Simulation:
    """A simulated run that has not ended. Iterating makes its steps, once; `run` makes those that are left."""

    def __init__(self, scenario: Scenario) -> None:
        self._started = start(scenario)
        self._reports: list[StepReport] = []
        self._steps = self._made()
        self._result: SimulationResult | None = None
        self.scenario = self._started.scenario  # with the task's suggestions filled in

    def __repr__(self) -> str:
        return (
            f"<Simulation of {_title(self.scenario)}; {len(self._reports)} of {self.scenario.total_steps} steps made>"
        )

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __next__(self) -> Step:
        return next(self._steps)

    def run(self) -> "SimulationResult":
        """Train to the end."""
        for _ in self._steps:
            pass
        if self._result is None:
            self._result = SimulationResult(
                self._started.finish(), self._reports, self._started.began, _title(self.scenario)
            )
        return self._result

    def _made(self) -> Iterator[Step]:
        for report in self._started:
            self._reports.append(report)
            yield step_of(report, self.scenario.total_steps)


class SimulationResult:
    """A simulated run that has ended."""

    def __init__(self, finished: Finished, reports: Sequence[StepReport], began: Began, title: str) -> None:
        self._finished = finished
        self._title = title
        self._began = began
        self._reports = reports
        self.summary: RunSummary = finished.summary  # content of summary.json
        self.metrics: dict[str, float] = finished.summary.metrics  # of the last model
        self.curve: list[dict[str, float]] = finished.summary.curve  # a step and the metrics after it, from step 0 on
        self.ended_early: str = (
            finished.ended_early
        )  # why before its last step, if so: it diverged, or too few were left
        self.evidence: dict[str, BanEvidence] = finished.evidence  # by file name; `text` is the content
        self.liars: tuple[str, ...] = tuple(map(_name, finished.summary.byzantine))
        self.bans: tuple[Ban, ...] = self._bans(None)

    def __repr__(self) -> str:
        diverged = self.summary.details.get("diverged_at")
        parts = [
            f"<SimulationResult of {self._title}",
            f"{self.summary.steps} steps",
            f"banned: {', '.join(ban.peer for ban in self.bans)}" if self.bans else "",
            f"diverged at step {diverged}" if diverged is not None else "",
            f"{metrics_in_words(self.metrics)}>",
        ]
        return "; ".join(filter(None, parts))

    def model(self) -> nn.Module:
        """The task's own module with the last weights, in evaluation mode."""
        return self._finished.problem.module(self._finished.parameters_D)

    def state_dict(self) -> dict[str, Tensor]:
        """The last weights and buffers: complete, so that they load strictly into the task's own module."""
        return self._finished.problem.state_dict(self._finished.parameters_D)

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write one row for each step: metrics where the model was evaluated, batch loss, peers, bans."""
        write_curve(Path(path), self.summary.peers, self._reports, self.curve)

    def save(self, out: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write what `troth simulate` writes: summary, curve as table and picture, model, and evidence of every ban.

        A folder with the results of another run is refused, unless `overwrite` says otherwise.
        """
        with claimed(Path(out), self.summary.config, overwrite=overwrite) as folder:
            with EventWriter(folder, self._began, live=False) as events:
                for report in self._reports:
                    events.step(report)
                events.ended_early = self.ended_early
            save_results(folder, self._finished, self._reports)
        self.bans = self._bans(folder / "evidence")

    def _bans(self, folder: Path | None) -> tuple[Ban, ...]:
        """The bans, and the files that prove them where they are written."""
        banned = self.summary.details.get("banned", ())
        return tuple(_ban(**ban, folder=folder if ban["evidence"] in self.evidence else None) for ban in banned)


def _title(scenario: Scenario) -> str:
    """A run in a few words, for whoever prints it."""
    task = scenario.task
    name = task if isinstance(task, str) else getattr(task, "name", type(task).__name__)
    lie = f", of whom {scenario.byzantine} lie ({scenario.attack_name})" if scenario.byzantine else ""
    return f"{name}: defence {scenario.defence_name}, {scenario.peers} peers{lie}"


def step_of(report: StepReport, of: int) -> Step:
    """A simulation's report as a step for users."""
    return Step(
        number=report.step,
        of=of,
        loss=report.loss,
        members=report.alive,
        withstands=report.guarantee,
        metrics=report.metrics or {},
        bans=tuple(_ban(ban.peer, ban.step, ban.reason, ban.evidence) for ban in report.bans),
        left=tuple(map(_name, report.absent)),
        moved=report.moved,
        attacked=report.attacked,
    )


def _ban(peer: int, step: int, reason: str, evidence: str, folder: Path | None = None) -> Ban:
    return Ban(_name(peer), step, reason, folder / evidence if folder is not None else None)


def _name(peer: int) -> str:
    return f"peer{peer}"
