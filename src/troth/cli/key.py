"""`troth key`: who you are. A key is made once, shown to others by its public half, and kept."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.crypto import Identity

_MOST_BYTES = 4096  # of a key file

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
    public = public_key(_content(path))
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


def load_identity(path: Path) -> "Identity":
    """The private key of a member; if it cannot be used, the message says what to do."""
    from troth.crypto import Identity

    content = _content(path)
    if public_key(content) is not None:
        raise KeyCommandError(f"{path} is a public key: name the private one, which 'troth key new' wrote beside it")
    if b"PRIVATE KEY" not in content:
        raise KeyCommandError(f"{path} holds no key: name the file that 'troth key new' wrote")
    return Identity.load(path)


def public_key(content: bytes) -> bytes | None:
    """The key in a .pub file; None if it is something else."""
    return bytes.fromhex(content.decode()) if re.fullmatch(rb"[0-9a-fA-F]{64}\s*", content) else None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError as error:
        raise KeyCommandError(f"no key at {path}: make one with 'troth key new {path}'") from error
    except OSError as error:
        raise KeyCommandError(f"cannot read {path}: {error.strerror}") from error


def public_path(path: Path) -> Path:
    """`me.key` has its public half in `me.pub`."""
    return path.with_suffix(".pub") if path.suffix == ".key" else path.with_name(path.name + ".pub")


def _print_public(peer: bytes) -> None:
    typer.echo(f"public key  {peer.hex()}")
    typer.echo(f"short name  {peer.hex()[:8]}")
    typer.echo(f"to invite   --founder NAME={peer.hex()}@HOST:PORT")
