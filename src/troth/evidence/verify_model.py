"""Checking `model.json` and the weights beside it, offline, trusting nothing in them but what the signatures carry (SPEC U4, E4).

The claim that is proved: starting from the founders named by the run's hash, and following only records that a quorum of the
members before them signed, a quorum of the last members signed that the run is closed and with which state; and the weights are
that state's. A quorum is more than the liars that may be left (SPEC G1), so an honest member is among them, which computed the
state itself. A quorum of the record's own members alone would show nothing: anybody can write down members of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from troth.crypto import Digest
from troth.errors import OperatorError
from troth.evidence.file_format import UnprovedError, expect, refusing, to_text
from troth.evidence.model_file import FORMAT, ModelFile, from_text
from troth.evidence.signed_records import Name, follow_changes, known_run, names_in, open_record
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.history import SignedRecord, digest_of
from troth.protocol.wire.primitives import Primitives
from troth.training.problem import Problem
from troth.training.weights import same_tensors
from troth.training.work import TensorDigest, Training, digest_of_tensors, tensor_digests

_HEADER = 16 << 20  # the most bytes of names and shapes in a file of weights


@dataclass(frozen=True)
class ModelProof:
    """The state that a run ended with, as its members signed it."""

    run: Run
    record: StepRecord  # the closing one
    roster: Roster  # of its members
    signers: int
    tensors: Mapping[str, TensorDigest]  # of the state, as far as they are not in the weights

    @property
    def name(self) -> Name:
        """Names for keys, as in the manifest."""
        return names_in(self.run, self.roster)

    @property
    def state(self) -> Digest:
        return Digest(self.record.state_after)

    def is_about(self, parameters_D: Tensor) -> bool:
        """Whether these are the parameters of the signed state."""
        return digest_of_tensors({**self.tensors, **tensor_digests(Training(parameters_D, {}))}) == self.state

    def sentence(self) -> str:
        """The claim about the run's end, without a full stop: more may follow."""
        beyond = " (a run beyond the guarantee)" if self.run.parameters.beyond_guarantee else ""
        # Somebody was convicted of work of the last step.
        back = ", the last of which was taken back" if self.record.undone else ""
        return (
            f"{self.signers} of {len(self.roster.members)} members signed the state {self.state.hex()[:8]}… that the run{beyond} "
            f"{'ended with' if self.record.closing else 'had'} after {self.record.updates} updates{back}"
        )

    def rests_on(self) -> str:
        """The assumption behind the claim, in plain words."""
        lied = f"{self.roster.quorum} members of this run lied together"
        return f"That rests on their signatures: it is so unless {lied}."


def verify_model(text: str, run: Digest | None = None) -> ModelProof:
    """Return what the file proves of this run, or raise `UnprovedError`. Without a run given, it proves something about a run
    that may be invented: then the caller has to look at `ModelProof.run`."""
    return _proved(text, run, closed=True)


def verify_state(text: str, run: Digest | None = None) -> ModelProof:
    """The same for a state on the way: members signed it, though its last steps may not be audited yet."""
    return _proved(text, run, closed=False)


def proves_model(file: ModelFile) -> bool:
    """Tell whether strangers could follow this proof; its maker asks."""
    try:
        verify_model(to_text(file))
    except UnprovedError:
        return False
    return True


@refusing()
def _proved(text: str, known: Digest | None, *, closed: bool) -> ModelProof:
    file, tools = from_text(text), Primitives()
    expect(file.format == FORMAT, "unknown format")
    run = known_run(file.founding, known)
    expect(file.run == run.id.hex(), "the file names another run than its founders found")
    expect(bool(file.record), "no record was signed")
    roster = follow_changes(run, file.history, tools)
    record = open_record(run, SignedRecord(file.record, file.signatures), roster, tools)
    expect(
        record.closing or not closed,
        f"the run ended unclosed: the last record that enough members signed is that of step {record.step}, whose work nobody "
        "had audited yet",
    )
    same = file.closed == record.closing and file.step == record.step + 1
    expect(same, "the file says something else than its record")
    expect(digest_of(file.state_digest) == record.state_after, "the members signed another state than the file names")
    expect(all(name.isascii() and one.dtype.isascii() for name, one in file.tensors.items()), "odd names of tensors")
    listed = file.tensors.items()
    tensors = {name: TensorDigest(one.dtype, tuple(one.shape), digest_of(one.digest)) for name, one in listed}
    return ModelProof(run, record, roster, len(file.signatures), tensors)


def check_parameters(proof: ModelProof, training: Training) -> None:
    """Raise `UnprovedError` unless these are the parameters of the signed state. Its optimizer may be another one."""
    expect(proof.is_about(training.parameters_D), "these are other parameters than those that the members signed")


def check_weights(proof: ModelProof, problem: Problem, weights: Path) -> None:
    """Raise `UnprovedError` unless the file holds the weights of the signed state, each under the names that the task gives it,
    its other tensors as the task makes them, and nothing else."""
    named = _load(weights, problem)
    try:
        flat_D = problem.flat_of(named)
    except OperatorError as error:
        raise UnprovedError(f"{weights.name}: {error}") from error
    expect(proof.is_about(flat_D), f"{weights.name} holds other weights than those that the members signed")
    try:
        module = problem.module(flat_D)
    except OperatorError as error:  # statistics of BatchNorm need the task's data
        rest = f"what is trained in {weights.name} is what the members signed, but the rest of it cannot be checked"
        raise UnprovedError(f"{rest}: {error}") from error
    expected = module.state_dict().keys()
    for name in sorted(expected | named.keys()):
        expect(name in named, f"{weights.name} lacks '{name}'")
        expect(name in expected, f"{weights.name} holds '{name}', which the task's model does not have")
    for name, same in same_tensors(module, named).items():
        expect(same, f"{weights.name}: '{name}' is not the one of this model; troth export writes the right one")


def _load(weights: Path, problem: Problem) -> dict[str, Tensor]:
    """Read tensors from a file that is no larger than the model is."""
    expect(weights.is_file(), f"{weights.name} is not beside it")
    model = problem.task.model().state_dict().values()
    most = _HEADER + sum(tensor.numel() * tensor.element_size() for tensor in model)
    expect(weights.stat().st_size <= most, f"{weights.name} is larger than the task's model")
    try:
        return load_file(weights)
    except Exception as error:  # the reader has no error type of its own
        raise UnprovedError(f"{weights.name} is damaged: {error}") from error
