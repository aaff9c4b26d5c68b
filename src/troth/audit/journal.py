"""The journal's files, read strictly: every line in the one way it is written, each chained to the one before (SPEC E5)."""

import stat
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from troth.audit.report import AuditReport, Check
from troth.crypto import Digest, PeerId, verify
from troth.network.disk.journal import JOURNAL_FILE, KEPT_FILES, STEPS_PER_FILE
from troth.processes import started_safely
from troth.protocol.history import FORMAT, Begin, Entry, EntryError, Said, chain_of, decode, first_digest, next_digest

MOST_LINE = 1 << 28  # bytes; sixteen members' reports take 50 KB
MOST_FILES = 10_000


@dataclass(frozen=True)
class Place:
    """File and line of an entry."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class JournalReader:
    """The files of one journal, in order. Faults go to the report, each with its file and line; reading goes on behind them."""

    def __init__(self, folder: Path, run: Digest, report: AuditReport) -> None:
        self._run = run
        self._report = report
        self._chain: Digest | None = None  # up to the last line; None behind a line that could not be read
        names = sorted(path.name for path in folder.iterdir() if path.name.startswith("steps-"))
        self.files = [folder / name for name in names if JOURNAL_FILE.fullmatch(name)]
        self.chains: set[Digest] = {first_digest(run)}  # all ends that the chain has had
        self.whole = True  # from the run's first step on
        self.torn = 0  # bytes of a last line that a power cut tore

    def entries(self) -> Iterator[tuple[Place, Entry]]:
        for path in self.files[:MOST_FILES]:
            self._chain_at_start = self._chain
            if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would block
                self._report.wrong(Check.LINES, str(path), "this is no ordinary file")
                continue
            for place, content in self._lines(path):
                try:
                    entry = self._parsed(place, content)
                except EntryError as error:
                    self._report.wrong(Check.LINES, str(place), f"this is not a line of a journal: {error}")
                    continue
                self._report.passed(Check.LINES)
                if entry is not None:
                    yield place, entry

    def _lines(self, path: Path) -> Iterator[tuple[Place, bytes]]:
        """Lines whose place in the chain is right."""
        last = path == self.files[-1]
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MOST_LINE):
                number += 1
                place = Place(path, number)
                found = chain_of(raw.removesuffix(b"\n"))
                if not raw.endswith(b"\n"):
                    if len(raw) == MOST_LINE or not last or found or chain_of(raw[:-1]):
                        self._report.wrong(Check.LINES, str(place), "this line has no end, or is too long")
                    else:
                        self.torn = len(raw)
                    return
                if found is None:
                    self._report.wrong(Check.LINES, str(place), "this is not a line of a journal")
                    self._chain = None
                    continue
                yield from self._chained(place, *found)
            if not number:
                self._report.wrong(Check.LINES, str(path), "the file is empty")

    def _chained(self, place: Place, digest: Digest, content: bytes) -> Iterator[tuple[Place, bytes]]:
        before = self._begins_after(place, content) if place.line == 1 else self._chain
        self._chain = digest
        self.chains.add(digest)
        if before is not None and next_digest(before, content) != digest:
            what = "the chain is broken here: this line, or one before it, was changed"
            self._report.wrong(Check.LINES, str(place), what)
            return
        yield place, content

    def _begins_after(self, place: Place, content: bytes) -> Digest | None:
        """The chain up to this file, as its first line names it, where that is possible."""
        try:
            named = decode(content)
        except EntryError:
            named = None
        if not isinstance(named, Begin):
            self._report.wrong(Check.LINES, str(place), "a file of a journal does not begin like this")
            return self._chain
        after = named.after
        if place.file == self.files[0]:
            self.whole = after == first_digest(self._run)
            if not self.whole and len(self.files) < KEPT_FILES:
                what = f"files before this one are missing: a peer keeps {KEPT_FILES}, and here are {len(self.files)}"
                self._report.wrong(Check.LINES, str(place), what)
        elif self._chain_at_start not in (None, after):
            what = "the file does not continue the one before it: one was cut or is missing"
            self._report.wrong(Check.LINES, str(place), what)
        return after

    def _parsed(self, place: Place, content: bytes) -> Entry | None:
        entry = decode(content)
        if isinstance(entry, Begin) != (place.line == 1):
            raise EntryError("a file begins once, with its first line")
        if isinstance(entry, Begin):
            if (entry.format, entry.run) != (FORMAT, self._run.hex()):
                raise EntryError("another run's journal, or another format")
            return None
        if isinstance(entry, Said):
            found = JOURNAL_FILE.fullmatch(place.file.name)
            assert found is not None
            if entry.step >= int(found[1]) + STEPS_PER_FILE:
                raise EntryError(f"step {entry.step} belongs to a later file")
        return entry


# Verifying many signatures, in a second process where that is worth while: they are most of an audit's work.


_BATCH = 2048
_WORTH_WHILE = 4  # batches that are verified here before another process is started
_WAITING = 8  # batches that may be on their way: what is read must not pile up


class Claim(NamedTuple):
    """A signature, and where it stands."""

    where: str
    peer: PeerId
    message: bytes
    signature: bytes


class SignatureChecker:
    """Takes claims, and reports those that are wrong. Use as a context manager: leaving it waits for the rest."""

    def __init__(self, report: AuditReport, processes: int = 1) -> None:
        self._report = report
        self._processes = processes  # beside this one
        self._batch: list[Claim] = []
        self._batches = 0
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: deque[tuple[list[Claim], Future[list[bool]]]] = deque()

    def add(self, claim: Claim) -> None:
        self._batch.append(claim)
        if len(self._batch) >= _BATCH:
            self._hand_over()

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        self._batches += 1
        if not self._processes or self._batches <= _WORTH_WHILE:
            self._note(batch, verified(batch))
            return
        with started_safely():  # the first batches start the processes
            if self._pool is None:
                # A fork would copy PyTorch's locks, and hang.
                self._pool = ProcessPoolExecutor(self._processes, get_context("spawn"))
            answer = self._pool.submit(verified, [claim._replace(where="") for claim in batch])
        self._waiting.append((batch, answer))
        while len(self._waiting) > _WAITING:
            self._collect()

    def _collect(self) -> None:
        batch, answer = self._waiting.popleft()
        self._note(batch, answer.result())

    def _note(self, batch: Sequence[Claim], right: Sequence[bool]) -> None:
        self._report.passed(Check.SIGNATURES, sum(right))
        for claim, fits in zip(batch, right, strict=True):
            if not fits:
                self._report.wrong(Check.SIGNATURES, claim.where, f"the signature of {claim.peer.hex()} does not fit")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                if self._batch:
                    self._hand_over()
                while self._waiting:
                    self._collect()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)


def verified(claims: Sequence[Claim]) -> list[bool]:
    return [verify(claim.peer, claim.message, claim.signature) for claim in claims]
