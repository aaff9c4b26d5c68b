"""`troth attacks`, `troth defences`, `troth tasks`: lists, one line per entry."""

import dataclasses
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from troth.training import Problem


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
    typer.echo(f"{check} is pure: the same seed gives the same gradient")
    for line in _described(problem):
        typer.echo(line)


def _described(problem: "Problem") -> Iterator[str]:
    """What the check found out, one line each."""
    from troth.crypto import derive
    from troth.training.file_reads import files_read

    task, batch = problem.task, problem.batch(derive(0, "how long"))
    flat_D = problem.initial(0)
    problem.gradient(flat_D, batch)  # the first one warms up
    start = perf_counter()
    problem.gradient(flat_D, batch)
    taken = perf_counter() - start
    drawn = ", ".join(f"{name} ×{count}" for name, count in problem.drawn.items() if count)
    declared, read = len(task.data_files()), len(files_read(task))
    yield f"parameters   {problem.size:,} trained, {problem.frozen:,} frozen"
    why = problem.why_one_by_one
    yield f"gradients    {f'one by one ({why})' if why else 'of many peers in one call'}, {taken * 1e3:,.1f} ms for one here"
    if task.accumulate > 1 or task.autocast:
        yield f"             {task.accumulate} micro-batches each, in {task.autocast or 'float32'}"
    yield f"randomness   {f'{drawn}, all from the seed of the batch' if drawn else 'none in the loss'}"
    batches = [problem.batch(derive(0, "how far", k)) for k in range(8)]
    gradients_PD = problem.gradients(flat_D, batches)[1]
    usual = float((gradients_PD - gradients_PD.mean(dim=0)).norm(dim=1).median())
    yield f"distance     {usual:.2g} from one gradient to the mean of eight, at first; tau is {task.tau:g}"
    yield f"files        {declared} declared in data_files(), {read} seen being read"


def _line(kind: type) -> str:
    summary = (kind.__doc__ or "").strip().splitlines()[0]
    options = (
        [f"{f.name}={f.default}" for f in dataclasses.fields(kind) if f.init] if dataclasses.is_dataclass(kind) else []
    )
    return f"{summary} [{', '.join(options)}]" if options else summary


def _print(rows: Iterable[tuple[str, str]]) -> None:
    for name, line in rows:
        typer.echo(f"{name:<20}{line}")
