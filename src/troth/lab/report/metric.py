"""The metric of a report: which way is better, and how it is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from troth.lab.report.records import Run

_SHARES = {"accuracy": True, "backdoor": False}  # name: whether more is better


@dataclass(frozen=True)
class Metric:
    """A metric of all runs. Shares are written in per cent, and their differences in points."""

    name: str
    higher: bool  # is better
    share: bool

    @property
    def factor(self) -> float:
        return 100.0 if self.share else 1.0

    @property
    def digits(self) -> int | None:
        return 1 if self.share else None

    @property
    def in_title(self) -> str:
        return ", %" if self.share else ""

    def final(self, run: Run) -> float | None:
        return run.metrics.get(self.name)

    def scaled(self, run: Run) -> float | None:
        """The final one as it is written."""
        final = self.final(run)
        return None if final is None else final * self.factor

    def lost(self, value: float | None, reference: float | None) -> float | None:
        """How much worse than the reference, in points or in the metric's unit."""
        if value is None or reference is None:
            return None
        return (reference - value if self.higher else value - reference) * self.factor


def make_metric(name: str) -> Metric:
    return Metric(name, higher=_SHARES.get(name, False), share=name in _SHARES)


def main_metric(runs: Sequence[Run]) -> Metric:
    """The metric that the report is about: accuracy where every run has it, else the loss, else the first shared one."""
    shared = shared_metrics(runs)
    return make_metric(next((name for name in ("accuracy", "loss") if name in shared), next(iter(shared), "loss")))


def shared_metrics(runs: Sequence[Run]) -> list[str]:
    return [name for name in runs[0].metrics if all(name in run.metrics for run in runs)] if runs else []
