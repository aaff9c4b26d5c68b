"""Writing the report: the page, its figures and its tables, beside the results or elsewhere."""

import html
import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from troth.errors import printable
from troth.files import write_bytes
from troth.workshop.lab.figures import Picture, axis_pictures, curve_pictures, heat_maps
from troth.workshop.lab.files import SweepError
from troth.workshop.lab.measures import ban_table, expected_table, failed_table, final_table, lost_table, paired_table
from troth.workshop.lab.reading import FinishedSweep, read_results, sweep_folders
from troth.workshop.lab.study import TROTH, Study
from troth.workshop.lab.tables import ResultTable, file_names, show

# The page: one file that asks nothing of any other machine, by day and by night, on a desk and on a phone

_LONG = 24  # rows; a longer table is folded
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title><style>
:root {{ --ink: #1f2329; --muted: #5f656e; --line: #dcdfe4; --paper: #fffffe; --tint: #f5f6f8; --alarm: #b4322a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e4e7eb; --muted: #9aa2ac; --line: #343a42; --paper: #14171b;
  --tint: #1c2026; --alarm: #ef7d70; }} }}
body {{ margin: 0 auto; max-width: 78rem; padding: 2rem clamp(1rem, 4vw, 3rem); background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h2 {{ margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }}
p, figcaption {{ max-width: 52rem; color: var(--muted); font-size: .9rem; }}
.trouble {{ border-left: 3px solid var(--alarm); color: var(--ink); padding-left: 2rem; }}
figure {{ margin: 0 0 1.6rem; }}
img {{ max-width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); }}
table {{ border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; text-align: left; border-bottom: 1px solid var(--line); overflow-wrap: normal; }}
td {{ white-space: nowrap; }}
thead th {{ background: var(--tint); }}
.n {{ text-align: right; }}
summary {{ cursor: pointer; }}
</style></head><body>
{body}
</body></html>
"""

Block = Picture | ResultTable


@dataclass(frozen=True)
class Chapter:
    """One sweep's part of the page: facts as name and value, what a reader must know first, and sections by title."""

    title: str
    facts: Sequence[tuple[str, str]]
    trouble: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Block]]]

    def html(self) -> str:
        facts = [f"<tr><th scope=row>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in self.facts]
        trouble = [f"<li>{_safe(one)}</li>" for one in self.trouble]
        parts = [f"<h1>{_safe(self.title)}</h1>", _scrolling(f"<tbody>{''.join(facts)}</tbody>", "What was run")]
        parts += [f'<ul class="trouble">{"".join(trouble)}</ul>'] if trouble else []
        for title, blocks in self.sections:
            parts += [f"<h2>{_safe(title)}</h2>", *map(_block, blocks)]
        return "\n".join(parts)


def page(title: str, chapters: Iterable[Chapter]) -> str:
    """The whole document."""
    return _PAGE.format(title=_safe(title), body="\n".join(chapter.html() for chapter in chapters))


def _block(block: Block) -> str:
    head = f"<h3>{_safe(block.title)}</h3>"
    if isinstance(block, Picture):
        source = f"data:image/png;base64,{b64encode(block.png).decode()}"
        caption = f"<figcaption>{_safe(block.caption)}</figcaption>" if block.caption else ""
        return f'<figure>{head}<img src="{source}" alt="{_safe(block.title)}">{caption}</figure>'
    numeric = block.numeric()
    lines = [_line("th scope=col", [column.title for column in block.columns], numeric)]
    lines += [_line("td", row, numeric) for row in block.cells()]
    table = _scrolling(f"<thead>{lines[0]}</thead><tbody>{''.join(lines[1:])}</tbody>", block.title)
    if len(block.rows) > _LONG or block.folded:
        table = f"<details><summary>{_safe(block.title)}: {len(block.rows)} rows</summary>{table}</details>"
        head = "" if block.folded else head
    return f"{head}<p>{_safe(block.note)}</p>{table}" if block.note and not block.folded else head + table


def _line(tag: str, cells: Sequence[str], numeric: Sequence[bool]) -> str:
    end = tag.partition(" ")[0]
    found = (f"<{tag}{' class=n' * right}>{_safe(cell)}</{end}>" for cell, right in zip(cells, numeric, strict=True))
    return f"<tr>{''.join(found)}</tr>"


def _scrolling(table: str, label: str) -> str:
    """A wide table scrolls by itself, with the keyboard too; the page does not."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{_safe(label)}"><table>{table}</table></div>'


def _safe(text: str) -> str:
    """What a stranger wrote, made safe to look at; line breaks and the spaces that hold a number to its unit are ours."""
    return html.escape(re.sub(r"[^\n\u00a0]+", lambda some: printable(some[0]), text))


PAGE = "report.html"


@dataclass(frozen=True)
class SweepReport:
    """Where the report is, and what is in it."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    sweeps: tuple[FinishedSweep, ...]
    summary: str


def write_report(folder: Path, out: Path | None = None) -> SweepReport:
    """Report on a sweep's folder, or on all that are in a folder: `report.html`, `figures/` and `tables/` in `out` (`folder`).

    Files of an earlier report that go by the same name are replaced, others stay. Equal results give equal bytes.
    """
    sweeps = [read_results(place) for place in sweep_folders(folder)]
    prefixes = [f"{name}-" for name in file_names([sweep.name for sweep in sweeps])] if len(sweeps) > 1 else [""]
    chapters, files = [], dict[str, bytes]()
    for sweep, prefix in zip(sweeps, prefixes, strict=True):
        study = Study(sweep)
        chapter = Chapter(show(sweep.title, 120), facts(study), trouble(study), sections(study))
        for block in (block for _, blocks in chapter.sections for block in blocks):
            files |= {path.replace("/", f"/{prefix}"): content for path, content in block.files().items()}
        chapters.append(chapter)
    title = chapters[0].title if len(chapters) == 1 else f"{len(chapters)} sweeps"
    place = folder if out is None else out
    _write(place, {PAGE: page(title, chapters).encode(), **files})
    said = ("\n".join([*(f"{name:<16} {value}" for name, value in one.facts), *one.trouble]) for one in chapters)
    return SweepReport(
        page=place / PAGE,
        figures=tuple(place / path for path in files if path.startswith("figures/")),
        tables=tuple(place / path for path in files if path.startswith("tables/")),
        sweeps=tuple(sweeps),
        summary="\n\n".join(said),
    )


def _write(place: Path, files: dict[str, bytes]) -> None:
    try:
        for path, content in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place / path, content)
    except OSError as error:
        raise SweepError(f"cannot write to {place}: {error.strerror}; choose another folder") from error


def sections(study: Study) -> list[tuple[str, list[Block]]]:
    """All that have something to show, in order."""
    if not study.runs:
        return _filled([("What failed", [failed_table(study)])])
    curves, left_out = curve_pictures(study)
    more = f": {left_out} panels more are left out here; the tables have their numbers" if left_out else ""
    return _filled(
        [
            ("Who withstands what", [block for one in heat_maps(study) for block in (one.picture(), one.table())]),
            ("Against published figures", [expected_table(study)]),
            ("Seed by seed", [paired_table(study)]),
            (f"Curves{more}", curves),
            ("Over numbers", axis_pictures(study)),
            ("Tables", [final_table(study), lost_table(study), ban_table(study)]),
            ("What failed", [failed_table(study)]),
        ]
    )


def _filled(found: Iterable[tuple[str, Sequence[Block | None]]]) -> list[tuple[str, list[Block]]]:
    whole = [(title, [block for block in blocks if block is not None]) for title, blocks in found]
    return [(title, blocks) for title, blocks in whole if blocks]


def facts(study: Study) -> list[tuple[str, str]]:
    """What was run, with what all runs have in common, and how to run it again."""
    sweep, runs = study.sweep, study.runs
    name = shlex.quote(printable(sweep.name)[:80])
    recipe = (Path(__file__).parent / "recipes" / f"{name}.toml").is_file()
    seeds = sorted({run.seed for run in runs})
    found = [
        ("runs", f"{len(runs)}, seeds {', '.join(map(str, seeds))}" if runs else "no run has ended yet"),
        ("task", _shared(run.config.get("task") for run in runs)),
        ("peers", _shared(run.config.get("peers") for run in runs)),
        ("liars", _shared(len(run.outcome.liars) for run in runs if not run.calm)),
        ("steps", _shared(run.outcome.steps for run in runs if run.outcome.diverged_at is None)),
        *((show(axis), ", ".join(map(show, study.values[axis]))) for axis in study.axes),
        ("again", f"troth lab run {name if recipe else 'sweep.toml'}; troth lab report results/{name}"),
        ("Troth", ", ".join(sorted({show(run.version, 30) for run in runs}))),
        ("machine", "; ".join(show(machine, 80) for machine in sweep.machines)),
    ]
    return [(title, value) for title, value in found if value]


def _shared(values: Iterable[object]) -> str:
    """The value that all have."""
    found = {repr(value): value for value in values}
    return show(next(iter(found.values())), 120) if len(found) == 1 else ""


def trouble(study: Study) -> list[str]:
    """What a reader must know before believing the rest."""
    sweep, runs = study.sweep, study.runs
    outside = {show(run.defence, 40) for run in runs if run.outcome.assumed_byzantine is not None and not run.calm}
    unfinished = (
        "the sweep is unfinished: 'troth lab run' goes on with it" if sweep.unfinished else "impossible, or not run yet"
    )
    counted = [
        (sum(not run.outcome.agreement for run in runs), "runs in which honest peers did not agree: that must not be"),
        (sum(run.honest_out for run in runs if run.defence == TROTH), "honest peers banned by Troth: that must not be"),
        (
            sum(run.outcome.unused_shards for run in runs),
            "runs of Troth without the task's shards (○): an easier problem",
        ),
        (len(outside), f"defences outside their guarantee (†): {', '.join(sorted(outside))}"),
        (sum(run.outcome.diverged_at is not None for run in runs), "runs diverged (✕)"),
        (
            sum(study.metric.final(run) is None for run in runs),
            f"runs ended without a number for the {study.metric.name}",
        ),
        (sum(run.outcome.stalled is not None for run in runs), "runs stalled: too few were left to go on"),
        (len(sweep.failed), "runs failed; they are listed at the end"),
        (sweep.missing, f"of {sweep.planned} cells have no result: {unfinished}"),
        (int(sweep.torn), "line of the results is cut off: the sweep is unfinished, 'troth lab run' goes on with it"),
    ]
    return [f"{count} {what}" for count, what in counted if count]
