"""`troth audit`: check a whole run offline, from one peer's folder."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from troth.cli.fields import OwnTask, Trust, agree
from troth.cli.progress import telling


def audit(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A peer's folder, as `troth join` leaves it.")],
    run: Annotated[Path, typer.Option(metavar="FILE", help="The run's manifest (run.toml), from somebody you trust.")],
    sample: Annotated[
        int,
        typer.Option(
            help="How many gradients, and at most how many updates, to compute again. They are drawn from the last record's "
            "randomness, so nobody chooses them."
        ),
    ] = 16,
    recompute: Annotated[
        bool,
        typer.Option(
            help="Also compute again: the sample, disputed work, and the weights. That runs the task: a file beside run.toml "
            "only if it is byte for byte the agreed one, and you agree, as with `troth join`."
        ),
    ] = True,
    task: OwnTask = None,
    trust: Trust = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Check a whole run that you did not take part in, offline, from the folder that one of its peers kept.

    From the founders in run.toml on: every line of the journal, every signature, every record as it follows from the one before
    and from what was announced (draws, roles, verdicts, bans), the evidence of every ban, checkpoints, the model, and a sample
    of gradients and updates. Nothing in the folder is believed. One line for each thing that is wrong, with file, line or step;
    one for each that could not be checked, with the reason.

    Exit code 0: everything that could be checked is right. 1: something is wrong. 2: wrong usage, or not this run's folder.

    Example: troth audit runs/alice --run run.toml
    """
    with telling("loading PyTorch"):
        from troth.audit.folder import AuditOptions
        from troth.audit.folder import audit as audit_folder
        from troth.network.manifest.manifest import Manifest

    manifest = Manifest.load(run)
    if recompute and task is None:
        agree(manifest, trust)
    with telling("checking run.toml") as now:
        processes = min(1, (os.cpu_count() or 1) - 1)
        options = AuditOptions(sample=sample, recompute=recompute, task=task, processes=processes)
        report = audit_folder(folder, manifest, options, lambda place: now(f"checking {place}"))
    typer.echo(json.dumps(report.plain(), indent=1) if as_json else "\n".join(report.lines()))
    raise typer.Exit(0 if report.right else 1)
