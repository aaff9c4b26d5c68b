"""The training side of the protocol: a problem, an optimizer and its rates, as `protocol.core.channel.Work`."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from weakref import ref

import torch
from safetensors.torch import load, save
from torch import Tensor

from troth.clip import kernels, on_device
from troth.clip.exact import all_finite, flush_subnormals, ordinary
from troth.crypto import Digest, Seed, blob_digests, derive, tagged_hash
from troth.protocol.wire.blob import CollectedVectors, VectorIndex, chunk_of, decode_index, encode_index, index_of
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.resting import give_back_pages
from troth.training.gradient_calls import DeviceCopy
from troth.training.hardware import PROBE_SEED, Machine, class_digest, digest_of_class, gradient_on
from troth.training.optimizers import Optimizer, Schedule, State, bound, rate_at
from troth.training.problem import Problem
from troth.training.weights import read_vectors, write_tensors

# P peers, D coordinates


RATE = "rate"  # of walks from a state, beside the optimizer's tensors (SPEC R2)
MOST_NOT_FINITE = 3  # steps in a row without a finite gradient from an honest peer, until a run has diverged
_DIGESTS = 4  # states whose digest is remembered


@dataclass(frozen=True)
class Training:
    """Model and optimizer at one moment. Never changed: an update makes a new one, and audits look back at the old."""

    parameters_D: Tensor
    optimizer: State

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """All that it is made of."""
        return (self.parameters_D, *self.optimizer.values())

    @property
    def named(self) -> dict[str, Tensor]:
        """The same, by the names under which it is saved."""
        return {"parameters": self.parameters_D, **{f"optimizer.{name}": v for name, v in self.optimizer.items()}}

    def to(self, device: torch.device) -> "Training":
        return Training(self.parameters_D.to(device), {name: one.to(device) for name, one in self.optimizer.items()})


Compute = Callable[[Tensor, Seed], Tensor]  # parameters, seed → gradient, as a walk meets it


class TrainingWork:
    """One peer's own computations."""

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer,
        rates: Schedule,
        tools: Primitives,
        hardware: str = "",
        machine: Machine | None = None,
        local_steps: int = 1,
        outer: float = 1.0,
    ) -> None:
        """`outer`: factor of the rate of the aggregate's step, beside that of `local_steps` steps."""
        self.problem = problem
        self.local_steps = local_steps
        self._outer = outer
        self.hardware = hardware  # the class it is to imitate; "" is this machine
        self.machine = machine  # that computes its gradients, if the problem's own device does not
        self.loss = float("nan")  # of the last batch
        self._class: Digest | None = None
        self._digested: deque[tuple[ref[Training], Digest]] = deque(maxlen=_DIGESTS)
        self._indexed: deque[tuple[ref[Training], bytes]] = deque(maxlen=_DIGESTS)
        self._optimizer = Bounded(bound(optimizer, problem.layout))
        self._rates = rates
        self._tools = tools
        kernels.prepare(problem.size)

    def on(self, hardware: str) -> "TrainingWork":
        """The same on hardware of another class."""
        other = copy(self)
        other.hardware, other._class = hardware, None
        return other

    def first(self, seed: bytes | int) -> Training:
        parameters_D = self.problem.initial(seed)
        return self.begin(Training(parameters_D, self._optimizer.start(parameters_D)))

    def begin(self, training: Training) -> Training:
        """This state, maybe of another run, before the first update."""
        return self._with_rate(training.parameters_D, training.optimizer, 0)

    def _with_rate(self, parameters_D: Tensor, state: State, updates: int) -> Training:
        """A state with the rate of walks from it, if there are any: so a gradient follows from state and seed alone."""
        state = {name: tensor for name, tensor in state.items() if name != RATE}
        rate = torch.tensor([rate_at(self._rates, updates)], dtype=torch.float64)
        return Training(parameters_D, {**state, RATE: rate} if self.local_steps > 1 else state)

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        return self.gradient_now(training, seed)

    async def recompute(self, training: Training, seed: Seed) -> Tensor:
        gradient_D = self.gradient_now(training, seed)
        give_back_pages()  # of that state: an audit's next step needs as much for the aggregate
        return gradient_D

    @property
    def looks_ahead(self) -> bool:
        return False

    def expect(self, gradients: Sequence[tuple[Training, Seed]]) -> None:
        """Nothing is begun before it is asked for."""

    def took_ahead(self) -> float:
        return 0.0

    def gradient_now(self, training: Training, seed: Seed) -> Tensor:
        losses: list[float] = []

        def gradient(parameters_D: Tensor, seed: Seed) -> Tensor:
            loss, gradient_D = self._gradient(parameters_D, seed)
            losses.append(loss)
            return gradient_D

        found_D = self.walk(training, seed, gradient)
        self.loss = losses[0]  # at the public state
        return found_D

    def walk(self, training: Training, seed: Seed, gradient: Compute, steps: int | None = None) -> Tensor:
        """The mean of the gradients met on a private walk of the optimizer from a public state, of so many steps if not of the
        run's (SPEC R2). Nothing of the walk is kept."""
        count = self.local_steps if steps is None else steps
        if count == 1:
            return gradient(training.parameters_D, local_seed(seed, 0, self.local_steps))
        at = training.to(self.problem.device)
        parameters_D, state, rate = at.parameters_D, at.optimizer, float(at.optimizer[RATE])
        total_D = torch.zeros_like(parameters_D)
        for h in range(count):
            gradient_D = gradient(parameters_D, local_seed(seed, h, self.local_steps))
            total_D += gradient_D
            if h < count - 1:  # nothing is met after the last step
                parameters_D, state = self._optimizer.update(parameters_D, gradient_D, state, rate)
        return finite_or_zero(total_D.mul_(1 / count)) if all_finite(parameters_D) else torch.zeros_like(total_D)

    def _gradient(self, parameters_D: Tensor, seed: Seed) -> tuple[float, Tensor]:
        """Loss and gradient of one batch."""
        if self.machine is not None:
            loss, gradient_D = self.machine.gradient(parameters_D, self.machine.problem.batch(seed))
            return loss, finite_or_zero(gradient_D).to(parameters_D.device)
        if self.hardware:
            return self.loss, finite_or_zero(gradient_on(self.problem, self.hardware, parameters_D, seed))
        losses_P, gradients_PD = self.problem.gradients(parameters_D, [self.problem.batch(seed)])
        return float(losses_P[0]), finite_or_zero(gradients_PD[0])

    def update(self, training: Training, aggregate_D: Tensor, step: int) -> Training:
        give_back_pages()  # audits are over
        parameters_D, state = self._optimizer.update(
            training.parameters_D,
            aggregate_D.to(training.parameters_D.device),
            training.optimizer,
            rate_at(self._rates, step) * (self.local_steps * self._outer),
        )
        return self._with_rate(parameters_D, state, step + 1)

    def shortened(self, training: Training) -> float:
        return float(training.optimizer["factor"])

    def digest(self, training: Training) -> Digest:
        """The content's digest, kept for the last few states: a step, its checkpoint and trials ask for the same ones."""
        known = next((digest for state, digest in self._digested if state() is training), None)
        if known is None:
            known = self._computed(training)
            self._digested.append((ref(training), known))
        return known

    def _computed(self, training: Training) -> Digest:
        """The digest by way of the index, which whoever lacks this state asks for: its bytes are hashed once for both."""
        if training.parameters_D.is_cuda:
            return state_digest(training)  # several tensors set out for the host together
        index = index_of(training.named)
        self._indexed.append((ref(training), encode_index(index)))
        return _digest_of_index(index)

    def pack(self, training: Training) -> bytes:
        return save(_on_host(training))

    def index(self, training: Training) -> bytes:
        known = next((index for state, index in self._indexed if state() is training), None)
        return encode_index(index_of(training.named)) if known is None else known

    def length(self, training: Training) -> int:
        return sum(vector_D.nbytes for vector_D in training.vectors)

    def chunk(self, training: Training, number: int) -> memoryview | None:
        return chunk_of(training.named, number)

    def collect(self, index: bytes, digest: Digest) -> "CollectedState | Malformed":
        found = decode_index(index)
        if isinstance(found, Malformed):
            return found
        fits = any(one.name == "parameters" for one in found) and _digest_of_index(found) == digest
        return CollectedState(found) if fits else Malformed("the index of another state")

    def write(self, training: Training, path: Path) -> None:
        """Write what `pack` gives to a file, tensor by tensor. Raises OSError if that fails."""
        write_state(training, path)

    def read(self, path: Path) -> Training | Malformed:
        """The state in a file that `write` or `pack` made, copied into memory: its digest, once checked, stays the right one
        whatever becomes of the file."""
        return read_state(path, self.problem.size)

    def unpack(self, raw: bytes) -> Training | Malformed:
        try:
            named = load(raw)
        except Exception as error:  # safetensors raises all kinds of errors
            return Malformed(f"not a state: {error}")
        return training_of(named)

    def hardware_class(self) -> Digest:
        if self._class is None:
            self._class = self._class_digest()
        return self._class

    def _class_digest(self) -> Digest:
        if self.machine is not None:
            return self.machine.class_digest
        if self.local_steps == 1:
            return class_digest(self.problem, self.hardware)
        return digest_of_class(self.problem, self.gradient_now(self.first(0), PROBE_SEED))


class CollectedState(CollectedVectors):
    """A state of which chunks come one by one, from anybody."""

    def state(self) -> Training:
        found = training_of(self.vectors())
        assert isinstance(found, Training), "the digest that a quorum signed is that of a state"
        return found


class TensorDigest(NamedTuple):
    """Number format, shape and digest of a tensor of a state: all that the state's digest needs of it."""

    dtype: str
    shape: tuple[int, ...]
    digest: Digest


def tensor_digests(training: Training, known: Mapping[str, Digest] = MappingProxyType({})) -> dict[str, TensorDigest]:
    """Digests of the model and of every tensor of the optimizer, by name; some may be known."""
    named = training.named
    # All of them set out for the host first.
    copies = {name: DeviceCopy(tensor) for name, tensor in named.items() if name not in known}
    found = dict(zip(copies, blob_digests([copy.on_host() for copy in copies.values()]), strict=True))
    return {
        name: TensorDigest(str(tensor.dtype), tuple(tensor.shape), known[name] if name in known else found[name])
        for name, tensor in named.items()
    }


def digest_of_tensors(tensors: Mapping[str, TensorDigest]) -> Digest:
    """Digest of a state of which these are the tensors: name, number format, shape and bytes of each."""
    parts: list[bytes] = []
    for name, (dtype, shape, digest) in sorted(tensors.items()):
        parts += [name.encode(), dtype.encode(), repr(shape).encode(), digest]
    return tagged_hash("troth/state/1", *parts)


def _digest_of_index(index: Sequence[VectorIndex]) -> Digest:
    """Digest of the state whose vectors have these chunks: what `state_digest` gives for the vectors themselves."""
    return digest_of_tensors({one.name: TensorDigest(one.dtype, (one.count,), one.digest) for one in index})


def state_digest(training: Training) -> Digest:
    """Digest of the model and of every tensor of the optimizer: name, number format, shape and bytes."""
    return digest_of_tensors(tensor_digests(training))


def write_state(training: Training, path: Path) -> None:
    """Write a state, tensor by tensor. Raises OSError if that fails."""
    write_tensors(_on_host(training), path)


def read_state(path: Path, parameters: int) -> Training | Malformed:
    """Copy the state of a model of so many parameters into memory, out of a file that is no larger than such a state can be."""
    most = 64 * parameters + (1 << 20)  # more than any optimizer holds for a parameter: AdamW has 12 bytes
    try:
        named = read_vectors(path, most)
    except (OSError, ValueError) as error:
        return Malformed(f"not a state: {error}")
    return training_of(named)


def training_of(named: Mapping[str, Tensor]) -> Training | Malformed:
    """Check tensors that came from outside: vectors of float32 or float64, the parameters among them."""
    parameters_D = named.get("parameters")
    if parameters_D is None or parameters_D.ndim != 1 or parameters_D.dtype != torch.float32:
        return Malformed("it holds no vector of float32 parameters")
    if any(tensor.ndim != 1 or tensor.dtype not in (torch.float32, torch.float64) for tensor in named.values()):
        return Malformed("it holds something else than vectors of numbers")
    return Training(
        parameters_D, {name.removeprefix("optimizer."): t for name, t in named.items() if name != "parameters"}
    )


def _on_host(training: Training) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in training.named.items()}


def local_seed(seed: Seed, h: int, steps: int) -> Seed:
    """Seed of the batch of a walk's step `h`; of the only one, if the run's walks have no other."""
    return seed if steps == 1 else derive(seed, "local", h)


def finite_or_zero(gradient_D: Tensor) -> Tensor:
    """A gradient as it is committed to: all zeros if it is not finite, and subnormals are zero (SPEC R2).

    Fixed rules, so that auditor and contributor agree: some hardware flushes subnormals by itself, and some does not.
    """
    if gradient_D.is_cuda and gradient_D.dtype == torch.float32:
        return on_device.finite_or_zero(gradient_D)
    return flush_subnormals(gradient_D) if all_finite(gradient_D) else torch.zeros_like(gradient_D)


def finite_or_zero_rows(gradients_PD: Tensor) -> list[Tensor]:
    """`finite_or_zero` of every row. Nearly always nothing is to be done, and one look at all of them, one wait for an
    accelerator, tells."""
    if gradients_PD.dtype == torch.float32 and ordinary(gradients_PD.detach().reshape(-1)):
        return list(gradients_PD)
    return [finite_or_zero(gradient_D) for gradient_D in gradients_PD]


# Steps of an optimizer that are at most twice as long as is usual (SPEC U7).


FIRST_STEPS = 8  # steps that no usual length limits yet
STEPS = 64  # steps that the usual length looks back
STEP_FACTOR = 2.0  # limit of a step, as a multiple of the usual length


@dataclass(frozen=True)
class Bounded:
    """An optimizer whose steps are at most twice as long as is usual: the lower median of the last 64 lengths (SPEC U7).

    U3 limits the aggregate, and an optimizer that divides may still make a long step of a short one. Lengths are part of the
    state: whoever has it, or makes the updates in between itself, has them too. A step of length 0 says nothing about what is
    usual, and is left out. The first eight are limited by the optimizer alone: until then nothing is usual.
    """

    optimizer: Optimizer

    def start(self, parameters_D: Tensor) -> State:
        lengths, factor = torch.zeros(STEPS, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        return {**self.optimizer.start(parameters_D), "lengths": lengths, "factor": factor}

    def update(self, parameters_D: Tensor, gradient_D: Tensor, state: State, rate: float) -> tuple[Tensor, State]:
        lengths = [length for length in state["lengths"].tolist() if length > 0]
        usual = sorted(lengths)[(len(lengths) - 1) // 2] if len(lengths) >= FIRST_STEPS else math.inf

        def shorten(length: float) -> float:
            if length <= STEP_FACTOR * usual or not math.isfinite(length):
                return 1.0
            return min(1.0, STEP_FACTOR * max(usual, self.optimizer.least_limit(gradient_D)) / length)

        made = self.optimizer.step(parameters_D, gradient_D, state, rate, shorten)
        applied = made.length * made.factor
        lengths = [*lengths, applied][-STEPS:] if 0 < applied < math.inf else lengths
        after = torch.tensor([*[0.0] * (STEPS - len(lengths)), *lengths], dtype=torch.float64)
        factor = torch.tensor([made.factor], dtype=torch.float64)
        return made.parameters_D, {**made.state, "lengths": after, "factor": factor}
