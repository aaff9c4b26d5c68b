"""One process for each key: a second one is refused while the first is alive, and both are told.

A copied folder or key file would make two machines sign the same slots, which looks like a lie (SPEC Q6).
"""

import asyncio
from collections.abc import Callable

from troth.crypto import PeerId
from troth.errors import OperatorError
from troth.network.mesh.neighbour import Neighbour

_ALIVE_S = 6.0  # a connection that carries nothing else carries a ping every 2.5 s
_LOOK_EVERY_S = 0.05

REFUSAL = "another process with this key is connected to it, and alive"


class KeyInUseError(OperatorError):
    """Other members say that this peer's key is in use elsewhere."""


async def is_second_process(neighbour: Neighbour | None, process: bytes) -> bool:
    """Whether the neighbour's connection belongs to another process, which is still heard. Waits until that is clear: after a
    power cut the old connection looks alive for a while."""
    older = neighbour.connection if neighbour is not None else None
    if neighbour is None or older is None or neighbour.process == process:
        return False
    heard, until = older.bytes_in, asyncio.get_running_loop().time() + _ALIVE_S
    while neighbour.connection is older and asyncio.get_running_loop().time() < until:
        if older.bytes_in > heard:
            return True
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


class KeyUse:
    """Voices about this peer's own key. Liars must not stop anyone: more than `liars` seats have to say the same, since one
    member can delegate its seat to many keys."""

    def __init__(self, liars: int, stop: Callable[[Exception], None], note: Callable[[str], None]) -> None:
        self._liars = liars
        self._stop = stop
        self._note = note
        self._refused: set[PeerId] = set()  # seats that refused this process
        self._warned: set[PeerId] = set()  # seats that refused another one

    def welcomed(self, by: PeerId) -> None:
        """It took this process after all: the other one was dead."""
        self._refused.discard(by)

    def refused(self, by: PeerId) -> None:
        self._refused.add(by)
        if len(self._refused) > self._liars:
            self._stop(
                KeyInUseError(
                    "this key is in use: another process takes part in the run with it. Stop that one, or use a key of "
                    "your own; two with one key would be banned"
                )
            )

    def warned(self, by: PeerId) -> None:
        before = len(self._warned)
        self._warned.add(by)
        if before <= self._liars < len(self._warned):
            self._note(
                "another process tried to take part with this peer's key, and was refused; if that was not you, somebody "
                "has a copy of your key file"
            )
