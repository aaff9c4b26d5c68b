"""Iterations to accuracy, exponents and their errors, and the recipe that they are fitted from."""

import tomllib
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import pytest

from benchmarks.theory import fit_exponent, steps_to, times, variants


def curve(metric: str, values: Sequence[float | None]) -> list[dict[str, float | None]]:
    return [{"step": float(step), metric: value} for step, value in enumerate(values)]


def test_time_to_accuracy_by_hand() -> None:
    gaps: list[float | None] = [8.0, 2.0, 4.0, 1.0, 1.0, 1.0]
    assert steps_to(curve("loss", gaps), "gap", 2.0) == 3, "step 1 is below, step 2 above again"
    assert steps_to(curve("loss", gaps), "gap", 0.5) is None
    assert steps_to(curve("loss", gaps), "gap", 9.0) == 0
    # Means: 8, 5, 14/3, 15/4, 16/5, 17/6.
    assert steps_to(curve("loss", gaps), "mean-gap", 4.0) == 3
    # Means of squares: 9, 5, 11/3, 3, 13/5; 1.8² = 3.24.
    assert steps_to(curve("gradient", [3.0, 1.0, 1.0, 1.0, 1.0]), "squared-gradient", 1.8) == 3


def test_what_is_not_finite_is_not_accurate() -> None:
    assert steps_to(curve("loss", [1.0, None, 1.0]), "gap", 2.0) == 2
    assert steps_to(curve("loss", [1.0, None, 1.0]), "mean-gap", 2.0) is None


def test_a_planted_exponent_is_found_and_is_off_as_often_as_its_error_says() -> None:
    draw, xs = np.random.default_rng(0), [1.0, 2.0, 4.0, 8.0]
    found = [
        fit_exponent(xs, [7 * x**-1.5 * draw.lognormal(0, 0.1, size=8) for x in xs]) for _ in range(400)
    ]  # fmt: skip
    exponents = np.array([line.exponent for line in found if line is not None])
    errors = np.array([line.error for line in found if line is not None])
    assert exponents.mean() == pytest.approx(-1.5, abs=0.005)
    assert errors.mean() == pytest.approx(exponents.std(), rel=0.1)


def test_without_scatter_the_line_is_exact() -> None:
    line = fit_exponent([1.0, 3.0], [[5.0, 5.0], [45.0, 45.0]])
    assert line is not None
    assert [line.exponent, line.error, line.factor] == pytest.approx([2, 0, 5])
    assert fit_exponent([1.0, 3.0], [[0.0, 0.0], [45.0, 45.0]]) is None, "one point is no line"


def test_a_group_of_runs() -> None:
    """Gaps that fall below ε after 2·n steps; one run ends before that, counts with its last step, and is named."""
    lines = [
        {
            "labels": {"group": "g", "point": n, "seed": seed},
            "curve": curve("loss", [1.0] * (2 * n) + [0.0] * (4 if n < 8 or seed else 0)),
        }
        for n in (2, 4, 8)
        for seed in (0, 1)
    ]
    spec = {
        "name": "g",
        "method": "troth",
        "task": "convex",
        "term": "n",
        "varies": "n",
        "measure": "gap",
        "exponent": 1,
    }
    found = times(lines, {**spec, "at": [2, 4, 8], "epsilon": [0.5] * 3, "promised": [1.0, 4.0, 16.0]})
    assert found.row() == ["g", "Troth, convex", "`n`", "n", 1, "2", "**0.98 ± 0.02**", "2: 4, 4: 8, 8: 16", 1]


def test_variants_are_compared_by_their_ends() -> None:
    ends = (("a", 0.5), ("a", 1.5), ("b", None))
    lines = [{"labels": {"group": "v", "point": name}, "curve": curve("loss", [1.0, end])} for name, end in ends]
    one, other = variants(lines, {"name": "v", "measure": "gap"})
    assert (one.row(), other.row()) == (["v", "a", "1.0000 ± 0.5000", "1.5000"], ["v", "b", "", ""])


def test_the_recipe_has_a_number_for_every_point() -> None:
    sweep = tomllib.loads((files("troth.workshop.lab") / "recipes" / "theory.toml").read_text(encoding="utf-8"))
    groups = {group["name"]: group["axes"]["point"] for group in sweep["groups"]}
    for fit in sweep["fit"]["exponents"]:
        assert [point["label"] for point in groups[fit["name"]]] == fit["at"]
        assert len(fit["at"]) == len(fit["epsilon"]) == len(fit["promised"])
    assert {spec["name"] for spec in sweep["fit"]["comparisons"]} <= set(groups)
