"""Scripts of liars that several files use."""

from collections.abc import Iterable

from tests.protocol.scripted_world import FIRST_LYING_STEP, LiarLink, LiarScript
from troth.crypto import PeerId
from troth.protocol.wire.frames import Packet, Value

LIAR, VICTIM = 0, 1  # numbers, in worlds


class KeepsFromOne(LiarScript):
    """Keeps its values from one member, in every step another one."""

    def __init__(self, others: list[PeerId], kinds: tuple[type, ...] = (Value,)) -> None:
        self._others, self._kinds = others, kinds

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        victim = self._others[packet.slot.step % len(self._others)]
        lies = isinstance(packet.frame, self._kinds) and packet.slot.step >= FIRST_LYING_STEP
        return () if lies and to == victim else (packet,)
