"""Blame without proof: who did not reach whom, and who makes everyone wait (SPEC F1–F3).

Nobody can tell from outside which of two lies when one says that something did not come. So the pair is remembered and served
by others from then on; and who does not get along with half of the members, or is named by more than half, is the one.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from troth.crypto import PeerId
from troth.protocol.core.roster import Pair, Roster
from troth.protocol.wire.messages import Accuse, Announced, said_as


class LinkDisputes:
    """Of one step."""

    def __init__(self, roster: Roster, step: int) -> None:
        self._roster = roster
        self._known = roster.disputed_links()
        self._served = roster.disputed_links(
            before=step - 1
        )  # by others, in all announcements that are spoken of in this step
        self._pairs: set[Pair] = set()
        self._blamed: frozenset[PeerId] = frozenset()  # a quorum says so, or they cannot name anybody

    def did_not_come(self, missed: Mapping[PeerId, Collection[PeerId]], members: Collection[PeerId]) -> None:
        """Who says that whose messages did not come. Whoever misses at least half of the members has a bad line itself."""
        count = len(members)
        deaf = {
            peer
            for peer, others in missed.items()
            if count > 1 and self._roster.is_half(len(set(others) & set(members)), count)
        }
        self._blamed |= deaf
        for peer, others in missed.items():
            if peer not in deaf:
                self._pairs |= {(min(peer, other), max(peer, other)) for other in others if other not in (peer, *deaf)}

    @property
    def new(self) -> tuple[Pair, ...]:
        """Those that were not known before."""
        return tuple(sorted(pair for pair in self._pairs if pair[1] not in self._known.get(pair[0], ())))

    @property
    def slowed(self) -> frozenset[PeerId]:
        """Who is struck: who is to blame, and who is in a new pair and in more than there are liars."""
        involved = {peer for pair in self.new for peer in pair}
        return self._blamed | (self._roster.disputed(self.new) & involved)

    def hear(self, accuses: Mapping[PeerId, Announced], members: Collection[PeerId]) -> None:
        """What everyone says about announcements that took the slow path."""
        said = {peer: said_as(announced, Accuse) for peer, announced in accuses.items()}
        heard_of = {*self._roster.members, *self._roster.left}
        unheard = {peer: {PeerId(k) for k in accuse.unheard if k != peer} & heard_of for peer, accuse in said.items()}
        doubts = {peer: {PeerId(k) for k in accuse.incomplete if k != peer} & heard_of for peer, accuse in said.items()}
        doubted = Counter(other for others in doubts.values() for other in others)
        named = Counter(other for others in unheard.values() for other in others)
        mute = {peer for peer, count in named.items() if count >= self._roster.quorum}
        alone = {peer for peer in named if self._against(peer, unheard) >= self._roster.quorum}
        explained = {
            peer for peer, others in unheard.items() if others & alone or others - self._served.get(peer, frozenset())
        }
        without_reason = {peer for peer, count in doubted.items() if count >= self._roster.quorum} - explained
        self._blamed |= (mute | without_reason) & set(members)
        # An honest member signs one view: all others doubt it, and it says why, or none.
        split = {peer for peer, count in doubted.items() if count < self._roster.quorum} - explained
        new = {
            peer: (others | doubts[peer] & split) & set(members) - mute
            for peer, others in unheard.items()
            if peer not in mute
        }
        self.did_not_come(new, members)

    def _against(self, peer: PeerId, unheard: Mapping[PeerId, Collection[PeerId]]) -> int:
        """How many name it, or were apart from it all along: a friend may have passed something on to some of these."""
        return len({other for other, names in unheard.items() if peer in names} | self._served.get(peer, frozenset()))
