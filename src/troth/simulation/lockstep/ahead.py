"""Gradients that are begun before they are asked for, on an accelerator that is idle while peers talk.

Each peer names what it will probably be asked for next (`Work.expect`), and gets a computation of its own, on a stream of its own
beside the protocol's. Digests follow on the same device. Nothing is decided by it: a peer takes its own gradient when the step
asks for it, and one that nobody takes was computed in vain.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from troth.crypto import Digest, Seed
from troth.kernels import on_device
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.wire.blob import Blob
from troth.simulation.lockstep.accelerated import Hashing
from troth.training import Batch, Problem
from troth.training.work import Training, digest_of_tensors, finite_or_zero, tensor_digests

# D coordinates

_TOGETHER = 4  # gradients that are hashed at once: hashing one takes as long
_SHARE = 4  # of the device's memory, gradients of two steps take up at most one part in so many


@dataclass(eq=False)
class BegunGradient:
    """A gradient on its way."""

    training: Training
    seed: Seed
    batch: Batch
    loss: Tensor
    row_D: Tensor
    computed: torch.cuda.Event
    hashing: Hashing | None = None
    place: int = 0  # among those that are hashed together

    def take(self) -> Tensor:
        """The gradient, for the stream that the caller computes on."""
        here = torch.cuda.current_stream(self.row_D.device)
        here.wait_event(self.computed)
        for tensor in (self.row_D, self.loss):
            tensor.record_stream(here)
        return self.row_D

    def cut(self) -> tuple[Bounds, tuple[Blob, ...]] | None:
        """Its parts, hashed, if hashing was begun; waits for the end of it."""
        return None if self.hashing is None else (self.hashing.bounds, self.hashing.blobs[self.place])


class Ahead:
    """Begins gradients and digests of states. All peers of a process share the device, so all share this."""

    def __init__(self, problem: Problem, peers: int) -> None:
        self.parts = peers  # into which the next gradients will probably be cut
        self._problem = problem
        self._unhashed: list[BegunGradient] = []
        self._states: list[tuple[Training, Hashing]] = []
        self._streams = cycle(problem.streams)
        self._foremost = torch.cuda.Stream(problem.device, priority=-1)  # type: ignore[no-untyped-call]

    @staticmethod
    def possible(problem: Problem, peers: int) -> bool:
        """Whether gradients are computed one by one, without waiting for each, and two steps' gradients fit into memory."""
        if not problem.streams or problem.task.clip_norm is not None:
            return False
        memory = torch.cuda.get_device_properties(problem.device).total_memory
        there = on_device.hashes_there(torch.empty(0, device=problem.device))
        return there and 2 * peers * 4 * problem.size <= memory // _SHARE

    @contextmanager
    def served_first(self) -> Iterator[None]:
        """Whatever is computed inside goes before gradients that are begun ahead."""
        here = torch.cuda.current_stream(self._problem.device)
        self._foremost.wait_stream(here)
        with torch.cuda.stream(self._foremost):
            yield
        here.wait_stream(self._foremost)

    def begin(self, training: Training, seed: Seed) -> BegunGradient:
        """Begin a gradient beside those that were begun before."""
        problem, aside = self._problem, next(self._streams)
        batch = problem.batch(seed)  # on the caller's stream: drawing it waits for its indices
        aside.wait_stream(torch.cuda.current_stream(problem.device))
        with torch.cuda.stream(aside):
            loss, gradient_D = problem.begin_gradient(training.parameters_D, batch)
            row_D = finite_or_zero(gradient_D)
            computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            computed.record()
        for tensor in (training.parameters_D, *batch.values()):
            if tensor.is_cuda:
                tensor.record_stream(aside)
        begun = BegunGradient(training, seed, batch, loss, row_D, computed)
        self._unhashed.append(begun)
        if len(self._unhashed) == _TOGETHER:
            self.hash_begun()
        return begun

    def hash_begun(self) -> None:
        """Begin to hash the gradients that were begun since the last call."""
        some, self._unhashed = self._unhashed, []
        if some:
            bounds = part_bounds(self._problem.size, self.parts)
            hashing = Hashing([one.row_D for one in some], bounds, behind=[one.computed for one in some])
            for place, one in enumerate(some):
                one.hashing, one.place = hashing, place

    def begin_digest(self, training: Training) -> None:
        """Begin to hash a state, unless that was begun before."""
        vectors = _on_device(training)
        if vectors and all(known is not training for known, _ in self._states):
            self._states = [*self._states[-1:], (training, Hashing(list(vectors.values()), (0, self._problem.size)))]

    def digest(self, training: Training) -> Digest | None:
        """The state's digest, if it was begun."""
        hashing = next((found for known, found in self._states if known is training), None)
        if hashing is None:
            return None
        there = {name: blob.digest for name, (blob,) in zip(_on_device(training), hashing.blobs, strict=True)}
        return digest_of_tensors(tensor_digests(training, there))


def _on_device(training: Training) -> dict[str, Tensor]:
    """Vectors of a state that can be hashed where they lie, by name; all are as long as the model."""
    size = len(training.parameters_D)
    return {n: v for n, v in training.named.items() if on_device.hashes_there(v) and len(v) == size}
