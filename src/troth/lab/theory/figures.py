"""Figures: iterations over each letter on logarithmic axes, with the predicted slope; and curves of variants."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from troth.lab.report.figures import rendered

if TYPE_CHECKING:
    from troth.lab.theory.fits import Times, Variant

_BLUE, _RED, _GREY = "#1b6ca8", "#c0392b", "#777777"
_COLOURS = (_BLUE, _RED, "#2e8b57", "#8e44ad")
_ACROSS = 4


def drawing_of_times(groups: Sequence["Times"]) -> tuple[bytes, bytes]:
    """PNG and SVG, a panel a group: every seed, the mean, the fitted line, and the predicted slope through the middle."""

    def draw(figure: Any) -> None:
        for axes, group in zip(_panels(figure, len(groups)), groups, strict=True):
            _draw_times(axes, group)

    return rendered("exponents", _size(len(groups)), draw)


def _draw_times(axes: Any, group: "Times") -> None:
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
    shown = sorted({round(mean) for mean in means[means > 0]})
    axes.set_yticks(shown, [f"{mean}" for mean in shown])
    axes.minorticks_off()
    axes.set_xlabel(spec["varies"])
    axes.set_title(f"{spec['method']}, {spec['task']}\n{spec['term']}", fontsize=8)


def drawing_of_variants(variants: Sequence["Variant"]) -> tuple[bytes, bytes]:
    """PNG and SVG, a panel a comparison: the measure over steps, the median over seeds."""
    names = list(dict.fromkeys(variant.group for variant in variants))

    def draw(figure: Any) -> None:
        for axes, name in zip(_panels(figure, len(names)), names, strict=True):
            mine = [one for one in variants if one.group == name]
            for colour, one in zip(_COLOURS, mine, strict=False):
                axes.plot(*zip(*one.curve, strict=True), color=colour, linewidth=1.5, label=one.name)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_xlabel("step")
            axes.set_title(f"{name}: {mine[0].measure}", fontsize=8)
            axes.legend(frameon=False, fontsize=7)

    return rendered("variants", _size(len(names)), draw)


def _size(count: int) -> tuple[float, float]:
    return 3.0 * min(count, _ACROSS), 2.6 * ceil(count / _ACROSS)


def _panels(figure: Any, count: int) -> list[Any]:
    panels = list(figure.subplots(ceil(count / _ACROSS), min(count, _ACROSS), squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return panels[:count]
