"""`troth.verify`: check what others say, evidence of bans and models, each with one verdict."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from troth.crypto import Digest, PeerId
from troth.errors import OperatorError, printable
from troth.events.kinds import Ballot, Trial
from troth.events.phrases import story_of
from troth.evidence import file_format, model_file
from troth.evidence.companion_files import load_companions
from troth.evidence.file_format import RecomputeError, UnprovedError
from troth.evidence.recompute import Recomputed, built_in_task, problem_of, recompute, task_fails
from troth.evidence.verify import Proof, verify_ban
from troth.evidence.verify_model import ModelProof, check_weights, verify_model
from troth.network.manifest.consent import relocated, require_consent
from troth.network.manifest.files import code_mismatch, mismatches
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.toml import ManifestError
from troth.protocol.core.run import Run
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.specs import check_keywords, parse_spec
from troth.training import Problem, Task, make_task
from troth.training.fingerprint import code_file

# Files to check: found below folders, and read, within bounds. Names and contents may be a stranger's.


NAMES = ("ban-*.json", "model.json")  # of files that are looked for in folders
MOST_FILES = 10_000  # checked in one call
MOST_ENTRIES = 1_000_000  # looked at in folders
MOST_DEPTH = 16  # of folders in folders


class VerifyError(OperatorError):
    """Files that cannot be found, or a run that is not named by its manifest or id."""


def expand(paths: Sequence[Path | str]) -> list[Path]:
    """Files to check: those named, and all evidence and `model.json` below the folders named, in order, each once.

    Links to folders are not followed. A path that does not exist, or nothing to check at all, is a mistake.
    """
    found: dict[Path, None] = {}
    walk = _Walk()
    for path in map(Path, paths):
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise VerifyError(
                printable(f"cannot read {path}: {why}; name a file ban-….json, a model.json, or a folder")
            ) from error
        files = islice(walk.below(path), MOST_FILES + 1) if is_folder else [path]
        found.update(dict.fromkeys(sorted(files, key=_natural)))
        if len(found) > MOST_FILES:
            raise VerifyError(f"more than {MOST_FILES:,} files to check: name fewer at a time")
    if not found:
        raise VerifyError(
            printable(
                f"no evidence (ban-….json) and no model.json below {', '.join(map(str, paths))}: name a peer's folder"
            )
        )
    return list(found)


class _Walk:
    """Looks for files below folders, within bounds: a folder may be a stranger's."""

    def __init__(self) -> None:
        self._entries = 0

    def below(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MOST_ENTRIES:
                        raise VerifyError(
                            f"more than {MOST_ENTRIES:,} files below `paths`: name the folder evidence in them"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        if depth < MOST_DEPTH:
                            yield from self.below(folder / entry.name, depth + 1)
                    elif any(fnmatchcase(entry.name, name) for name in NAMES):
                        yield folder / entry.name
        except OSError:
            yield folder  # which then cannot be read, and is told with the rest


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key: step 9 comes before step 31."""
    return [
        (int(piece) if len(piece) < 20 else 0, piece) if piece.isascii() and piece.isdigit() else (0, piece)
        for piece in re.split("([0-9]+)", str(path))
    ]


def read_text(path: Path) -> str:
    """Read a file of bounded length that is a file indeed: a pipe would block, and a device never ends."""
    most = file_format.MOST_BYTES
    with os.fdopen(_open_file(path), "rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise OSError(0, "it is too large to be evidence of a ban or the proof of a model")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UnprovedError("the file is not text") from error


def _open_file(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(0, "this is no ordinary file")


# The task of a run that is checked: found, compared with what was agreed on, and made once for all files.


class AgreedTask:
    """The task that a manifest names, or that the reader does in its place; without either, a built-in one.

    A file is run only if it is byte for byte the agreed one. Without a manifest nobody can tell, and a file that the reader names
    is run on the reader's word. The manifest's own is run only if the reader has agreed to run those bytes, or does so now
    (`trust`): else `ConsentError`.
    """

    def __init__(self, manifest: Manifest | None, spec: str | None, trust: str | None = None) -> None:
        self._manifest = manifest
        self._wrong: str | None = None  # how the reader's file differs from the agreed one
        if manifest is not None and spec is None:
            require_consent(manifest, trust)
        file, pinned = Path("" if spec is None else parse_spec(spec)[0]), None
        if manifest is not None and file.suffix == ".py" and file.is_file():
            self._manifest = replace(manifest, task=file.name, folder=file.parent)  # in place of the one beside it
            try:
                pinned = relocated(manifest, file).pinned
            except ManifestError as error:
                self._wrong = str(error)
        self._own = None if spec is None or self._wrong is not None else make_task(spec, code=pinned)
        self._made: dict[object, Problem | RecomputeError | None] = {}

    def for_recomputing(self, run: Run) -> Problem | None:
        """The task as the members computed with it, on its data; None on a machine without the run's device."""
        return self._once(self._for_recomputing, run)

    def for_weights(self, run: Run) -> Problem:
        """The task's model, to tell which weight is which. It needs neither the run's device nor its data."""
        problem = self._once(self._for_weights, run)
        assert problem is not None
        return problem

    def _once(self, make: Callable[[Run], Problem | None], run: Run) -> Problem | None:
        """Keep an error too: what fails for one file fails for all."""
        if (make, run) not in self._made:
            try:
                self._made[make, run] = make(run)
            except RecomputeError as error:
                self._made[make, run] = error
            except Exception as error:  # the task is its author's: anything can go wrong in it
                self._made[make, run] = task_fails(error)
        found = self._made[make, run]
        if isinstance(found, RecomputeError):
            raise found
        return found

    def _for_recomputing(self, run: Run) -> Problem | None:
        manifest = self._manifest
        problem = problem_of(run, self._task(run))
        differences = [] if manifest is None or problem is None else mismatches(manifest, problem.task, problem)
        if differences:
            raise RecomputeError("; ".join(differences))
        return problem

    def _for_weights(self, run: Run) -> Problem:
        task, manifest = self._task(run), self._manifest
        wrong = None if manifest is None else code_mismatch(manifest, code_file(manifest.task, task, manifest.folder))
        if wrong is not None:
            raise RecomputeError(wrong)
        problem = Problem(task, one_by_one=True)  # asked for, so that no batch is drawn to find out
        if problem.size != run.parameters.size:
            raise RecomputeError(f"the task has {problem.size} parameters, the run agreed on {run.parameters.size}")
        return problem

    def _task(self, run: Run) -> Task:
        if self._wrong is not None:
            raise RecomputeError(self._wrong)
        if self._own is not None:
            return self._own
        return built_in_task(run) if self._manifest is None else self._manifest.make_task()


# Verdicts

_ID = re.compile("[0-9a-fA-F]{64}")
_NAMED = re.compile("([0-9a-f]{64}) (.{1,80})")  # a line of a simulation's `evidence/run`: a peer's key and its name
_MOST_NAMES = 100_000

RunName = Manifest | Path | str  # a manifest, its file, a file that holds a run's id, or the id


class Result(Enum):
    """The verdict on one file."""

    PROVED = "proved"
    VOTED = "rests on votes"  # signed by enough members to ban; nothing here shows that they did not lie together
    NOT_PROVED = "not proved"
    UNKNOWN_RUN = "unknown run"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True)
class Verdict:
    """What one file proves."""

    path: Path
    result: Result
    sentence: str = ""  # the claim that is proved; empty if none is
    reason: str = ""  # what the claim rests on, or why it is not proved or rests on votes, and what to do
    details: Mapping[str, Any] = field(default_factory=dict)  # kind, run, step, keys: for programs
    explanation: tuple[str, ...] = ()  # what the file holds, in words; nothing if it proves nothing of a known run

    @property
    def proved(self) -> bool:
        """Whether the file shows it to somebody who trusts no vote on a ban; also `bool(verdict)`."""
        return self.result is Result.PROVED

    def __bool__(self) -> bool:
        return self.proved

    def line(self) -> str:
        """The verdict in one line that is safe to print, whatever the file or its name holds."""
        match self.result:
            case Result.PROVED:
                said = f"proved: {self.sentence} {self.reason}"
            case Result.VOTED:
                said = f"{self.result.value} ({self.reason}): {self.sentence}"
            case _:
                said = f"{self.result.value}: {self.reason}"
        return printable(f"{self.path}: {said}").rstrip()

    def plain(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "path": str(self.path),
            "verdict": self.result.value,
            "proved": self.proved,
            "sentence": self.sentence,
            "reason": self.reason,
            "explanation": list(self.explanation),
            **self.details,
        }


@check_keywords
def verify(
    path: str | PathLike[str],
    run: RunName | None = None,
    *,
    recompute: bool = True,
    task: str | None = None,
    trust: str | None = None,
) -> Verdict:
    """Check evidence of a ban, or a `model.json`, offline: `if troth.verify("ban-step3-eve.json", run="run.toml"): …`

    A file that proves nothing is no error, but a verdict that is false and says why. `run` is the run that you mean, from
    somebody you trust: its `run.toml`, a `Manifest`, or its id; without one nothing is proved, since anybody can invent a
    run. With a manifest, a task file beside it that is byte for byte the agreed one is run, as joining would, if you have agreed
    to that (`trust` is its SHA-256): else `ConsentError`, which names it. `recompute=False` runs nothing. `task` names the task's
    file if it lies elsewhere, and is run.
    """
    return next(verify_paths([Path(path)], run, recompute=recompute, task=task, trust=trust))


def verify_paths(
    paths: Iterable[Path],
    run: RunName | None,
    *,
    recompute: bool = True,
    task: str | None = None,
    trust: str | None = None,
) -> Iterator[Verdict]:
    """Check files of one run, one by one; the task is loaded once."""
    known = _named(run)
    checker = _Checker(known, AgreedTask(known.manifest, task, trust) if recompute else None)
    return map(checker.check, paths)


@dataclass(frozen=True)
class _KnownRun:
    """The run that the reader knows."""

    id: Digest | None
    manifest: Manifest | None = None
    names: Mapping[PeerId, str] = field(default_factory=dict)  # of peers that no manifest names


def _named(run: RunName | None) -> _KnownRun:
    if run is None or isinstance(run, Manifest):
        return _KnownRun(None) if run is None else _KnownRun(run.run.id, run)
    if _ID.fullmatch(str(run)):
        return _KnownRun(Digest(bytes.fromhex(str(run))))
    path = Path(run)
    if not path.is_file():
        raise VerifyError(
            printable(
                f"`run` {run}: neither a file nor an id, which has 64 hexadecimal digits; name the run's run.toml"
            )
        )
    if path.suffix == ".toml":
        manifest = Manifest.load(path)
        return _KnownRun(manifest.run.id, manifest)
    return _run_file(path)


def _run_file(path: Path) -> _KnownRun:
    """A run by its id; a simulation's `evidence/run` names the peers too, a line each."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            lines = [line.strip() for line in islice(iter(lambda: file.readline(160), ""), 1 + _MOST_NAMES)]
    except OSError as error:
        raise VerifyError(f"cannot read {path}: {error.strerror}") from error
    named = [_NAMED.fullmatch(line) for line in lines[1:] if line]
    if not lines or not _ID.fullmatch(lines[0]) or None in named:
        raise VerifyError(
            printable(f"`run` {path}: neither a manifest (run.toml) nor a file that begins with a run's id")
        )
    names = {PeerId(bytes.fromhex(one[1])): one[2] for one in named if one is not None}
    return _KnownRun(Digest(bytes.fromhex(lines[0])), names=names)


class _Checker:
    """Checks files of one run. Its task is made when it is first needed; if nothing is to be recomputed, never."""

    def __init__(self, known: _KnownRun, task: AgreedTask | None) -> None:
        self._known = known
        self._task = task

    def check(self, path: Path) -> Verdict:
        """One verdict, and never an exception: the file may be anything."""
        try:
            text = read_text(path)
            return self._check_model(path, text) if _is_model(text) else self._check_ban(path, text)
        except OSError as error:
            return Verdict(path, Result.UNREADABLE, reason=error.strerror or str(error))
        except UnprovedError as error:
            return Verdict(path, Result.NOT_PROVED, reason=str(error))

    def _check_ban(self, path: Path, text: str) -> Verdict:
        proof = replace(verify_ban(text, self._known.id), names=self._known.names)
        details = {
            "kind": "ban",
            "run": proof.run.id.hex(),
            "step": proof.step,
            "banned": proof.banned.hex(),
            "name": proof.name(proof.banned),
        }
        if self._known.id is None:
            return _unknown(path, proof.run, details)
        if proof.exhibit is None and not proof.rests_on_votes:
            return Verdict(path, Result.PROVED, proof.sentence(), proof.rests_on(), details, explain_ban(proof))
        result, reason = self._repeat(path, proof)
        sentence = "" if result is Result.NOT_PROVED else proof.sentence()
        return Verdict(path, result, sentence, reason, details, explain_ban(proof))

    def _repeat(self, path: Path, proof: Proof) -> tuple[Result, str]:
        """Recompute what can be recomputed. Without that the ban rests on votes: a lying quorum can ban whom it likes."""
        if proof.rests_on_votes:
            why = f"the file holds votes and nothing to recompute from. {proof.rests_on()}"
            return Result.VOTED, why.rstrip(".")
        if self._task is None:
            return Result.VOTED, "not recomputed, as asked"
        try:
            beside = load_companions(path, proof)
            if beside.missing is not None:
                return Result.VOTED, f"not recomputed: {beside.missing} is not beside the file: ask a member for it"
            found = recompute(proof, beside.training, beside.blobs, self._task.for_recomputing)
        except RecomputeError as error:
            return Result.VOTED, f"not recomputed: {error}"
        match found:
            case Recomputed.CONFIRMED if proof.own_word:
                return Result.PROVED, _capital(found.value)
            case Recomputed.CONFIRMED:
                return Result.VOTED, f"recomputed here, and it is as they voted, but {proof.not_own_word()}"
            case Recomputed.REFUTED | Recomputed.CONTRADICTED:
                return Result.NOT_PROVED, f"{found.value}. The votes are signed: {proof.sentence()}"
            case Recomputed.OTHER_CLASS:
                return Result.VOTED, f"not recomputed: {found.value}; try one like theirs"

    def _check_model(self, path: Path, text: str) -> Verdict:
        proof = verify_model(text, self._known.id)
        details = {
            "kind": "model",
            "run": proof.run.id.hex(),
            "step": proof.record.step,
            "state_digest": proof.state.hex(),
            "members": [member.hex() for member in proof.roster.members],
        }
        if self._known.id is None:
            return _unknown(path, proof.run, details)
        reason = self._wrong_weights(path, proof)
        if reason:
            return Verdict(path, Result.NOT_PROVED, "", reason, details, explain_model(proof))
        sentence = f"{proof.sentence()}, and {_weights(path).name} holds its weights."
        return Verdict(path, Result.PROVED, sentence, proof.rests_on(), details, explain_model(proof))

    def _wrong_weights(self, path: Path, proof: ModelProof) -> str:
        """Why the weights beside the file are not shown to be the signed ones; empty if they are."""
        signed = f"The signatures are right: {proof.sentence()}."
        if self._task is None:
            return f"the weights were not checked, as asked. {signed}"
        try:
            check_weights(proof, self._task.for_weights(proof.run), _weights(path))
        except RecomputeError as error:
            return f"whether the weights are the signed ones can be told only with the task: {error}. {signed}"
        except UnprovedError as error:
            return f"{error}. {signed}"
        return ""


def _unknown(path: Path, run: Run, details: Mapping[str, Any]) -> Verdict:
    reason = (
        f"it is about run {run.id.hex()}, and you have not said that you know that one. Anybody can invent a run, and put other "
        "people's public keys among its founders: name the run that you mean with `run`, its run.toml or its id, from somebody "
        "you trust"
    )
    return Verdict(path, Result.UNKNOWN_RUN, reason=reason, details={"kind": details["kind"], "run": details["run"]})


def _weights(path: Path) -> Path:
    return path.with_suffix(".safetensors")


class _Kind(msgspec.Struct):
    """The fields that tell what a file is."""

    format: str = ""
    state_digest: str | None = None


def _is_model(text: str) -> bool:
    try:
        kind = msgspec.json.decode(text, type=_Kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    if kind.state_digest is not None and not kind.format:
        raise UnprovedError("an earlier version of Troth wrote this file, with too little in it to check")
    return kind.format == model_file.FORMAT


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# Evidence in words: what was claimed, who decided, what can be repeated, and what it does not say.


_SIDE: dict[GuiltySide, Ballot] = {
    GuiltySide.ACCUSED: "accused",
    GuiltySide.ACCUSER: "accuser",
    GuiltySide.WITHHELD: "withheld",
}
_MEMBERS = (
    "Who the members were follows from the run's founders: the file holds every change since, each signed by a quorum."
)
_GRADIENT = (
    "the gradient of {target} in step {step}, from the state before that step ({state}…) and the seed drawn for it"
)
_PART = "part {part} of step {step}, from what its contributors and its owner signed"
_REPEATED = {
    ChargeKind.GRADIENT: _GRADIENT,
    ChargeKind.DEVIATION: _GRADIENT,
    ChargeKind.AUDITED_REPORT: _GRADIENT + ", and from that its report",
    ChargeKind.REPORT: _PART,
    ChargeKind.AGGREGATE: _PART,
    ChargeKind.COVER: _PART,
}


def explain_ban(proof: Proof) -> tuple[str, ...]:
    """What the file of a ban says, a paragraph each; all of it was checked, but for the recomputation."""
    members = ", ".join(map(proof.name, proof.roster.members))
    lines = [
        "Claimed: " + " ".join(story_of(_trial(proof))),
        f"{_MEMBERS} In step {proof.step} they were {members}.",
    ]
    if proof.voters:
        voters = ", ".join(map(proof.name, proof.voters))
        lines.append(
            f"Voted for the ban: {voters}. {proof.roster.quorum} decide, and the file holds no more than it takes."
        )
    return (
        *lines,
        f"Can be repeated: {_repeatable(proof)}.",
        "Says nothing of intent: a bug, another version, other hardware or broken memory look the same. Only a key is banned.",
    )


def explain_model(proof: ModelProof) -> tuple[str, ...]:
    """What the proof of a model says, a paragraph each; all of it was checked, but for the weights."""
    members = ", ".join(map(proof.name, proof.roster.members))
    return (
        f"Claimed: the run ended after {proof.record.updates} updates with the state {proof.state.hex()}.",
        f"{_MEMBERS} At the end they were {members}.",
        f"Signed by {proof.signers} of them; {proof.roster.quorum} are a quorum. Each made the last update itself.",
        "Can be repeated: the digests of the weights beside it, as the task names them.",
        "Says nothing of quality, nor of steps that nobody audited.",
    )


def _trial(proof: Proof) -> Trial:
    judged = proof.judgement
    side = _SIDE[GuiltySide.ACCUSED if judged.verdict is None else judged.verdict]
    return Trial(
        kind=judged.kind.name.lower(),
        target=proof.name(PeerId(judged.target)),
        step=judged.step,
        verdict=side,
        accuser=None if judged.accuser is None else proof.name(PeerId(judged.accuser)),
        part=judged.part,
        banned=proof.name(proof.banned),
        votes={proof.name(voter): side for voter in proof.voters},
        quorum=proof.roster.quorum,
    )


def _repeatable(proof: Proof) -> str:
    judged = proof.judgement
    if judged.kind == ChargeKind.EQUIVOCATION:
        return "both signatures, which are in the file; nothing else is needed"
    if proof.exhibit is None:
        return "nothing but the signatures: the file holds votes"
    state = "" if proof.state is None else proof.state.hex()[:8]
    what = _REPEATED[judged.kind].format(
        target=proof.name(PeerId(judged.target)), step=judged.step, part=judged.part, state=state
    )
    basis = (
        "and the banned peer signed itself what that starts from" if proof.own_word else f"but {proof.not_own_word()}"
    )
    return f"{what}, {basis}"
