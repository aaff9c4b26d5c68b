"""`run.toml`: everything that the members of a run agree on, in one file that people can read, sign off and send around.

The run's name (`Manifest.run.id`) is a digest over every field of it. It is in everything that is signed, so peers with
different manifests cannot mistake each other for members of one run; `digests` tells them in what they differ. The file
holds no secret: anyone who has it can watch and check, and only the founders' keys, which stay at home, can take part.

A manifest comes from somebody else. It is read strictly and within bounds. Code that it names is run only if it lies beside the
manifest, is byte for byte what was agreed on, and a person here has agreed to run those bytes (`manifest.consent`).
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import msgspec
import torch

from troth.crypto import Digest, PeerId, Seed, derive, tagged_hash, valid_peer
from troth.errors import OperatorError, printable
from troth.files import MOST_BYTES
from troth.network.manifest import toml as run_file
from troth.network.manifest.consent import check_consent, code_to_run
from troth.network.manifest.files import and_more, check_origin, data_hint, read_initial_state
from troth.network.manifest.options import STRETCH
from troth.network.manifest.toml import (
    FORMAT,
    MOST_CODE_FILES,
    MOST_DATA_FILES,
    MOST_FOUNDERS,
    DataSection,
    FounderSection,
    ManifestError,
    ProtocolSection,
    RunFile,
    TaskSection,
    TimeoutsSection,
    TrainingSection,
    quoted,
)
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.roster import Away, Roster, moves_with
from troth.protocol.core.run import Parameters, Run, RunError
from troth.protocol.core.state import State
from troth.protocol.wire.primitives import Primitives
from troth.specs import file_of, pick
from troth.training import SCHEDULES, Optimizer, Problem, Schedule, Task, make_optimizer, make_task, warmed_up
from troth.training.fingerprint import code_file
from troth.training.work import Training, TrainingWork

# The manifest as plain values: the source of its digests, of the run's name, and of what evidence says of a run.
#
# All keys and values here are hashed. A change makes the same plan another run.

W = TypeVar("W", bound=TrainingWork)

Plain = dict[str, Any]  # JSON can hold it exactly: fractions are hexadecimal
_FIELDS = {  # by section, in an order to report them in
    "name": ("name",),
    "nonce": ("nonce",),
    "task": ("task", "device", "one_by_one"),
    "task code": ("code", "code_files"),
    "data": ("data", "data_where", "data_files"),
    "initialisation": ("seed", "initial_state", "continues"),
    "training options": ("steps", "optimizer", "rate", "schedule", "warmup", "outer"),
}
# A run without them has the name that it had before there were such fields.
_UNLESS = {"code_files": (), "continues": None, "outer": 1.0}


def description(manifest: "Manifest") -> bytes:
    """Everything that `Run` does not hold elsewhere. At the top level, what recomputing a gradient needs (evidence.recompute).

    Evidence of a ban carries it to strangers, who need not know where the founders live, nor the names of many files: hence
    only digests of these.
    """
    sections = _sections(manifest)
    flat = {name: value for section in _FIELDS for name, value in sections[section].items() if section != "nonce"}
    flat["data_files"] = tagged_hash("troth/data files/1", _canonical({"files": flat["data_files"]})).hex()
    names = [founder.name for founder in manifest.founders]  # in the order of their keys
    addresses = tagged_hash("troth/addresses/1", *(founder.address.encode() for founder in manifest.founders))
    return _canonical(
        {
            "manifest": FORMAT,
            **flat,
            "timeouts": sections["timeouts"],
            "founders": names,
            "addresses": addresses.hex(),
        }
    )


def _sections(manifest: "Manifest") -> dict[str, Plain]:
    """Every field, once."""
    plain = {
        section: {name: _plain(value) for name in names if (value := getattr(manifest, name)) != _UNLESS.get(name, ...)}
        for section, names in _FIELDS.items()
    }
    founders = [
        [one.key.hex(), one.name, one.address, *([] if one.record_key is None else [one.record_key.hex()])]
        for one in manifest.founders
    ]
    timeouts = {name: _plain(value) for name, value in dataclasses.asdict(manifest.timeouts).items()}
    return plain | {
        "protocol": dict(manifest.parameters.plain()),
        "timeouts": timeouts,
        "founders": {"founders": founders},
    }


def _plain(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bytes() | float():
            return value.hex()
        case tuple():
            return _named(value)
        case _:
            return value


def _unhex(text: str) -> Digest:
    return Digest(bytes.fromhex(text))


def _named(files: Sequence[tuple[str, Digest]]) -> list[list[str]]:
    return [[name, digest.hex()] for name, digest in files]


def _canonical(content: Plain) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# The founders.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,32})?\]")
_MOST_ADDRESS_CHARACTERS = 300


@dataclass(frozen=True)
class Founder:
    """One of the peers that start the run."""

    name: str  # for people to read; a peer is its key
    key: PeerId
    address: str  # host:port, or "" for a peer that only dials out
    record_key: PeerId | None = None  # with which it signs the first records; None: with its own

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ManifestError(
                f"a founder's name has 1 to 32 letters, digits, dots, dashes or underscores, got {quoted(self.name)}"
            )
        for what, key in (("key", self.key), ("record key", self.record_key)):
            if key is not None and not valid_peer(key):
                raise ManifestError(f"the {what} of founder {self.name} is no Ed25519 public key: see 'troth key show'")
        if self.address:
            _split_address(self.address, self.name)

    @classmethod
    def of(cls, section: FounderSection) -> "Founder":
        record_key = None if section.record_key is None else PeerId(_unhex(section.record_key))
        return cls(section.name, PeerId(_unhex(section.key)), section.address, record_key)

    @property
    def section(self) -> FounderSection:
        record_key = None if self.record_key is None else self.record_key.hex()
        return FounderSection(name=self.name, key=self.key.hex(), address=self.address, record_key=record_key)

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Host (an IPv6 address without its brackets) and port that it listens on."""
        return _split_address(self.address, self.name) if self.address else None


def _split_address(address: str, founder: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if len(address) > _MOST_ADDRESS_CHARACTERS or not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ManifestError(
            f"the address of founder {founder} must be host:port (or [IPv6]:port, or empty), got {quoted(address)}"
        )
    if not 1 <= int(port) <= 65535:
        raise ManifestError(f"the port of founder {founder} must be from 1 to 65535, got {port}")
    return host.removeprefix("[").removesuffix("]"), int(port)


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
    outer: float = 1.0  # of the rate of the aggregate's step, times that of the local steps
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
        _check(self)
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
                code=_unhex(task.code),
                data=_unhex(data.digest),
                steps=training.steps,
                optimizer=training.optimizer,
                rate=training.rate,
                parameters=Parameters(**msgspec.structs.asdict(file.protocol)),
                founders=tuple(Founder.of(one) for one in file.founder),
                timeouts=Timeouts(limits.delta_s, limits.compute_s, limits.bulk_s, limits.memory_bytes, limits.stretch),
                schedule=training.schedule,
                warmup=training.warmup,
                outer=training.outer,
                seed=training.seed,
                initial_state=None if training.initial_state is None else _unhex(training.initial_state),
                continues=None if training.continues is None else _unhex(training.continues),
                data_where=data.where,
                code_files=tuple((name, _unhex(digest)) for name, digest in task.files.items()),
                data_files=tuple((name, _unhex(digest)) for name, digest in data.files.items()),
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
                files=dict(_named(self.code_files)),
                device=self.device,
                one_by_one=self.one_by_one,
            ),
            data=DataSection(
                digest=self.data.hex(),
                where=self.data_where,
                files=dict(_named(self.data_files)),
            ),
            training=TrainingSection(
                steps=self.steps,
                optimizer=self.optimizer,
                rate=self.rate,
                schedule=self.schedule,
                warmup=self.warmup,
                outer=self.outer,
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
        return {
            section: tagged_hash("troth/manifest/1", section.encode(), _canonical(content))
            for section, content in _sections(self).items()
        }

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

    def problem(self, task: Task) -> Problem:
        """The task as functions of a flat vector: the same bits for every peer of a hardware class, and for a simulation.

        Kernels are chosen by shape, so the number of founders and `one_by_one` decide about bits (decision 5).
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ManifestError("this run computes on cuda, and PyTorch sees no CUDA device here")
        if missing := [str(file) for file in task.data_files() if not file.is_file()]:
            raise ManifestError(
                f"data: {and_more(missing)} {'is' if len(missing) == 1 else 'are'} not there; {data_hint(self)}"
            )
        return Problem(task, device=self.device, one_by_one=self.one_by_one, lanes_for=len(self.founders))

    def work(self, problem: Problem, tools: Primitives) -> TrainingWork:
        return self.work_like(TrainingWork, problem, tools)

    def work_like(self, kind: type[W], problem: Problem, tools: Primitives) -> W:
        """A peer's work of this kind, with the run's options."""
        local_steps = self.parameters.local_steps
        return kind(problem, self.make_optimizer(), self.rates(), tools, local_steps=local_steps, outer=self.outer)

    def first_state(self, work: TrainingWork) -> State[Training]:
        """The state before the first step; a model made from the seed is that of a simulation with this seed."""
        if self.initial_state is None:
            training = work.first(self.model_seed)
        else:
            training = read_initial_state(work, self.folder, self.initial_state)
            if self.continues is not None:
                check_origin(self.folder, self.initial_state, self.continues, training)
            training = work.begin(training)
        return State.first(self.run, training, work.digest(training))

    @property
    def model_seed(self) -> Seed:
        """Seed of the initial parameters."""
        return derive(self.seed, "model")

    def make_optimizer(self) -> Optimizer:
        return make_optimizer(self.optimizer)

    def rates(self) -> Schedule:
        return warmed_up(SCHEDULES[self.schedule](self.rate, self.steps), self.warmup)

    # Inside

    def _normalize(self) -> None:
        """Make equal plans the same run: founders in order, and no whole number where a fraction is meant (1 for 1.0)."""
        normal = {
            "founders": tuple(sorted(self.founders, key=lambda founder: founder.key)),
            "rate": float(self.rate),
            "outer": float(self.outer),
            "parameters": msgspec.convert(dataclasses.asdict(self.parameters), Parameters),
            "timeouts": msgspec.convert(dataclasses.asdict(self.timeouts), Timeouts),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _names(self) -> Mapping[PeerId, str]:
        return {founder.key: founder.name for founder in self.founders}


# Checks of a manifest's values: each within its bounds, and fitting together. They raise ManifestError or SpecError.

_MOST_STEPS = 1_000_000  # rates are a table, one number for each
_MOST_SECONDS = 86_400.0
_MOST_MEMORY = 1 << 40
_MOST_STRETCH = 100
_MOST_SIZE = 1 << 36  # parameters


def _check(manifest: Manifest) -> None:
    _check_text(manifest)
    _check_founders(manifest)
    _check_numbers(manifest)
    if manifest.device not in ("cpu", "cuda"):
        raise ManifestError(f"task.device is cpu or cuda, got {quoted(manifest.device)}")
    pick(SCHEDULES, manifest.schedule, "schedule")
    manifest.make_optimizer()


def least_memory(parameters: Parameters) -> int:
    """Bytes: in a step in which much is disputed honest members send gradient and aggregate twice."""
    return 2 * parameters.there_and_back + (1 << 20)


def _check_text(manifest: Manifest) -> None:
    for entry, text, most in (
        ("name", manifest.name, 64),
        ("task.spec", manifest.task, 200),
        ("training.optimizer", manifest.optimizer, 200),
        ("data.where", manifest.data_where, 200),
        *(("a name in task.files", name, 200) for name, _ in manifest.code_files),
        *(("a name in data.files", name, 200) for name, _ in manifest.data_files),
    ):
        if len(text) > most or not text.isprintable():
            raise ManifestError(f"{entry} must be one line of at most {most} characters, got {quoted(text)}")
    if len(manifest.data_files) > MOST_DATA_FILES:
        raise ManifestError(f"data.files holds at most {MOST_DATA_FILES:,} files, got {len(manifest.data_files):,}")
    if not manifest.name:
        raise ManifestError("name must not be empty")
    _check_code_files(manifest)
    for entry, digest in (("task.code", manifest.code), ("data.digest", manifest.data), ("nonce", manifest.nonce)):
        if len(digest) != 32:
            raise ManifestError(f"{entry} must have 32 bytes (64 hexadecimal digits), got {len(digest)}")


def _check_code_files(manifest: Manifest) -> None:
    """A manifest from somebody else must not make us run, or read, a file from anywhere on this machine."""
    file, names = file_of(manifest.task), [name for name, _ in manifest.code_files]
    if len(names) > MOST_CODE_FILES or len(set(names)) < len(names):
        raise ManifestError(f"task.files holds at most {MOST_CODE_FILES} files, each once")
    for entry, name in (*([] if file is None else [("task.spec", file)]), *(("task.files", name) for name in names)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or path.suffix != ".py" or path.as_posix() != name:
            raise ManifestError(
                f"{entry} names {quoted(name)}: the task's file must lie beside the manifest, as plain *.py"
            )
        if not path.is_relative_to(PurePosixPath(file or "").parent):
            raise ManifestError(f"{entry} names {quoted(name)}, which does not lie in the folder of the task's file")


def _check_founders(manifest: Manifest) -> None:
    founders = manifest.founders
    if not 1 <= len(founders) <= MOST_FOUNDERS:
        raise ManifestError(f"a run has from 1 to {MOST_FOUNDERS} founders, got {len(founders)}")
    for entry, values in (
        ("key", [one.hex() for founder in founders for one in (founder.key, founder.record_key) if one is not None]),
        ("name", [founder.name.lower() for founder in founders]),
        ("address", [founder.address for founder in founders if founder.address]),
    ):
        if repeated := sorted({value for value in values if values.count(value) > 1}):
            raise ManifestError(f"two founders have the {entry} {repeated[0]}: everybody needs their own")


def _check_numbers(manifest: Manifest) -> None:
    timeouts, size = manifest.timeouts, manifest.parameters.size
    for entry, seconds in (("delta_s", timeouts.delta), ("compute_s", timeouts.compute), ("bulk_s", timeouts.bulk)):
        if not 0 < seconds <= _MOST_SECONDS:
            raise ManifestError(f"timeouts.{entry} must be above 0 and at most {_MOST_SECONDS:g}, got {seconds:g}")
    for entry, value in (("rate", manifest.rate), ("outer", manifest.outer)):
        if not (value > 0 and isfinite(value)):
            raise ManifestError(f"training.{entry} must be a positive number, got {value:g}")
    for entry, number, least, most in (
        ("timeouts.stretch", timeouts.stretch, 1, _MOST_STRETCH),
        ("timeouts.memory_bytes", timeouts.memory, least_memory(manifest.parameters), _MOST_MEMORY),
        ("training.steps", manifest.steps, 1, _MOST_STEPS),
        ("training.warmup", manifest.warmup, 0, _MOST_STEPS),
        ("training.seed", manifest.seed, -(2**63), 2**63 - 1),
        ("protocol.size", size, 1, _MOST_SIZE),
    ):
        if not least <= number <= most:
            raise ManifestError(f"{entry} must be from {least:,} to {most:,}, got {number:,}")


@dataclass(frozen=True)
class Resilience:
    """What a run withstands, in numbers of founders: liars, absences, and when it pauses. The protocol's roster knows."""

    founders: int
    liars: int  # that the run withstands
    gone: int  # with so many gone, one after another, it still trains
    at_once: int  # so many may vanish within one step, and it goes on
    begins: int  # enough to begin, or to go on after it stopped
    agreed: int  # enough for that if people agree on it

    @classmethod
    def of(cls, run: Run) -> "Resilience":
        roster, validators = Roster.founding(run), run.parameters.validators
        count = len(roster.members)
        return cls(
            founders=count,
            liars=roster.liars,
            gone=_most_gone(roster, validators),
            at_once=count - roster.quorum,
            begins=max(roster.quorum, roster.restart_quorum),
            agreed=roster.quorum,
        )

    def sentences(self) -> list[str]:
        """One sentence for each thing that people may want to know before they begin."""
        if self.founders == 1:
            return ["1 founder: it trains alone, so nobody can lie to it, and nobody checks it."]
        liars = "no liar" if self.liars == 0 else "1 liar" if self.liars == 1 else f"{self.liars} liars"
        goes_on = "Trains while all are there"
        if self.gone:
            slowly = ", if they leave one after another" if self.gone > self.at_once else ""
            goes_on = f"Goes on training while at most {self.gone} {'is' if self.gone == 1 else 'are'} gone{slowly}"
        told = [
            f"{self.founders} founders: withstands {liars}.",
            f"{goes_on}; with {self.gone + 1} gone it pauses until one is back, and steps and schedule wait.",
        ]
        if self.at_once:  # with more gone, those who are left cannot agree on anything
            agree = f" (or {self.agreed}, if you agree on it: troth join --restart-with)"
            enough = f"{self.begins} are there{agree if self.agreed < self.begins else ''}"
            told.append(f"If {self.at_once + 1} or more vanish within one step, it stops until {enough}.")
        if self.begins == self.founders:
            return [*told, "To begin, all have to be there."]
        return [
            *told,
            f"It begins when all are there; {self.begins} are enough after a while (troth join --founding-s).",
        ]


def _most_gone(roster: Roster, validators: int) -> int:
    """Let one member after another fall out, as long as the rest can agree on it and still trains."""
    gone = 0
    while True:
        rest = roster.members[1:]
        if len(rest) < roster.quorum or not moves_with(roster, len(rest), validators):
            return gone
        left = Away(gone, PeerId(roster.members[0]))
        roster, gone = replace(roster, members=rest, away=(*roster.away, left)), gone + 1
