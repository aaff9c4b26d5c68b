"""Iterations to accuracy ε, against the rates of theory: `python -m benchmarks.theory results/theory` writes docs/theory.md's
tables and figures from the results of `troth lab run theory`.

The [fit] table of the recipe names its groups of runs. A group of `exponents` varies one letter: `at` holds its values, `epsilon` and
`promised` (the whole rate) a number for each. A group of `comparisons` holds variants of one method.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.marked import fill, table
from troth.files import write_bytes
from troth.workshop.lab.figures import rendered
from troth.workshop.lab.files import RESULTS, SWEEP, read_lines, read_toml

DOCS = Path(__file__).parent.parent / "docs"
METHODS = {"troth": "Troth", "centered-clip-momentum": "clipping, momentum", "safeguard": "Safeguard"}
COLOURS = BLUE, RED, *_ = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad")
ACROSS = 4

Lines = Sequence[Mapping[str, Any]]


# Reading curves


def measured(curve: Lines, measure: str) -> NDArray[np.float64]:
    """What must be at most ε, at every step; what is not finite counts as infinite.

    squared-gradient: √ of the mean of ‖∇f‖² over the points up to here, as the non-convex theorems have it;
    mean-gap: the mean of f − f* over them (convex); gap: f − f* at this point (strongly convex).
    """
    name = "gradient" if measure == "squared-gradient" else "loss"
    values = np.array([np.inf if point[name] is None else point[name] for point in curve], dtype=np.float64)
    if measure == "gap":
        return values
    power = 2 if measure == "squared-gradient" else 1
    means: NDArray[np.float64] = (np.cumsum(values**power) / np.arange(1, len(values) + 1)) ** (1 / power)
    return means


def steps_to(curve: Lines, measure: str, epsilon: float) -> int | None:
    """The first evaluated step from which the measure stays at or below ε to the end of the run; None where it ends above."""
    above = ~(measured(curve, measure) <= epsilon)
    if above[-1]:
        return None
    return int(curve[int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0]["step"])


# Fits


@dataclass(frozen=True)
class Line:
    """`y ≈ factor·x^exponent`. `error` is one standard error of the exponent; nan where a point has a single seed."""

    exponent: float
    error: float
    factor: float


def fit_exponent(xs: Sequence[float], samples: Sequence[Sequence[float]]) -> Line | None:
    """Least squares through log of the mean over seeds; None with fewer than two points above 0.

    The exponent is a weighted sum `Σ wᵢ·log ȳᵢ` with `wᵢ = (log xᵢ − mean)/Σ(log xⱼ − mean)²`; points are independent, so its
    variance is `Σ wᵢ²·Var(log ȳᵢ)`, and `Var(log ȳᵢ) ≈ sᵢ²/(Sᵢ·ȳᵢ²)` with the seeds' standard deviation sᵢ. It holds chance
    only: whether the points lie on a line at all is for the eye.
    """
    kept = [(x, np.asarray(sample, float)) for x, sample in zip(xs, samples, strict=True) if np.mean(sample) > 0]
    if len({x for x, _ in kept}) < 2:
        return None
    log_x = np.log([x for x, _ in kept])
    log_y = np.log([sample.mean() for _, sample in kept])
    weights = (log_x - log_x.mean()) / ((log_x - log_x.mean()) ** 2).sum()
    variances = [s.var(ddof=1) / (len(s) * s.mean() ** 2) if len(s) > 1 else nan for _, s in kept]
    exponent = float(weights @ log_y)
    return Line(
        exponent=exponent,
        error=float(np.sqrt((weights**2 * np.array(variances)).sum())),
        factor=exp(float(log_y.mean() - exponent * log_x.mean())),
    )


@dataclass(frozen=True)
class Times:
    """One group: for each value of its letter, every seed's iterations to ε. Runs that did not reach it count with all their steps."""

    spec: Mapping[str, Any]
    values: list[float]
    samples: list[list[float]]
    missed: int

    @property
    def line(self) -> Line | None:
        return fit_exponent(self.values, self.samples)

    def row(self) -> list[object]:
        spec, line = self.spec, self.line
        promised = dict(zip(spec["at"], spec["promised"], strict=True))
        whole = fit_exponent(self.values, [[promised[value]] for value in self.values])
        fitted = "" if line is None else f"**{line.exponent:.2f} ± {line.error:.2f}**"
        iterations = (f"{value:g}: {np.mean(some):.0f}" for value, some in zip(self.values, self.samples, strict=True))
        method = f"{METHODS[spec['method']]}, {spec['task']}"
        rates = spec["exponent"], "" if whole is None else f"{round(whole.exponent, 2):g}", fitted
        return [
            spec["name"],
            method,
            f"`{spec['term']}`",
            spec["varies"],
            *rates,
            ", ".join(iterations),
            self.missed or "",
        ]


def times(lines: Lines, spec: Mapping[str, Any]) -> Times:
    values, samples, missed = [], [], 0
    for value, epsilon in zip(spec["at"], spec["epsilon"], strict=True):
        curves = [line["curve"] for line in lines if float(line["labels"]["point"]) == value]
        found = [steps_to(curve, spec["measure"], epsilon) for curve in curves]
        missed += found.count(None)
        if curves:
            values.append(float(value))
            samples.append([float(c[-1]["step"] if s is None else s) for c, s in zip(curves, found, strict=True)])
    return Times(spec, values, samples, missed)


@dataclass(frozen=True)
class Variant:
    """Curves of one variant's seeds; the measure at the end is compared."""

    group: str
    name: str
    curves: list[NDArray[np.float64]]

    def row(self) -> list[str]:
        last = np.array([curve[-1] for curve in self.curves])
        finite = last[np.isfinite(last)]
        error = f" ± {np.std(finite, ddof=1) / sqrt(len(finite)):.4f}" if len(finite) > 1 else ""
        mean = f"{finite.mean():.4f}{error}" if len(finite) else ""
        return [self.group, self.name, mean, f"{last.max():.4f}" if len(finite) == len(last) else ""]


def variants(lines: Lines, spec: Mapping[str, Any]) -> list[Variant]:
    found: dict[str, list[NDArray[np.float64]]] = {}
    for line in lines:
        found.setdefault(str(line["labels"]["point"]), []).append(measured(line["curve"], spec["measure"]))
    return [Variant(spec["name"], name, curves) for name, curves in found.items()]


# Figures


def draw_times(axes: Any, group: Times) -> None:
    """Every seed, the mean, the fitted line, and the predicted slope through the middle."""
    for value, sample in zip(group.values, group.samples, strict=True):
        axes.plot([value] * len(sample), sample, ".", color=BLUE, alpha=0.35, markersize=5)
    means, xs = np.array([np.mean(sample) for sample in group.samples]), np.array(group.values)
    axes.plot(xs[means > 0], means[means > 0], "o", color=BLUE, markersize=6)
    if (line := group.line) is not None:
        middle, slope = float(np.exp(np.log(xs).mean())), group.spec["exponent"]
        fitted = f"fitted {line.exponent:.2f} ± {line.error:.2f}"
        axes.plot(xs, line.factor * xs**line.exponent, color=BLUE, label=fitted)
        predicted = line.factor * middle**line.exponent * (xs / middle) ** slope
        axes.plot(xs, predicted, "--", color=RED, label=f"predicted {slope:g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(xs, [f"{x:.3g}" for x in xs])
    shown = sorted({round(mean) for mean in means[means > 0]})
    axes.set_yticks(shown, [f"{mean}" for mean in shown])
    axes.minorticks_off()
    axes.set_xlabel(group.spec["varies"])
    axes.set_title(f"{group.spec['method']}, {group.spec['task']}\n{group.spec['term']}", fontsize=8)


def draw_variants(axes: Any, group: Sequence[Variant]) -> None:
    """The measure over steps, the median over seeds."""
    for colour, one in zip(COLOURS, group, strict=False):
        shortest = min(map(len, one.curves))
        axes.plot(np.median([curve[:shortest] for curve in one.curves], axis=0), color=colour, label=one.name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("step")
    axes.set_title(group[0].group, fontsize=8)


def save(name: str, draw: Any, groups: Sequence[Any]) -> None:
    """A panel for each group."""

    def draw_all(figure: Any) -> None:
        panels = figure.subplots(ceil(len(groups) / ACROSS), min(len(groups), ACROSS), squeeze=False).flat
        for at, axes in enumerate(panels):
            axes.set_visible(at < len(groups))
            if at < len(groups):
                draw(axes, groups[at])
                axes.grid(alpha=0.25)
                axes.tick_params(labelsize=7)
                axes.spines[["top", "right"]].set_visible(False)
                axes.legend(frameon=False, fontsize=7)

    size = (3.0 * min(len(groups), ACROSS), 2.6 * ceil(len(groups) / ACROSS))
    write_bytes(DOCS / f"images/{name}.png", rendered(size, draw_all))


def main(results: Path) -> None:
    fit = read_toml(results / SWEEP)[0].fit
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in read_lines(results / RESULTS, dict[str, Any])[0]:
        if "error" not in line:
            groups.setdefault(line["labels"]["group"], []).append(line)
    exponents = [times(groups[spec["name"]], spec) for spec in fit["exponents"]]
    compared = [variants(groups[spec["name"]], spec) for spec in fit["comparisons"]]
    head = (
        "group",
        "method, problem",
        "term",
        "letter",
        "predicted:",
        "whole rate:",
        "fitted:",
        "mean iterations",
        "missed:",
    )
    of_variants = ("group", "variant", "f − f* at the end, mean ± error:", "worst of 5 seeds:")
    fill(
        DOCS / "theory.md",
        {
            "exponents": table(head, [one.row() for one in exponents]),
            "variants": table(of_variants, [one.row() for group in compared for one in group]),
        },
    )
    save("theory-exponents", draw_times, exponents)
    save("theory-variants", draw_variants, compared)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
