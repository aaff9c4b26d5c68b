"""`troth lab recipes`: the sweeps that come with Troth."""

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one, to begin your own sweep with.")] = None,
) -> None:
    """List the sweeps that come with Troth, or print one of them.

    Example: troth lab recipes matrix > my.toml
    """
    import math
    from pathlib import Path

    from troth.lab.recipes import find_sweep
    from troth.lab.recipes import recipes as files
    from troth.specs import pick

    there = files()
    if name is not None:
        typer.echo(pick(there, name, "recipe").read_text(encoding="utf-8"), nl=False)
        return
    width = max(map(len, there))
    for recipe in there:
        sweep = find_sweep(recipe)
        runs = len(sweep.seeds) * sum(math.prod(map(len, group.axes.values())) for group in sweep.groups)
        data = ", needs --data" if sweep.needs_data else ""
        typer.echo(f"{recipe:<{width}}  {sweep.title} ({runs} runs{data})")
    typer.echo(f"\nRun one: troth lab run {Path(next(iter(there))).name}")
