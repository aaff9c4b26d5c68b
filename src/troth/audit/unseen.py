"""Steps that a peer did not see through: said in ranges, since a peer may be away for long."""

from troth.audit.report import Report

_AWAY = "the journal holds no announcements there: this peer was away, or they were left out"


class UnseenSteps:
    """Steps whose record rests on its signatures alone."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._first: int | None = None
        self._last = -1
        self._why = ""

    def add(self, step: int, why: str | None = None) -> None:
        """Note a step, and why it was not retraced: by default, since nothing of it is there."""
        reason = why or _AWAY
        if self._first is None or step != self._last + 1 or reason != self._why:
            self.tell()
            self._first, self._why = step, reason
        self._last = step

    def tell(self) -> None:
        if self._first is not None:
            steps = f"step {self._first}" if self._first == self._last else f"steps {self._first} to {self._last}"
            self._report.skipped(f"draws and verdicts of {steps}", f"{self._why}; members' signatures are right")
        self._first = None
