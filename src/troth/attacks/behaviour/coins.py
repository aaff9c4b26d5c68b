"""Coins kept back, so that another auditor is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass

from troth.attacks.behaviour.public import audits_among_committed
from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.scaled import SignFlip
from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.wire.messages import Accuse, Announced, Message, Phase


class CoinGrinder(ColludingChannel):
    """Speaks last in Accuse, and keeps its coin B to itself where opening it would have an honest validator audit it."""

    _commits: Mapping[PeerId, Announced]

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Accuse) and self._active(slot.step):
            said = self._shielding(message)
            assert isinstance(said, Accuse)

            def choose(honest: Mapping[PeerId, Announced]) -> Message | None:
                return None if self._would_be_audited(slot, said, honest) else said

            return await self._honest.announce_last(slot, choose, view)
        return await super().announce(slot, message, view)

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT:
            self._commits = announced

    def _would_be_audited(self, slot: Slot, said: Accuse, honest: Mapping[PeerId, Announced]) -> bool:
        """Whether the next roles, if all liars open their coins, have an honest validator audit this one."""
        coins = {peer: a.message.coin for peer, a in honest.items() if isinstance(a.message, Accuse)}
        shared: dict[PeerId, bytes] = self._collusion.board.setdefault(("coin B", slot.step, slot.attempt), {})
        shared[self._me] = said.coin
        audits = audits_among_committed(self._run, slot, self._commits, {**coins, **shared})
        return any(target == self._me and auditor not in self._colluders for auditor, target in audits)


@dataclass(frozen=True)
class Grind(SignFlip, behaves=CoinGrinder):
    """flip signs, and withhold coin B whenever it would have an honest validator audit the liar"""
