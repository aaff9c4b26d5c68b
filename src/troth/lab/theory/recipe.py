"""The sweep `theory`, made from the formulas: `python -m troth.lab.theory.recipe > src/troth/lab/recipes/theory.toml`.

A group varies one letter of a rate where one term of it dominates. Step sizes and radii come from `rates.py`, point by
point; nothing is tuned by hand.

- *Noise* groups: nobody lies, and the run starts away from the minimum: the term `σ²/(nε⁴)`, which all three rates share.
- *Lies* groups of Troth: the run starts at the minimum, so that Δ = 0 and only the liars' harm has to be made up for.
- Groups of the two methods with a trusted server start away from the minimum, since their term of δ is a product with Δ.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any

import torch

from troth.lab.theory.rates import METHODS, Choice, Setting
from troth.training import make_task
from troth.training.tasks.synthetic import Synthetic

_SEEDS = [0, 1, 2, 3, 4]
_MEASURES = {"non-convex": "squared-gradient", "convex": "mean-gap", "strongly-convex": "gap"}
_MARGINS = {("troth", "non-convex"): 1.6, ("troth", "convex"): 2.1, ("safeguard", "non-convex"): 2.8}  # else 1.4
_NOISE, _LIES = "σ²/(nε⁴)", "nδσ²/(mε²)"


@dataclass(frozen=True)
class Experiment:
    """A group: the letter that varies, the setting at each of its values, and its exponent in the term that dominates."""

    name: str
    varies: str
    term: str
    exponent: float
    points: Sequence[tuple[float, Setting]]
    method: str = "troth"
    task: str = "non-convex"
    options: Mapping[str, Any] = field(default_factory=dict)

    def choices(self) -> list[Choice]:
        return [METHODS[self.method, self.task](setting) for _, setting in self.points]


def experiments() -> list[Experiment]:
    return [*_noise_groups(), *_lies_groups(), *_server_groups()]


def _noise_groups() -> list[Experiment]:
    base = _at("non-convex", 1.0, peers=4, sigma=4.0, epsilon=0.5)
    flat = _at("convex", 4.0, peers=4, sigma=3.58, epsilon=0.2)
    return [
        Experiment("noise-n", "n", _NOISE, -1, _vary(base, "peers", (4, 8, 16))),
        Experiment("noise-sigma", "σ", _NOISE, 2, _vary(base, "sigma", (2.0, 2.83, 4.0))),
        Experiment("noise-epsilon", "ε", _NOISE, -4, _vary(base, "epsilon", (0.5, 0.56, 0.63))),
        Experiment("convex-noise-n", "n", "σ²/(nε²)", -1, _vary(flat, "peers", (4, 8, 16)), task="convex"),
    ]


def _lies_groups() -> list[Experiment]:
    base = _at("non-convex", 0.0, peers=12, byzantine=3, sigma=1.0, epsilon=sqrt(0.3))
    growing = [(float(n), replace(base, peers=n, byzantine=n // 4)) for n in (4, 8, 16)]
    # More than a third of the members never validate (SPEC R3), so m ends at 3 of 12 and 2 of 8.
    finer = _vary(base, "epsilon", (sqrt(0.3), sqrt(0.4), sqrt(0.6)))
    bowl = _at("strongly-convex", 0.0, peers=8, byzantine=2, sigma=1.0, epsilon=0.3)
    few = _vary(bowl, "validators", (1, 2))
    return [
        Experiment("lies-n", "n", _LIES, 1, growing),
        Experiment("lies-m", "m", _LIES, -1, _vary(base, "validators", (1, 2, 3))),
        Experiment("lies-delta", "δ", _LIES, 1, _shares(replace(base, epsilon=sqrt(0.15)), (1, 2, 3))),
        Experiment("lies-epsilon", "ε", _LIES, -2, finer),
        Experiment("bowl-lies-m", "m", "n/m", -1, few, task="strongly-convex", options={"steps": 50}),
    ]


def _server_groups() -> list[Experiment]:
    clip = _at("non-convex", 1.0, peers=32, byzantine=8, sigma=1.0, epsilon=0.5)
    guard = replace(clip, sigma=5.0)
    sizes = [(float(n), replace(clip, peers=n, byzantine=n // 4)) for n in (8, 16, 32)]
    clipped, guarded = "centered-clip-momentum", "safeguard"
    # Safeguard as published counts a peer once more when it is found out: a lie 1000 times as long would end the run.
    quiet = {"attack": "random-direction:scale=1"}
    return [
        Experiment("clip-delta", "δ", "δσ²/ε⁴", 1, _shares(clip, (4, 6, 10)), clipped),
        Experiment("clip-n", "n", "δσ²/ε⁴", 0, sizes, clipped),
        Experiment("clip-epsilon", "ε", "δσ²/ε⁴", -4, _vary(clip, "epsilon", (0.42, 0.46, 0.5)), clipped),
        Experiment("guard-delta", "δ", "δ²/ε⁴", 2, _shares(guard, (4, 8, 14)), guarded, options=quiet),
        Experiment(
            "guard-epsilon", "ε", "δ²/ε⁴", -4, _vary(guard, "epsilon", (0.42, 0.46, 0.5)), guarded, options=quiet
        ),
    ]


def comparisons() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Variants of one method, by group: the measure, and the points."""
    heavy = {"defence": "troth", "peers": 4, "byzantine": 0, "rate": 0.1, "steps": 120}
    noise = "non-convex:noise=2,start=1,tail=heavy"
    bowl = {
        "task": "strongly-convex:noise=2,start=1,condition=2",
        "defence": "troth",
        "peers": 4,
        "byzantine": 1,
        "steps": 155,
    }
    bowl |= {"tau": 3.4641, "attack": "random-direction"}
    return {
        "heavy-tails": (
            "gap",
            [
                {"label": "BTARD-SGD, τ = 1000", "task": noise, **heavy, "tau": 1000.0},
                {"label": "BTARD-Clipped-SGD, τ = 1000", "task": f"{noise},clip_norm=1", **heavy, "tau": 1000.0},
                {"label": "BTARD-SGD, τ = 2", "task": noise, **heavy, "tau": 2.0},
                {"label": "BTARD-Clipped-SGD, τ = 2", "task": f"{noise},clip_norm=1", **heavy, "tau": 2.0},
            ],
        ),
        "restarts": (
            "gap",
            [
                {"label": "constant 1/4", **bowl, "rate": 0.25},
                {"label": "constant 1/32", **bowl, "rate": 0.03125},
                {"label": "restarts from 1/4", **bowl, "rate": 0.25, "schedule": "restarts"},
            ],
        ),
    }


def points_of(one: Experiment) -> list[dict[str, Any]]:
    """The points as the sweep's file has them. Where only ε differs, they are one run, as long as the longest."""
    choices = one.choices()
    steps = [_steps(one, setting, choice) for (_, setting), choice in zip(one.points, choices, strict=True)]
    if (
        len(
            {
                (replace(setting, epsilon=0), choice.rate)
                for (_, setting), choice in zip(one.points, choices, strict=True)
            }
        )
        == 1
    ):
        steps = [max(steps)] * len(steps)
    return [
        {
            "label": round(value, 4),
            "task": _task(one, setting),
            "defence": one.method,
            "peers": setting.peers,
            "byzantine": setting.byzantine,
            "validators": setting.validators,
            "tau": round(choice.tau, 4),
            "rate": round(choice.rate, 6),
            "steps": count,
            **({"momentum": round(choice.momentum, 6), "momentum_average": True} if choice.momentum else {}),
            **one.options,
        }
        for (value, setting), choice, count in zip(one.points, choices, steps, strict=True)
    ]


def _task(one: Experiment, at: Setting) -> str:
    """More coordinates where lies are large: each then stays where the function is nearly quadratic; and μ = 1/2."""
    more = "" if at.gap else ",dimension=256" + (",condition=2" if one.task == "strongly-convex" else "")
    return f"{one.task}:noise={at.sigma:g},start={at.distance:g}{more}"


def _steps(one: Experiment, at: Setting, choice: Choice) -> int:
    """Long enough to see that ε is reached for good: with noise of ε²/2 left, a gap Δ takes about 2Δ/(γε²)."""
    if not at.gap:
        return ceil(14 * choice.iterations) + 15
    margin, target = _MARGINS.get((one.method, one.task), 1.4), at.epsilon if one.task == "convex" else at.epsilon**2
    return ceil(2 * margin * at.gap / (choice.rate * target))


def fit_of(one: Experiment) -> dict[str, Any]:
    """What the fit is told of a group: the prediction, and at which ε each point is read."""
    return {
        "name": one.name,
        "method": one.method,
        "task": one.task,
        "varies": one.varies,
        "term": one.term,
        "exponent": one.exponent,
        "measure": _MEASURES[one.task],
        "at": [round(value, 4) for value, _ in one.points],
        "epsilon": [round(setting.epsilon, 6) for _, setting in one.points],
        "promised": [round(choice.iterations, 3) for choice in one.choices()],
    }


def recipe() -> str:
    """The file's text."""
    title = "Iterations to accuracy ε, against the rates that theory promises"
    fixed = {"attack": "random-direction", "attack_start": 0, "schedule": "constant", "evaluate_every": 1}
    lines = ["# Made by: python -m troth.lab.theory.recipe"]
    lines += [*_pairs({"name": "theory", "title": title, "seeds": _SEEDS}), "", "[fixed]", *_pairs(fixed)]
    groups = {one.name: points_of(one) for one in experiments()}
    for name, points in (groups | {name: points for name, (_, points) in comparisons().items()}).items():
        lines += ["", "[[groups]]", f'name = "{name}"', "[groups.axes]", "point = ["]
        lines += [f"    {_inline(point)}," for point in points] + ["]"]
    for one in experiments():
        lines += ["", "[[fit.exponents]]", *_pairs(fit_of(one))]
    for name, (measure, _) in comparisons().items():
        lines += ["", "[[fit.comparisons]]", *_pairs({"name": name, "measure": measure})]
    return "\n".join(lines) + "\n"


def _at(task: str, distance: float, *, peers: int, sigma: float, epsilon: float, byzantine: int = 0) -> Setting:
    problem = make_task(f"{task}:start={distance}")
    assert isinstance(problem, Synthetic)
    gap = round(float(problem.value(torch.full((problem.dimension,), distance / sqrt(problem.dimension)))), 6)
    return Setting(peers, byzantine, 1, sigma, epsilon, gap, distance)


def _vary(base: Setting, name: str, values: Iterable[Any]) -> list[tuple[float, Setting]]:
    return [(float(value), replace(base, **{name: value})) for value in values]


def _shares(base: Setting, liars: Iterable[int]) -> list[tuple[float, Setting]]:
    return [(count / base.peers, replace(base, byzantine=count)) for count in liars]


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in table.items()]


def _inline(table: Mapping[str, Any]) -> str:
    return "{" + ", ".join(_pairs(table)) + "}"


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case _:
            return repr(value)


if __name__ == "__main__":
    sys.stdout.write(recipe())
