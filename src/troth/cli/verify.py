"""`troth verify`: check evidence of a ban, offline."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.crypto import Digest
    from troth.evidence.verify import Proof

_ID = re.compile("[0-9a-fA-F]{64}")
_UNKNOWN = (
    "Unknown run: the file is consistent in itself, but it is about run {run}, and you have not said that you know it. Anybody "
    "can invent a run, put other people's public keys among its founders, and ban them there. Name the run that you mean with "
    "--run: its run.toml or its id, from somebody you trust."
)


class EvidenceFileError(OperatorError):
    """Evidence that cannot be read, or a run that is not named by its manifest or id."""


def verify(
    evidence: Annotated[Path, typer.Argument(help="The evidence file of a ban.")],
    run: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|ID", help="The run it should be about: its run.toml, or its id, from somebody you trust."
        ),
    ] = None,
    recompute: Annotated[
        bool, typer.Option(help="Also repeat the disputed computation, if its inputs lie beside the file.")
    ] = True,
    task: Annotated[
        str | None, typer.Option(help="The run's task, if it is a file of its own; it is run, so only if you trust it.")
    ] = None,
) -> None:
    """Check evidence of a ban in a run that you know, offline, and say what it proves.

    Exit code 0: proved for that run. 1: not proved, or the run is not named. 2: something cannot be read.
    """
    from troth.evidence.verify import UnprovedError, verify_ban

    meant = None if run is None else _named(run)
    text = _read(evidence)
    try:
        proof = verify_ban(text, meant)
    except UnprovedError as error:
        _not_proved(str(error))
    if meant is None:
        typer.echo(_UNKNOWN.format(run=proof.run.id.hex()), err=True)
        raise typer.Exit(1)
    typer.echo(f"Proved for the run that you named. {proof.sentence()} {proof.rests_on()}")
    if recompute:
        _repeat(proof, evidence, task)


def _named(run: str) -> "Digest":
    """The id of the run that the operator means."""
    from troth.crypto import Digest

    if _ID.fullmatch(run):
        return Digest(bytes.fromhex(run))
    path = Path(run)
    if not path.is_file():
        raise EvidenceFileError(
            f"--run {run}: neither a file nor an id, which has 64 hexadecimal digits; name the run's run.toml"
        )
    if path.suffix == ".toml":
        from troth.network.manifest.manifest import Manifest

        return Manifest.load(path).run.id
    try:
        with path.open("rb") as file:
            said = file.read(80).decode("ascii", "replace").strip()
    except OSError as error:
        raise EvidenceFileError(f"cannot read {path}: {error.strerror}") from error
    if not _ID.fullmatch(said):
        raise EvidenceFileError(
            f"--run {path}: neither a manifest (run.toml) nor a file that holds a run's id and no more"
        )
    return Digest(bytes.fromhex(said))


def _read(evidence: Path) -> str:
    from troth.evidence.file_format import MOST_BYTES

    try:
        with evidence.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise EvidenceFileError(f"cannot read {evidence}: {error.strerror}; name a file ban-….json") from error
    if len(raw) > MOST_BYTES:
        raise EvidenceFileError(f"{evidence} is too large to be evidence of a ban: name a file ban-….json")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        _not_proved("the file is not text")


def _repeat(proof: "Proof", evidence: Path, task: str | None) -> None:
    """Whatever can be recomputed from what lies beside the file."""
    from troth.evidence.companion_files import load_companions
    from troth.evidence.errors import RecomputeError
    from troth.evidence.recompute import Recomputed, recompute

    if proof.exhibit is None:
        return
    try:
        beside = load_companions(evidence, proof)
        if beside.missing is not None:
            typer.echo(f"Not recomputed: {beside.missing} is not beside the file. Signatures and votes were checked.")
            return
        result = recompute(proof, beside.training, beside.blobs, task)
    except RecomputeError as error:
        _not_proved(str(error))
    typer.echo(f"{result.value[0].upper()}{result.value[1:]}.")
    if result is Recomputed.REFUTED:
        raise typer.Exit(1)


def _not_proved(reason: str) -> NoReturn:
    # The reason may quote the file, which is hostile: no control characters reach the terminal.
    safe = "".join(character if character.isprintable() else "?" for character in reason)
    typer.echo(f"Not proved: {safe}", err=True)
    raise typer.Exit(1)
