"""No lie moves the model farther than honest gradients do, whatever the optimizer divides by [U7]."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from troth.clip.exact import exact_norm
from troth.crypto import derive, stream
from troth.protocol.wire.primitives import Primitives
from troth.training import LAMB, SGD, AdamW, Layout, Problem, make_task
from troth.training.optimizers import State, bound
from troth.training.work import FIRST_STEPS, STEPS, Bounded, Training, TrainingWork

LIVE, DARK = 200, 1000
# Of the last one's gradients, which are shorter, no honest one has a number above zero.
LAYOUT = Layout(("half dark", "slight", "dark"), ((LIVE + DARK, 1), (LIVE + DARK, 1), (DARK, 1)))
PLACES = {  # of coordinates without any honest gradient, in a tensor with most of it, with 1 % and with none
    "in the largest": slice(LIVE, LIVE + DARK),
    "in one with 1 % of the gradient": slice(2 * LIVE + DARK, 2 * (LIVE + DARK)),
    "in one with none of it": slice(2 * (LIVE + DARK), LAYOUT.size),
}
RATE, WARM, AFTER = 0.01, 80, 40
ADAPTIVE = [AdamW(weight_decay=0.0), LAMB(weight_decay=0.0), AdamW(beta2=0.99, weight_decay=0.0)]


def start_point() -> Tensor:
    return torch.from_numpy(stream(7, "start").normal(LAYOUT.size)).float() * 0.1


def honest(step: int) -> Tensor:
    """A gradient of length 1 or so: nearly all of it in the first tensor, 1 % in the second, none in the third."""
    draw, gradient_D = stream(7, "gradient", step), torch.zeros(LAYOUT.size)
    gradient_D[:LIVE] = torch.from_numpy(draw.normal(LIVE)) / math.sqrt(LIVE)
    gradient_D[LIVE + DARK : 2 * LIVE + DARK] = torch.from_numpy(draw.normal(LIVE)) / math.sqrt(LIVE) / 100
    return gradient_D


def lie(place: slice, size: float) -> Tensor:
    """One lie among sixteen: its sixteenth is in the aggregate."""
    lie_D = torch.zeros(LAYOUT.size)
    lie_D[place] = size / 16 / math.sqrt(place.stop - place.start)
    return lie_D


def farthest(options: SGD | AdamW | LAMB, place: slice, size: float) -> float:
    """How far one lie moves a dark coordinate in all, in units of what live ones usually move in one step."""
    optimizer = Bounded(bound(options, LAYOUT))
    x_D = start_point()
    state, usual = optimizer.start(x_D), list[float]()
    for step in range(WARM):
        before_D, (x_D, state) = x_D, optimizer.update(x_D, honest(step), state, RATE)
        usual.append(exact_norm((x_D - before_D)[:LIVE]) / math.sqrt(LIVE))
    before_D = x_D
    for step in range(WARM, WARM + AFTER):
        told_D = honest(step) + lie(place, size) if step == WARM else honest(step)
        x_D, state = optimizer.update(x_D, told_D, state, RATE)
    moved_D = (x_D - before_D)[place]
    return exact_norm(moved_D) / math.sqrt(len(moved_D)) / sorted(usual)[WARM // 2]


@pytest.mark.long
@pytest.mark.parametrize("options", ADAPTIVE, ids=str)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_lie_of_one_percent_moves_dark_weights_less_than_a_usual_step(options: AdamW | LAMB, place: slice) -> None:
    """[U7] Without floors it moves them by more than ten of them; the test shows both."""
    assert farthest(options, place, 0.01) < 0.5
    assert farthest(replace(options, floor=0.0, model_floor=0.0), place, 0.01) > 5


def lengths(state: State) -> list[float]:
    return [length for length in state["lengths"].tolist() if length > 0]


def run(
    optimizer: Bounded, gradients: Callable[[int], Tensor], steps: int, state: State | None = None
) -> tuple[list[float], list[float], State]:
    """Factors of steps at rate 1, lengths of the steps themselves, and the last state."""
    x_D = start_point()
    state, factors, moved = state or optimizer.start(x_D), list[float](), list[float]()
    for step in range(steps):
        after_D, state = optimizer.update(x_D, gradients(step), state, 1.0)
        factors.append(float(state["factor"]))
        moved.append(exact_norm(after_D - x_D))
    return factors, moved, state


PLAIN = Bounded(SGD(momentum=0.0, nesterov=False))


def of_length(length: float) -> Tensor:
    vector_D = torch.zeros(LAYOUT.size)
    vector_D[0] = length
    return vector_D


def test_a_step_is_at_most_twice_as_long_as_is_usual() -> None:
    """[U7] From the ninth on: the lower median of those before."""
    told = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0, 9.0]
    factors, moved, state = run(PLAIN, lambda step: of_length(told[step]), len(told))
    assert factors[:8] == [1.0] * FIRST_STEPS
    assert factors[8] == 8 / 9  # twice 4, the lower median of eight
    assert moved[8] == pytest.approx(8.0)
    assert lengths(state) == [1, 2, 3, 4, 5, 6, 7, 100, 8]  # what was applied is what is usual


def test_the_limit_follows_the_last_64_steps() -> None:
    """[U7] A run whose steps have become shorter is protected at their length; one whose steps grow goes on."""
    factors, _, state = run(PLAIN, lambda step: of_length(1.0 if step < STEPS else 0.01), 2 * STEPS)
    assert factors == [1.0] * (2 * STEPS)
    assert lengths(state) == pytest.approx([0.01] * STEPS)
    again, _, _ = run(PLAIN, lambda _: of_length(1.0), 40, state)
    assert again[0] == pytest.approx(
        0.5
    )  # half of the gradient: it is limited itself (U3), and a run must not stand still


def test_steps_that_move_nothing_leave_no_mark() -> None:
    """[U7] Else a model that stood still for 33 steps could never move again."""
    factors, moved, _ = run(PLAIN, lambda step: of_length(0.0 if 20 <= step < 120 else 1.0), 130)
    assert factors == [1.0] * 130
    assert moved[-1] == pytest.approx(1.0)


def test_adam_that_hardly_moved_moves_again() -> None:
    """[U7] The floor of the limit, where momentum dies down by and by."""
    optimizer = Bounded(AdamW(weight_decay=0.0))
    _, moved, state = run(optimizer, lambda step: honest(step) if step < 10 else torch.zeros(LAYOUT.size), 300)
    assert moved[-1] < 1e-9
    _, again, _ = run(optimizer, honest, 400, state)
    assert again[0] == pytest.approx(math.sqrt(LAYOUT.size) / 512, rel=0.01)
    assert again[-1] > 0.05 * math.sqrt(LAYOUT.size)


@pytest.mark.parametrize("options", [SGD(), SGD(momentum=0.0, nesterov=False, weight_decay=0.1), *ADAPTIVE], ids=str)
def test_an_honest_run_keeps_its_bits(options: SGD | AdamW | LAMB) -> None:
    """[U7] No step of it is shortened."""
    free, bounded = bound(options, LAYOUT), Bounded(bound(options, LAYOUT))
    x_D = y_D = start_point()
    state, other = free.start(x_D), bounded.start(x_D)
    for step in range(200):
        x_D, state = free.update(x_D, honest(step), state, RATE)
        y_D, other = bounded.update(y_D, honest(step), other, RATE)
        assert float(other["factor"]) == 1.0
    assert torch.equal(x_D, y_D)


@pytest.mark.parametrize("spec", ["adamw", "sgd"])
def test_what_is_usual_is_part_of_the_state(spec: str) -> None:
    """[U7, J2] Whoever takes a state from others, or makes the updates in between itself, shortens as everyone does."""
    problem = Problem(make_task("digits:hidden=2"))
    options = AdamW() if spec == "adamw" else SGD()
    work = TrainingWork(problem, options, (0.1,) * 30, Primitives())
    training = work.first(0)
    gradient_D = problem.gradient(training.parameters_D, problem.batch(derive(0)))[1]
    for step in range(12):
        training = work.update(training, gradient_D * (1 if step % 2 else -1), step)
    taken = work.unpack(work.pack(training))
    assert isinstance(taken, Training)
    fresh = replace(taken, optimizer={**taken.optimizer, "lengths": torch.zeros(STEPS)})
    here, there, other = (work.update(one, gradient_D * 1e6, 12) for one in (training, taken, fresh))
    assert work.digest(here) == work.digest(there)
    assert work.shortened(here) < work.shortened(other) == 1
    assert not torch.equal(here.parameters_D, other.parameters_D)
