"""Gradients that are begun before they are asked for, beside the protocol, which mostly waits for others."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from torch import Tensor

from troth.crypto import Digest, Seed
from troth.training.user_code import unless
from troth.training.work import Training, TrainingWork

# D coordinates

_AT_ONCE = 2  # that may be under way, or wait to be taken: an audit's gradient and this peer's own
_BEGINNING = 4096  # coordinates
_REMEMBERED = 16  # gradients, of which the longest counts


class _Computed(NamedTuple):
    gradient_D: Tensor
    loss: float  # of its batch
    seconds: float  # that it took, once it had begun


@dataclass(eq=False)
class _Begun:
    """A gradient that is expected to be asked for."""

    training: Training
    seed: Seed
    computed: Future[_Computed] = field(default_factory=Future)
    unwanted: bool = False

    def drop(self) -> None:
        """Do not begin it or, if it is under way, leave off where PyTorch lets us; whatever comes of it is dropped."""
        self.unwanted = True
        self.computed.cancel()


class GradientTimes:
    """Times of the last gradients, and what follows from them while one may be begun in vain.

    Gradients are computed one at a time, so one that was begun in vain holds up the next by its own length at most, and `k` that
    are asked for take no longer than `k + 1`. Liars can make everyone begin in vain, by an attempt that fails. Hence nothing is
    begun unless two gradients fit into the time that the others allow for one, and the time announced to them is that of two.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def of_two(self) -> float:
        """Seconds for one that was begun in vain and another; 0 before any was measured."""
        return 2 * max(self._seconds, default=0.0)

    def afford(self, allowed_s: float) -> bool:
        """Whether one may be begun in vain, if the others allow so much for the next."""
        return 0.0 < self.of_two <= allowed_s


class GradientsAhead:
    """`protocol.core.channel.Work` around a peer's own: its thread computes what will probably be asked for next.

    One gradient is computed at a time, whoever asks: a problem puts parameters into one module, and PyTorch's settings are those
    of the process. All methods are for the protocol's thread.
    """

    def __init__(self, work: TrainingWork, allowed_s: Callable[[], float] | None = None) -> None:
        """`allowed_s` tells the time that others allow for a gradient of the next step; without it nothing is begun ahead."""
        self.loss = float("nan")  # of this peer's last batch
        self.in_vain = 0  # gradients in a row that were not finite, and count as zero (SPEC R2), or were zero
        self._work = work
        self._allowed_s = allowed_s
        self._turn = threading.Lock()
        self._begun: list[_Begun] = []
        self._class: Digest | None = None
        self._times = GradientTimes()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gradients ahead")
        # The rest of a work.
        self.update, self.shortened, self.digest = work.update, work.shortened, work.digest
        self.index, self.length, self.chunk, self.collect = work.index, work.length, work.chunk, work.collect

    @property
    def looks_ahead(self) -> bool:
        return self._allowed_s is not None

    def expect(self, gradients: Sequence[tuple[Training, Seed]]) -> None:
        affordable = gradients and self._allowed_s is not None and self._times.afford(self._allowed_s())
        before, wanted = self._begun, gradients[:_AT_ONCE] if affordable else ()
        self._begun = [_found(before, *one) or _Begun(*one) for one in wanted]
        for old in before:
            if old not in self._begun:
                old.drop()
        for new in self._begun:
            if new not in before:
                self._thread.submit(self._compute, new)

    def took_ahead(self) -> float:
        return 0.0 if self._allowed_s is None else self._times.of_two

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        computed = self._take(training, seed)
        if computed is None:
            with self.alone() as began:
                gradient_D = await self._work.gradient(training, seed, step)
                computed = _Computed(gradient_D, self._work.loss, time.monotonic() - began)
        self.loss = computed.loss
        self.in_vain = 0 if isfinite(computed.loss) and _is_any(computed.gradient_D) else self.in_vain + 1
        self._times.add(computed.seconds)
        return computed.gradient_D

    async def recompute(self, training: Training, seed: Seed) -> Tensor:
        computed = self._take(training, seed)
        if computed is not None:
            self._times.add(computed.seconds)
            return computed.gradient_D
        with self.alone():
            return await self._work.recompute(training, seed)

    @contextmanager
    def alone(self) -> Iterator[float]:
        """Wait for the gradient under way, and let no other begin meanwhile; gives the time from which on this is so."""
        with self._turn:
            yield time.monotonic()

    def evaluate(self, training: Training) -> dict[str, float]:
        """The task's own metrics."""
        with self.alone():
            return self._work.problem.evaluate(training.parameters_D)

    def close(self) -> None:
        """Begin nothing more. A gradient under way is left to itself: nobody waits for it but the end of the process."""
        self.expect(())
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(self, training: Training, seed: Seed) -> _Computed | None:
        """The gradient, if it was begun; waits for its end, and raises its error."""
        begun = _found(self._begun, training, seed)
        if begun is None:
            return None
        self._begun.remove(begun)
        return None if begun.computed.cancel() else begun.computed.result()

    def _compute(self, begun: _Begun) -> None:
        """In the thread. Errors are for the one who asks for the gradient, if anyone does."""
        if not begun.computed.set_running_or_notify_cancel():
            return
        try:
            with self.alone() as began, unless(lambda: begun.unwanted):
                gradient_D = self._work.gradient_now(begun.training, begun.seed)
                begun.computed.set_result(_Computed(gradient_D, self._work.loss, time.monotonic() - began))
        except BaseException as error:
            begun.computed.set_exception(error)

    def hardware_class(self) -> Digest:
        if self._class is None:
            with self.alone():  # it is found by a gradient
                self._class = self._work.hardware_class()
        return self._class


def _is_any(gradient_D: Tensor) -> bool:
    """Whether anything in it is not zero; nearly always the beginning tells."""
    return bool(gradient_D[:_BEGINNING].any()) or bool(gradient_D.any())


def _found(among: Sequence[_Begun], training: Training, seed: Seed) -> _Begun | None:
    """The one at this very state: equal numbers would do, but to compare them takes as long as to compute them."""
    return next((one for one in among if one.training is training and one.seed == seed), None)
