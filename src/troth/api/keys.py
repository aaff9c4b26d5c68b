"""Key files, as users name them: the private half to take part with, the public half to invite somebody.

The command line imports this for `--help` too, so heavy imports happen inside functions.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.crypto import Identity, PeerId

_MOST_BYTES = 4096  # of a key file


class IdentityError(OperatorError):
    """A key that is not there, cannot be used, or is of the wrong kind; the message names the way out."""


def load_identity(path: Path) -> "Identity":
    """The private key of a member."""
    from troth.crypto import Identity, KeyFileError

    content = read_key_file(path)
    if public_key(content) is not None:
        raise IdentityError(f"{path} is a public key: name the private one, which 'troth key new' wrote beside it")
    if b"PRIVATE KEY" not in content:
        raise IdentityError(f"{path} holds no key: name the file that 'troth key new' wrote")
    try:
        return Identity.load(path)
    except KeyFileError as error:
        raise IdentityError(str(error)) from error


def load_public(given: str, whose: str) -> "PeerId":
    """A public key, given in hexadecimal or as a file; `whose` begins the error."""
    from troth.crypto import PeerId

    if (key := public_key(given.encode(errors="replace"))) is not None:
        return PeerId(key)
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise IdentityError(
            f"{whose}: '{given}' is neither a public key (64 hexadecimal digits) nor a file that can be read"
        ) from error
    if b"PRIVATE KEY" in content:
        raise IdentityError(f"{whose}: {given} is a private key, which stays at home; use its .pub file")
    key = public_key(content)
    if key is None:
        raise IdentityError(f"{whose}: {given} holds no public key (64 hexadecimal digits): see 'troth key show'")
    return PeerId(key)


def public_key(content: bytes) -> bytes | None:
    """The key in a .pub file; None if it is something else."""
    return bytes.fromhex(content.decode()) if re.fullmatch(rb"[0-9a-fA-F]{64}\s*", content) else None


def public_path(path: Path) -> Path:
    """`me.key` has its public half in `me.pub`."""
    return path.with_suffix(".pub") if path.suffix == ".key" else path.with_name(path.name + ".pub")


def read_key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError as error:
        raise IdentityError(f"no key at {path}: make one with 'troth key new {path}'") from error
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error
