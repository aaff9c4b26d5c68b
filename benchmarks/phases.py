"""Where a simulated step spends its time: functions of the step, each under a phase's name, timed from outside."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any
from unittest import mock

import torch

from troth.protocol.step import audits, disputes, step
from troth.protocol.step.attempt import Attempt
from troth.protocol.wire.primitives import Primitives
from troth.training.work import TrainingWork
from troth.workshop.simulation import exchange
from troth.workshop.simulation.exchange import ReliableExchange
from troth.workshop.simulation.gradients import GradientPool, PooledWork
from troth.workshop.simulation.primitives import MemoPrimitives

REST = "rest"
# What is timed, and as what. A timed function inside another counts for its own phase alone.
PHASES: tuple[tuple[Any, str, str], ...] = (
    (GradientPool, "answer", "gradients"),
    (PooledWork, "expect", "gradients: begun ahead"),
    (GradientPool, "digests", "aggregates: norms, digests"),
    (step, "commit_parts", "hashing: parts"),
    (Attempt, "arrived", "hashing: Merkle paths"),
    (step, "rows_of", "clipping: rows"),
    (step, "aggregate", "clipping"),
    (step, "clip_message", "aggregates: norms, digests"),
    (step, "fitting", "aggregates: norms, digests"),
    (MemoPrimitives, "joined", "aggregates: joined"),
    (Primitives, "joined", "aggregates: joined"),
    (step, "make_report", "reports"),
    (step, "wrong_reporters", "checks: V1"),
    (disputes, "suspicious_parts", "checks: V2, V3"),
    (disputes, "far_parts", "checks: V2, V3"),
    (TrainingWork, "gradient_now", "audits: gradients"),
    (audits, "commit_parts", "audits: hashing"),
    (audits, "make_report", "audits: reports"),
    (MemoPrimitives, "open_all", "announcements: opening"),
    (exchange, "seal", "announcements: signing"),
    (ReliableExchange, "_announce", "announcements: exchange"),
    (ReliableExchange, "_scatter", "blobs: exchange"),
    (ReliableExchange, "_gather", "blobs: exchange"),
    (step, "conclude", "update and record"),
)


class Stopwatch:
    """Seconds by phase. At most one phase runs at a time: the innermost."""

    def __init__(self, device: torch.device | str) -> None:
        self._accelerated = torch.device(device).type == "cuda"
        self._running = [REST]
        self._since = time.perf_counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def _charge(self) -> None:
        if self._accelerated:
            torch.cuda.current_stream().synchronize()  # gradients that were begun ahead go on beside it
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


def timed(function: Callable[..., Any], watch: Stopwatch, phase: str) -> Callable[..., Any]:
    """The same function under a stopwatch. Coroutines are not for it: another peer may run before one goes on."""
    assert not iscoroutinefunction(function)

    @wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        with watch.phase(phase):
            return function(*arguments, **named)

    return wrapper


@contextmanager
def by_phase(device: torch.device | str) -> Iterator[dict[str, float]]:
    """Seconds by phase of everything that runs inside; an accelerator is waited for wherever a phase ends."""
    watch = Stopwatch(device)
    with ExitStack() as stack:
        for owner, name, phase in PHASES:
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name), watch, phase)))
        with watch.phase(REST):
            yield watch.seconds
