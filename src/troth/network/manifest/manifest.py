"""`run.toml`: everything that the members of a run agree on, in one file that people can read, sign off and send around.

The run's name (`Manifest.run.id`) is a digest over every field of it. It is in everything that is signed, so peers with
different manifests cannot mistake each other for members of one run; `digests` tells them in what they differ. The file
holds no secret: whoever has it can watch and check, and only the founders' keys, which stay at home, can take part.

A manifest comes from somebody else. It is read strictly and within bounds, and a task file that it names is run only if it
lies beside the manifest and is byte for byte the one that was agreed on.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, overload

import msgspec
import torch

from troth.crypto import Digest, PeerId, Seed, derive, tagged_hash, valid_peer
from troth.errors import OperatorError, printable
from troth.network.manifest import toml as run_file
from troth.network.manifest.initial_state import read_initial_state
from troth.network.manifest.toml import (
    FORMAT,
    MOST_BYTES,
    MOST_FOUNDERS,
    STRETCH,
    DataSection,
    FounderSection,
    ManifestError,
    PaceSection,
    ProtocolSection,
    RunFile,
    TaskSection,
    TrainingSection,
    shown,
)
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import Parameters, Run, RunError
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.specs import build, parse_spec, pick
from troth.training import OPTIMIZERS, SCHEDULES, Optimizer, Problem, Schedule, Task, TaskError, make_task, warmed_up
from troth.training.fingerprint import code_digest, code_file, data_digest
from troth.training.work import Training, TrainingWork

__all__ = ["Founder", "Manifest", "ManifestError", "least_room", "mismatches", "split_address"]

MOST_STEPS = 1_000_000  # rates are a table, one number for each
_MOST_SECONDS = 86_400.0
_MOST_ROOM = 1 << 40
_MOST_STRETCH = 100.0
_MOST_SIZE = 1 << 36  # parameters

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,32})?\]")
_W = TypeVar("_W", bound=TrainingWork)

Plain = dict[str, Any]  # what JSON can hold, exactly: fractions in hexadecimal


@dataclass(frozen=True)
class Founder:
    """One of those who start the run."""

    name: str  # for people to read; a peer is its key
    key: PeerId
    address: str  # host:port, or "" for somebody who only dials out

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ManifestError(
                f"a founder's name has 1 to 32 letters, digits, dots, dashes or underscores, got {shown(self.name)}"
            )
        if not valid_peer(self.key):
            raise ManifestError(f"the key of founder {self.name} is no Ed25519 public key: see 'troth key show'")
        if self.address:
            split_address(self.address, self.name)

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Where it listens: host (an IPv6 address without its brackets) and port."""
        return split_address(self.address, self.name) if self.address else None


@dataclass(frozen=True)
class Manifest:
    """What is agreed on. Equal manifests are the same run, wherever their files lie."""

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
    timeouts: Timeouts = field(
        default=Timeouts(delta=2.0, compute=5.0, bulk=5.0, stretch=STRETCH)
    )  # the least, and how much more
    schedule: str = "cosine"
    warmup: int = 0
    seed: int = 0  # of the first parameters
    start: Digest | None = None  # of the state that the run begins from, if not from the seed
    data_where: str = ""  # for people to read: where the data is to be had
    device: Literal["cpu", "cuda"] = "cpu"
    one_by_one: bool = False
    folder: Path = field(default=Path(), compare=False)  # of the file; agreed on by nobody
    run: Run = field(init=False, repr=False, compare=False)  # as the protocol knows it

    def __post_init__(self) -> None:
        self._write_one_way()
        self._check_text()
        self._check_founders()
        self._check_timeouts()
        self._check_training()
        keys = tuple(founder.key for founder in self.founders)
        try:
            run = Run(keys, _canonical(self._description()), self.parameters, self.nonce)
        except RunError as error:
            raise ManifestError(str(error)) from error
        object.__setattr__(self, "run", run)

    # Reading and writing

    @classmethod
    def load(cls, path: Path) -> "Manifest":
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
        """Raises ManifestError, and nothing else, for what is no manifest."""
        file = run_file.read(raw)
        task, data, training, pace = file.task, file.data, file.training, file.pace
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
                founders=tuple(Founder(f.name, PeerId(bytes.fromhex(f.key)), f.address) for f in file.founder),
                timeouts=Timeouts(pace.delta_s, pace.compute_s, pace.bulk_s, pace.room_bytes, pace.stretch),
                schedule=training.schedule,
                warmup=training.warmup,
                seed=training.seed,
                start=None if training.start is None else Digest(bytes.fromhex(training.start)),
                data_where=data.where,
                device=task.device,
                one_by_one=task.one_by_one,
                folder=folder or Path(),
            )
        except ManifestError:
            raise
        except (OperatorError, RunError) as error:
            raise ManifestError(printable(str(error))) from error

    def to_toml(self) -> str:
        pace = self.timeouts
        return run_file.write(
            RunFile(
                format=FORMAT,
                name=self.name,
                nonce=self.nonce.hex(),
                task=TaskSection(spec=self.task, code=self.code.hex(), device=self.device, one_by_one=self.one_by_one),
                data=DataSection(digest=self.data.hex(), where=self.data_where),
                training=TrainingSection(
                    steps=self.steps,
                    optimizer=self.optimizer,
                    rate=self.rate,
                    schedule=self.schedule,
                    warmup=self.warmup,
                    seed=self.seed,
                    start=None if self.start is None else self.start.hex(),
                ),
                protocol=ProtocolSection(**dataclasses.asdict(self.parameters)),
                pace=PaceSection(
                    delta_s=pace.delta,
                    compute_s=pace.compute,
                    bulk_s=pace.bulk,
                    stretch=pace.stretch,
                    room_bytes=pace.room,
                ),
                founder=[FounderSection(name=f.name, key=f.key.hex(), address=f.address) for f in self.founders],
            )
        )

    # What it says

    def name_of(self, peer: PeerId) -> str:
        """The founder's name; a stranger goes by the beginning of its key."""
        return self._names.get(peer, peer.hex()[:8])

    def founder(self, peer: PeerId) -> Founder | None:
        return next((founder for founder in self.founders if founder.key == peer), None)

    def digests(self) -> dict[str, Digest]:
        """By section, in an order to report them in: two manifests are equal if and only if all of these are."""
        return {
            section: tagged_hash("troth/manifest/1", section.encode(), _canonical(content))
            for section, content in self._sections().items()
        }

    def make_task(self) -> Task:
        """Runs the task's file if it has one, and only the one that was agreed on."""
        if self._task_file is not None and (wrong := self._code_mismatch(self._task_file)):
            raise ManifestError(wrong)
        return make_task(self.task, self.folder)

    def problem(self, task: Task, device: str | None = None) -> Problem:
        """What one peer computes: the same bits as every other of its hardware class, and as a simulation of so many.

        Kernels are chosen by shape, so the number of founders and `one_by_one` decide about bits (decision 5). Where
        classes may differ (`deviation`), a member may choose another device.
        """
        chosen = self.device if device is None else device
        if chosen != self.device and self.parameters.deviation is None:
            raise ManifestError(f"this run computes on {self.device}, so that audits are exact: {chosen} will not do")
        if chosen == "cuda" and not torch.cuda.is_available():
            raise ManifestError("this run computes on cuda, and PyTorch sees no CUDA device here")
        for file in task.data_files():
            if not file.is_file():
                raise ManifestError(f"data: {file} is not there; {self._where}")
        return Problem(task, device=chosen, one_by_one=self.one_by_one, lanes_for=len(self.founders))

    @overload
    def work(self, problem: Problem, tools: Primitives) -> TrainingWork: ...

    @overload
    def work(self, problem: Problem, tools: Primitives, kind: type[_W]) -> _W: ...

    def work(self, problem: Problem, tools: Primitives, kind: type[TrainingWork] = TrainingWork) -> TrainingWork:
        return kind(problem, self.make_optimizer(), self.rates(), tools)

    def first_state(self, work: TrainingWork) -> State[Training]:
        """Where everybody starts; a model made from the seed is that of a simulation with this seed."""
        training = (
            work.first(self.model_seed) if self.start is None else read_initial_state(work, self.folder, self.start)
        )
        return State.first(self.run, training)

    @property
    def model_seed(self) -> Seed:
        """Of the first parameters."""
        return derive(self.seed, "model")

    def make_optimizer(self) -> Optimizer:
        name, options = parse_spec(self.optimizer)
        return build(pick(OPTIMIZERS, name, "optimizer"), options, self.optimizer)

    def rates(self) -> Schedule:
        return warmed_up(SCHEDULES[self.schedule](self.rate, self.steps), self.warmup)

    # How it is checked

    def _write_one_way(self) -> None:
        """Equal plans get equal names: founders in order, and no whole number where a fraction is meant (1 for 1.0)."""
        one_way = {
            "founders": tuple(sorted(self.founders, key=lambda founder: founder.key)),
            "rate": float(self.rate),
            "parameters": msgspec.convert(dataclasses.asdict(self.parameters), Parameters),
            "timeouts": msgspec.convert(dataclasses.asdict(self.timeouts), Timeouts),
        }
        for name, value in one_way.items():
            object.__setattr__(self, name, value)

    def _check_text(self) -> None:
        for what, text, most in (
            ("name", self.name, 64),
            ("task.spec", self.task, 200),
            ("training.optimizer", self.optimizer, 200),
            ("data.where", self.data_where, 200),
        ):
            if len(text) > most or not text.isprintable():
                raise ManifestError(f"{what} must be one line of at most {most} characters, got {shown(text)}")
        if not self.name:
            raise ManifestError("name must not be empty")
        if self._task_file is not None:
            name = parse_spec(self.task)[0]
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise ManifestError(f"task.spec names {shown(name)}: the task's file must lie beside the manifest")
        for what, digest in (("task.code", self.code), ("data.digest", self.data), ("nonce", self.nonce)):
            if len(digest) != 32:
                raise ManifestError(f"{what} must have 32 bytes (64 hexadecimal digits), got {len(digest)}")

    def _check_founders(self) -> None:
        if not 1 <= len(self.founders) <= MOST_FOUNDERS:
            raise ManifestError(f"a run has from 1 to {MOST_FOUNDERS} founders, got {len(self.founders)}")
        for what, values in (
            ("key", [founder.key.hex() for founder in self.founders]),
            ("name", [founder.name.lower() for founder in self.founders]),
            ("address", [founder.address for founder in self.founders if founder.address]),
        ):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ManifestError(f"two founders have the {what} {twice[0]}: everybody needs their own")

    def _check_timeouts(self) -> None:
        for what, seconds in (
            ("delta_s", self.timeouts.delta),
            ("compute_s", self.timeouts.compute),
            ("bulk_s", self.timeouts.bulk),
        ):
            if not 0 < seconds <= _MOST_SECONDS:
                raise ManifestError(f"pace.{what} must be above 0 and at most {_MOST_SECONDS:g}, got {seconds:g}")
        if not 1 <= self.timeouts.stretch <= _MOST_STRETCH:
            raise ManifestError(f"pace.stretch must be from 1 to {_MOST_STRETCH:g}, got {self.timeouts.stretch:g}")
        least = least_room(self.parameters.size)
        if not least <= self.timeouts.room <= _MOST_ROOM:
            raise ManifestError(
                f"pace.room_bytes must be from {least:,} (a few times the model) to {_MOST_ROOM:,}, "
                f"got {self.timeouts.room:,}"
            )

    def _check_training(self) -> None:
        if not 1 <= self.steps <= MOST_STEPS:
            raise ManifestError(f"training.steps must be from 1 to {MOST_STEPS:,}, got {self.steps:,}")
        if not (self.rate > 0 and isfinite(self.rate)):
            raise ManifestError(f"training.rate must be a positive number, got {self.rate:g}")
        if not 0 <= self.warmup <= MOST_STEPS:
            raise ManifestError(f"training.warmup must be from 0 to {MOST_STEPS:,}, got {self.warmup:,}")
        if not -(2**63) <= self.seed < 2**63:
            raise ManifestError(f"training.seed must fit in 64 bits, got {self.seed}")
        if self.parameters.size > _MOST_SIZE:
            raise ManifestError(f"protocol.size must be at most {_MOST_SIZE:,}, got {self.parameters.size:,}")
        if self.device not in ("cpu", "cuda"):
            raise ManifestError(f"task.device is cpu or cuda, got {shown(self.device)}")
        pick(SCHEDULES, self.schedule, "schedule")
        self.make_optimizer()

    @cached_property
    def _names(self) -> Mapping[PeerId, str]:
        return {founder.key: founder.name for founder in self.founders}

    @property
    def _task_file(self) -> Path | None:
        """None for a built-in task."""
        return code_file(self.task, folder=self.folder) if parse_spec(self.task)[0].endswith(".py") else None

    @property
    def _where(self) -> str:
        return f"the manifest says where to get it: {self.data_where}" if self.data_where else "ask for it"

    def _code_mismatch(self, file: Path) -> str | None:
        try:
            here = code_digest(file)
        except TaskError as error:
            return f"task code: {error}; ask for the file and put it there"
        if here == self.code:
            return None
        remedy = (
            "ask for the file and put it there"
            if self._task_file is not None
            else "install the version of Troth that the manifest's first line names"
        )
        digests = f"SHA-256 {here.hex()[:8]}… instead of {self.code.hex()[:8]}…"
        return f"task code: {file} is not the one agreed on ({digests}); {remedy}"

    def _sections(self) -> dict[str, Plain]:
        """Every field, once."""
        pace = dataclasses.asdict(self.timeouts)
        return {
            "name": {"name": self.name},
            "nonce": {"nonce": self.nonce.hex()},
            "task": {"task": self.task, "device": self.device, "one_by_one": self.one_by_one},
            "task code": {"code": self.code.hex()},
            "data": {"data": self.data.hex(), "data_where": self.data_where},
            "initialisation": {"seed": self.seed, "start": "" if self.start is None else self.start.hex()},
            "training options": {
                "steps": self.steps,
                "optimizer": self.optimizer,
                "rate": self.rate.hex(),
                "schedule": self.schedule,
                "warmup": self.warmup,
            },
            "protocol": dict(self.parameters.plain()),
            "pace": {name: value.hex() if isinstance(value, float) else value for name, value in pace.items()},
            "founders": {"founders": [[founder.key.hex(), founder.name, founder.address] for founder in self.founders]},
        }

    def _description(self) -> Plain:
        """What `Run` does not hold elsewhere. At the top level, what recomputing a gradient needs (evidence.recompute).

        Evidence of a ban carries it to strangers, who need not know where the founders live: hence only a digest of that.
        """
        sections = self._sections()
        flat = {
            name: value
            for section in ("name", "task", "task code", "data", "initialisation", "training options")
            for name, value in sections[section].items()
        }
        names = [founder.name for founder in self.founders]  # in the order of their keys
        addresses = tagged_hash("troth/addresses/1", *(founder.address.encode() for founder in self.founders))
        return {
            "manifest": FORMAT,
            **flat,
            "pace": sections["pace"],
            "founders": names,
            "addresses": addresses.hex(),
        }


def mismatches(manifest: Manifest, task: Task, problem: Problem) -> list[str]:
    """In what this machine differs from what was agreed on, one line each, with the way out; empty if it may take part."""
    found: list[str] = []
    if wrong := manifest._code_mismatch(code_file(manifest.task, task, manifest.folder)):
        found.append(wrong)
    if problem.size != manifest.parameters.size:
        found.append(
            f"model size: {problem.size:,} parameters here, {manifest.parameters.size:,} agreed on; "
            "compare the task's code, its options and the version of PyTorch"
        )
    try:
        here = data_digest(task)
    except TaskError as error:
        found.append(f"data: {error}; {manifest._where}")
    else:
        if here != manifest.data:
            found.append(
                f"data: not the one agreed on (digest {here.hex()[:8]}… instead of {manifest.data.hex()[:8]}…); "
                f"{manifest._where}"
            )
    return found


def least_room(size: int) -> int:
    """Bytes: honest members send a few times the model (of float32) in a step in which much is disputed."""
    return 16 * size + (1 << 20)


def split_address(address: str, whose: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if len(address) > 300 or not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ManifestError(
            f"the address of founder {whose} must be host:port (or [IPv6]:port, or empty), got {shown(address)}"
        )
    if not 1 <= int(port) <= 65535:
        raise ManifestError(f"the port of founder {whose} must be from 1 to 65535, got {port}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _canonical(content: Plain) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
