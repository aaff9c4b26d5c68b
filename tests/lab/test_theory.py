"""Iterations to accuracy, exponents and their errors, and the recipe that is made from the formulas."""

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from troth.lab.report.records import Outcome, Run, Sweep
from troth.lab.report.study import Study
from troth.lab.theory import fits
from troth.lab.theory.exponents import fit_exponent
from troth.lab.theory.fits import COMPARISONS, EXPONENTS
from troth.lab.theory.rates import Setting, clipped_momentum, safeguard, troth
from troth.lab.theory.recipe import recipe
from troth.lab.theory.section import theory_section
from troth.lab.theory.times import steps_to


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


AT = Setting(peers=16, byzantine=4, validators=2, sigma=2.0, epsilon=0.5, gap=3.0, distance=1.0)


def test_the_rates_are_those_of_the_design() -> None:
    """1/ε² + σ²/(nε⁴) + nδσ²/(mε²); 1/ε² + σ²/(nε⁴) + δσ²/ε⁴; 1/(nε⁴) + δ²/ε⁴; with Δ and σ where the theorems have them."""
    assert troth(AT).iterations == pytest.approx(3 / 0.25 + 3 * 4 / (16 * 0.0625) + 16 * 0.25 * 4 / (2 * 0.25))
    assert clipped_momentum(AT).iterations == pytest.approx(
        3 / 0.25 + 16 * (3 * 4 / (16 * 0.0625) + 3 * 0.25 * 4 / 0.0625)
    )
    assert safeguard(AT).iterations == pytest.approx(3 * 4 / (16 * 0.0625) + 3 * 0.25**2 * 4 / 0.0625)


def test_fits_of_result_lines(tmp_path: Path) -> None:
    """Two groups of made-up runs: gaps that fall below ε after 2·n steps, and two variants."""
    lines = [
        {
            "labels": {"group": "g", "point": n, "seed": seed},
            "curve": curve("loss", [1.0] * (2 * n) + [0.0] * (4 if n < 8 or seed else 0)),
        }
        for n in (2, 4, 8)
        for seed in (0, 1)
    ]
    for name, end in (("a", 0.5), ("b", None)):
        lines.append({"labels": {"group": "v", "point": name}, "curve": curve("loss", [1.0, end])})
    lines += [{"labels": {"group": "g", "point": 2, "seed": 9}, "error": "it failed"}]
    spec: dict[str, Any] = {"method": "troth", "task": "convex", "term": "n", "varies": "n", "measure": "gap"}
    exponent = {
        **spec,
        "name": "g",
        "exponent": 1.0,
        "at": [2, 4, 8],
        "epsilon": [0.5] * 3,
        "promised": [1.0, 4.0, 16.0],
    }
    found = fits(lines, {"exponents": [exponent], "comparisons": [{"name": "v", "measure": "gap"}]}, tmp_path)
    (row,) = found.tables[EXPONENTS]
    # The run that ends at 16 steps without reaching ε counts with its last step, 15, and is named.
    assert (row["fitted"], row["predicted"], row["whole rate"], row["missed"]) == (0.98, 1.0, 2.0, 1)
    assert row["iterations"] == "2: 4, 4: 8, 8: 16"
    ends = [(row["variant"], row["mean"], row["worst"]) for row in found.tables[COMPARISONS]]
    assert ends == [("a", 0.5, 0.5), ("b", None, None)]
    assert [path.read_bytes()[:4] for path in found.figures] == [b"\x89PNG"] * 2
    assert "| g | troth | convex | n | n | 1.0 | 2.0 | 0.98 |" in found.text()


def test_the_recipe_is_what_the_formulas_make() -> None:
    shipped = (files("troth.lab") / "recipes" / "theory.toml").read_text(encoding="utf-8")
    assert shipped == recipe(), "make it anew: python -m troth.lab.theory.recipe > src/troth/lab/recipes/theory.toml"
    sweep = tomllib.loads(shipped)
    groups = {group["name"]: group["axes"]["point"] for group in sweep["groups"]}
    for fit in sweep["fit"]["exponents"]:
        assert [point["label"] for point in groups[fit["name"]]] == fit["at"]
        assert len(fit["at"]) == len(fit["epsilon"]) == len(fit["promised"])


def test_a_report_has_the_fits_of_a_sweep_that_asks_for_them() -> None:
    spec = {"name": "g", "method": "troth", "task": "convex", "term": "n", "varies": "n", "measure": "gap"}
    exponent = {**spec, "exponent": 1.0, "at": [2, 4], "epsilon": [0.5] * 2, "promised": [2.0, 4.0]}
    outcome = Outcome(8, frozenset(), None, (), 0, (), None, None, None)
    labels: list[dict[str, str | int | float]] = [{"group": "g", "point": n, "seed": 0} for n in (2, 4)]
    runs = tuple(
        Run("key", "0", some, {}, {}, tuple((t, {"loss": float(t < int(some["point"]))}) for t in range(9)), outcome)
        for some in labels
    )
    study = Study(Sweep("theory", "Theory", None, None, (), {"fit": {"exponents": [exponent]}}, runs, (), False))
    section = theory_section(study)
    assert section is not None
    table, drawing = section.blocks
    assert b"| g | troth | convex | n | n |" in table.files()["tables/exponents.md"]
    assert drawing.files()["figures/exponents.png"][:4] == b"\x89PNG"
    assert "<svg" in drawing.html()
    assert theory_section(Study(Sweep("other", "", None, None, (), {}, runs, (), False))) is None
