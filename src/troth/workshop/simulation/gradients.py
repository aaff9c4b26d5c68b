"""One batched gradient call for all peers of a process that ask for their gradient at the same moment.

On an accelerator gradients are begun before they are asked for, while peers talk.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from troth.clip import on_device
from troth.clip.blocks import PLAIN, Code
from troth.clip.exact import all_finite
from troth.crypto import Digest, PeerId, Seed
from troth.protocol.core.parts import part_bounds, rounding_key
from troth.protocol.wire.primitives import Primitives
from troth.training import Batch, Problem
from troth.training.hardware import GradientJob, Machine
from troth.training.work import (
    Compute,
    Training,
    TrainingWork,
    digest_of_tensors,
    finite_or_zero,
    finite_or_zero_rows,
    local_seed,
    tensor_digests,
)
from troth.workshop.attacks import Coalition
from troth.workshop.simulation.exchange import Ask
from troth.workshop.simulation.primitives import Cut, Hashing, LockstepPrimitives, MemoPrimitives, Rounded, cuts_of

# P peers, D coordinates

_TOGETHER = 4  # gradients that are hashed at once: hashing one takes as long
_SHARE = 4  # of the device's memory, gradients of two steps take up at most one part in so many
_AT_ONCE = 2  # gradients that a peer may have begun: an audit's and its own


@dataclass(eq=False)
class BegunGradient:
    """A gradient on its way."""

    training: Training
    seed: Seed
    batch: Batch
    loss: Tensor
    row_D: Tensor
    computed: torch.cuda.Event
    rounded: Rounded
    hashing: Hashing | None = None
    place: int = 0  # among those that are hashed together

    def take(self) -> Tensor:
        """The gradient, for the stream that the caller computes on."""
        here = torch.cuda.current_stream(self.row_D.device)
        here.wait_event(self.computed)
        for tensor in (self.row_D, self.loss, self.rounded.numbers_D, self.rounded.raw):
            tensor.record_stream(here)
        return self.row_D

    def cut(self) -> Cut | None:
        """Its parts, hashed, if hashing was begun; waits for the end of it."""
        return None if self.hashing is None else self.hashing.cuts[self.place]


class Ahead:
    """Begins gradients and digests of states. All peers of a process share the device, so all share this.

    Each peer names what it will probably be asked for next (`Work.expect`), and gets a computation of its own, on a stream of
    its own beside the protocol's. Digests follow on the same device. Nothing is decided by it: a peer takes its own gradient
    when the step asks for it, and one that nobody takes was computed in vain.
    """

    def __init__(self, problem: Problem, peers: int, code: Code = PLAIN) -> None:
        self.parts = peers  # into which the next gradients will probably be cut
        self._code = code
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
            rounded = Rounded.begin(row_D, self._code.rows, rounding_key(self._code, seed))
            computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            computed.record()
        for tensor in (training.parameters_D, *batch.values()):
            if tensor.is_cuda:
                tensor.record_stream(aside)
        begun = BegunGradient(training, seed, batch, loss, row_D, computed, rounded)
        self._unhashed.append(begun)
        if len(self._unhashed) == _TOGETHER:
            self.hash_begun()
        return begun

    def hash_begun(self) -> None:
        """Begin to hash the gradients that were begun since the last call."""
        some, self._unhashed = self._unhashed, []
        if some:
            bounds, behind = part_bounds(self._problem.size, self.parts, self._code), [one.computed for one in some]
            hashing = Hashing([one.rounded for one in some], bounds, behind)
            for place, one in enumerate(some):
                one.hashing, one.place = hashing, place

    def begin_digest(self, training: Training) -> None:
        """Begin to hash a state, unless that was begun before."""
        vectors = _on_device(training)
        if vectors and all(known is not training for known, _ in self._states):
            hashing = Hashing([Rounded.begin(vector_D) for vector_D in vectors.values()], (0, self._problem.size))
            self._states = [*self._states[-1:], (training, hashing)]

    def digest(self, training: Training) -> Digest | None:
        """The state's digest, if it was begun."""
        hashing = next((found for known, found in self._states if known is training), None)
        if hashing is None:
            return None
        there = {name: cut.blobs[0].digest for name, cut in zip(_on_device(training), hashing.cuts, strict=True)}
        return digest_of_tensors(tensor_digests(training, there))


def _on_device(training: Training) -> dict[str, Tensor]:
    """Vectors of a state that can be hashed where they lie, by name; all are as long as the model."""
    size = len(training.parameters_D)
    return {n: v for n, v in training.named.items() if on_device.hashes_there(v) and len(v) == size}


@dataclass(frozen=True)
class Walk:
    """A walk that a peer is to make."""

    work: TrainingWork
    training: Training
    seed: Seed

    def mean(self, gradient: Compute, steps: int | None = None) -> Tensor:
        return self.work.walk(self.training, self.seed, gradient, steps)


@dataclass
class AskGradient(Ask):
    training: Training
    seed: Seed  # of its first batch
    step: int
    machine: Machine | None = None  # that computes it, if not the run's own device
    begun: BegunGradient | None = None  # by this very peer
    probing: bool = False  # a candidate's: it goes into no aggregate (SPEC J5)
    walk: "Walk | None" = None  # of local steps, if there are several

    @property
    def own_seed(self) -> Seed:
        """Of the whole gradient."""
        return self.seed if self.walk is None else self.walk.seed


class PooledWork(TrainingWork):
    """A peer's work in a simulation: its own gradient comes from the pool, everything else it computes itself."""

    ahead: Ahead | None = None
    probing: bool = False
    _begun: Sequence[BegunGradient] = ()

    def for_one(self, ahead: Ahead | None) -> "PooledWork":
        """The same for a single peer, which expects gradients of its own; digests are remembered for all."""
        work = copy(self)
        work.ahead = None if self.machine else ahead
        return work

    def for_candidate(self) -> "PooledWork":
        """The same for a peer on probation."""
        work = self.for_one(None)
        work.probing = True
        return work

    @property
    def looks_ahead(self) -> bool:
        return self.ahead is not None

    def expect(self, gradients: Sequence[tuple[Training, Seed]]) -> None:
        if self.ahead is None:
            return
        for training, _ in gradients:
            self.ahead.begin_digest(training)
        before = self._begun
        self._begun = [_found(before, *one) or self.ahead.begin(*one) for one in gradients[:_AT_ONCE]]

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        begun = self._take(training, seed)
        walk = Walk(self, training, seed) if self.local_steps > 1 else None
        first = local_seed(seed, 0, self.local_steps)
        gradient_D: Tensor = await AskGradient(training, first, step, self.machine, begun, self.probing, walk)
        return gradient_D

    def gradient_now(self, training: Training, seed: Seed) -> Tensor:
        begun = self._take(training, seed)
        if begun is None:
            return super().gradient_now(training, seed)
        row_D, cut = begun.take(), begun.cut()
        self.loss = float(begun.loss)
        if cut is not None and isinstance(self._tools, LockstepPrimitives):
            self._tools.was_cut(row_D, cut)
        return row_D

    def _take(self, training: Training, seed: Seed) -> BegunGradient | None:
        """A gradient that this peer began; nobody gets it twice."""
        begun = _found(self._begun, training, seed)
        self._begun = [one for one in self._begun if one is not begun]
        return begun

    def _computed(self, training: Training) -> Digest:
        begun = None if self.ahead is None else self.ahead.digest(training)
        return super()._computed(training) if begun is None else begun

    def update(self, training: Training, aggregate_D: Tensor, step: int) -> Training:
        """Peers that hold the same bits make the same step with them: computed once, like a digest (SPEC S1)."""
        tools, update = self._tools, super().update
        if not isinstance(tools, MemoPrimitives):
            return update(training, aggregate_D, step)
        return tools.once_for((training, aggregate_D), step, lambda: update(training, aggregate_D, step))


class GradientPool:
    """Answers `AskGradient`; members of the coalition get the gradients that they want to send instead of their own."""

    def __init__(
        self,
        problem: Problem,
        coalition: Coalition,
        numbers: Mapping[PeerId, int],
        tools: Primitives,
        ahead: Ahead | None = None,
        code: Code = PLAIN,
    ) -> None:
        self._problem = problem
        self._ahead = ahead
        self._tools = tools
        self._coalition = coalition
        self._numbers = numbers
        self._code = code
        self.attackers: set[int] = set()  # peers that have sent a forged gradient so far
        self.computed = 0  # gradients of contributors and candidates so far
        self._parts = 1  # into which the gradients that are asked for will be cut
        self._losses: list[tuple[list[int], Tensor]] = []  # numbers of peers, and their losses
        # Contributors, and whether anything in their gradient is not 0.
        self._honest: list[tuple[AskGradient, Tensor]] = []

    @property
    def losses(self) -> dict[int, float]:
        """Losses of the last batches, by number."""
        return {peer: loss for peers, losses in self._losses for peer, loss in zip(peers, losses.tolist(), strict=True)}

    def take_not_finite(self) -> tuple[int, int]:
        """How many honest contributors of the last step had a gradient that is not finite, and so committed to zeros (SPEC
        R2); and how many there were. Asked once a step."""
        honest, self._honest = self._honest, []
        return sum(not filled and not self._is_finite(ask) for ask, filled in honest), len(honest)

    def _is_finite(self, ask: AskGradient) -> bool:
        problem = self._problem if ask.machine is None else ask.machine.problem
        finite = []

        def gradient(parameters_D: Tensor, seed: Seed) -> Tensor:
            gradient_D = problem.gradient(parameters_D, problem.batch(seed))[1]
            finite.append(all_finite(gradient_D))
            return finite_or_zero(gradient_D)

        if ask.walk is None:
            gradient(ask.training.parameters_D.to(problem.device), ask.seed)
        else:
            ask.walk.mean(gradient)
        return all(finite)

    def answer(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Tensor]:
        rows: dict[PeerId, Tensor] = {}
        self._losses = []
        self.computed += len(asks)
        self._parts = sum(not ask.probing for ask in asks.values()) or len(asks)
        if self._ahead is not None:
            self._ahead.parts = self._parts
        for peer, ask in asks.items():
            if ask.walk is not None:
                loss, rows[peer] = self._walked(ask.walk, ask.step, self._coalition, self._numbers[peer])
                self._losses.append(([self._numbers[peer]], loss))
        here = {peer: ask for peer, ask in asks.items() if ask.machine is None and peer not in rows}
        for peers in _same_parameters(here):
            widest = max(self._problem.lanes.together, default=len(peers))  # with others, rows may have other bits
            for start in range(0, len(peers), widest):
                rows |= self._batched({peer: here[peer] for peer in peers[start : start + widest]})
        rows |= self._on_machines({peer: ask for peer, ask in asks.items() if peer not in rows})
        rows = {peer: rows[peer] for peer in asks}
        liars = [peer for peer in asks if self._numbers[peer] in self._coalition.members]
        honest = [peer for peer, ask in asks.items() if peer not in liars and not ask.probing]
        self._honest = [(asks[peer], rows[peer].any()) for peer in honest]
        if liars and honest:
            self._forge(rows, next(iter(asks.values())).step, liars, honest)
        self._cut(rows, asks)
        return rows

    def _cut(self, rows: Mapping[PeerId, Tensor], asks: Mapping[PeerId, AskGradient]) -> None:
        """Note parts of gradients that were hashed since they were begun; round and hash the others, all together."""
        if not isinstance(self._tools, LockstepPrimitives) or self._tools.device.type == "cpu":
            return
        bounds = part_bounds(self._problem.size, self._parts, self._code)
        begun = {peer: ask.begun.cut() for peer, ask in asks.items() if ask.begun and ask.begun.row_D is rows[peer]}
        cuts = {peer: cut for peer, cut in begun.items() if cut is not None and cut.bounds == bounds}
        left = [peer for peer in rows if peer not in cuts]
        keys = [rounding_key(self._code, asks[peer].own_seed) for peer in left]
        fresh = cuts_of([rows[peer] for peer in left], bounds, self._code.rows, keys)
        cuts |= dict(zip(left, fresh, strict=False))
        for peer, cut in cuts.items():
            self._tools.was_cut(rows[peer], cut)

    def _batched(self, asks: Mapping[PeerId, AskGradient]) -> dict[PeerId, Tensor]:
        """One call for peers whose parameters are the same bits; each row depends on its own seed alone."""
        batches = [self._batch(peer, ask) for peer, ask in asks.items()]
        parameters_D, numbers = next(iter(asks.values())).training.parameters_D, [self._numbers[p] for p in asks]
        if self._problem.device.type != "cpu" and self._problem.why_one_by_one:
            begun = [ask.begun for ask in asks.values()]
            losses_P, rows = self._one_after_the_other(parameters_D, batches, begun)
        else:
            losses_P, gradients_PD = self._problem.gradients(parameters_D, batches)
            rows = list(finite_or_zero_rows(gradients_PD))
        self._losses.append((numbers, losses_P))
        return dict(zip(asks, rows, strict=True))

    def _one_after_the_other(
        self, parameters_D: Tensor, batches: Sequence[Batch], begun: Sequence[BegunGradient | None]
    ) -> tuple[Tensor, list[Tensor]]:
        """Gradients on an accelerator, some of which were begun before."""
        used = [
            one if one is not None and one.batch is batch else None for batch, one in zip(batches, begun, strict=True)
        ]
        others = [batch for batch, one in zip(batches, used, strict=True) if one is None]
        fresh = iter(self._problem.begin_gradients(parameters_D, others))
        losses, rows = [], []
        for one in used:
            if one is None:
                loss, gradient_D = next(fresh)
                rows.append(finite_or_zero(gradient_D))
            else:
                loss = one.loss
                rows.append(one.take())
            losses.append(loss)
        return torch.stack(losses), rows

    def digests(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, None]:
        """Hash the aggregates of all owners together."""
        assert isinstance(self._tools, LockstepPrimitives)
        self._tools.measure(list(asks.values()))
        return dict.fromkeys(asks)

    def _on_machines(self, asks: Mapping[PeerId, AskGradient]) -> dict[PeerId, Tensor]:
        """Gradients that other devices compute, each with batches of its own; they come back as bytes would."""
        rows: dict[PeerId, Tensor] = {}
        for machine in dict.fromkeys(ask.machine for ask in asks.values()):
            assert machine is not None
            theirs = {peer: ask for peer, ask in asks.items() if ask.machine is machine}
            jobs = [GradientJob(ask.training.parameters_D, self._batch(peer, ask)) for peer, ask in theirs.items()]
            computed = machine.gradients(jobs)
            numbers, losses = [self._numbers[peer] for peer in theirs], torch.tensor([loss for loss, _ in computed])
            self._losses.append((numbers, losses))
            for peer, (_, gradient_D) in zip(theirs, computed, strict=True):
                rows[peer] = finite_or_zero(gradient_D).to(self._problem.device)
        return rows

    def _walked(self, walk: Walk, step: int, coalition: Coalition, number: int) -> tuple[Tensor, Tensor]:
        """First loss and mean gradient of a walk, as a liar's attack has it. After their first steps no two peers are at the
        same place."""
        losses, lies = [], number in coalition.members

        def gradient(parameters_D: Tensor, seed: Seed) -> Tensor:
            batch = self._problem.batch(seed)
            batch = coalition.batch(step, self._problem.task, batch, number) if lies else batch
            losses_P, gradients_PD = self._problem.gradients(parameters_D, [batch])
            losses.append(losses_P)
            return finite_or_zero(gradients_PD[0])

        steps = walk.work.local_steps
        row_D = walk.mean(gradient, coalition.local_steps(step, steps, number) if lies else steps)
        return losses[0], row_D

    def _batch(self, peer: PeerId, ask: AskGradient) -> Batch:
        problem = self._problem if ask.machine is None else ask.machine.problem
        batch = problem.batch(ask.seed) if ask.begun is None else ask.begun.batch
        if self._numbers[peer] in self._coalition.members:
            batch = self._coalition.batch(ask.step, self._problem.task, batch, self._numbers[peer])
        return batch

    def _forge(self, rows: dict[PeerId, Tensor], step: int, liars: Sequence[PeerId], honest: Sequence[PeerId]) -> None:
        """Replace the liars' rows, given those of other contributors; candidates' go into nothing, so nothing depends on them."""
        own_BD, honest_HD = torch.stack([rows[p] for p in liars]), torch.stack([rows[p] for p in honest])
        numbers = [self._numbers[p] for p in liars], [self._numbers[p] for p in honest]
        sent_BD = self._coalition.gradients(step, own_BD, honest_HD, *numbers)
        rows |= dict(zip(liars, sent_BD, strict=True))
        if self._coalition.active(step):
            self.attackers |= {self._numbers[peer] for peer in liars}


def same_bits(left_D: Tensor, right_D: Tensor) -> bool:
    """Equal byte for byte: unlike numbers, the bits of a NaN equal themselves."""
    if left_D is right_D:
        return True
    return left_D.dtype == right_D.dtype and torch.equal(left_D.view(torch.uint8), right_D.view(torch.uint8))


def _same_parameters(asks: Mapping[PeerId, AskGradient]) -> list[Sequence[PeerId]]:
    groups: dict[PeerId, list[PeerId]] = {}  # by their first
    for peer, ask in asks.items():
        mine_D = ask.training.parameters_D
        first = next((one for one in groups if same_bits(asks[one].training.parameters_D, mine_D)), peer)
        groups.setdefault(first, []).append(peer)
    return list(groups.values())


def _found(among: Sequence[BegunGradient], training: Training, seed: Seed) -> BegunGradient | None:
    """The one at this very state."""
    return next((one for one in among if one.training is training and one.seed == seed), None)
