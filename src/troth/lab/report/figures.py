"""Figures: one look for all, the same bytes for the same data."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from troth.lab.report.records import Label, show

INK, MUTED, LINE, PAPER, ALARM = "#1f2329", "#676d76", "#dcdfe4", "#fffffe", "#b4322a"
# With twelve of them and four dashes, 48 lines differ.
_COLOURS = (
    "#d1495b", "#2f9e60", "#9a5fd0", "#c77d1a", "#12959c", "#c2559d",
    "#7b8f1e", "#5a74d6", "#a8642a", "#e07b9a", "#3f8fbf", "#b0506e",
)  # fmt: skip
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
_OURS, _PLAIN = "#2f7fd0", "#868b94"
LETTER = 0.075  # inches that one takes, about
Axes = Any  # matplotlib's


@dataclass(frozen=True)
class Style:
    """How a line is drawn."""

    colour: str
    dashes: tuple[float, ...]
    width: float = 1.5

    @property
    def options(self) -> dict[str, Any]:
        dashed = (0, tuple(length / self.width * 1.5 for length in self.dashes)) if self.dashes else "solid"
        return {"color": self.colour, "linestyle": dashed, "linewidth": self.width}


def styles(values: Sequence[Label]) -> dict[Label, Style]:
    """Troth's lines are the thick ones, that of the plain mean is grey."""
    ours = [value for value in values if str(value).partition(",")[0] == "troth"]  # `troth, τ = 10` is Troth too
    fixed: dict[Label, Style] = {value: Style(_OURS, _DASHES[at % len(_DASHES)], 2.6) for at, value in enumerate(ours)}
    fixed["mean"] = Style(_PLAIN, (5, 2), 1.8)
    others = [value for value in values if value not in fixed]
    made = {
        value: Style(_COLOURS[at % len(_COLOURS)], _DASHES[(at + at // len(_COLOURS)) % len(_DASHES)])
        for at, value in enumerate(others)
    }
    return {value: fixed.get(value) or made[value] for value in values}


@dataclass(frozen=True)
class Picture:
    """A figure, its title, and what is to be known for reading it."""

    name: str
    title: str
    caption: str
    png: bytes

    def files(self) -> dict[str, bytes]:
        return {f"figures/{self.name}.png": self.png}


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    draw: Callable[[Axes], None]


def panels_in_rows(panels: Sequence[Panel], title: str, lines: Sequence[tuple[str, Style]]) -> bytes:
    """All panels, with one legend below."""
    columns = min(len(panels), 4 if len(panels) > 9 else 3)
    rows = -(-len(panels) // columns)
    width = max(columns, 1.6) * 3.1 + 0.4
    widest = max((len(name) for name, _ in lines), default=1) * LETTER + 0.6  # with its line
    beside = max(1, min(6, len(lines), int(width / widest)))
    below = 0.35 + 0.2 * -(-len(lines) // beside)

    def draw(figure: Any) -> None:
        from matplotlib.lines import Line2D

        places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for at, place in enumerate(places.flat):
            place.set_visible(at < len(panels))
            if at < len(panels):
                panels[at].draw(place)
                _dress(place, panels[at].title)
                place.xaxis.set_tick_params(labelbottom=at + columns >= len(panels))
                place.set_xlabel(place.get_xlabel() if at + columns >= len(panels) else "")
                place.set_ylabel(place.get_ylabel() if at % columns == 0 else "")
        figure.suptitle(show(title, 90), fontsize=12, color=INK)
        handles = [Line2D([], [], **style.options) for _, style in lines]
        names = [" " + name for name, _ in lines]  # matplotlib leaves out names that begin with "_"
        figure.legend(handles, names, loc="outside lower center", ncols=beside, frameon=False)

    return rendered((width, rows * 2.35 + 0.4 + below), draw)


def rendered(size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    """PNG of a figure that `draw` fills. Nothing of the time or of chance is in it."""
    from matplotlib import rc_context  # a second to import; no window system is touched
    from matplotlib.figure import Figure

    look: Any = {
        "text.parse_math": False,  # a label is text, never a formula
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "text.color": INK,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": MUTED,
        "axes.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.labelcolor": INK,
    }
    with rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label in a script that the font does not have
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        draw(figure)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=130, metadata={"Software": None})
    return image.getvalue()


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(show(title, 44), fontsize=9.5, color=INK, loc="left")
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=2.5)
