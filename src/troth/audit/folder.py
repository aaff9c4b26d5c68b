"""`troth audit`: one peer's folder, checked from the founders in the manifest to the model at the end (SPEC E5)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from troth.api.verify import AgreedTask, Verdict, verify_paths
from troth.audit.bans import BanChecker
from troth.audit.files import check_changes, check_mark, check_model, check_restart, check_slots, read_changes
from troth.audit.journal import JournalReader, SignatureChecker
from troth.audit.report import AuditReport
from troth.audit.sample import Sampler
from troth.audit.states import StateChecker
from troth.audit.walk import Walk, Walked
from troth.errors import OperatorError, printable
from troth.network.disk.journal import CHANGES_FILE
from troth.network.disk.lock import is_in_use
from troth.network.manifest.manifest import Manifest
from troth.protocol.history import FORMAT
from troth.protocol.wire.frames import CertifiedRecord

MOST_SAMPLE = 1_000_000


class AuditError(OperatorError):
    """A folder that cannot be audited; the message names the way out."""


@dataclass(frozen=True)
class AuditOptions:
    """What to compute again, and with how many processes."""

    sample: int = 16  # gradients, and at most as many updates
    recompute: bool = True  # else nothing of others' is run
    task: str | None = None  # the run's task, if its file is not beside the manifest
    trust: str | None = None  # SHA-256 of the manifest's code, if nobody here has agreed to run it yet
    processes: int = 0  # for signatures, beside this one; they are spawned

    def __post_init__(self) -> None:
        if not 0 <= self.sample <= MOST_SAMPLE:
            raise AuditError(f"`sample` must be from 0 to {MOST_SAMPLE:,}, got {self.sample}")


def audit(
    folder: Path,
    manifest: Manifest,
    options: AuditOptions | None = None,
    tell: Callable[[str], None] = lambda _where: None,
) -> AuditReport:
    """Check everything in a peer's folder; `tell` hears where the audit is. Raises `AuditError` if there is nothing to audit."""
    options = options or AuditOptions()
    report = AuditReport(manifest.run.id.hex())
    try:
        reader = _open(folder, manifest, report)
        return _Audit(folder, manifest, options, report, tell).check(reader)
    except OSError as error:
        where = error.filename if error.filename is not None else folder
        raise AuditError(printable(f"cannot read {where}: {error.strerror or error}")) from error


class _Begin(msgspec.Struct):
    """The first line of a journal, as far as all versions have it in common."""

    format: str = ""
    run: str = ""


class _First(msgspec.Struct):
    what: _Begin


def _open(folder: Path, manifest: Manifest, report: AuditReport) -> JournalReader:
    if not folder.is_dir():
        raise AuditError(printable(f"{folder} is no folder: name a peer's folder, as `troth join` leaves it"))
    journal = folder / "journal"
    if not journal.is_dir():
        raise AuditError(printable(f"{folder} holds no journal: name a peer's folder, as `troth join` leaves it"))
    if is_in_use(folder):
        raise AuditError(printable(f"{folder} is in use: stop the peer first, or audit a copy of its folder"))
    reader = JournalReader(journal, manifest.run.id, report)
    if not reader.files:
        raise AuditError(printable(f"{journal} is empty: name the folder of a peer that took part in a step"))
    _expect_run(folder, reader.files[0], manifest)
    return reader


def _expect_run(folder: Path, first: Path, manifest: Manifest) -> None:
    """Another run's folder, or another version's, is a mistake; a single wrong name in it is damage, which the audit finds."""
    if not first.is_file():
        return
    with first.open("rb") as file:
        raw = file.readline(1 << 12)
    try:
        begin = msgspec.json.decode(raw, type=_First).what
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return
    mark = folder / "run"
    named = begin.run
    if mark.is_file():
        with mark.open("rb") as file:
            named = file.read(80).decode("ascii", "replace").strip()
    if manifest.run.id.hex() not in (begin.run, named):
        raise AuditError(
            printable(f"{folder} is of run {named}, not of `run` {manifest.run.id.hex()}: name its own run.toml")
        )
    version = begin.format.removeprefix("troth journal ")
    if begin.format != FORMAT and version.isdecimal():
        raise AuditError(printable(f"{first} was written by another version of Troth ({begin.format}): use that one"))


@dataclass(frozen=True)
class _Audit:
    """One audit, check by check."""

    _folder: Path
    _manifest: Manifest
    _options: AuditOptions
    _report: AuditReport
    _tell: Callable[[str], None]

    def check(self, reader: JournalReader) -> AuditReport:
        folder, run, report, options = self._folder, self._manifest.run, self._report, self._options
        # Before hours of other checks: a person may have to agree to it.
        task = AgreedTask(self._manifest, options.task, options.trust) if options.recompute else None
        changes_path = folder / "journal" / CHANGES_FILE
        check_mark(folder, run.id, report)
        changes = read_changes(changes_path, report)
        walked = self._walk(reader, changes or [])
        check_changes(changes_path, run, changes, walked, report)
        slots = check_slots(folder / "signed-slots", report)
        check_restart(folder / "signed-slots.begun", run, walked, report)
        self._tell("checkpoints")
        found = StateChecker(folder / "checkpoints", run, walked, report, reader.chains, slots).check()
        self._tell("evidence of bans")
        BanChecker(folder / "evidence", run, walked, report, self._verify).check(found)
        self._tell("the model")
        check_model(folder, run, walked, task, report)
        if task is None or not options.sample:
            report.skipped("gradients and updates", "nothing was to be computed again, as asked")
        else:
            Sampler(self._manifest, walked, found, report, self._tell).check(task, options.sample)
        return report

    def _walk(self, reader: JournalReader, changes: Sequence[CertifiedRecord]) -> Walked:
        report, manifest = self._report, self._manifest
        with SignatureChecker(report, self._options.processes) as signatures:
            walk: Walk | None = None
            for place, entry in reader.entries():
                if walk is None:  # the reader knows by now whether the journal is whole
                    walk = Walk(manifest.run, manifest.steps, changes, report, signatures, whole=reader.whole)
                walk.take(place, entry)
                self._tell(f"{place}")
            if walk is None:
                raise self._nothing(reader)
            walked = walk.end()
        if reader.torn:
            report.skipped(str(reader.files[-1]), f"its last line is torn, as after a power cut: {reader.torn} bytes")
        report.first, report.last = min(walked.records, default=None), max(walked.records, default=None)
        report.closed = walked.last is not None and walked.last.closing
        return walked

    def _nothing(self, reader: JournalReader) -> AuditError:
        """There is nothing to audit, and what is wrong first may say why."""
        found = self._report.findings
        why = f" ({found[0].where}: {found[0].what})" if found else ""
        return AuditError(
            printable(
                f"no line in {reader.files[0].parent} tells of a step{why}: name the folder of a peer that took part in one, "
                "or another copy of it"
            )
        )

    def _verify(self, paths: Sequence[Path]) -> Iterator[Verdict]:
        options = self._options
        return verify_paths(paths, self._manifest, recompute=options.recompute, task=options.task)
