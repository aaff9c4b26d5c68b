"""Optimizers against PyTorch (the formulas) and against NumPy, operation by operation (the bits)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import troth
from troth.clip.exact import exact_norm
from troth.crypto import derive, stream
from troth.protocol.wire.primitives import Primitives
from troth.specs import SpecError, build
from troth.training import LAMB, OPTIMIZERS, SGD, AdamW, Layout, Optimizer, Problem, make_task
from troth.training.optimizers import bound, cosine, warmed_up
from troth.training.work import TrainingWork

STEPS = 50
SIZE = 1001  # no multiple of a vector register: the tail of the loop counts too
RATES = warmed_up(cosine(0.05, STEPS), 5)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

Floats = NDArray[np.float32]

SGDS = [
    SGD(momentum=0.0, nesterov=False),
    SGD(momentum=0.9, nesterov=False),
    SGD(momentum=0.9, nesterov=True),
    SGD(momentum=0.0, nesterov=False, weight_decay=0.03),
    SGD(momentum=0.8, nesterov=True, weight_decay=5e-4),
]
ADAMWS = [AdamW(), AdamW(beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.0), AdamW(weight_decay=0.3, floor=0.1)]
LAMBS = [LAMB(), LAMB(beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.0), LAMB(weight_decay=0.3)]
LAYOUT = Layout(("weight", "bias", "zeros", "scalar", "last"), ((9, 100), (39,), (2, 3), (), (5, 11)))
ALL: list[SGD | AdamW | LAMB] = [*SGDS, *ADAMWS, *LAMBS]


def start_point() -> Tensor:
    return torch.from_numpy(stream(1, "start").normal(SIZE)).float()


def gradient_at(step: int) -> Tensor:
    """Sizes over nine decades, so that the roundings differ from coordinate to coordinate."""
    draw = stream(2, "gradient", step)
    return torch.from_numpy(draw.normal(SIZE) * 10.0 ** (draw.uniform(SIZE) * 9 - 7)).float()


def train(optimizer: Optimizer, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    parameters_D = start_point().to(device, dtype)
    state = optimizer.start(parameters_D)
    for step, rate in enumerate(RATES):
        parameters_D, state = optimizer.update(parameters_D, gradient_at(step).to(device, dtype), state, rate)
    return parameters_D.cpu()


def train_in_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Tensor:
    parameters_D = start_point().double().requires_grad_()
    optimizer = make([parameters_D])
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        parameters_D.grad = gradient_at(step).double()
        optimizer.step()
    return parameters_D.detach()


@pytest.mark.parametrize("ours", SGDS, ids=str)
def test_sgd_is_pytorchs(ours: SGD) -> None:
    theirs_D = train_in_torch(
        lambda p: torch.optim.SGD(
            p, lr=0.1, momentum=ours.momentum, nesterov=ours.nesterov, weight_decay=ours.weight_decay
        )
    )
    torch.testing.assert_close(train(ours, dtype=torch.float64), theirs_D, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(train(ours).double(), theirs_D, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ours", ADAMWS, ids=str)
def test_adamw_is_pytorchs(ours: AdamW) -> None:
    theirs_D = train_in_torch(
        lambda p: torch.optim.AdamW(
            p, lr=0.1, betas=(ours.beta1, ours.beta2), eps=ours.epsilon, weight_decay=ours.weight_decay
        )
    )
    ours = replace(ours, floor=0.0, model_floor=0.0)
    torch.testing.assert_close(train(ours, dtype=torch.float64), theirs_D, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(train(ours).double(), theirs_D, rtol=1e-4, atol=1e-4)


def sgd_in_numpy(options: SGD) -> Floats:
    """Every operation on its own, every scalar rounded to float32 before it is used."""
    momentum, decay = np.float32(options.momentum), np.float32(options.weight_decay)
    x = start_point().numpy()
    buffer = np.zeros_like(x)
    for step, rate in enumerate(RATES):
        pull = gradient_at(step).numpy()
        if options.weight_decay:
            decayed = np.multiply(x, decay)
            pull = np.add(pull, decayed)
        kept = np.multiply(buffer, momentum)
        buffer = np.add(kept, pull)
        direction = buffer
        if options.nesterov:
            ahead = np.multiply(buffer, momentum)
            direction = np.add(pull, ahead)
        change = np.multiply(direction, np.float32(rate))
        x = np.subtract(x, change)
    return x


def floors_in_numpy(options: AdamW | LAMB, energies: list[float], power2: float) -> Floats:
    """A floor for every coordinate, from what each tensor's `e ← β₂·e + (1 − β₂)·‖g‖²` has come to."""
    scale = 1 / (1 - power2)
    model = math.sqrt(math.fsum(energies) * scale / SIZE) * options.model_floor
    sizes = [at.stop - at.start for at, _ in tensors()]
    each = [
        max(math.sqrt(energy * scale / size) * options.floor, model)
        for energy, size in zip(energies, sizes, strict=True)
    ]
    return np.repeat(np.array(each).astype(np.float32), sizes)


def energies_after(options: AdamW | LAMB, energies: list[float], g: Floats) -> list[float]:
    lengths = [exact_norm(g[at]) for at, _ in tensors()]
    return [
        energy * options.beta2 + length * length * (1 - options.beta2)
        for energy, length in zip(energies, lengths, strict=True)
    ]


def adamw_in_numpy(options: AdamW) -> Floats:
    one = np.float32
    x = start_point().numpy()
    mean, square = np.zeros_like(x), np.zeros_like(x)
    energies = [0.0 for _ in tensors()]
    power1 = power2 = 1.0
    for step, rate in enumerate(RATES):
        g = gradient_at(step).numpy()
        power1 *= options.beta1
        power2 *= options.beta2
        old_mean = np.multiply(mean, one(options.beta1))
        new_mean = np.multiply(g, one(1 - options.beta1))
        mean = np.add(old_mean, new_mean)
        squared = np.multiply(g, g)
        old_square = np.multiply(square, one(options.beta2))
        new_square = np.multiply(squared, one(1 - options.beta2))
        square = np.add(old_square, new_square)
        unbiased_mean = np.multiply(mean, one(1 / (1 - power1)))
        unbiased_square = np.multiply(square, one(1 / (1 - power2)))
        energies = energies_after(options, energies, g)
        root = np.maximum(np.sqrt(unbiased_square), floors_in_numpy(options, energies, power2))
        denominator = np.add(root, one(options.epsilon))
        direction = np.divide(unbiased_mean, denominator)
        decayed = np.multiply(x, one(1 - rate * options.weight_decay))
        change = np.multiply(direction, one(rate))
        x = np.subtract(decayed, change)
    return x


def tensors() -> Iterator[tuple[slice, int]]:
    """Places of the layout's tensors, and their numbers of axes."""
    start = 0
    for shape in LAYOUT.shapes:
        yield slice(start, start + prod(shape)), len(shape)
        start += prod(shape)


def lamb_start() -> Tensor:
    parameters_D = start_point()
    LAYOUT.views(parameters_D)["zeros"].zero_()  # a tensor without length has no scale at first
    return parameters_D


def train_lamb(options: LAMB, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    optimizer = bound(options, LAYOUT)
    parameters_D = lamb_start().to(device, dtype)
    state = optimizer.start(parameters_D)
    for step, rate in enumerate(RATES):
        parameters_D, state = optimizer.update(parameters_D, gradient_at(step).to(device, dtype), state, rate)
    return parameters_D.cpu()


def lamb_as_published(options: LAMB) -> NDArray[np.float64]:
    """Algorithm 2 of You et al. 2020, in float64 and in the paper's order, with φ the identity."""
    x = lamb_start().double().numpy()
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, rate in enumerate(RATES, start=1):
        g = gradient_at(t - 1).double().numpy()
        m = options.beta1 * m + (1 - options.beta1) * g
        v = options.beta2 * v + (1 - options.beta2) * g**2
        r = (m / (1 - options.beta1**t)) / (np.sqrt(v / (1 - options.beta2**t)) + options.epsilon)
        for at, axes in tensors():
            u = r[at] + (options.weight_decay * x[at] if axes > 1 else 0)
            length, of_u = np.linalg.norm(x[at]), np.linalg.norm(u)
            x[at] -= rate * (length / of_u if axes > 1 and length > 0 and of_u > 0 else 1) * u
    return x


def lamb_in_numpy(options: LAMB) -> Floats:
    one = np.float32
    x = lamb_start().numpy()
    mean, square = np.zeros_like(x), np.zeros_like(x)
    energies = [0.0 for _ in tensors()]
    power1 = power2 = 1.0
    for step, rate in enumerate(RATES):
        g = gradient_at(step).numpy()
        power1 *= options.beta1
        power2 *= options.beta2
        old_mean = np.multiply(mean, one(options.beta1))
        new_mean = np.multiply(g, one(1 - options.beta1))
        mean = np.add(old_mean, new_mean)
        squared = np.multiply(g, g)
        old_square = np.multiply(square, one(options.beta2))
        new_square = np.multiply(squared, one(1 - options.beta2))
        square = np.add(old_square, new_square)
        unbiased_mean = np.multiply(mean, one(1 / (1 - power1)))
        unbiased_square = np.multiply(square, one(1 / (1 - power2)))
        energies = energies_after(options, energies, g)
        root = np.sqrt(unbiased_square)
        high = np.maximum(root, floors_in_numpy(options, energies, power2))
        plain = np.divide(unbiased_mean, np.add(root, one(options.epsilon)))
        direction = np.divide(unbiased_mean, np.add(high, one(options.epsilon)))
        moved = []
        for at, axes in tensors():
            own, whole, factor = direction[at], plain[at], rate
            if axes > 1:
                if options.weight_decay:
                    decay = np.multiply(x[at], one(options.weight_decay))
                    own, whole = np.add(own, decay), np.add(whole, decay)
                length, whole_length = exact_norm(x[at]), exact_norm(whole)
                factor = rate * min(10.0, length / whole_length) if length > 0 and whole_length > 0 else rate
            change = np.multiply(own, one(factor))
            moved.append(np.subtract(x[at], change))
        x = np.concatenate(moved)
    return x


def assert_same_bits(ours: Floats, numpys: Floats) -> None:
    assert ours.dtype == numpys.dtype == np.float32
    assert np.isfinite(numpys).all()
    different = np.flatnonzero(ours.view(np.uint32) != numpys.view(np.uint32))
    assert different.size == 0, f"{different.size} of {SIZE} coordinates differ, first {different[:5]}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", SGDS, ids=str)
def test_sgd_bit_for_bit(options: SGD, device: str) -> None:
    assert_same_bits(train(options, device).numpy(), sgd_in_numpy(options))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", ADAMWS, ids=str)
def test_adamw_bit_for_bit(options: AdamW, device: str) -> None:
    assert_same_bits(train(bound(options, LAYOUT), device).numpy(), adamw_in_numpy(options))


@pytest.mark.parametrize("options", LAMBS, ids=str)
def test_lamb_is_the_papers(options: LAMB) -> None:
    published = torch.from_numpy(lamb_as_published(options))
    options = replace(options, floor=0.0, model_floor=0.0)
    torch.testing.assert_close(train_lamb(options, dtype=torch.float64), published, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(train_lamb(options).double(), published, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", LAMBS, ids=str)
def test_lamb_bit_for_bit(options: LAMB, device: str) -> None:
    assert_same_bits(train_lamb(options, device).numpy(), lamb_in_numpy(options))


def test_lamb_is_bound_to_the_model_wherever_it_trains() -> None:
    """One tensor for all, as before binding, takes another step."""
    problem = Problem(make_task("digits:hidden=2"))
    work = TrainingWork(problem, LAMB(), (0.1,), Primitives())
    first = work.first(0)
    gradient_D = problem.gradient(first.parameters_D, problem.batch(derive(0)))[1]
    stepped_D = work.update(first, gradient_D, 0).parameters_D
    own, other = (
        optimizer.update(first.parameters_D, gradient_D, optimizer.start(first.parameters_D), 0.1)[0]
        for optimizer in (bound(LAMB(), problem.layout), LAMB())
    )
    assert torch.equal(stepped_D, own)
    assert not torch.equal(stepped_D, other)


@pytest.mark.long
@pytest.mark.parametrize("defence", ["troth", "mean"])
def test_lamb_trains(defence: str) -> None:
    result = troth.simulate(
        task="digits:hidden=32", peers=3, steps=60, optimizer="lamb", rate=0.1, defence=defence, evaluate_every=60
    ).run()
    assert result.metrics["accuracy"] > 0.7


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    def wide(optimizer: Optimizer) -> bytes:
        parameters_D = start_point().repeat(200)  # long enough for PyTorch to share it among threads
        state = optimizer.start(parameters_D)
        for step in range(3):
            parameters_D, state = optimizer.update(parameters_D, gradient_at(step).repeat(200), state, 0.01)
        return parameters_D.numpy().tobytes()

    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append([wide(optimizer) for optimizer in (SGD(), AdamW(), LAMB())])
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("optimizer", ALL, ids=str)
def test_an_update_changes_none_of_its_inputs(optimizer: SGD | AdamW | LAMB) -> None:
    parameters_D, gradient_D = start_point(), gradient_at(0)
    _, state = optimizer.update(parameters_D, gradient_D, optimizer.start(parameters_D), 0.1)
    inputs: Mapping[str, Tensor] = {"parameters": parameters_D, "gradient": gradient_D, **state}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    first_D, first_state = optimizer.update(parameters_D, gradient_D, state, 0.1)
    again_D, again_state = optimizer.update(parameters_D, gradient_D, state, 0.1)
    assert all(torch.equal(inputs[name], before[name]) for name in inputs)
    assert torch.equal(first_D, again_D)
    assert not torch.equal(first_D, parameters_D)
    assert all(torch.equal(first_state[name], again_state[name]) for name in state)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {"momentum": "1"}, "momentum must be from 0 to below 1, got 1.0"),
        ("sgd", {"momentum": "-0.1"}, "momentum must be from 0 to below 1, got -0.1"),
        ("sgd", {"momentum": "nan"}, "option 'momentum' takes a finite number, got 'nan'"),
        ("sgd", {"weight_decay": "-1"}, "weight_decay must not be negative, got -1.0"),
        ("sgd", {"momentum": "0"}, "nesterov needs a momentum above 0"),
        ("adamw", {"beta1": "1"}, "beta1 must be from 0 to below 1, got 1.0"),
        ("adamw", {"beta2": "2"}, "beta2 must be from 0 to below 1, got 2.0"),
        ("adamw", {"epsilon": "0"}, "epsilon must be positive"),
        ("adamw", {"weight_decay": "-0.1"}, "weight_decay not negative"),
        ("lamb", {"beta1": "1"}, "beta1 must be from 0 to below 1, got 1.0"),
        ("lamb", {"epsilon": "0"}, "epsilon must be positive"),
        ("lamb", {"layout": "x"}, "has no option 'layout'"),
        ("adamw", {"momentum": "0.9"}, "has no option 'momentum' \\(its options: beta1, beta2, epsilon, weight_decay"),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(OPTIMIZERS[name], options, name)


def test_momentum_can_be_switched_off() -> None:
    made = build(OPTIMIZERS["sgd"], {"momentum": "0", "nesterov": "false"}, "sgd")
    assert made == SGD(momentum=0.0, nesterov=False)
