"""A manifest from a few wishes: the task's suggestions, the protocol's defaults, and times measured on this machine."""

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import torch

from troth.crypto import derive
from troth.network.manifest.initial_state import adopt
from troth.network.manifest.manifest import Founder, Manifest, ManifestError, least_room
from troth.network.manifest.toml import STRETCH
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.run import Parameters, RunError, most_byzantine
from troth.protocol.wire.primitives import Primitives
from troth.specs import SpecError, parse_spec
from troth.training import Problem, check_pure, make_task
from troth.training.fingerprint import code_digest, code_file, data_digest

T = TypeVar("T")

_LEAST_S = 5.0  # for computing and for sending: machines stutter
_SLACK = 10  # so much slower may the slowest member be than this machine
_CALLS = 3
_SLOWEST_LINE = 20e6 / 8  # bytes a second


@dataclass(frozen=True)
class ManifestOptions:
    """What a person may want otherwise. `None`: as the task suggests, as the protocol allows, or as measured."""

    name: str | None = None
    steps: int | None = None
    optimizer: str | None = None
    rate: float | None = None
    schedule: str = "cosine"
    warmup: int = 0
    seed: int = 0
    start: Path | None = None  # a checkpoint, a peer's folder, or a model
    byzantine: int | None = None
    validators: int = 1
    projections: int = 16
    tau: float | None = None
    tau_auto: float | None = None
    deviation: float | None = None
    beyond_guarantee: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    one_by_one: bool = False
    delta_s: float = 2.0
    compute_s: float | None = None
    bulk_s: float | None = None
    stretch: float = STRETCH
    room_bytes: int | None = None
    data_where: str | None = None


@dataclass(frozen=True)
class Draft:
    manifest: Manifest
    gradient_s: float  # how long one took here
    start: bytes | None = None  # the state to begin from, for the file beside the manifest


def draft(
    task: str, founders: Sequence[Founder], options: ManifestOptions | None = None, folder: Path | None = None
) -> Draft:
    """For a manifest that will lie in `folder`, where the task's file, if it has one, must lie too.

    The nonce is fresh, so every draft is another run. A gradient is computed a few times to see how long it takes.
    """
    options, folder = options or ManifestOptions(), folder or Path()
    made = make_task(task, folder)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ManifestError("device cuda: PyTorch sees no CUDA device here; write the manifest where there is one")
    for file in made.data_files():
        if not file.is_file():
            raise ManifestError(f"data: {file} is not there; the manifest is written where the data is")
    problem = Problem(made, device=options.device, one_by_one=options.one_by_one, lanes_for=max(1, len(founders)))
    check_pure(made, problem)
    gradient_s = _gradient_s(problem)
    try:
        parameters = Parameters(
            size=problem.size,
            tau=_or(options.tau, made.tau),
            byzantine=_or(options.byzantine, most_byzantine(len(founders), options.validators)),
            validators=options.validators,
            projections=options.projections,
            beyond_guarantee=options.beyond_guarantee,
            tau_auto=options.tau_auto,
            deviation=options.deviation,
        )
    except RunError as error:
        raise ManifestError(str(error)) from error
    manifest = Manifest(
        name=_or(options.name, parse_spec(task)[0]),
        nonce=secrets.token_bytes(32),
        task=task,
        code=code_digest(code_file(task, made, folder)),
        data=data_digest(made),
        data_where=_or(options.data_where, "" if made.data_files() else "comes with the task"),
        steps=_or(options.steps, made.steps),
        optimizer=_or(options.optimizer, made.optimizer),
        rate=_or(options.rate, made.rate),
        schedule=options.schedule,
        warmup=options.warmup,
        seed=options.seed,
        parameters=parameters,
        founders=tuple(founders),
        timeouts=Timeouts(
            delta=options.delta_s,
            compute=_or(options.compute_s, _generous(_SLACK * gradient_s)),
            bulk=_or(options.bulk_s, _generous(2 * 4 * problem.size / _SLOWEST_LINE)),
            room=_or(options.room_bytes, max(Timeouts.room, 4 * least_room(problem.size))),
            stretch=options.stretch,
        ),
        device=options.device,
        one_by_one=options.one_by_one,
        folder=folder,
    )
    if options.start is None:
        return Draft(manifest, gradient_s)
    digest, raw = adopt(manifest.work(problem, Primitives()), options.start)
    return Draft(replace(manifest, start=digest), gradient_s, raw)


def beside(task: str, folder: Path) -> str:
    """A task as somebody names it who stands elsewhere, as a manifest in `folder` has to name it."""
    name = parse_spec(task)[0]
    _, colon, options = task.partition(":")
    if not name.endswith(".py"):
        return task
    if not Path(name).is_file():
        raise SpecError(f"no task file at '{name}'")
    try:
        inside = Path(name).resolve().relative_to(folder.resolve())
    except ValueError as error:
        raise ManifestError(
            f"{name} does not lie in {folder.resolve()}: put it beside the manifest, since everybody needs both"
        ) from error
    return inside.as_posix() + colon + options


def _gradient_s(problem: Problem) -> float:
    """The longest of a few, after one that loads and compiles what is needed."""
    flat_D = problem.initial(0)
    batches = [problem.batch(derive(0, "how long", k)) for k in range(_CALLS + 1)]
    times = []
    for batch in batches:
        start = time.perf_counter()
        problem.gradients(flat_D, [batch])[1].cpu()  # on a GPU nothing is done until somebody asks for it
        times.append(time.perf_counter() - start)
    return max(times[1:])


def _generous(seconds: float) -> float:
    return max(_LEAST_S, float(math.ceil(seconds)))


def _or(wish: T | None, otherwise: T) -> T:
    return otherwise if wish is None else wish
