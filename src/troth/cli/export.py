"""`troth export` and `troth invite`: what others get out of a peer's folder, also while the peer is training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import Trust, UsageError, agree
from troth.cli.progress import telling
from troth.files import check_free, write_text, writing

if TYPE_CHECKING:
    from troth.crypto import Digest


def export(
    place: Annotated[
        Path,
        typer.Argument(
            help="A peer's folder, for its newest checkpoint, or one of its checkpoints/step-….safetensors."
        ),
    ],
    run: Annotated[Path, typer.Option(help="The run's manifest (run.toml).")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Print the task's metrics of this model too.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there already.")] = False,
    trust: Trust = None,
) -> None:
    """Write the model of a checkpoint as a complete state_dict, which loads strictly into the task's own module.

    A peer may be training in the folder meanwhile. Only the model at the end of a closed run has the members' signatures over it:
    then they are written beside it, as a certificate that `troth verify` checks. Models on the way are not certified.

    Example: troth export runs/digits-1a2b3c4d --run run.toml --evaluate
    """
    check_free(out, overwrite=overwrite)
    if not place.exists():
        raise UsageError(f"{place} is not there: name a peer's folder, or one of its checkpoints")

    with telling("loading PyTorch"):
        from troth.events.phrases import metrics_in_words
        from troth.network.disk.checkpoints import find_model
        from troth.network.manifest.manifest import Manifest
        from troth.protocol.wire.primitives import Primitives
        from troth.training.weights import how_to_load, write_model

    manifest = Manifest.load(run)
    agree(manifest, trust)
    with telling("loading the task") as now:
        problem = manifest.problem(manifest.make_task())
        work = manifest.work(problem, Primitives())
        now(f"reading and checking the newest model in {place}")
        found = find_model(place, manifest.run.id, work)
        certificate = _certificate(place, manifest.run.id, work.digest(found.training), found.path)
        now("making the complete state_dict")
        complete = problem.state_dict(found.training.parameters_D)
    beside = out.with_suffix(".json")
    if certificate is not None:
        check_free(beside, overwrite=overwrite)
    with writing(out):
        write_model(out, complete)
        if certificate is not None and out.suffix == ".safetensors":
            write_text(beside, certificate)
    before = "" if found.step is None else f", before step {found.step}"
    typer.echo(f"Wrote {out}: the model in {found.path.name}{before}")
    if evaluate:
        with telling("measuring the model"):
            metrics = problem.evaluate(found.training.parameters_D)
        typer.echo(metrics_in_words(metrics))
    if certificate is not None and out.suffix == ".safetensors":
        typer.echo(f"Wrote {beside}: the members' signatures over it; troth verify {beside} --run {run} checks them")
    elif certificate is not None:
        typer.echo("The members' signatures are not beside it: with an --out that ends in .safetensors they are")
    typer.echo(f"Load it: {how_to_load(out)}")


def invite(
    folder: Annotated[Path, typer.Argument(help="Your folder, as `troth join` writes it; a peer may train in it.")],
) -> None:
    """Print an invitation: with it, a newcomer knows this run from every other history that stolen keys could sign.

    Send it with run.toml, over a way that you trust. It names how the members changed up to now, holds for as long as the run
    lasts, lets nobody in by itself, and is no secret.

    Example: troth invite runs/digits-1a2b3c4d
    """
    from troth.network.disk.chunks import invitation_from

    run, invitation = invitation_from(folder)
    typer.echo(
        f"Run {run.hex()[:16]}, as it was after step {invitation.step}. A newcomer who should come into this one types:"
    )
    typer.echo(f"troth join run.toml --identity KEY-FILE --invitation {invitation}")


def _certificate(place: Path, run: "Digest", state: "Digest", found: Path) -> str | None:
    """The peer's own `model.json`, if it proves that the run ended with this state (SPEC E4). Raises `UsageError` if it ended
    with another, and a person named the folder: the newest checkpoint is not there any more."""
    from troth.api.verify import read_text
    from troth.evidence.file_format import UnprovedError
    from troth.evidence.verify_model import verify_model

    folder = place if place.is_dir() else place.parent.parent
    try:
        text = read_text(folder / "model.json")
        ended = verify_model(text, run).state
    except (OSError, UnprovedError):
        return None
    if ended != state and place.is_dir():
        raise UsageError(
            f"{found} is older than the end of the run, and newer ones are not there any more: name another member's folder, or "
            f"that file if you want it"
        )
    return text if ended == state else None
