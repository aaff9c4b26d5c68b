"""`troth lab report`: what a sweep found, as a page, pictures and tables."""

from pathlib import Path
from typing import Annotated

import typer

_PRINTED = ("expected.md", "paired.md")  # tables that answer what a sweep asks


def report(
    results: Annotated[
        Path, typer.Argument(help="Folder of results, as 'troth lab run' made it; or a folder of such.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report. Default: that of the results.")] = None,
) -> None:
    """Write one page that needs nothing else (report.html), pictures (PNG) and tables (CSV, Markdown).

    Of an unfinished sweep it shows what is there, and says so.

    Example: troth lab report results/matrix
    """
    from troth.lab.report import write_report

    written = write_report(results, out)
    typer.echo(written.summary)
    for path in written.tables:
        if path.name in _PRINTED:
            typer.echo("\n" + path.read_text(encoding="utf-8"))
    typer.echo(f"report   {written.page}")
    for name, files in (("tables", written.tables), ("figures", written.figures)):
        if files:
            typer.echo(f"{name:<8} {files[0].parent}")
