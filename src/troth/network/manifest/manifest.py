"""`run.toml`: everything that the members of a run agree on, in one file that people can read, sign off and send around.

The run's name (`Manifest.run.id`) is a digest over every field of it. It is in everything that is signed, so peers with
different manifests cannot mistake each other for members of one run; `digests` tells them in what they differ. The file
holds no secret: anyone who has it can watch and check, and only the founders' keys, which stay at home, can take part.

A manifest comes from somebody else. It is read strictly and within bounds. Code that it names is run only if it lies beside the
manifest, is byte for byte what was agreed on, and a person here has agreed to run those bytes (`manifest.consent`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Literal, TypeVar, overload

import msgspec
import torch

from troth.bounded_toml import MOST_BYTES
from troth.crypto import Digest, PeerId, Seed, derive
from troth.errors import OperatorError, printable
from troth.network.manifest import toml as run_file
from troth.network.manifest.checks import check_manifest
from troth.network.manifest.consent import check_consent, code_to_run
from troth.network.manifest.errors import ManifestError
from troth.network.manifest.fit import and_more, data_hint
from troth.network.manifest.founder import Founder
from troth.network.manifest.initial_state import check_origin, read_initial_state
from troth.network.manifest.options import STRETCH
from troth.network.manifest.resilience import Resilience
from troth.network.manifest.sections import description, section_digests
from troth.network.manifest.toml import (
    FORMAT,
    DataSection,
    ProtocolSection,
    RunFile,
    TaskSection,
    TimeoutsSection,
    TrainingSection,
)
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import Parameters, Run, RunError
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.specs import build, file_of, parse_spec, pick
from troth.training import OPTIMIZERS, SCHEDULES, Optimizer, Problem, Schedule, Task, make_task, warmed_up
from troth.training.fingerprint import code_file
from troth.training.work import Training, TrainingWork

_W = TypeVar("_W", bound=TrainingWork)


@dataclass(frozen=True)
class Manifest:
    """Everything that is agreed on. Equal manifests are the same run, wherever their files lie."""

    name: str
    nonce: bytes  # 32 random bytes: the same plan again is another run
    task: str  # as in `make_task`; a file is named relative to the manifest's folder
    code: Digest  # SHA-256 of the source file that defines the task
    data: Digest  # see `training.fingerprint.data_digest`
    steps: int
    optimizer: str
    rate: float
    parameters: Parameters
    founders: tuple[Founder, ...]  # sorted by key
    timeouts: Timeouts = field(default=Timeouts(delta=2.0, compute=5.0, bulk=5.0, stretch=STRETCH))  # lower bounds
    schedule: str = "cosine"
    warmup: int = 0
    seed: int = 0  # of the initial parameters
    initial_state: Digest | None = None  # of the state that the run begins from, if not from the seed
    continues: Digest | None = None  # the run whose members signed that state, if any
    data_where: str = ""  # for people to read: where to get the data
    code_files: tuple[tuple[str, Digest], ...] = ()  # name and SHA-256 of each file that the task's file imports
    data_files: tuple[tuple[str, Digest], ...] = ()  # name and SHA-256 of each, in the task's order: which one differs?
    device: Literal["cpu", "cuda"] = "cpu"
    one_by_one: bool = False
    folder: Path = field(default=Path(), compare=False)  # of the file: each member's own business
    run: Run = field(init=False, repr=False, compare=False)  # as the protocol knows it

    def __post_init__(self) -> None:
        self._normalize()
        check_manifest(self)
        keys = tuple(founder.key for founder in self.founders)
        try:
            records = tuple((one.key, one.record_key) for one in self.founders if one.record_key is not None)
            run = Run(keys, description(self), self.parameters, self.nonce, records)
        except RunError as error:
            raise ManifestError(str(error)) from error
        object.__setattr__(self, "run", run)

    # Reading and writing

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Manifest":
        """Read a manifest, strictly: `ManifestError` says what is wrong with it, and where."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise ManifestError(f"cannot read the manifest {path}: {error.strerror}") from error
        try:
            return cls.from_bytes(raw, path.parent)
        except ManifestError as error:
            raise ManifestError(f"{path}: {error}") from error

    @classmethod
    def from_bytes(cls, raw: bytes, folder: Path | None = None) -> "Manifest":
        """Raises ManifestError, and nothing else, for bytes that are no manifest."""
        file = run_file.read(raw)
        task, data, training, limits = file.task, file.data, file.training, file.timeouts
        try:
            return cls(
                name=file.name,
                nonce=bytes.fromhex(file.nonce),
                task=task.spec,
                code=Digest(bytes.fromhex(task.code)),
                data=Digest(bytes.fromhex(data.digest)),
                steps=training.steps,
                optimizer=training.optimizer,
                rate=training.rate,
                parameters=Parameters(**msgspec.structs.asdict(file.protocol)),
                founders=tuple(Founder.of(one) for one in file.founder),
                timeouts=Timeouts(limits.delta_s, limits.compute_s, limits.bulk_s, limits.memory_bytes, limits.stretch),
                schedule=training.schedule,
                warmup=training.warmup,
                seed=training.seed,
                initial_state=None if training.initial_state is None else Digest(bytes.fromhex(training.initial_state)),
                continues=None if training.continues is None else Digest(bytes.fromhex(training.continues)),
                data_where=data.where,
                code_files=tuple((name, Digest(bytes.fromhex(digest))) for name, digest in task.files.items()),
                data_files=tuple((name, Digest(bytes.fromhex(digest))) for name, digest in data.files.items()),
                device=task.device,
                one_by_one=task.one_by_one,
                folder=folder or Path(),
            )
        except ManifestError:
            raise
        except (OperatorError, RunError) as error:
            raise ManifestError(printable(str(error))) from error

    def to_toml(self) -> str:
        return run_file.write(self.as_file(), Resilience.of(self.run).sentences())

    def as_file(self) -> RunFile:
        """All values as the file names them."""
        timeouts = self.timeouts
        return RunFile(
            format=FORMAT,
            name=self.name,
            nonce=self.nonce.hex(),
            task=TaskSection(
                spec=self.task,
                code=self.code.hex(),
                files={name: digest.hex() for name, digest in self.code_files},
                device=self.device,
                one_by_one=self.one_by_one,
            ),
            data=DataSection(
                digest=self.data.hex(),
                where=self.data_where,
                files={name: digest.hex() for name, digest in self.data_files},
            ),
            training=TrainingSection(
                steps=self.steps,
                optimizer=self.optimizer,
                rate=self.rate,
                schedule=self.schedule,
                warmup=self.warmup,
                seed=self.seed,
                initial_state=None if self.initial_state is None else self.initial_state.hex(),
                continues=None if self.continues is None else self.continues.hex(),
            ),
            protocol=ProtocolSection(**dataclasses.asdict(self.parameters)),
            timeouts=TimeoutsSection(
                delta_s=timeouts.delta,
                compute_s=timeouts.compute,
                bulk_s=timeouts.bulk,
                stretch=timeouts.stretch,
                memory_bytes=timeouts.memory,
            ),
            founder=[one.section for one in self.founders],
        )

    # Its content

    def name_of(self, peer: PeerId) -> str:
        """The founder's name; a stranger goes by the beginning of its key, too long for anyone to find another such."""
        return self._names.get(peer, peer.hex()[:16])

    def founder(self, peer: PeerId) -> Founder | None:
        return next((founder for founder in self.founders if founder.key == peer), None)

    def digests(self) -> dict[str, Digest]:
        """By section, in an order to report them in: two manifests are equal if and only if all of these are."""
        return section_digests(self)

    @property
    def task_file(self) -> Path | None:
        """The file that defines the task; None for a built-in one."""
        return code_file(self.task, folder=self.folder) if file_of(self.task) is not None else None

    def make_task(self) -> Task:
        """The task. Code that is not part of Troth is run only if it is what was agreed on, and a person agreed to run it."""
        code = code_to_run(self)
        if code is not None:
            check_consent(code)
        return make_task(self.task, self.folder, None if code is None else code.pinned)

    def problem(self, task: Task, device: str | None = None) -> Problem:
        """The task as functions of a flat vector: the same bits for every peer of a hardware class, and for a simulation.

        Kernels are chosen by shape, so the number of founders and `one_by_one` decide about bits (decision 5). Where
        classes may differ (`deviation`), a member may choose another device.
        """
        chosen = self.device if device is None else device
        if chosen != self.device and self.parameters.deviation is None:
            raise ManifestError(f"this run computes on {self.device}, so that audits are exact: {chosen} will not do")
        if chosen == "cuda" and not torch.cuda.is_available():
            raise ManifestError("this run computes on cuda, and PyTorch sees no CUDA device here")
        if missing := [str(file) for file in task.data_files() if not file.is_file()]:
            raise ManifestError(
                f"data: {and_more(missing)} {'is' if len(missing) == 1 else 'are'} not there; {data_hint(self)}"
            )
        return Problem(task, device=chosen, one_by_one=self.one_by_one, lanes_for=len(self.founders))

    @overload
    def work(self, problem: Problem, tools: Primitives) -> TrainingWork: ...

    @overload
    def work(self, problem: Problem, tools: Primitives, kind: type[_W]) -> _W: ...

    def work(self, problem: Problem, tools: Primitives, kind: type[TrainingWork] = TrainingWork) -> TrainingWork:
        return kind(problem, self.make_optimizer(), self.rates(), tools)

    def first_state(self, work: TrainingWork) -> State[Training]:
        """The state before the first step; a model made from the seed is that of a simulation with this seed."""
        if self.initial_state is None:
            training = work.first(self.model_seed)
        else:
            training = read_initial_state(work, self.folder, self.initial_state)
            if self.continues is not None:
                check_origin(self.folder, self.initial_state, self.continues, training)
        return State.first(self.run, training, work.digest(training))

    @property
    def model_seed(self) -> Seed:
        """Seed of the initial parameters."""
        return derive(self.seed, "model")

    def make_optimizer(self) -> Optimizer:
        name, options = parse_spec(self.optimizer)
        return build(pick(OPTIMIZERS, name, "optimizer"), options, self.optimizer)

    def rates(self) -> Schedule:
        return warmed_up(SCHEDULES[self.schedule](self.rate, self.steps), self.warmup)

    # Inside

    def _normalize(self) -> None:
        """Make equal plans the same run: founders in order, and no whole number where a fraction is meant (1 for 1.0)."""
        normal = {
            "founders": tuple(sorted(self.founders, key=lambda founder: founder.key)),
            "rate": float(self.rate),
            "parameters": msgspec.convert(dataclasses.asdict(self.parameters), Parameters),
            "timeouts": msgspec.convert(dataclasses.asdict(self.timeouts), Timeouts),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _names(self) -> Mapping[PeerId, str]:
        return {founder.key: founder.name for founder in self.founders}
