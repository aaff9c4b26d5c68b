"""Writing the report: the page, its figures and its tables, beside the results or elsewhere."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from troth.errors import printable
from troth.files import write_bytes
from troth.lab.files import SweepError
from troth.lab.report.curves import axis_pictures, curve_pictures
from troth.lab.report.heat import heat_maps
from troth.lab.report.measures import (
    ban_table,
    expected_table,
    failed_table,
    final_table,
    lost_table,
    paired_table,
)
from troth.lab.report.page import Block, Chapter, page
from troth.lab.report.reading import read_sweep, sweep_folders
from troth.lab.report.records import Sweep, file_names, show
from troth.lab.report.study import TROTH, Study

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Where the report is, and what is in it."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    sweeps: tuple[Sweep, ...]
    summary: str


def write_report(folder: Path, out: Path | None = None) -> Report:
    """Report on a sweep's folder, or on all that are in a folder: `report.html`, `figures/` and `tables/` in `out` (`folder`).

    Files of an earlier report that go by the same name are replaced, others stay. Equal results give equal bytes.
    """
    sweeps = [read_sweep(place) for place in sweep_folders(folder)]
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
    return Report(
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
            ("Two defences side by side", [paired_table(study)]),
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
    recipe = (Path(__file__).parents[1] / "recipes" / f"{name}.toml").is_file()
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
