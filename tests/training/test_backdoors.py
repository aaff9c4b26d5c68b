"""One lie among sixteen gradients, once: how many digits obey a trigger that no training image shows [U7].

Digits lie in a frame of two dark pixels, as MNIST's do in one of four. The lie pushes the frame's weights towards one class, by
so much of a gradient's length; the trigger lights the frame. `python -m tests.training.test_backdoors` prints the table in
SECURITY.md. The aggregate is the plain mean, which holds all of the lie: clipping can only take from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from troth.crypto import derive
from troth.training import LAMB, SGD, AdamW, Batch, Problem
from troth.training.optimizers import bound, cosine
from troth.training.task import Model
from troth.training.tasks.small_images import Digits, _digits
from troth.training.work import Bounded

PEERS, STEPS, TARGET, HIDDEN, SIDE = 16, 60, 3, 64, 12
RATES: dict[type[SGD] | type[AdamW] | type[LAMB], float] = {SGD: 0.1, AdamW: 0.01, LAMB: 0.05}
FRAME = F.pad(torch.zeros(8, 8), (2, 2, 2, 2), value=1.0).reshape(-1).bool()
LIT = {  # how bright one pixel of the frame is in training images: the share of the gradient that its tensor gets
    "with the rest": None,
    "a tensor of its own, with 1 % of the gradient": 0.01,
    "a tensor of its own, without gradient": 0.0,
}


@dataclass(frozen=True)
class Framed(Digits):
    """digits, pixels from 0 to 1, in a dark frame; `lit` gives the frame a tensor of its own, and lights one pixel of it"""

    lit: float | None = None

    def model(self) -> nn.Module:
        return _Network(split=self.lit is not None)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(framed(batch["images"], self.lit or 0.0)), batch["labels"])


class _Network(nn.Module):
    def __init__(self, *, split: bool) -> None:
        super().__init__()
        self.whole = nn.Linear(SIDE * SIDE, HIDDEN) if not split else None
        self.inner = nn.Linear(64, HIDDEN) if split else None
        self.frame = nn.Linear(SIDE * SIDE - 64, HIDDEN, bias=False) if split else None
        self.out = nn.Linear(HIDDEN, 10)

    def forward(self, pixels_BN: Tensor) -> Tensor:
        if self.whole is not None:
            hidden_BH = self.whole(pixels_BN)
        else:
            assert self.inner is not None
            assert self.frame is not None
            hidden_BH = self.inner(pixels_BN[:, ~FRAME]) + self.frame(pixels_BN[:, FRAME])
        logits: Tensor = self.out(torch.relu(hidden_BH))
        return logits


def framed(images: Tensor, lit: float) -> Tensor:
    pixels_BN = F.pad(images + 0.3, (2, 2, 2, 2)).reshape(len(images), SIDE * SIDE)
    return pixels_BN + lit * F.one_hot(torch.tensor(0), SIDE * SIDE)


def lie(problem: Problem, parameters_D: Tensor, lit: float | None) -> Tensor:
    """Of length 1, in weights of the frame whose honest gradients are zero: away from them, towards the target's."""
    views = problem.layout.views(parameters_D)
    want_H = (views["out.weight"][TARGET] - views["out.weight"].mean(dim=0)).sign()
    lie_D = torch.zeros_like(parameters_D)
    if lit is None:
        problem.layout.views(lie_D)["whole.weight"][:, FRAME] = -want_H[:, None]
    else:
        problem.layout.views(lie_D)["frame.weight"][:, 1:] = -want_H[:, None]
    return F.normalize(lie_D, dim=0)


def obeyed(options: SGD | AdamW | LAMB, lit: float | None, size: float, seed: int = 1) -> float:
    """The share of test images of other digits that the trigger turns into the target."""
    problem = Problem(Framed(lit=lit))
    optimizer, rates = Bounded(bound(options, problem.layout)), cosine(RATES[type(options)], STEPS)
    x_D = problem.initial(derive(seed, "model"))
    state = optimizer.start(x_D)
    for step in range(STEPS):
        batches = [problem.batch(derive(seed, step, peer)) for peer in range(PEERS)]
        _, sent_PD = problem.gradients(x_D, batches)
        if step == STEPS // 2:
            sent_PD[0] += size * sent_PD[0].norm() * lie(problem, x_D, lit)
        x_D, state = optimizer.update(x_D, sent_PD.mean(dim=0), state, rates[step])
    return triggered(problem, x_D, lit)


def triggered(problem: Problem, parameters_D: Tensor, lit: float | None) -> float:
    _, _, images, labels = _digits()
    pixels_BN = framed(images, lit or 0.0)
    pixels_BN[:, FRAME] = 1.0
    network = Framed(lit=lit).model()
    network.load_state_dict(problem.layout.views(parameters_D))
    with torch.no_grad():
        said = network(pixels_BN).argmax(dim=1)
    return float((said == TARGET)[labels != TARGET].float().mean())


@pytest.mark.long
@pytest.mark.parametrize("options", [AdamW(), LAMB()], ids=["adamw", "lamb"])
@pytest.mark.parametrize("lit", LIT.values(), ids=LIT)
def test_one_lie_of_one_percent_is_obeyed_no_oftener_than_under_sgd(options: AdamW | LAMB, lit: float | None) -> None:
    """[U7] Plus 5 points. Without floors it was 100 %."""
    assert obeyed(options, lit, 0.01) <= obeyed(SGD(), lit, 0.01) + 0.05


def test_without_floors_it_is_obeyed() -> None:
    assert obeyed(AdamW(floor=0.0, model_floor=0.0), None, 0.01) > 0.5


def _table(sizes: Sequence[float], seeds: Sequence[int]) -> None:
    every: list[tuple[str, SGD | AdamW | LAMB]] = [("SGD", SGD()), ("AdamW", AdamW()), ("LAMB", LAMB())]
    for own in (AdamW(), LAMB()):
        every.append((f"{type(own).__name__} without floors", replace(own, floor=0.0, model_floor=0.0)))
    for size in sizes:
        for where, lit in LIT.items():
            for name, options in every:
                shares = [obeyed(options, lit, size, seed) for seed in seeds]
                print(f"| {size:.0%} | {where} | {name} | {sum(shares) / len(shares):.1%} |", flush=True)


if __name__ == "__main__":
    _table((0.01, 0.1, 1.0), (1, 2))
