"""The sweep `theory`, made from the formulas: `python -m troth.lab.theory.recipe > src/troth/lab/recipes/theory.toml`.

A group varies one letter of a rate where one term of it dominates. Step sizes and radii come from `rates.py`, point by
point; nothing is tuned by hand.

- *Noise* groups: nobody lies, and the run starts at distance 1: the term `σ²/(nε⁴)`, which all three rates share.
- *Lies* groups: the run starts at the minimum, so that Δ = 0 and all that has to be made up for is what the liars did.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any

from troth.lab.theory.rates import METHODS, Setting

_GAP = {"non-convex": 0.5 * (1 / 64) / (1 + 1 / 64) * 64, "convex": 64**-1 / 12, "strongly-convex": 0.275}  # at distance 1
_MEASURES = {"non-convex": "squared-gradient", "convex": "mean-gap", "strongly-convex": "gap"}


@dataclass(frozen=True)
class Experiment:
    """A group: the letter that varies, and the setting at each of its values."""

    name: str
    varies: str
    term: str  # the one that dominates
    exponent: float  # of the letter in that term
    points: Sequence[tuple[float, Setting]]
    steps: Callable[[float], int]  # from the iterations that the rate promises
    method: str = "troth"
    task: str = "non-convex"
    options: Mapping[str, Any] = None  # type: ignore[assignment]


def _noisy(promised: float) -> int:
    """Twice the promise is what half of ε², left to the transient, takes; and four tenths more, to see that it stays."""
    return ceil(2.8 * promised)


def _lying(promised: float) -> int:
    return ceil(2 * promised) + 20


def _vary(base: Setting, field: str, values: Iterable[Any]) -> list[tuple[float, Setting]]:
    return [(float(value), replace(base, **{field: value})) for value in values]


def experiments() -> list[Experiment]:
    noise = Setting(peers=8, byzantine=0, validators=1, sigma=4.6, epsilon=0.4, gap=_GAP["non-convex"])
    lies = Setting(peers=16, byzantine=4, validators=1, sigma=1.0, epsilon=sqrt(0.05), gap=0.0)
    growing = [(float(n), replace(lies, peers=n, byzantine=n // 4, epsilon=sqrt(0.15))) for n in (8, 16, 32)]
    shares = [(b / 16, replace(lies, byzantine=b)) for b in (1, 2, 4)]
    finer = _vary(lies, "epsilon", (sqrt(0.05), sqrt(0.1), sqrt(0.15)))
    spread, accuracies = "σ²/(nε⁴)", (0.4, 0.4757, 0.5657)
    harm = "nδσ²/(mε²)"
    return [
        Experiment("noise-n", "n", spread, -1, _vary(noise, "peers", (4, 8, 16)), _noisy),
        Experiment("noise-sigma", "σ", spread, 2, _vary(noise, "sigma", (2.3, 3.25, 4.6)), _noisy),
        Experiment("noise-epsilon", "ε", spread, -4, _vary(noise, "epsilon", accuracies), _noisy),
        Experiment("lies-n", "n", harm, 1, growing, _lying),
        Experiment("lies-m", "m", harm, -1, _vary(lies, "validators", (1, 2, 4)), _lying),
        Experiment("lies-delta", "δ", harm, 1, shares, _lying),
        Experiment("lies-epsilon", "ε", harm, -2, finer, _lying),
    ]


def points_of(one: Experiment) -> list[dict[str, Any]]:
    """The points as the sweep's file has them. Equal runs under several ε are one run: as long as the longest."""
    choices = [METHODS[one.method](setting) for _, setting in one.points]
    longest = max(one.steps(choice.iterations) for choice in choices)
    rows = []
    for (value, setting), choice in zip(one.points, choices, strict=True):
        same = len({replace(s, epsilon=0) for _, s in one.points}) == 1 and len({c.rate for c in choices}) == 1
        rows.append(
            {
                "label": round(value, 4),
                "task": f"{one.task}:noise={setting.sigma:g},start={float(bool(setting.gap)):g}",
                "defence": one.method,
                "peers": setting.peers,
                "byzantine": setting.byzantine,
                "validators": setting.validators,
                "tau": round(choice.tau, 4),
                "rate": round(choice.rate, 6),
                "steps": longest if same else one.steps(choice.iterations),
                **({"momentum": round(choice.momentum, 6), "momentum_average": True} if choice.momentum else {}),
                **(one.options or {}),
            }
        )
    return rows


def fit_of(one: Experiment) -> dict[str, Any]:
    """What the fit is told of a group: the prediction, and at which ε each point is read."""
    promised = [METHODS[one.method](setting).iterations for _, setting in one.points]
    return {
        "name": one.name,
        "method": one.method,
        "task": one.task,
        "varies": one.varies,
        "term": one.term,
        "exponent": one.exponent,
        "measure": _MEASURES[one.task],
        "epsilon": [round(setting.epsilon, 6) for _, setting in one.points],
        "promised": [round(value, 3) for value in promised],
    }


def recipe() -> str:
    """The file's text."""
    head = {
        "name": "theory",
        "title": "Iterations to accuracy ε, against the rates that theory promises",
        "seeds": [0, 1, 2, 3, 4],
    }
    fixed = {"attack": "random-direction", "attack_start": 0, "schedule": "constant", "evaluate_every": 1}
    lines = ["# Made by: python -m troth.lab.theory.recipe", *_pairs(head), "", "[fixed]", *_pairs(fixed)]
    for one in experiments():
        lines += ["", "[[groups]]", f'name = "{one.name}"', "[groups.axes]", "point = ["]
        lines += [f"    {_inline(point)}," for point in points_of(one)] + ["]"]
    for one in experiments():
        lines += ["", "[[fit.exponents]]", *_pairs(fit_of(one))]
    return "\n".join(lines) + "\n"


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
