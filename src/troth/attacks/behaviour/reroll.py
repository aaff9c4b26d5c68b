"""A second draw of the auditors: when the coins would have an honest member audit a liar, the attempt is made void.

One of the liars that owns a part accuses somebody of a wrong report and lays nothing open. There is nothing to judge by, so
it is out, unpunished, and the attempt is repeated with fresh coins. It costs one liar its place, or a return, each time;
the lie that was about to be found stays in the model.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import msgspec

from troth.attacks.behaviour.public import audits_to_come, contributors_of, owners_now
from troth.attacks.colluder import Choose, ColludingChannel
from troth.attacks.gradient import SignFlip
from troth.crypto import Context, PeerId, blob_digest
from troth.protocol.core.channel import Entry, PartParcels, Showing
from troth.protocol.core.parts import Parcel
from troth.protocol.wire.messages import Accusation, Accuse, Announced, Kind, Message, Phase


@dataclass
class Rerolls:
    """What the coalition has decided: once for each attempt, by whoever comes first."""

    chosen: dict[tuple[int, int], PeerId | None] = field(default_factory=dict)
    uses: Counter[PeerId] = field(default_factory=Counter)
    coins: dict[tuple[int, int], dict[PeerId, bytes]] = field(default_factory=dict)  # of liars, by step and attempt


class Reroller(ColludingChannel):
    """Speaks last in Accuse, and makes the attempt void if it is its turn."""

    _members: frozenset[PeerId] = frozenset()
    _commits: Mapping[PeerId, Announced] = MappingProxyType({})
    _reports: Mapping[PeerId, Announced] = MappingProxyType({})

    @property
    def _rerolls(self) -> Rerolls:
        shared: Rerolls = self._plot.board.setdefault("rerolls", Rerolls())
        return shared

    def enter(self, entry: Entry) -> None:
        self._members = entry.members
        super().enter(entry)

    async def announce(self, context: Context, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse) and self._active(context.step):
            said = self._shielding(message)
            assert isinstance(said, Accuse)
            ours = self._rerolls.coins.setdefault((context.step, context.attempt), {})
            ours[self._me] = said.coin
            return await self._honest.announce_last(context, lambda others: self._choose(context, said, others))
        return self._noted(context, await super().announce(context, message))

    async def announce_last(self, context: Context, choose: Choose) -> Mapping[PeerId, Announced]:
        """Another conduct around this one may speak last where this one would not."""
        return self._noted(context, await super().announce_last(context, choose))

    def _noted(self, context: Context, announced: Mapping[PeerId, Announced]) -> Mapping[PeerId, Announced]:
        if context.phase == Phase.COMMIT:
            self._commits = announced
        if context.phase == Phase.REPORT:
            self._reports = announced
        return announced

    def _choose(self, context: Context, said: Accuse, others: Mapping[PeerId, Announced]) -> Accuse:
        key = (context.step, context.attempt)
        if key not in self._rerolls.chosen:
            self._rerolls.chosen[key] = self._roller(context, others)
        if self._rerolls.chosen[key] != self._me:
            return said
        part = owners_now(self._plot, self._members).index(self._me)
        honest = [p for p in contributors_of(self._commits, self._members) if p not in self._colluders]
        victim = next((peer for peer in honest if peer in self._reports), None)
        if victim is None:
            return said
        named = blob_digest(self._reports[victim].envelope.payload)  # else it is not heard (SPEC E2)
        false = Accusation(victim, Kind.REPORT, context.step, part, named)
        return msgspec.structs.replace(said, accusations=(*said.accusations, false))

    def _roller(self, context: Context, others: Mapping[PeerId, Announced]) -> PeerId | None:
        """Whoever owns a part and has done it least often, if somebody honest would audit one of us."""
        ours = self._rerolls.coins[context.step, context.attempt]
        coins = {peer: a.message.coin for peer, a in others.items() if isinstance(a.message, Accuse)} | ours
        found = {
            target
            for auditor, target in audits_to_come(self._plot, context, self._commits, self._members, coins)
            if target in self._colluders and auditor not in self._colluders
        }
        owning = sorted(ours.keys() & set(owners_now(self._plot, self._members)))
        if not found or not owning:
            return None
        chosen = min(owning, key=lambda peer: (self._rerolls.uses[peer], peer not in found, peer))
        self._rerolls.uses[chosen] += 1
        return chosen

    async def lay_open(
        self, context: Context, mine: PartParcels, wanted: Collection[Showing], count: int
    ) -> Mapping[Showing, Mapping[PeerId, Parcel]]:
        void = self._rerolls.chosen.get((context.step, context.attempt)) == self._me
        return await super().lay_open(context, {} if void else mine, wanted, count)


@dataclass(frozen=True)
class Reroll(SignFlip):
    """flip signs, and where the draw has an honest member audit a liar, make the attempt void to have it drawn again"""

    conduct: ClassVar[type[ColludingChannel]] = Reroller
    needs_protocol: ClassVar[bool] = True
