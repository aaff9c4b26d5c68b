"""`troth verify`: check evidence of bans, and models, offline."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import OwnTask, Trust, agree, with_options
from troth.cli.progress import telling
from troth.errors import printable

if TYPE_CHECKING:
    from troth.api.verify import Verdict

_FIELDS = {"run": "--run", "task": "--task"}
_VOTED = 3  # nothing speaks against any file, and some bans rest on votes: a script that trusts no quorum must notice


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Evidence of bans (ban-….json), model.json, or folders with such files below them."
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|ID", help="The run they should be about: its run.toml, or its id, from somebody you trust."
        ),
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            help="Also repeat the disputed computation and check the weights. That runs the task: a file beside run.toml only "
            "if it is byte for byte the agreed one, and you agree, as with `troth join`."
        ),
    ] = True,
    task: OwnTask = None,
    trust: Trust = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Below each verdict, in words: what was claimed, who voted, what can be repeated."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as a JSON list.")] = False,
) -> None:
    """Check evidence of bans, and models, of a run that you know, offline, and say what each file proves.

    One line per file: proved; rests on votes (why); not proved: why; unknown run; cannot be read.

    Exit code 0: all are proved. 3: some rest on members' votes, and the rest is proved. 1: something is not proved, or its run is
    not named. 2: wrong usage, or no file could be read at all.
    """
    with telling("loading PyTorch"):
        from troth.api.verify import expand, verify_paths

    verdicts: list[Verdict] = []
    if recompute and task is None and run is not None and run.endswith(".toml") and Path(run).is_file():
        from troth.network.manifest.manifest import Manifest

        agree(Manifest.load(run), trust)
    files = expand(paths)
    with telling(_place(files, 0)) as now:
        for verdict in verify_paths(files, run, recompute=recompute, task=task):
            verdicts.append(verdict)
            now(_place(files, len(verdicts)))
            if not as_json:
                typer.echo(with_options(verdict.line(), _FIELDS))
            if explain and not as_json:
                typer.echo("".join(f"    {printable(line)}\n" for line in verdict.explanation), nl=False)
    if as_json:
        typer.echo(with_options(json.dumps([verdict.plain() for verdict in verdicts], indent=1), _FIELDS))
    elif len(verdicts) > 1:
        typer.echo(_summary(verdicts))
    raise typer.Exit(_exit_code(verdicts))


def _exit_code(verdicts: "list[Verdict]") -> int:
    from troth.api.verify import Result

    results = {verdict.result for verdict in verdicts}
    if results <= {Result.PROVED, Result.VOTED}:
        return _VOTED if Result.VOTED in results else 0
    return 2 if results == {Result.UNREADABLE} else 1


def _summary(verdicts: "list[Verdict]") -> str:
    from troth.api.verify import Result

    counts = Counter(verdict.result for verdict in verdicts)
    said = {one: one.value if counts[one] == 1 else one.value.replace("rests ", "rest ") for one in Result}
    return f"{len(verdicts)} files: " + "; ".join(f"{counts[one]} {said[one]}" for one in Result if counts[one])


def _place(files: list[Path], done: int) -> str:
    at = min(done, len(files) - 1)
    return f"checking {at + 1} of {len(files)}: {files[at]}"
