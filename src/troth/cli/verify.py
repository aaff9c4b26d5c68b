"""`troth verify`: check evidence of a ban, offline."""

from pathlib import Path
from typing import Annotated

import typer

from troth.errors import OperatorError

_MOST_BYTES = 64 << 20


class EvidenceFileError(OperatorError):
    """The evidence cannot be read at all."""


def verify(
    evidence: Annotated[Path, typer.Argument(help="The evidence file of a ban.")],
    recompute: Annotated[
        bool, typer.Option(help="Also repeat the disputed gradient, if the state lies beside the file.")
    ] = True,
    task: Annotated[
        str | None, typer.Option(help="The run's task, if it is a file of its own; it is run, so only if you trust it.")
    ] = None,
) -> None:
    """Check evidence of a ban from its bytes alone, and say what it proves.

    Exit code 0: proved. 1: not proved. 2: the file cannot be read.
    """
    from troth.crypto import Digest
    from troth.evidence.recompute import Recomputed, StateError, StateFile
    from troth.evidence.recompute import recompute as repeat
    from troth.evidence.verify import UnprovedError, verify_ban
    from troth.protocol.messages import Kind

    try:
        if evidence.stat().st_size > _MOST_BYTES:
            raise EvidenceFileError(f"{evidence} is too large to be evidence of a ban")
        text = evidence.read_text(encoding="utf-8")
    except OSError as error:
        raise EvidenceFileError(f"cannot read {evidence}: {error.strerror}") from error
    except UnicodeDecodeError:
        _not_proved("the file is not text")
    try:
        proof = verify_ban(text)
    except UnprovedError as error:
        _not_proved(str(error))
    typer.echo(f"Proved. {proof.sentence()}")
    if not recompute or proof.disputed is None or proof.judgement.kind != Kind.GRADIENT:
        return  # only a disputed gradient can be repeated from a state
    state_file = StateFile(Digest(proof.disputed.state_before))
    try:
        training = state_file.load(evidence.parent)
        if training is None:
            typer.echo(f"Not recomputed: {state_file.name} is not beside the file. Signatures and votes were checked.")
            return
        result = repeat(proof, training, task)
    except StateError as error:
        _not_proved(str(error))
    typer.echo(f"{result.value[0].upper()}{result.value[1:]}.")
    if result is Recomputed.REFUTED:
        raise typer.Exit(1)


def _not_proved(reason: str) -> None:
    # The reason may quote the file, which is hostile: no control characters reach the terminal.
    safe = "".join(character if character.isprintable() else "?" for character in reason)
    typer.echo(f"Not proved: {safe}", err=True)
    raise typer.Exit(1)
