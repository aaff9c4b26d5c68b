"""Every ban has its evidence, and every evidence its ban: each file is checked as `troth verify` does (SPEC E1, E3)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from troth.api.verify import Result, Verdict, read_text
from troth.audit.files import FileError, files_in, load_tensors
from troth.audit.report import AuditReport, Check
from troth.audit.states import StateFiles, read_model
from troth.audit.walk import Walked
from troth.crypto import PeerId, blob_digest
from troth.evidence.companion_files import state_name
from troth.evidence.file_format import BanFile, from_text
from troth.evidence.signed_records import names_in
from troth.protocol.core.run import Run
from troth.protocol.history import step_of
from troth.protocol.wire.messages import ChargeKind
from troth.training.work import state_digest

_MOST_BLOBS = 1 << 40  # bytes; the files are mapped, not read whole


@dataclass
class BanChecker:
    """Checks the folder `evidence`."""

    _folder: Path
    _run: Run
    _walked: Walked
    _report: AuditReport
    _verify: Callable[[Sequence[Path]], Iterator[Verdict]]
    _proved: set[tuple[int, str]] = field(default_factory=set)  # steps and keys of bans

    def check(self, found: StateFiles) -> None:
        for verdict in self._verify(files_in(self._folder, "ban-*.json")):
            self._check_file(verdict)
        for path in files_in(self._folder, "state-*.safetensors"):
            self._check_state(path, found)
        for path in files_in(self._folder, "ban-*.blobs"):
            self._check_blobs(path)
        for path in files_in(self._folder, "discarded-*.json"):
            self._report.skipped(str(path), "it tells of a step that a restart discarded, and proves no ban")
        self._name_missing()

    def _check_file(self, verdict: Verdict) -> None:
        path = verdict.path
        if verdict.result not in (Result.PROVED, Result.VOTED):
            self._report.wrong(Check.BANS, str(path), verdict.reason)
            return
        if verdict.result is Result.VOTED:
            self._report.skipped(f"more than the votes behind {path}", verdict.reason)
        step = int(verdict.details["step"])
        if flaw := self._misplaced(path):
            self._report.wrong(Check.BANS, str(path), flaw)
            return
        self._proved.add((step, str(verdict.details["banned"])))
        self._report.passed(Check.BANS)

    def _misplaced(self, path: Path) -> str | None:
        """Why a proved ban is not one of this history; every record in the file is compared with the journal's."""
        file: BanFile = from_text(read_text(path))
        here = {raw.hex() for raw in self._walked.raw.values()}
        for signed in (*file.history, *file.before, file.record):
            at = step_of(signed.certified())  # the file was proved, so it can be read
            if at >= self._walked.first and signed.record not in here and not self._walked.broken:
                if at not in self._walked.records:
                    return f"it holds a signed record of step {at}, and the journal does not: the journal was cut"
                return f"it holds another signed record of step {at} than the journal"
        return None

    def _check_state(self, path: Path, found: StateFiles) -> None:
        with self._report.faults(Check.CONTENTS, path):
            digest = state_digest(read_model(path, self._run.parameters.size))
            if path.name != state_name(digest):
                raise FileError("it holds another state than its name says")
            found.models.setdefault(digest, path)
            self._report.passed(Check.CONTENTS)

    def _check_blobs(self, path: Path) -> None:
        with self._report.faults(Check.BANS, path):
            for name, tensor in load_tensors(path, _MOST_BLOBS).items():
                if blob_digest(tensor.numpy().data.cast("B")).hex() != name:
                    raise FileError(f"the blob {name[:16]}… has another digest")
            self._report.passed(Check.FILES)

    def _name_missing(self) -> None:
        state = self._walked.state
        if state is None:
            return
        name = names_in(self._run, state.roster)
        for step, peer in self._walked.bans():
            if (step, peer.hex()) not in self._proved:
                what = f"the evidence of the ban of {name(peer)} in step {step}"
                self._report.skipped(what, f"no file in {self._folder} proves it; {self._rests_on(step, peer)}")

    def _rests_on(self, step: int, peer: PeerId) -> str:
        """What is left of a ban without evidence."""
        judged = next(j for j in self._walked.records[step].judgements if j.banned == peer)
        if judged.kind == ChargeKind.EQUIVOCATION or step not in self._walked.retraced:
            return "it rests on the signatures under its record; ask another member for it"
        return "the votes in the journal were counted; ask another member for it"
