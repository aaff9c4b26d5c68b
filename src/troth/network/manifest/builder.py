"""A manifest from a few options: the task's suggestions, the protocol's defaults, and times measured on this machine."""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
import torch

from troth.clip.blocks import Code
from troth.crypto import Digest, derive
from troth.network.manifest.consent import agree_here, code_to_run
from troth.network.manifest.files import code_files, data_digests, data_files
from troth.network.manifest.manifest import Founder, Manifest, least_memory
from troth.network.manifest.options import ManifestOptions
from troth.network.manifest.toml import MOST_DATA_FILES, ManifestError
from troth.options import check_outer
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.door import AUDITS, least_probation, usual_slots
from troth.protocol.core.run import Parameters, RunError, most_byzantine, usual_content_every
from troth.protocol.wire.primitives import Primitives
from troth.specs import SpecError, file_of, parse_spec
from troth.training import Problem, Task, check_pure, make_task
from troth.training.fingerprint import code_digest, code_file, data_digest
from troth.training.initial_state import import_initial_state

T = TypeVar("T")

OnStage = Callable[[str], None]

_LEAST_S = 5.0  # for computing and for sending: machines stutter
_SLACK = 10  # the slowest member may be this many times slower than this machine
_CALLS = 3
_SLOWEST_CONNECTION = 20e6 / 8  # bytes a second


def silent(_: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Origin:
    """A run that is continued: a state that its members signed, and the proof of that, for the file beside the manifest."""

    manifest: Manifest
    state: bytes
    proof: str


@dataclass(frozen=True)
class BuiltManifest:
    """A manifest, and what was found out while it was built."""

    manifest: Manifest
    gradient_s: float  # that one gradient, or those of the local steps, took on this machine
    initial_state: bytes | None = None  # for the file beside the manifest
    origin: Origin | None = None
    code: tuple[Path, ...] = ()  # files that everybody needs beside the manifest
    data: tuple[Path, ...] = ()  # data files, as this machine names them


def build_manifest(
    task: str,
    founders: Sequence[Founder],
    options: ManifestOptions | None = None,
    folder: Path | None = None,
    *,
    origin: Origin | None = None,
    on_stage: OnStage = silent,
) -> BuiltManifest:
    """A manifest that will lie in `folder`, where the task's file, if it has one, must lie too. `origin`: the run that the
    initial state comes from. `on_stage` hears what is being done.

    The nonce is fresh, so every manifest is another run. A gradient is computed a few times to see how long it takes.
    """
    options, folder = options or ManifestOptions(), folder or Path()
    on_stage("loading the task and its data")
    made = make_task(task, folder)  # named by its own user, who so agrees to run it
    _check_machine(made, options)
    problem = Problem(made, device=options.device, one_by_one=options.one_by_one, lanes_for=max(1, len(founders)))
    _check_parts(problem.size, len(founders), Code.known[options.code])
    _check_probation(options, len(founders), problem.size)
    check_outer(options.outer, options.local_steps, ManifestError)
    on_stage("checking that the task gives the same bits twice")
    check_pure(made, problem)
    on_stage("measuring how long a gradient takes")
    gradient_s = _gradient_s(problem) * options.local_steps
    parameters = _parameters(made, options, len(founders), problem.size, origin)
    on_stage("hashing the data")
    manifest = Manifest(
        name=_or(options.name, PurePosixPath(parse_spec(task)[0]).name),
        nonce=secrets.token_bytes(32),
        task=task,
        code=code_digest(code_file(task, made, folder)),
        code_files=_code_files(task, folder),
        data=data_digest(made),
        data_files=data_digests(made) if len(made.data_files()) <= MOST_DATA_FILES else (),  # else nobody reads them
        data_where=_or(options.data_where, "" if made.data_files() else "comes with the task"),
        steps=_or(options.steps, made.steps),
        optimizer=_or(options.optimizer, made.optimizer),
        rate=_or(options.rate, made.rate),
        schedule=options.schedule,
        warmup=options.warmup,
        outer=options.outer,
        seed=options.seed,
        parameters=parameters,
        founders=tuple(founders),
        timeouts=_timeouts(options, gradient_s, parameters),
        device=options.device,
        one_by_one=options.one_by_one,
        folder=folder,
    )
    if (code := code_to_run(manifest)) is not None:
        agree_here(code.digest)
    built = BuiltManifest(manifest, gradient_s, code=code_files(task, folder), data=data_files(made))
    if options.initial_state is None:
        return built
    work, state = manifest.work(problem, Primitives()), None if origin is None else origin.state
    digest, raw = import_initial_state(work, options.initial_state, state)
    continues = None if origin is None else origin.manifest.run.id
    manifest = replace(manifest, initial_state=digest, continues=continues)
    return replace(built, manifest=manifest, initial_state=raw, origin=origin)


def _code_files(task: str, folder: Path) -> tuple[tuple[str, Digest], ...]:
    """Name and digest of each file that the task's file has imported from beside it."""
    files = code_files(task, folder)[1:]
    if compiled := [str(file) for file in files if file.suffix != ".py"]:
        raise ManifestError(
            f"{compiled[0]} is no Python source, so nobody can read what they run: install it as a package"
        )
    return tuple((file.as_posix(), code_digest(folder / file)) for file in files)


def _check_machine(task: Task, options: ManifestOptions) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ManifestError("`device` cuda: PyTorch sees no CUDA device here; write the manifest where there is one")
    for file in task.data_files():
        if not file.is_file():
            raise ManifestError(f"data: {file} is not there; the manifest is written where the data is")


def _check_parts(size: int, founders: int, code: Code) -> None:
    if (most := -(-size // code.grain)) < founders:
        blocks = f" in blocks of {code.grain}, as `code` sends it" if code.grain > 1 else ""
        raise ManifestError(
            f"{founders} founders are too many for a model of {size} parameters{blocks}: every peer looks after a part of it; "
            f"take at most {most}, or a larger model"
        )


def _check_probation(options: ManifestOptions, founders: int, size: int) -> None:
    """Refuse a probation too short for what people are promised of it, or for fetching the model (SPEC J5, J6)."""
    liars = _or(options.byzantine, most_byzantine(founders, options.validators))
    least = least_probation(founders, liars)
    if 0 < options.probation < least:
        usual = max(least, 8 * founders // max(1, options.validators))
        raise ManifestError(
            f"`probation` must be at least {least} among {founders} founders of whom {liars} may lie, or 0 for founders only, "
            f"got {options.probation}: honest members would audit fewer than {AUDITS} gradients of a stranger before it is a "
            f"member; {usual} is usual"
        )
    wait = 2 * usual_content_every(size)
    if 0 < options.probation < wait:
        raise ManifestError(
            f"`probation` must be at least {wait} for a model of {size:,} parameters, or 0 for founders only, got "
            f"{options.probation}: its content is named every {wait // 2} steps, and a stranger that could not fetch it within "
            "its probation loses its place"
        )


def _parameters(task: Task, options: ManifestOptions, founders: int, size: int, origin: Origin | None) -> Parameters:
    try:
        made = Parameters(
            size=size,
            tau=_or(options.tau, task.tau),
            byzantine=_or(options.byzantine, most_byzantine(founders, options.validators)),
            validators=options.validators,
            projections=options.projections,
            beyond_guarantee=options.beyond_guarantee,
            tau_auto=options.tau_auto,
            deviation=options.deviation,
            content_every=usual_content_every(size),
            probation=options.probation,
            slots=usual_slots(options.probation),
            local_steps=options.local_steps,
            code=options.code,
        )
        return made if origin is None else _kept(origin.manifest.parameters, made)
    except RunError as error:
        raise ManifestError(str(error)) from error


def _kept(old: Parameters, made: Parameters) -> Parameters:
    """The same, with the values that no option sets as they were in the run that is continued."""
    slots = old.slots if old.probation == made.probation else made.slots
    return replace(
        made,
        tau_least=old.tau_least,
        tau_most=old.tau_most,
        slots=slots,
        ticket_bits=old.ticket_bits,
        rekey_every=old.rekey_every,
    )


def _timeouts(options: ManifestOptions, gradient_s: float, parameters: Parameters) -> Timeouts:
    return Timeouts(
        delta=options.delta_s,
        compute=_or(options.compute_s, _generous(_SLACK * gradient_s)),
        bulk=_or(options.bulk_s, _generous(parameters.there_and_back / _SLOWEST_CONNECTION)),
        memory=_or(options.memory_bytes, max(Timeouts.memory, 4 * least_memory(parameters))),
        stretch=options.stretch,
    )


def task_beside(task: str, folder: Path) -> str:
    """A task that is named relative to the current folder, as a manifest in `folder` has to name it."""
    name = file_of(task)
    if name is None:
        return task
    if not Path(name).is_file():
        raise SpecError(f"no task file at '{name}'")
    try:
        inside = Path(name).resolve().relative_to(folder.resolve())
    except ValueError as error:
        raise ManifestError(
            f"{name} does not lie in {folder.resolve()}: put it beside the manifest, since everybody needs both"
        ) from error
    return task.replace(name, inside.as_posix(), 1).strip()


def _gradient_s(problem: Problem) -> float:
    """The time of the slowest of a few gradients, after one that loads and compiles what is needed."""
    flat_D = problem.initial(0)
    batches = [problem.batch(derive(0, "how long", k)) for k in range(_CALLS + 1)]
    times = []
    for batch in batches:
        start = time.perf_counter()
        problem.gradients(flat_D, [batch])[1].cpu()  # a GPU computes nothing until the result is asked for
        times.append(time.perf_counter() - start)
    return max(times[1:])


def _generous(seconds: float) -> float:
    return max(_LEAST_S, float(math.ceil(seconds)))


def _or(chosen: T | None, default: T) -> T:
    return default if chosen is None else chosen


# A run that goes on from the state of another: its settings are those of the other, but for what is given, or must differ.

_ITS_OWN = {"initial_state", "continues"}  # of every run that continues another
_KEPT = {field.name for field in fields(ManifestOptions)} - _ITS_OWN


def options_from(old: Manifest, given: Mapping[str, Any], founders: int) -> ManifestOptions:
    """The options of a run of so many founders that goes on: the other's, but for those given; None counts as not given."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "tau" in chosen:
        chosen = {"tau_auto": None, **chosen}  # the radius that is asked for, and not where another one starts
    file, before = old.as_file(), dict[str, Any](name=old.name, data_where=old.data_where)
    for section in (file.task, file.training, file.protocol, file.timeouts):
        before |= {name: value for name, value in msgspec.structs.asdict(section).items() if name in _KEPT}
    if founders != len(old.founders):
        del before["byzantine"]  # as many as these can withstand
    return ManifestOptions(**{**before, **chosen})


def differences(old: Manifest, new: Manifest) -> list[str]:
    """Everything that members of the other run have to know, as the two files name it: `training.rate: 0.01, was 0.1`."""
    lines = []
    for section in ("task", "data", "training", "protocol", "timeouts"):
        before, after = (msgspec.structs.asdict(getattr(one.as_file(), section)) for one in (old, new))
        lines += [
            f"{section}.{name}: {_short(after[name])}, was {_short(before[name])}"
            for name in after
            if after[name] != before[name] and name not in _ITS_OWN
        ]
    return [*lines, *_founders(old, new)]


def _short(value: Any) -> str:
    match value:
        case None:
            return "not set"
        case dict():
            return ", ".join(f"{name} {_short(digest)}" for name, digest in value.items()) or "none"
        case str() if len(value) == 64 and " " not in value:
            return f"{value[:8]}…"
        case _:
            return str(value)


def _founders(old: Manifest, new: Manifest) -> list[str]:
    before, after = ({one.key: one for one in run.founders} for run in (old, new))
    gone = sorted(one.name for key, one in before.items() if key not in after)
    come = sorted(one.name for key, one in after.items() if key not in before)
    lines = [f"founders: without {', '.join(gone)}"] * bool(gone) + [f"founders: with {', '.join(come)}"] * bool(come)
    for key, one in sorted(after.items()):
        if key in before and (one.name, one.address) != (before[key].name, before[key].address):
            lines.append(f"founder: {_called(one)}, was {_called(before[key])}")
    return lines


def _called(founder: Founder) -> str:
    return f"{founder.name} at {founder.address}" if founder.address else f"{founder.name}, who only dials out"
