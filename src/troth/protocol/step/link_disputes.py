"""Blame without proof: link disputes, and strikes for members that make everyone wait (SPEC F1–F3).

When a member says that something did not come, nobody else can tell which of the two lies. So the pair is put in a link dispute
and served by others from then on; a member in dispute with half of the members, or named by a quorum, is taken to be the cause.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from troth.crypto import PeerId
from troth.protocol.core.roster import Pair, Roster
from troth.protocol.wire.messages import Accuse, Announced, said_as


class LinkDisputes:
    """Link disputes and blame of one step."""

    def __init__(self, roster: Roster, step: int) -> None:
        self._roster = roster
        self._known = roster.disputed_links()
        self._served = roster.disputed_links(before=step - 1)  # in all announcements that this step's Accuse is about
        self._pairs: set[Pair] = set()
        self._blamed: frozenset[PeerId] = frozenset()  # named by a quorum, or naming half of the members

    def did_not_come(self, missed: Mapping[PeerId, Collection[PeerId]], members: Collection[PeerId]) -> None:
        """Note members whose messages did not come, by receiver. A receiver that misses half of the members is to blame itself,
        and puts nobody in dispute (SPEC F3)."""
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
        """Pairs that were in no dispute before."""
        return tuple(sorted(pair for pair in self._pairs if pair[1] not in self._known.get(pair[0], ())))

    @property
    def slowed(self) -> frozenset[PeerId]:
        """Members to strike: those to blame, and those in a new dispute and in more than `L`, and more than two (SPEC F3)."""
        involved = {peer for pair in self.new for peer in pair}
        return self._blamed | (self._roster.disputed(self.new) & involved)

    def hear(self, accuses: Mapping[PeerId, Announced], members: Collection[PeerId]) -> None:
        """Take in what members say in Accuse about announcements that took the slow path (SPEC F1, F3)."""
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
        # An honest member signs one view: all others find it wrong, and then it has a reason, or none does.
        split = {peer for peer, count in doubted.items() if count < self._roster.quorum} - explained
        new = {
            peer: (others | doubts[peer] & split) & set(members) - mute
            for peer, others in unheard.items()
            if peer not in mute
        }
        self.did_not_come(new, members)

    def _against(self, peer: PeerId, unheard: Mapping[PeerId, Collection[PeerId]]) -> int:
        """Count members that name it, or were in dispute with it all along: a colluder may have relayed to some of these."""
        return len({other for other, names in unheard.items() if peer in names} | self._served.get(peer, frozenset()))
