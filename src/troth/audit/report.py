"""The outcome of an audit: what was checked and how often, what is wrong, and what could not be checked and why."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from troth.errors import printable

FORMAT = "troth audit 1"
MOST_TOLD = 200  # findings, and things not checked, that are kept: a damaged folder can hold millions


class Check(Enum):
    """Kinds of checks, in the order in which people are told of them."""

    LINES = "lines of the journal"
    SIGNATURES = "signatures"
    RECORDS = "certified records"
    STEPS = "steps retraced from their announcements"
    BANS = "bans with their evidence"
    FILES = "other files"
    CONTENTS = "states by their content"
    GRADIENTS = "gradients computed again"
    UPDATES = "updates made again"
    MODEL = "model of a closed run"


@dataclass(frozen=True)
class FolderFinding:
    """Something that is wrong, and where."""

    check: Check
    where: str  # file and line, or step and peer
    what: str

    def line(self) -> str:
        """One line that is safe to print, whatever a file or its name holds."""
        return printable(f"wrong: {self.where}: {self.what}")

    def plain(self) -> dict[str, str]:
        return {"check": self.check.name.lower(), "where": self.where, "what": self.what}


@dataclass(frozen=True)
class Unchecked:
    """Something that could not be checked, and why. It says nothing for or against the run."""

    what: str
    why: str

    def line(self) -> str:
        return printable(f"not checked: {self.what}: {self.why}")

    def plain(self) -> dict[str, str]:
        return {"what": self.what, "why": self.why}


@dataclass
class AuditReport:
    """Filled in by the checkers, one after the other."""

    run: str  # the id
    first: int | None = None  # step of the first record that was followed
    last: int | None = None
    retraced: int = 0  # steps whose record was derived from their announcements
    closed: bool = False
    counts: Counter[Check] = field(default_factory=Counter)
    findings: list[FolderFinding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # what a reader should know, and is in order
    more_findings: int = 0  # beyond those that are kept
    more_unchecked: int = 0

    def passed(self, check: Check, times: int = 1) -> None:
        self.counts[check] += times

    def wrong(self, check: Check, where: str, what: str) -> None:
        if len(self.findings) < MOST_TOLD:
            self.findings.append(FolderFinding(check, where, what))
        else:
            self.more_findings += 1

    def skipped(self, what: str, why: str) -> None:
        if len(self.unchecked) < MOST_TOLD:
            self.unchecked.append(Unchecked(what, why))
        else:
            self.more_unchecked += 1

    @contextmanager
    def faults(self, check: Check, where: Path, absent: str = "") -> Iterator[None]:
        """Report what goes wrong with a file. `absent`: the reason why nothing was checked where it is not there."""
        try:
            yield
        except OSError as error:
            if absent and isinstance(error, FileNotFoundError):
                self.skipped(str(where), absent)
            else:
                self.wrong(check, str(where), f"cannot be read: {error.strerror or error}")
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            self.wrong(check, str(where), str(error))

    def remark(self, text: str) -> None:
        if len(self.remarks) < MOST_TOLD:
            self.remarks.append(text)

    @property
    def right(self) -> bool:
        """Whether everything that could be checked is right, and something was."""
        return not self.findings

    def lines(self) -> list[str]:
        """For people: the run, what was checked, what was not, what is wrong, and the verdict, which comes last."""
        counted = [f"{check.value}: {self.counts[check]:,}" for check in Check if self.counts[check]]
        return [
            f"run {self.run}: {self._extent()}",
            *(f"checked {one}" for one in counted),
            *(printable(f"note: {remark}") for remark in self.remarks),
            *(one.line() for one in self.unchecked),
            *([f"not checked: {self.more_unchecked:,} things more"] if self.more_unchecked else []),
            *(one.line() for one in self.findings),
            *([f"wrong: {self.more_findings:,} things more"] if self.more_findings else []),
            self._verdict(),
        ]

    def _extent(self) -> str:
        if self.first is None or self.last is None:
            return "no certified record"
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        end = "which closes the run" if self.closed else "not closed: more steps may have followed, or none"
        return f"{steps}, {end}"

    def _verdict(self) -> str:
        count = len(self.findings) + self.more_findings
        if count:
            return f"{count:,} thing{'s are' if count > 1 else ' is'} wrong"
        return "everything that could be checked is right"

    def plain(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "format": FORMAT,
            "run": self.run,
            "right": self.right,
            "steps": {"first": self.first, "last": self.last, "retraced": self.retraced, "closed": self.closed},
            "checked": {check.name.lower(): self.counts[check] for check in Check},
            "remarks": self.remarks,
            "findings": [one.plain() for one in self.findings],
            "more_findings": self.more_findings,
            "not_checked": [one.plain() for one in self.unchecked],
            "more_not_checked": self.more_unchecked,
        }
