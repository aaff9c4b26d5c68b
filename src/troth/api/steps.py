"""A step as users see it, the same for a simulation and for a member of a real run."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from troth.errors import OperatorError


@dataclass(frozen=True)
class Ban:
    """A peer is out, for good, and anyone can check why."""

    peer: str  # its name; in a simulation `peer3`
    step: int  # counted from 0, as in the names of evidence files
    reason: str
    evidence: Path | None  # the file that proves it, written with the next step; of a simulation None until it is saved


@dataclass(frozen=True)
class Step:
    """One step that has ended.

    A member's run may have more steps than updates, in which the model does not move: while too few are there to train, and
    at the end, when the last audits are made and the run is closed.
    """

    number: int  # updates of the model so far, this one included
    of: int  # updates of the whole run
    loss: float  # of a member: on its own last batch; in a simulation: mean over the honest peers
    members: int  # after this step
    withstands: int | None  # liars among them; None with a trusted server, which promises nothing
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the model, in steps in which it was evaluated
    bans: tuple[Ban, ...] = ()
    left: tuple[str, ...] = ()  # without a ban: absent, or expelled over their connection
    returned: tuple[str, ...] = ()
    moved: bool = True  # whether the model did
    attacked: bool = False  # in a simulation: whether the liars attacked
    seconds: float | None = None  # of a member: how long the step took

    def after(self, earlier: "Step") -> "Step":
        """This step and an earlier one as one, so that nothing which happened in the earlier one is lost."""
        return replace(
            self,
            metrics=self.metrics or earlier.metrics,
            bans=earlier.bans + self.bans,
            left=earlier.left + self.left,
            returned=earlier.returned + self.returned,
            moved=earlier.moved or self.moved,
            attacked=earlier.attacked or self.attacked,
        )


# Steps on their way from the thread that trains to the one that reads about it.


_MOST_WAITING = 1000


class StepFeed:
    """A queue of steps that never makes the trainer wait: the others would leave it behind.

    It is bounded all the same. To a reader that is so far behind, the newest steps are told as one, with everything that
    happened in them: a ban is never lost.
    """

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._most = most_waiting
        self._waiting: deque[Step] = deque()
        self._change = threading.Condition()
        self._ended = False
        self._failure: BaseException | None = None

    def put(self, step: Step) -> None:
        with self._change:
            if len(self._waiting) >= self._most:
                step = step.after(self._waiting.pop())
            self._waiting.append(step)
            self._change.notify_all()

    def end(self, failure: BaseException | None = None) -> None:
        """No step comes any more; `failure` is raised where the reader has read everything."""
        with self._change:
            self._ended, self._failure = True, failure
            self._change.notify_all()

    def take_failure(self) -> BaseException | None:
        """The failure, to whoever asks first: it is told once."""
        with self._change:
            failure, self._failure = self._failure, None
            return failure

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        with self._change:
            while not self._waiting and not self._ended:
                self._change.wait()
            if self._waiting:
                return self._waiting.popleft()
        if failure := self.take_failure():
            raise failure
        raise StopIteration


# Threads that PyTorch computes with: bits may depend on their number, so a run has one by default.


class ThreadsError(OperatorError):
    """A number of threads that makes no sense."""


def use_threads(threads: int) -> None:
    """Compute with so many threads from now on, everywhere in this process; 0 leaves it to PyTorch."""
    if threads < 0:
        raise ThreadsError(f"`threads` must be at least 0, got {threads}")
    if threads:
        torch.set_num_threads(threads)
