"""Verifying many signatures, in a second process where that is worth while: they are most of an audit's work."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import NamedTuple, Self

from troth.audit.report import Check, Report
from troth.crypto import PeerId, verify
from troth.processes import started_safely

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

    def __init__(self, report: Report, processes: int = 1) -> None:
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
