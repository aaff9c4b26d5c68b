"""Figures: iterations over each letter on logarithmic axes, with the predicted slope; and curves of variants."""

import io
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from troth.lab.theory.fits import Times, Variant

_BLUE, _RED, _GREY = "#1b6ca8", "#c0392b", "#777777"
_COLOURS = (_BLUE, _RED, "#2e8b57", "#8e44ad")
_ACROSS = 4


def draw_times(groups: Sequence["Times"], path: Path) -> Path:
    """A panel for each group: every seed, the mean, the fitted line, and one with the predicted slope through the middle."""
    figure, panels = _panels(len(groups))
    for axes, group in zip(panels, groups, strict=True):
        spec, line = group.spec, group.line
        for value, sample in zip(group.values, group.samples, strict=True):
            axes.plot([value] * len(sample), sample, ".", color=_BLUE, alpha=0.35, markersize=5)
        means = np.array([np.mean(sample) for sample in group.samples])
        xs = np.array(group.values)
        axes.plot(xs[means > 0], means[means > 0], "o", color=_BLUE, markersize=6)
        if line is not None:
            middle = float(np.exp(np.log(xs).mean()))
            height = line.factor * middle**line.exponent
            label = f"fitted {line.exponent:.2f} ± {line.error:.2f}"
            axes.plot(xs, line.factor * xs**line.exponent, color=_BLUE, linewidth=1.5, label=label)
            predicted = height * (xs / middle) ** spec["exponent"]
            axes.plot(xs, predicted, "--", color=_RED, linewidth=1.5, label=f"predicted {spec['exponent']:g}")
            axes.legend(frameon=False, fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(xs, [f"{x:.3g}" for x in xs])
        axes.minorticks_off()
        axes.set_xlabel(spec["varies"])
        axes.set_title(f"{spec['method']}, {spec['task']}\n{spec['term']}", fontsize=8)
    return _save(figure, path)


def draw_variants(variants: Sequence["Variant"], path: Path) -> Path:
    """A panel for each comparison: the measure over steps, the median over seeds."""
    names = list(dict.fromkeys(variant.group for variant in variants))
    figure, panels = _panels(len(names))
    for axes, name in zip(panels, names, strict=True):
        for colour, one in zip(_COLOURS, (one for one in variants if one.group == name), strict=False):
            axes.plot(*zip(*one.curve, strict=True), color=colour, linewidth=1.5, label=one.name)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_title(f"{name}: {next(one.measure for one in variants if one.group == name)}", fontsize=8)
        axes.legend(frameon=False, fontsize=7)
    return _save(figure, path)


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # a second to import; no window system is touched

    down = ceil(count / _ACROSS)
    across = min(count, _ACROSS)
    figure = Figure(figsize=(3 * across, 2.6 * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels[:count]


def _save(figure: Any, path: Path) -> Path:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=90, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image.getvalue())
    return path
