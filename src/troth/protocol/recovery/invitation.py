"""An invitation: how the members of a run changed up to a step, under one digest, told by somebody of the run (SPEC J9).

Whoever holds keys of former members can sign a history of its own, and a stranger who hears nobody else cannot tell. With an
invitation it can.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from troth.crypto import Digest, tagged_hash
from troth.errors import OperatorError

_FORM = re.compile(r"([0-9]{1,18})-([0-9a-f]{32})")


class InvitationError(OperatorError):
    """Not an invitation; the message says where to get one."""


@dataclass(frozen=True)
class Invitation:
    """The step of a certified record, and the digest of all records up to it that changed the members."""

    step: int
    digest: str  # the first half of it, hexadecimal

    def __str__(self) -> str:
        return f"{self.step}-{self.digest}"

    @classmethod
    def to(cls, run: Digest, step: int, changes: Iterable[tuple[int, Digest]]) -> "Invitation":
        """Into a run whose last certified record is that of this step; `changes`: steps and digests of those that changed the
        members, oldest first."""
        until = [digest for at, digest in changes if at <= step]
        return cls(step, tagged_hash("troth/invitation/1", run, step.to_bytes(8, "big"), *until).hex()[:32])

    @classmethod
    def read(cls, text: str) -> "Invitation":
        """As a person typed it."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise InvitationError(f"'{text}' is no invitation: ask a member for what `troth invite` prints, all of it")
        return cls(int(found[1]), found[2])
