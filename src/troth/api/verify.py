"""Checking what others say: evidence of bans, and models, each with one verdict."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from troth.api.agreed_task import AgreedTask
from troth.api.evidence_files import VerifyError, expand, read_text
from troth.api.explain import explain_ban, explain_model
from troth.crypto import Digest, PeerId
from troth.errors import printable
from troth.evidence import model_file
from troth.evidence.companion_files import load_companions
from troth.evidence.errors import RecomputeError, UnprovedError
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import Proof, verify_ban
from troth.evidence.verify_model import ModelProof, check_weights, verify_model
from troth.network.manifest.manifest import Manifest
from troth.protocol.core.run import Run
from troth.specs import check_keywords

__all__ = ["Result", "Verdict", "VerifyError", "expand", "verify", "verify_path", "verify_paths"]

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
    explanation: tuple[
        str, ...
    ] = ()  # what the file holds, in words; nothing of a file that proves nothing of a known run

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
    return verify_path(Path(path), run, recompute=recompute, task=task, trust=trust)


def verify_path(
    path: Path | str,
    run: RunName | None,
    *,
    recompute: bool = True,
    task: str | None = None,
    trust: str | None = None,
) -> Verdict:
    """Check one file, as `verify` does."""
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
