"""The picture, drawn: as wide and high as the terminal is now. No information by colour alone: each cell has a letter or sign."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from troth.errors import printable
from troth.events.kinds import Status
from troth.watch.health import health, in_time
from troth.watch.terminal.picture import Cell, Picture

_BLOCKS = "▁▂▃▄▅▆▇█"
_SIGNS: dict[Cell, tuple[str, str, str, str]] = {  # sign, sign in ASCII, style, meaning
    Cell.NOTHING: (" ", " ", "", ""),
    Cell.CONTRIBUTED: ("·", ".", "dim", "contributed"),
    Cell.CLEAN: ("✓", "o", "green", "clean"),
    Cell.VALIDATOR: ("v", "v", "cyan", "audits"),
    Cell.SILENT: ("-", "-", "yellow", "silent"),
    Cell.CANDIDATE: ("c", "c", "blue", "on probation"),
    Cell.ACCUSED: ("!", "!", "bold yellow", "accused"),
    Cell.GONE: ("«", "<", "yellow", "left"),
    Cell.BANNED: ("✗", "X", "bold red", "banned"),
}
_LEAST_GRID, _MOST_NAME, _MOST_NEWS = 3, 16, 8


@dataclass
class View:
    """A picture and the present, as rich draws it."""

    picture: Picture
    status: Status | None = None
    news: bool = True  # False where they are printed above
    now: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = not (options.encoding or "utf-8").lower().startswith("utf")
        width, height = options.max_width, (options.height or console.size.height) - 1
        head = [*self._header(width), *self._curves(width, plain=plain), *self._present()]
        foot = self._traffic()
        news = [Text(f"  {one}") for one in list(self.picture.news)[-_MOST_NEWS:]] if self.news else []
        left = height - len(head) - len(foot) - 1
        news = news[max(0, len(news) - max(1, left // 3)) :] if left > 0 else []
        grid = self._grid(width, left - len(news), plain=plain)
        for one in [*head, *grid, *news, *foot][: max(1, height)]:
            one.no_wrap, one.overflow = True, "crop" if plain else "ellipsis"
            if plain:
                one.plain = one.plain.encode("ascii", "replace").decode()
            yield one

    def _header(self, width: int) -> Iterator[Text]:
        began, last = self.picture.began, self.picture.last
        if began is None:
            yield Text("No events yet: waits for the run to begin")
            return
        yield Text(self.picture.title, style="bold")
        done = last.updates if last is not None else 0
        withstands = last.withstands if last is not None else began.withstands
        members = last.members if last is not None else len(began.peers)
        parts = [f"step {done}/{began.of}", f"{done / began.of:.0%}" if began.of else "", f"{members} members"]
        parts.append("no guarantee" if withstands is None else f"withstands {withstands}")
        quorum = last.quorum if last is not None else began.quorum
        parts += [f"quorum {quorum}"] if quorum else []
        parts += ["under attack"] if last is not None and last.attacked else []
        if self.status is not None and self.status.left_s is not None and self.picture.ended is None:
            parts.append(f"about {in_time(self.status.left_s)} left")
        yield Text("  ".join(filter(None, parts)))

    def _curves(self, width: int, *, plain: bool) -> Iterator[Text]:
        curves = [("batch loss", self.picture.loss)]
        curves += [(f"test {name}" if name == "loss" else name, curve) for name, curve in self.picture.metrics.items()][
            :2
        ]
        for name, curve in curves:
            if curve.last is not None:
                value = f"{curve.last:.1%}" if name == "accuracy" else f"{curve.last:.4g}"
                label = printable(f"{name[:20]:<10} {value:>8} ")
                room = min(60, width - len(label))
                yield Text(label) + Text("" if plain or room < 8 else sparkline(curve.points, room), style="cyan")

    def _present(self) -> Iterator[Text]:
        """What it does now, and for whom it waits."""
        ended, status = self.picture.ended, self.status
        if ended is not None:
            yield Text(printable(f"{ended.how}  {ended.text}".strip()), style="bold")
            return
        if status is None:
            return
        how = health(Path(), status, time.time() if self.now is None else self.now)
        if how.stale:
            yield Text(f"last heard of {how.when}: its process is gone, or hangs", style="bold red")
            return
        parts = [status.doing, f"{status.phase} of step {status.step}" if status.phase else ""]
        parts.append(f"attempt {status.attempt + 1}" if status.attempt else "")
        if status.waits_for:
            parts.append(status.waits_for)
        elif status.unheard:
            names = list(status.unheard[:5])
            more = f" and {len(status.unheard) - len(names)} more" if len(status.unheard) > len(names) else ""
            parts.append(f"waits for {', '.join(names)}{more}")
        if status.since is not None:
            parts.append(f"no update for {in_time(status.at - status.since)}")
        yield Text(printable("  ".join(filter(None, parts))), style="" if status.doing == "training" else "yellow")

    def _traffic(self) -> list[Text]:
        last, status = self.picture.last, self.status
        if last is None:
            return []
        received = max(status.received_bytes if status else 0, last.control_bytes + last.bulk_bytes)
        sent = max(status.sent_bytes if status else 0, last.sent_bytes)
        parts = [f"{last.seconds:.2f} s a step"] if last.seconds is not None else []
        parts += [f"{received / 1e6:.1f} MB in, {sent / 1e6:.1f} MB out"] if received or sent else []
        parts += [f"Δ {last.delta_s:.1f} s"] if last.delta_s else []
        if status is not None and status.links:
            parts.append(f"{sum(link.connected for link in status.links)} of {len(status.links)} connected")
        return [Text("  ".join(parts), style="dim")] if parts else []

    def _grid(self, width: int, height: int, *, plain: bool) -> list[Text]:
        """Peers × last steps, with a legend of the signs that occur."""
        columns, rows = self.picture.columns, self.picture.rows
        if not columns or height < _LEAST_GRID or width < 24:
            return []
        shown, hidden = rows[: height - 2], rows[height - 2 :]
        if hidden:  # room for the line about them
            shown, hidden = rows[: height - 3], rows[height - 3 :]
        name_width = min(_MOST_NAME, max(cell_len(name) for name in shown), width // 3)
        visible = list(columns)[-(width - name_width - 1) :]
        used = {cell for column in visible for cell in column.cells.values()}
        lines = [self._legend(used, visible[0].step, visible[-1].step, plain=plain)]
        for name in shown:
            label = set_cell_size(printable(name), name_width)
            text = Text(label, style="red strike" if name in self.picture.banned else "")
            text.append(" ")
            for cell, some in groupby(column.cells.get(name, Cell.NOTHING) for column in visible):
                sign, ascii_sign, style, _ = _SIGNS[cell]
                text.append((ascii_sign if plain else sign) * len(list(some)), style=style)
            lines.append(text)
        if hidden:
            lines.append(Text(f"and {len(hidden)} more peers{_troubles(hidden, self.picture)}", style="dim"))
        return lines

    def _legend(self, used: set[Cell], first: int, last: int, *, plain: bool) -> Text:
        text = Text(f"steps {first}–{last}" if not plain else f"steps {first}-{last}", style="dim")
        for cell, (sign, ascii_sign, style, meaning) in _SIGNS.items():
            if cell in used and meaning:
                text.append("  ")
                text.append(ascii_sign if plain else sign, style=style)
                text.append(f" {meaning}", style="dim")
        return text


def _troubles(names: Sequence[str], picture: Picture) -> str:
    banned = sum(name in picture.banned for name in names)
    return f", of whom {banned} banned" if banned else ""


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line; the highest value is the highest block."""
    finite = [value for value in values if abs(value) < float("inf") and value == value]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    count = min(width, len(values))
    picked = [values[min(len(values) - 1, (2 * at + 1) * len(values) // (2 * count))] for at in range(count)]
    return "".join(_block(value, low, high) for value in picked)


def _block(value: float, low: float, high: float) -> str:
    if value != value:
        return " "
    # Halves: the difference of two very large numbers would be no number.
    share = 0.0 if high == low else (min(max(value, low), high) / 2 - low / 2) / (high / 2 - low / 2 or 1.0)
    return _BLOCKS[min(len(_BLOCKS) - 1, int(share * len(_BLOCKS)))]
