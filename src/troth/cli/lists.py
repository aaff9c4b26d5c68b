"""`troth attacks`, `troth defences`, `troth tasks`: lists, one line per entry."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import typer


def attacks() -> None:
    """List the attacks, with their options."""
    from troth.attacks import ATTACKS

    _print((name, _line(kind)) for name, kind in ATTACKS.items())


def defences() -> None:
    """List the defences."""
    from troth.aggregation import RULES
    from troth.simulation import TROTH

    typer.echo(f"{TROTH:<20}the protocol: no server to trust, liars are caught by recomputing and banned with evidence")
    typer.echo("\nWith a trusted server that bans nobody, as in prior work:")
    _print((name, entry.summary) for name, entry in RULES.items())


def tasks(
    check: Annotated[
        str | None, typer.Option(help="Check that this task is a pure function of its seed, and say what is wrong.")
    ] = None,
) -> None:
    """List the tasks, with their options; or check one, your own for instance: --check my_task.py."""
    from troth.training import TASKS, Problem, check_pure, make_task

    if check is None:
        _print((name, _line(kind)) for name, kind in TASKS.items())
        return
    task = make_task(check)
    problem = Problem(task)
    check_pure(task, problem)
    how = f"one by one ({problem.why_one_by_one})" if problem.why_one_by_one else "of all peers in one call"
    typer.echo(f"{check} is pure: {problem.size:,} parameters, gradients computed {how}")


def _line(kind: type) -> str:
    summary = (kind.__doc__ or "").strip().splitlines()[0]
    options = (
        [f"{f.name}={f.default}" for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else []
    )
    return f"{summary} [{', '.join(options)}]" if options else summary


def _print(rows: Iterable[tuple[str, str]]) -> None:
    for name, line in rows:
        typer.echo(f"{name:<20}{line}")
