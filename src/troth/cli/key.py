"""`troth key`: who you are. A key is made once, shown to others by its public half, and kept."""

from pathlib import Path
from typing import Annotated

import typer

from troth.api.keys import PublicKeys, load_identity, public_keys, public_path, read_key_file, record_key_path
from troth.cli.fields import UsageError
from troth.files import writing

_ELSEWHERE = "choose another place"

key = typer.Typer(
    help="Make, show and keep the key that you take part with.",
    epilog="Start with: troth key new me.key",
    rich_markup_mode=None,
    add_completion=False,
)


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
        raise UsageError(f"{public} exists already: choose another name for the key")
    identity = Identity.generate()
    with writing(path, _ELSEWHERE):
        identity.save(path)
        public.write_text(identity.peer.hex() + "\n", encoding="ascii")
    typer.echo(f"Wrote {path} (private: it never leaves this machine) and {public} (for everybody to see).")
    _print_public(PublicKeys(identity.peer))
    typer.echo(f"\nNext: send {public} to whoever writes the manifest, and keep a copy: troth key backup {path} COPY")


@key.command()
def show(
    path: Annotated[Path, typer.Argument(help="A private key, of which nothing secret is shown, or a public one.")],
) -> None:
    """Show the public half of a key: what others need to know of you.

    Example: troth key show me.key
    """
    public = public_keys(read_key_file(path))
    _print_public(_public_of(path) if public is None else public)


@key.command()
def records(path: Annotated[Path, typer.Argument(help="Your private key.")]) -> None:
    """Make a key that signs the first records of one run, and is erased as soon as they are signed.

    Members change the keys that sign a run's records now and then, and erase the old ones: stolen keys cannot rewrite what was
    signed. Without a key of this kind the first record is signed with your own key, which stays; a thief who has those of most
    founders could then tell strangers another history from the beginning on. Worth it for a run that strangers may join. It is
    good for one run: make another for the next.

    Example: troth key records me.key, then send me.pub to whoever writes the manifest
    """
    from troth.crypto import Identity, KeyFileError

    me, place, public = load_identity(path), record_key_path(path), public_path(path)
    made = Identity.generate()
    try:
        with writing(place, _ELSEWHERE):
            made.save(place)
            public.write_text(f"{PublicKeys(me.peer, made.peer)}\n", encoding="ascii")
    except KeyFileError as error:
        raise UsageError(f"{place} is there already, for a run that has not begun: use it, or remove it") from error
    typer.echo(f"Wrote {place} (private; 'troth join --identity {path}' uses it, and erases it) and {public}.")
    _print_public(PublicKeys(me.peer, made.peer))
    typer.echo(f"\nNext: send {public} to whoever writes the manifest. It is good for one run.")


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
    with writing(copy, _ELSEWHERE):
        identity.save(copy)
    if load_identity(copy).peer != identity.peer:
        raise UsageError(f"{copy} does not read back as the same key: that disk cannot be trusted, try another")
    typer.echo(f"Wrote {copy} and read it back: the same key, {identity.peer.hex()[:8]}.")
    typer.echo("Never let both take part at once: two peers with one key contradict each other, and that is banned.")


def _public_of(path: Path) -> PublicKeys:
    """The public halves of a private key, and of the record key beside it if there is one."""
    records = record_key_path(path)
    return PublicKeys(load_identity(path).peer, load_identity(records).peer if records.exists() else None)


def _print_public(public: PublicKeys) -> None:
    typer.echo(f"public key  {public.key.hex()}")
    if public.record_key is not None:
        typer.echo(f"record key  {public.record_key.hex()}")
    typer.echo(f"short name  {public.key.hex()[:16]}")
    typer.echo(f"to invite   --founder NAME={public}@HOST:PORT")
