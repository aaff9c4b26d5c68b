"""Repeating the computation that a ban was about, with the state at hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from troth.clip.blocks import Code
from troth.crypto import Digest, PeerId
from troth.errors import OperatorError
from troth.evidence.companion_files import state_name
from troth.evidence.file_format import Blobs, RecomputeError
from troth.evidence.open_exhibit import OpenedExhibit
from troth.evidence.verify import Proof
from troth.protocol.core.parts import Bounds, CommittedParts, ProvenPart, commit_parts, opens, part_bounds, rows_of
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import part_taus
from troth.protocol.core.run import Parameters, Run
from troth.protocol.step.audits import (
    CONVICT_AT,
    COVER_AT,
    Project,
    judge_part,
    make_report,
    relative_errors,
    report_errors,
)
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import ChargeKind
from troth.protocol.wire.primitives import Primitives, ReportTable
from troth.specs import parse_spec
from troth.training.optimizers import SGD, constant, make_optimizer
from troth.training.problem import Problem
from troth.training.task import Task
from troth.training.tasks import TASKS, make_task
from troth.training.weights import Layout
from troth.training.work import Training, TrainingWork, state_digest


class Recomputed(Enum):
    """Result of a recomputation on this machine."""

    CONFIRMED = "recomputed here: the ban is right, whatever anyone voted"
    REFUTED = "recomputed here: the ban is wrong, whatever anyone voted"
    # Not refuted: one liar can commit to what this machine computes, and the others' machines do not.
    CONTRADICTED = (
        "recomputed here: the gradient that was accused does not come out, as the banned peer had said, and others of that step "
        "do; unless those were computed on other hardware than the run's, the ban is wrong"
    )
    OTHER_CLASS = "nothing that would tell comes out here: this machine may compute other bits than the run's members"


class _Description(msgspec.Struct):
    """Fields of a run's description that gradients depend on."""

    task: str
    device: Literal["cpu", "cuda"]
    one_by_one: bool
    pad: bool = False
    optimizer: str = "sgd"  # which makes the walks of local steps


def problem_of(run: Run, task: Task | None = None) -> Problem | None:
    """The run's task as functions of a flat vector; None on a machine without the run's device.

    Without a task given, a built-in one. A user who trusts a file of the run's own passes its task in.
    """
    described = _described(run)
    if described.device == "cuda" and not torch.cuda.is_available():
        return None
    with _tasks_faults():
        problem = Problem(
            built_in_task(run) if task is None else task,
            device=described.device,
            one_by_one=described.one_by_one,
            lanes_for=len(run.founders),
            pad=described.pad,
        )
    _check_size(problem.size, run.parameters.size)
    return problem


@contextmanager
def _tasks_faults() -> Iterator[None]:
    """Say as a reason what goes wrong inside: the task is its author's, and may lack its data here."""
    try:
        yield
    except RecomputeError:
        raise
    except Exception as error:
        raise task_fails(error) from error


def task_fails(error: Exception) -> RecomputeError:
    """Reason why nothing can be computed with a task."""
    if isinstance(error, OperatorError):
        return RecomputeError(str(error))
    told = str(error).strip().splitlines()
    return RecomputeError(f"the task fails here: {type(error).__name__}{': ' + told[0] if told else ''}")


def _described(run: Run) -> _Description:
    try:
        return msgspec.json.decode(run.description, type=_Description)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecomputeError(f"the run's description does not say what it trains: {error}") from error


def built_in_task(run: Run) -> Task:
    """The task that a run's description names, if it comes with Troth.

    The description comes with the evidence, so it is hostile: it may never name a file to run or to read, and its model is
    measured before it is made, since it could ask for more memory than there is."""
    spec = _described(run).task
    name, options = parse_spec(spec)
    if name in TASKS and "data" in options:
        raise RecomputeError(
            f"the run trains {name} on data that you have to name: its manifest as `run`, or {name}:data=… as `task`"
        )
    if name not in TASKS:
        raise RecomputeError(
            "the run trains a task of its own: name its manifest as `run`, with the task's file beside it, or the file as `task`"
        )
    task = make_task(spec)
    with torch.device("meta"):
        _check_size(Layout.of(task.model()).size, run.parameters.size)
    return task


def _check_size(task: int, agreed: int) -> None:
    if task != agreed:
        raise RecomputeError(f"the task has {task} parameters, the run agreed on {agreed}")


def recompute(
    proof: Proof,
    training: Training | None,
    blobs: Blobs = MappingProxyType({}),
    problem: Callable[[Run], Problem | None] = problem_of,
) -> Recomputed:
    """Repeat the computation that the ban was about, from the signed messages and the files beside them.

    `problem` is asked for the run's task only if gradients have to be computed, after everything else was checked."""
    match proof.judgement.kind:
        case ChargeKind.GRADIENT:
            return _judged(proof, _gradients(proof, training, problem))
        case ChargeKind.AUDITED_REPORT | ChargeKind.COVER:
            guilty = _audited(proof, _gradients(proof, training, problem), blobs)
        case ChargeKind.REPORT | ChargeKind.AGGREGATE:
            guilty = _part_guilty(proof, blobs)
        case _:
            raise RecomputeError("nothing can be recomputed here: " + proof.rests_on())
    if guilty is None:
        return Recomputed.OTHER_CLASS
    return Recomputed.CONFIRMED if guilty == _accused_banned(proof) else Recomputed.REFUTED


def _accused_banned(proof: Proof) -> bool:
    return proof.banned == proof.judgement.target


def _judged(proof: Proof, gradients: "Gradients") -> Recomputed:
    """Judge a gradient: innocent if it comes out here, guilty only if this machine computes its bits (SPEC E6).

    In a run of several classes the accused's own Commit says which bits those are. In a run of one class nobody signs that:
    there it takes another contributor's gradient that comes out, and would not on every machine.
    """
    accused, roots = PeerId(proof.judgement.target), gradients.step.commitments
    if gradients.root(accused) == roots[accused]:
        return Recomputed.REFUTED if _accused_banned(proof) else Recomputed.CONFIRMED
    parameters = proof.run.parameters
    same_bits = parameters.names_hardware and exhibit_of(proof).hardware.get(accused) == gradients.hardware_class()
    if parameters.deviation is None and not same_bits:
        others = sorted({*gradients.step.contributors} - {accused})  # strangers tell nothing
        same_bits = any(gradients.tells(PeerId(peer), roots[peer]) for peer in others)
    if not same_bits:
        return Recomputed.OTHER_CLASS
    return Recomputed.CONFIRMED if _accused_banned(proof) else Recomputed.CONTRADICTED


def _gradients(proof: Proof, training: Training | None, problem_for: Callable[[Run], Problem | None]) -> "Gradients":
    step, parameters = proof.disputed, proof.run.parameters
    assert step is not None
    assert proof.state is not None
    if training is None:
        raise RecomputeError(f"{state_name(proof.state)} is not beside the file")
    if state_digest(training) != proof.state:
        raise RecomputeError("the state beside the file is not the one that the members signed")
    if (found := training.parameters_D.numel()) != parameters.size:
        raise RecomputeError(f"the state has {found} parameters, the run agreed on {parameters.size}")
    problem = problem_for(proof.run)
    if problem is None:
        raise RecomputeError("this machine lacks the device that the run computes on")
    return Gradients.at(step, training, _work_of(proof.run, problem), parameters)


def _work_of(run: Run, problem: Problem) -> TrainingWork:
    """A work that computes the run's gradients, and makes no updates: an optimizer makes walks alone, with the state's rate."""
    local_steps = run.parameters.local_steps
    with _tasks_faults():
        optimizer = SGD() if local_steps == 1 else make_optimizer(_described(run).optimizer)
    return TrainingWork(problem, optimizer, constant(1.0, 1), Primitives(), local_steps=local_steps)


@dataclass(frozen=True)
class Gradients:
    """The gradients that contributors of a step should have computed."""

    step: StepRecord
    bounds: Bounds
    code: Code
    work: TrainingWork
    training: Training

    @classmethod
    def at(cls, step: StepRecord, training: Training, work: TrainingWork, parameters: Parameters) -> "Gradients":
        here, code = Training(training.parameters_D.to(work.problem.device), training.optimizer), parameters.coding
        return cls(step, part_bounds(parameters.size, step.parts, code), code, work, here)

    def parts(self, peer: PeerId) -> CommittedParts:
        seed = gradient_seed(Digest(self.step.seed_randomness), peer)
        with _tasks_faults():
            gradient_D = self.work.gradient_now(self.training, seed)
        return commit_parts(gradient_D, self.bounds, code=self.code, seed=seed)

    def hardware_class(self) -> Digest:
        """This machine's class."""
        with _tasks_faults():
            return self.work.hardware_class()

    def root(self, peer: PeerId) -> bytes:
        return self.parts(peer).root

    def tells(self, peer: PeerId, root: bytes) -> bool:
        """Whether this root comes out here, and shows by that which bits this machine computes.

        Zeros come out everywhere: a gradient that the rounding of other hardware leaves as it is shows nothing.
        """
        return self.root(peer) == root and self.elsewhere.root(peer) != root

    @cached_property
    def elsewhere(self) -> "Gradients":
        """The same as a machine with other rounding would compute them."""
        return replace(self, work=self.work.on("another machine"))


def _audited(proof: Proof, gradients: Gradients, blobs: Blobs) -> bool | None:
    """Judge a report of an earlier step, or an owner that let it pass; None if the gradient is not the one committed to."""
    shown, part = exhibit_of(proof), proof.judgement.part
    step, bounds = gradients.step, gradients.bounds
    aggregate_D = torch.cat([center_of(proof, blobs, part) for part in range(len(shown.aggregates))])
    taus = np.array(part_taus(step.tau, bounds))
    for peer, root in sorted(shown.roots.items()):
        parts = gradients.parts(peer)
        if parts.root != root:
            return None
        errors_P = relative_errors(shown.reports[peer], make_report(parts, aggregate_D, project_of(proof), taus), taus)
        if part is None:
            return bool(errors_P.max() > CONVICT_AT)
        # The owner said nothing about a report that is so wrong that it must have noticed.
        if errors_P[part] > COVER_AT and shown.named is not None and (part, peer) not in shown.named:
            return True
    return False


# Recomputing a ban over one part: nothing but arithmetic on signed messages and their blobs (SPEC E3, T6, T7).


def _part_guilty(proof: Proof, blobs: Blobs) -> bool:
    """Whether the accused is guilty: of a wrong report about the part, or of a wrong aggregate of it, or of covering."""
    shown, part = exhibit_of(proof), proof.judgement.part
    assert part is not None
    code = proof.run.parameters.coding
    bounds = part_bounds(proof.run.parameters.size, shown.step.parts, code)
    proven_parts: dict[PeerId, ProvenPart] = {}
    for peer, (digest, path) in shown.proven_parts.items():
        proven_parts[peer] = ProvenPart(blob_of(blobs, digest), path)
        if not opens(proven_parts[peer], part, bounds, shown.roots[peer], code=code):
            raise RecomputeError(f"a part is not what {peer.hex()} committed to")
    reporters = sorted(proven_parts)
    rows_PD = rows_of([proven_parts[peer] for peer in reporters], code=code)
    center_D, tau = center_of(proof, blobs, part), part_taus(shown.step.tau, bounds)[part]
    said = ReportTable(tuple(shown.reports[peer] for peer in reporters)).about(part)
    about = rows_PD, center_D, project_of(proof), bounds[part], said, tau
    if proof.judgement.kind == ChargeKind.REPORT:  # its one row says nothing about the aggregate
        return bool(report_errors(*about)[0] > CONVICT_AT)
    finding = judge_part(reporters, *about, code)
    if finding.aggregate_wrong or shown.named is None:
        return finding.aggregate_wrong
    return bool(finding.covered(frozenset(peer for about, peer in shown.named if about == part)))


def exhibit_of(proof: Proof) -> OpenedExhibit:
    """The opened exhibit, which a recomputation needs."""
    if proof.exhibit is None:
        raise RecomputeError("the file holds votes only, and nothing to recompute from")
    return proof.exhibit


def project_of(proof: Proof) -> Project:
    """The projections of the disputed step."""
    shown, parameters = exhibit_of(proof), proof.run.parameters
    assert shown.projection_key is not None
    return Primitives().projector(shown.projection_key, parameters.projections, parameters.size)


def center_of(proof: Proof, blobs: Blobs, part: int) -> Tensor:
    """The aggregate of a part."""
    blob, form = blob_of(blobs, exhibit_of(proof).aggregates[part]), proof.run.parameters.coding.centers
    if blob.array_D(form) is None:
        raise RecomputeError(f"the aggregate of part {part} is no {form.name}: nobody can have agreed on it")
    return blob.numbers_D(form=form)


def blob_of(blobs: Blobs, digest: Digest) -> Blob:
    """The blob with this digest; the file beside the evidence is not believed."""
    if digest not in blobs:
        raise RecomputeError(f"blob {digest.hex()[:16]} is not beside the file")
    if blobs[digest].digest != digest:
        raise RecomputeError(f"blob {digest.hex()[:16]} is damaged")
    return blobs[digest]
