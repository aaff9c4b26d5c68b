"""`troth key`: who you are. A key is made once, shown to others by its public half, and kept."""

from pathlib import Path
from typing import Annotated

import typer

from troth.api.keys import load_identity, public_key, public_path, read_key_file
from troth.errors import OperatorError

key = typer.Typer(
    help="Make, show and keep the key that you take part with.",
    epilog="Start with: troth key new me.key",
    rich_markup_mode=None,
    add_completion=False,
)


class KeyCommandError(OperatorError):
    """A key that is not there, or cannot be written where it was asked to go."""


@key.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@key.command()
def new(path: Annotated[Path, typer.Argument(help="Where to keep the private key, for instance me.key.")]) -> None:
    """Make a key. Nobody but you can read it; a file that is there already is never overwritten.

    Your key is your name in a run. Anyone who has it can speak as you, and what it signs can get you banned: it stays on your
    machine. The public half, for others, goes into a .pub file beside it.

    Example: troth key new me.key
    """
    from troth.crypto import Identity

    public = public_path(path)
    if public.exists():
        raise KeyCommandError(f"{public} exists already: choose another name for the key")
    identity = Identity.generate()
    try:
        identity.save(path)
        public.write_text(identity.peer.hex() + "\n", encoding="ascii")
    except OSError as error:
        raise KeyCommandError(f"cannot write {error.filename or path}: {error.strerror}") from error
    typer.echo(f"Wrote {path} (private: it never leaves this machine) and {public} (for everybody to see).")
    _print_public(identity.peer)
    typer.echo(f"\nNext: send {public} to whoever writes the manifest, and keep a copy: troth key backup {path} COPY")


@key.command()
def show(
    path: Annotated[Path, typer.Argument(help="A private key, of which nothing secret is shown, or a public one.")],
) -> None:
    """Show the public half of a key: what others need to know of you.

    Example: troth key show me.key
    """
    public = public_key(read_key_file(path))
    _print_public(load_identity(path).peer if public is None else public)


@key.command()
def backup(
    path: Annotated[Path, typer.Argument(help="The private key.")],
    copy: Annotated[Path, typer.Argument(help="Where to put the copy; it must not exist yet.")],
) -> None:
    """Copy a key, read the copy back, and see that it is the same key.

    A lost key cannot be replaced: a run knows you by nothing else. Keep the copy where you keep other secrets, and never let
    both take part at once: two peers that sign with one key contradict each other, and that is banned.

    Example: troth key backup me.key /media/stick/me.key
    """
    identity = load_identity(path)
    try:
        identity.save(copy)
    except OSError as error:
        raise KeyCommandError(f"cannot write {error.filename or copy}: {error.strerror}") from error
    if load_identity(copy).peer != identity.peer:
        raise KeyCommandError(f"{copy} does not read back as the same key: that disk cannot be trusted, try another")
    typer.echo(f"Wrote {copy} and read it back: the same key, {identity.peer.hex()[:8]}.")
    typer.echo("Never let both take part at once: two peers with one key contradict each other, and that is banned.")


def _print_public(peer: bytes) -> None:
    typer.echo(f"public key  {peer.hex()}")
    typer.echo(f"short name  {peer.hex()[:8]}")
    typer.echo(f"to invite   --founder NAME={peer.hex()}@HOST:PORT")
