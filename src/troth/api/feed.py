"""Steps on their way from the thread that trains to the one that reads about it."""

import threading
from collections import deque
from collections.abc import Iterator

from troth.api.steps import Step

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
