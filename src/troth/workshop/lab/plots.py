"""Pictures of runs."""

from collections.abc import Sequence
from itertools import cycle
from math import nan
from pathlib import Path

from troth.evidence.file_format import RunSummary
from troth.workshop.lab.figures import Axes, rendered

_RUN_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d98b19", "#4d4d4d")


def plot_runs(runs: Sequence[tuple[str, RunSummary]], path: Path, title: str) -> None:
    """Draw a metric over steps (accuracy where there is one, else the loss): one line per run, the attack marked."""
    metric = _metric([run for _, run in runs])
    path.write_bytes(rendered((9, 5), lambda figure: _draw(figure.subplots(), runs, metric, title)))


def _draw(axes: Axes, runs: Sequence[tuple[str, RunSummary]], metric: str, title: str) -> None:
    for colour, (label, run) in zip(cycle(_RUN_COLOURS), runs, strict=False):
        points = [(point["step"], point.get(metric, nan)) for point in run.curve]
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=2, label=label)
        if run.details.get("diverged_at") is not None:
            axes.plot(*points[-1], marker="x", markersize=9, markeredgewidth=2.5, color=colour)
            axes.annotate("diverged", points[-1], xytext=(8, 4), textcoords="offset points", color=colour)
        _mark_bans(axes, run, dict(points), colour)
    _mark_attack(axes, [run for _, run in runs])
    axes.set_xlabel("step")
    axes.set_ylabel(f"test {metric}")
    if metric == "accuracy":
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    elif all(point.get(metric, 1.0) > 0 for _, run in runs for point in run.curve):
        axes.set_yscale("log")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")


def _metric(runs: Sequence[RunSummary]) -> str:
    """The metric that all runs have: accuracy, else the loss, else the first."""
    shared = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    return next((name for name in ("accuracy", "loss", *shared) if name in shared), "loss")


def _mark_bans(axes: Axes, run: RunSummary, curve: dict[float, float], colour: str) -> None:
    """Draw a triangle on the curve at every ban."""
    steps = [ban["step"] for ban in run.details.get("banned", [])]
    if steps:
        known = sorted(curve)
        heights = [curve[min(known, key=lambda at: abs(at - step))] for step in steps]
        axes.plot(steps, heights, "v", color=colour, markersize=8, markeredgecolor="white", label="a liar is banned")


def _mark_attack(axes: Axes, runs: Sequence[RunSummary]) -> None:
    attacked = [run for run in runs if run.byzantine]
    if not attacked:
        return
    config = attacked[0].config
    stop = config["attack_stop"] or config["steps"]
    axes.axvspan(config["attack_start"], stop, color="#c0392b", alpha=0.07, linewidth=0)
    axes.axvline(config["attack_start"], color="#c0392b", linestyle="--", linewidth=1)
    axes.annotate(
        f" {len(attacked[0].byzantine)} of {attacked[0].peers} attack: {config['attack']}",
        (config["attack_start"], 0.02),
        xycoords=("data", "axes fraction"),
        color="#c0392b",
        fontsize=9,
    )
