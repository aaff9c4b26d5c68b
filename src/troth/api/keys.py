"""Key files, as users name them: the private half to take part with, the public half to invite somebody.

`troth key` imports this, and PyTorch takes seconds: nothing heavy is imported here.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.crypto import Identity, PeerId

_MOST_BYTES = 4096  # of a key file


class IdentityError(OperatorError):
    """A key that is not there, cannot be used, or is of the wrong kind; the message names the way out."""


class PublicKeys(NamedTuple):
    """What others need to know of somebody: written as KEY, or as KEY+RECORD_KEY."""

    key: "PeerId"
    record_key: "PeerId | None" = None  # with which it signs the first records of a run, and which it erases then

    def __str__(self) -> str:
        return self.key.hex() if self.record_key is None else f"{self.key.hex()}+{self.record_key.hex()}"


def load_identity(path: Path) -> "Identity":
    """The private key of a member."""
    from troth.crypto import Identity, KeyFileError

    content = read_key_file(path)
    if public_keys(content) is not None:
        raise IdentityError(f"{path} is a public key: name the private one, which 'troth key new' wrote beside it")
    if b"PRIVATE KEY" not in content:
        raise IdentityError(f"{path} holds no key: name the file that 'troth key new' wrote")
    try:
        return Identity.load(path)
    except KeyFileError as error:
        raise IdentityError(str(error)) from error


def load_public(given: str, whose: str) -> PublicKeys:
    """Public keys, given in hexadecimal or as a file; `whose` begins the error."""
    if (keys := public_keys(given.encode(errors="replace"))) is not None:
        return keys
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise IdentityError(
            f"{whose}: '{given}' is neither a public key (64 hexadecimal digits) nor a file that can be read"
        ) from error
    if b"PRIVATE KEY" in content:
        raise IdentityError(f"{whose}: {given} is a private key, which stays at home; use its .pub file")
    keys = public_keys(content)
    if keys is None:
        raise IdentityError(f"{whose}: {given} holds no public key (64 hexadecimal digits): see 'troth key show'")
    return keys


def public_keys(content: bytes) -> PublicKeys | None:
    """The keys in a .pub file; None if it is something else."""
    from troth.crypto import PeerId

    found = re.fullmatch(rb"([0-9a-fA-F]{64})(?:\+([0-9a-fA-F]{64}))?\s*", content)
    if found is None:
        return None
    key, record_key = (None if part is None else PeerId(bytes.fromhex(part.decode())) for part in found.groups())
    assert key is not None
    return PublicKeys(key, record_key)


def public_path(path: Path) -> Path:
    """`me.key` has its public half in `me.pub`."""
    return path.with_suffix(".pub") if path.suffix == ".key" else path.with_name(path.name + ".pub")


def record_key_path(path: Path) -> Path:
    """`me.key` has the key for the first records of a run in `me.records.key`."""
    return path.with_suffix(".records.key") if path.suffix == ".key" else path.with_name(path.name + ".records.key")


def read_key_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError as error:
        raise IdentityError(f"no key at {path}: make one with 'troth key new {path}'") from error
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error
