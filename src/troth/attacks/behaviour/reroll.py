"""Rerolls: where the coins would have an honest member audit a liar, the attempt is made void, and drawn again.

A liar that owns a part accuses a contributor of a wrong report and discloses nothing. There is nothing to judge by, so it
is out, unpunished, and the attempt is repeated with fresh coins. Each time costs one liar its place, or a return; the lie
that was about to be found stays in the model.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import msgspec

from troth.attacks.behaviour.public import audits_to_come, contributors_of, owners_now
from troth.attacks.colluder import Choose, ColludingChannel
from troth.attacks.gradient.scaled import SignFlip
from troth.crypto import PeerId, Slot, blob_digest
from troth.protocol.core.channel import AttemptView, Disclose, Exchange, Said
from troth.protocol.wire.messages import Accusation, Accuse, Announced, Kind, Message, Phase


@dataclass
class Rerolls:
    """Decisions of the coalition: once for each attempt, by the member that comes first."""

    chosen: dict[tuple[int, int], PeerId | None] = field(default_factory=dict)
    uses: Counter[PeerId] = field(default_factory=Counter)
    coins: dict[tuple[int, int], dict[PeerId, bytes]] = field(default_factory=dict)  # liars', by step and attempt


class Reroller(ColludingChannel):
    """Speaks last in Accuse, and makes the attempt void if it is its turn."""

    _commits: Mapping[PeerId, Announced] = MappingProxyType({})
    _reports: Mapping[PeerId, Announced] = MappingProxyType({})

    @property
    def _rerolls(self) -> Rerolls:
        shared: Rerolls = self._collusion.board.setdefault("rerolls", Rerolls())
        return shared

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._members = view.members
        if isinstance(message, Accuse) and self._active(slot.step):
            said = self._shielding(message)
            assert isinstance(said, Accuse)
            ours = self._rerolls.coins.setdefault((slot.step, slot.attempt), {})
            ours[self._me] = said.coin
            return await self._honest.announce_last(slot, lambda others: self._choose(slot, said, others), view)
        return await super().announce(slot, message, view)

    async def announce_last(self, slot: Slot, choose: Choose, view: AttemptView) -> Said:
        """Another behaviour around this one may speak last where this one would not."""
        self._members = view.members
        announced = await super().announce_last(slot, choose, view)
        self._heard(slot, announced)
        return announced

    def _heard(self, slot: Slot, announced: Said) -> None:
        if slot.phase == Phase.COMMIT:
            self._commits = announced
        if slot.phase == Phase.REPORT:
            self._reports = announced

    def _choose(self, slot: Slot, said: Accuse, others: Mapping[PeerId, Announced]) -> Accuse:
        key = (slot.step, slot.attempt)
        if key not in self._rerolls.chosen:
            self._rerolls.chosen[key] = self._roller(slot, others)
        if self._rerolls.chosen[key] != self._me:
            return said
        part = owners_now(self._collusion, self._members).index(self._me)
        honest = [p for p in contributors_of(self._commits, self._members) if p not in self._colluders]
        victim = next((peer for peer in honest if peer in self._reports), None)
        if victim is None:
            return said
        named = blob_digest(self._reports[victim].envelope.payload)  # else it is not heard (SPEC E2)
        false = Accusation(victim, Kind.REPORT, slot.step, part, named)
        return msgspec.structs.replace(said, accusations=(*said.accusations, false))

    def _roller(self, slot: Slot, others: Mapping[PeerId, Announced]) -> PeerId | None:
        """Owner of a part that has done it least often, if an honest member would audit a liar."""
        ours = self._rerolls.coins[slot.step, slot.attempt]
        coins = {peer: a.message.coin for peer, a in others.items() if isinstance(a.message, Accuse)} | ours
        found = {
            target
            for auditor, target in audits_to_come(self._collusion, slot, self._commits, self._members, coins)
            if target in self._colluders and auditor not in self._colluders
        }
        owning = sorted(ours.keys() & set(owners_now(self._collusion, self._members)))
        if not found or not owning:
            return None
        chosen = min(owning, key=lambda peer: (self._rerolls.uses[peer], peer not in found, peer))
        self._rerolls.uses[chosen] += 1
        return chosen

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Disclose) and self._rerolls.chosen.get((slot.step, slot.attempt)) == self._me:
            blobs = replace(blobs, mine={})  # makes the attempt void
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class Reroll(SignFlip, behaves=Reroller):
    """flip signs, and where the draw has an honest member audit a liar, make the attempt void to have it drawn again"""
