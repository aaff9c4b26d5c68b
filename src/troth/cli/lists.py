"""`troth attacks`, `troth defences`, `troth tasks`: lists, one line per entry; `troth example`: a file to begin your own with."""

import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib.resources import files
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from troth.training import Problem


class _Example(StrEnum):
    ATTACK = "attack"
    DEFENCE = "defence"
    TASK = "task"
    METRIC = "metric"


_EXAMPLES = {
    _Example.ATTACK: ("liars of your own, for --attack", "my_attack.py"),
    _Example.DEFENCE: ("an aggregation rule of your own, for --defence", "my_rule.py"),
    _Example.TASK: ("a model and data of your own, for --task", "my_task.py"),
    _Example.METRIC: ("a metric of your own, for --metric", "my_metric.py"),
}


def attacks() -> None:
    """List the attacks, with their options."""
    from troth.workshop.attacks import ATTACK, ATTACK_PLUGINS, ATTACKS
    from troth.workshop.simulation.stranger_specs import STRANGERS

    _print((name, _line(kind)) for name, kind in ATTACKS.items())
    typer.echo("\nStrangers at the door, for --probation 32 --strangers noise:at=20 (troth simulate):")
    _print((name, _line(kind)) for name, kind in STRANGERS.items())
    _print_offered(ATTACK_PLUGINS, ATTACK)
    _print_own(_Example.ATTACK)


def defences() -> None:
    """List the defences."""
    from troth.workshop.rules.memory import RuleEntry
    from troth.workshop.rules.table import RULES
    from troth.workshop.simulation import TROTH
    from troth.workshop.simulation.scenario import RULE, RULE_PLUGINS

    typer.echo(f"{TROTH:<20}the protocol: no server to trust, liars are caught by recomputing and banned with evidence")
    typer.echo("\nWith a trusted server that bans nobody, as in prior work:")
    _print((name, row.summary if isinstance(row, RuleEntry) else _line(row)) for name, row in RULES.items())
    _print_offered(RULE_PLUGINS, RULE)
    _print_own(_Example.DEFENCE)


def tasks(
    check: Annotated[
        str | None, typer.Option(help="Check that this task is a pure function of its seed, and say what is wrong.")
    ] = None,
) -> None:
    """List the tasks, with their options; or check one, your own for instance: --check my_task.py."""
    from troth.training import TASKS, Problem, check_pure, make_task
    from troth.training.tasks import COMMON_OPTIONS, TASK, TASK_PLUGINS

    if check is None:
        _print((name, _line(kind)) for name, kind in TASKS.items())
        _print_offered(TASK_PLUGINS, TASK)
        typer.echo(f"\nEvery task, your own too, takes {' and '.join(COMMON_OPTIONS)}: digits:clip_norm=1")
        _print_own(_Example.TASK)
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
    from troth.training.determinism import files_read

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
    if task.accumulate > 1 or task.autocast or task.tf32:
        precision = f"{task.autocast or 'float32'}{', TensorFloat-32 allowed' if task.tf32 else ''}"
        yield f"             {task.accumulate} micro-batches each, in {precision}"
    yield f"randomness   {f'{drawn}, all from the seed of the batch' if drawn else 'none in the loss'}"
    batches = [problem.batch(derive(0, "how far", k)) for k in range(8)]
    gradients_PD = problem.gradients(flat_D, batches)[1]
    usual = float((gradients_PD - gradients_PD.mean(dim=0)).norm(dim=1).median())
    yield f"distance     {usual:.2g} from one gradient to the mean of eight, at first; tau is {task.tau:g}"
    if task.clip_norm is not None:
        yield f"             gradients are clipped to a length of {task.clip_norm:g}"
    yield f"files        {declared} declared in data_files(), {read} seen being read"
    yield from (f"advice       {advice}" for advice in _advice(problem, usual))


def _advice(problem: "Problem", usual: float) -> Iterator[str]:
    """What a task may do, and rarely should."""
    from troth.training import Task
    from troth.training.dataset_task import DatasetTask

    task = problem.task
    if type(task).shard is not Task.shard:
        yield "shard() is for rules with a trusted server; under troth, and in a real run, all peers draw from all data"
    if 0 < usual < task.tau:
        few, more = f"{usual / 4:.2g}", f"{usual / 2:.2g}"
        yield f"tau is larger than the usual distance: begin with a quarter to a half of that, {few} to {more}"
    if isinstance(task, DatasetTask) and len(task.data) < task.batch_size:
        yield f"a batch of {task.batch_size} is drawn from {len(task.data)} items, and repeats some: take a smaller batch_size"
    parameters = dict(problem.module(problem.initial(0)).named_parameters())
    kinds = {str(parameters[name].dtype).removeprefix("torch.") for name in problem.layout.names} - {"float32"}
    if kinds:
        yield f"model() makes parameters of {', '.join(sorted(kinds))}, and they are trained in float32 all the same"


def example(
    kind: Annotated[
        _Example | None, typer.Argument(help="attack, defence, task or metric.", show_default="list them")
    ] = None,
) -> None:
    """Print a file to begin your own attack, defence, task or metric with; it works as it is.

    Example: troth example attack > my_attack.py
    """
    if kind is None:
        _print((name, f"{about}: troth example {name} > {file}") for name, (about, file) in _EXAMPLES.items())
        return
    typer.echo((files("troth.cli") / f"templates/{kind}.py").read_text(encoding="utf-8"), nl=False)


def _line(thing: Any) -> str:
    about = (inspect.getdoc(thing) or "(says nothing about itself)").strip().splitlines()[0]
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    options = [f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default}" for f in fields if f.init]
    return f"{about} [{', '.join(options)}]" if options else about


def _print_offered(group: str, kind: Any) -> None:
    """Plug-ins of installed packages; one that cannot be used says why."""
    from troth.plugins import PluginError, offered, offered_thing

    points = offered(group)
    if points:
        typer.echo("\nFrom installed packages:")
    for name, point in points.items():
        try:
            line = _line(offered_thing(point, kind))
        except PluginError as error:
            line = f"cannot be used: {error}"
        _print([(name, line)])


def _print_own(kind: _Example) -> None:
    file = _EXAMPLES[kind][1]
    typer.echo(f"\nYour own: troth example {kind} > {file}, then --{kind} {file} (or {file}:Name:option=value)")


def _print(rows: Iterable[tuple[str, str]]) -> None:
    for name, line in rows:
        typer.echo(f"{name:<20}{line}" if len(name) < 20 else f"{name}  {line}")
