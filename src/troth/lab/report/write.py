"""Writing the report: the page, its figures and its tables, beside the results or elsewhere."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from troth.errors import printable
from troth.files import write_bytes
from troth.lab.report.markup import Html, element, joined
from troth.lab.report.page import Chapter, page
from troth.lab.report.reading import ReportError, read_sweep, sweep_folders
from troth.lab.report.records import Sweep, file_names, show
from troth.lab.report.sections import SectionBuilder, sections
from troth.lab.report.study import Study
from troth.lab.report.words import findings, setting, trouble

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Where the report is, and what is in it."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    sweeps: tuple[str, ...]
    runs: int
    failed: int
    unfinished: tuple[str, ...]  # sweeps of which runs are missing
    summary: str


def write_report(folder: Path, out: Path | None = None, extra: Sequence[SectionBuilder] = ()) -> Report:
    """Report on a sweep's folder, or on all that are in a folder: `report.html`, `figures/` and `tables/` in `out` (`folder`).

    Files of an earlier report that go by the same name are replaced, others stay. Equal results give equal bytes.
    """
    sweeps = [read_sweep(place) for place in sweep_folders(folder)]
    prefixes = _prefixes(sweeps)
    chapters, files, said = [], dict[str, bytes](), []
    for sweep, prefix in zip(sweeps, prefixes, strict=True):
        study = Study(sweep)
        found = sections(study, extra)
        for section in found:
            for block in section.blocks:
                files |= {_placed(path, prefix): content for path, content in block.files().items()}
        paragraphs = (setting(study), findings(study), trouble(study))
        said.append(" ".join(sentence for some in paragraphs for sentence in some).replace("\u00a0", " "))
        chapters.append(Chapter(show(sweep.title, 120), *paragraphs, _made(sweep), found))
    title = show(sweeps[0].title if len(sweeps) == 1 else f"{len(sweeps)} sweeps", 120)
    place = folder if out is None else out
    _write(place, {PAGE: page(title, chapters).encode(), **files})
    return Report(
        page=place / PAGE,
        figures=tuple(place / path for path in files if path.startswith("figures/")),
        tables=tuple(place / path for path in files if path.startswith("tables/")),
        sweeps=tuple(sweep.name for sweep in sweeps),
        runs=sum(len(sweep.runs) for sweep in sweeps),
        failed=sum(len(sweep.failed) for sweep in sweeps),
        unfinished=tuple(sweep.name for sweep in sweeps if sweep.unfinished),
        summary="\n\n".join(said),
    )


def _write(place: Path, files: dict[str, bytes]) -> None:
    try:
        for path, content in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place / path, content)
    except OSError as error:
        raise ReportError(f"cannot write to {place}: {error.strerror}; choose another folder") from error


def _prefixes(sweeps: Sequence[Sweep]) -> list[str]:
    """Fronts of file names, by which several sweeps share a folder."""
    if len(sweeps) == 1:
        return [""]
    return [f"{name}-" for name in file_names([sweep.name for sweep in sweeps])]


def _placed(path: str, prefix: str) -> str:
    folder, name = path.split("/")
    return f"{folder}/{prefix}{name}"


def _made(sweep: Sweep) -> Html:
    """How to make it again, with which version, and where its runs were made."""
    versions = sorted({show(run.version, 30) for run in sweep.runs})
    name = shlex.quote(printable(sweep.name)[:80])
    where = f"; run on {'; '.join(show(machine, 80) for machine in sweep.machines)}" if sweep.machines else ""
    return element(
        "p",
        joined(
            "Made by ",
            element("code", f"troth lab run {name if _is_recipe(sweep.name) else 'sweep.toml'}"),
            " and " if _is_recipe(sweep.name) else " (the file is beside the results) and ",
            element("code", f"troth lab report results/{name}"),
            f", Troth {', '.join(versions) or 'of no known version'}{where}.",
        ),
        class_="made",
    )


def _is_recipe(name: str) -> bool:
    return any(path.stem == name for path in (Path(__file__).parents[1] / "recipes").glob("*.toml"))
