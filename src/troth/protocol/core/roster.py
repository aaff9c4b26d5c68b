"""Who is a member, and what that guarantees."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from troth.crypto import PeerId, valid_peer
from troth.protocol.core.records import Returned, StepRecord
from troth.protocol.core.run import Run
from troth.protocol.core.scales import Scales

MOST_STRIKES = 3  # within …
STRIKE_STEPS = 1000  # … so many steps: a peer with that many is expelled
BAD_LINES = 2  # that a member may have to others without anybody lying, however few liars the run is meant for
MOST_AWAY = 500  # updates after which one cannot simply come back
MOST_WAIT = 64  # steps that one stays away at least, however often it came back within `STRIKE_STEPS`

Pair = tuple[PeerId, PeerId]


class Away(NamedTuple):
    """Somebody who is absent."""

    step: int  # in which it fell out
    peer: PeerId
    updates: int = 0  # how often the model had moved by then


@dataclass(frozen=True)
class Roster:
    """The members at the start of a step, sorted by key; those banned before it; and what is held against whom.

    All of it follows from the founders and the records since (SPEC U2).
    """

    members: tuple[PeerId, ...]
    banned: tuple[PeerId, ...] = ()
    byzantine: int = 0  # b: the most liars among all who were ever members
    admitted: int = 0  # how many were ever members
    strikes: tuple[tuple[int, PeerId], ...] = ()  # in which step
    link_disputes: tuple[tuple[int, PeerId, PeerId], ...] = ()  # since which step who does not reach whom
    away: tuple[Away, ...] = ()
    returns: tuple[tuple[int, PeerId], ...] = ()  # in which step who was let in again, under the key it has now
    left: tuple[PeerId, ...] = ()  # who went in the step before
    put_out: tuple[PeerId, ...] = ()  # who was expelled, ever
    successors: tuple[Pair, ...] = ()  # keys that were given up, and those that took their place
    updates: int = 0  # how often the model has moved
    paused: bool = False  # it did not in the step before: too few were there (SPEC G2)

    @classmethod
    def founding(cls, run: Run) -> "Roster":
        most = (len(run.founders) - 1) // 2  # beyond the guarantee: what can be promised at most
        return cls(run.founders, byzantine=min(run.parameters.byzantine, most), admitted=len(run.founders))

    def after(self, record: StepRecord) -> "Roster":
        """The roster of the next step (SPEC T5, N1, N3, F3, B3). A key that left before its verdict is banned all the same."""
        step, oldest = record.step, record.step - STRIKE_STEPS
        back = [(PeerId(rejoin.member), PeerId(rejoin.key)) for rejoin in record.returned]
        successors = (*self.successors, *(pair for pair in back if pair[0] != pair[1]))

        def now(peer: PeerId) -> PeerId:
            return dict(back).get(peer, peer)

        banned = _with_successors({*self.banned, *record.banned}, successors)
        staying = {*(peer for peer in self.members if peer not in record.leaving), *(key for _, key in back)}
        away = [gone for gone in self.away if gone.peer not in dict(back)]
        absent = [Away(step, PeerId(peer), record.updates) for peer in record.absent]
        return Roster(
            members=tuple(sorted(staying - banned)),
            banned=tuple(sorted(banned)),
            byzantine=self.byzantine,
            admitted=self.admitted,
            strikes=(
                *(strike for strike in self.strikes if strike[0] > oldest),
                *((step, PeerId(peer)) for peer in (*record.struck, *record.slowed)),
            ),
            link_disputes=(
                *((when, now(one), now(other)) for when, one, other in self.link_disputes if when > oldest),
                *((step, PeerId(one), PeerId(other)) for one, other in record.link_disputes),
            ),
            away=tuple(gone for gone in (*away, *absent) if gone.peer not in banned),
            returns=(*(old for old in self.returns if old[0] > oldest), *((step, key) for _, key in back)),
            left=tuple(sorted(record.leaving)),
            put_out=tuple(sorted({*self.put_out, *map(PeerId, record.expelled)})),
            successors=successors,
            updates=record.updates,
            paused=not record.updated,
        )

    def expelled(self, step: int, struck: Iterable[PeerId], pairs: Iterable[Pair]) -> tuple[PeerId, ...]:
        """For whom it was once too often, or who by now is apart from half of the members (SPEC N3, F3)."""
        new = list(struck)
        recent = [peer for when, peer in self.strikes if when > step - STRIKE_STEPS]
        often = {
            peer
            for peer in new
            if sum(old in _ancestors(peer, self.successors) for old in recent) + new.count(peer) >= MOST_STRIKES
        }
        disputed_links, count = self.disputed_links(pairs), len(self.members)
        alone = {peer for peer, others in disputed_links.items() if count > 3 and self.is_half(len(others), count)}
        return tuple(sorted(often | alone))

    def is_half(self, count: int, of: int) -> bool:
        """At least half of them, and more than liars can be: in a small roster these are half of it (SPEC N5, F3)."""
        return 2 * count >= of and count > self.liars

    def disputed(self, pairs: Iterable[Pair]) -> frozenset[PeerId]:
        """Whoever with these is apart from more members than there are liars, or bad lines (SPEC F3). Whoever has most comes
        first, and its pairs count for nobody else: a bad line must not be held against everyone at its other end."""
        left = {peer: set(others) for peer, others in self.disputed_links(pairs).items()}
        found: set[PeerId] = set()
        while (most := max(map(len, left.values()), default=0)) > max(self.liars, BAD_LINES):
            worst = {peer for peer, others in left.items() if len(others) == most}
            found |= worst
            left = {peer: others - worst for peer, others in left.items() if peer not in worst}
        return frozenset(found)

    def disputed_links(self, pairs: Iterable[Pair] = (), before: int | None = None) -> dict[PeerId, frozenset[PeerId]]:
        """Which members do not reach each other; `before` a step, or as of now."""
        found: dict[PeerId, set[PeerId]] = {}
        for one, other in (*((a, b) for since, a, b in self.link_disputes if before is None or since < before), *pairs):
            if one in self.members and other in self.members:
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set()).add(one)
        return {peer: frozenset(others) for peer, others in found.items()}

    @property
    def may_ask(self) -> frozenset[PeerId]:
        """Members, those who are absent, and earlier keys of these."""
        now = {*self.members, *(gone.peer for gone in self.away)}
        return frozenset(now.union(*(_ancestors(peer, self.successors) for peer in now)))

    def absent_since(self, member: PeerId) -> int | None:
        return next((gone.step for gone in self.away if gone.peer == member), None)

    def may_return(self, rejoin: Returned, step: int) -> bool:
        """Whoever is absent, not for too long, under its own key or one that was never seen, and after a wait that doubles
        with every return: a flaky line costs time, not the place. While the run pauses nobody has to wait (SPEC B8)."""
        member, key = PeerId(rejoin.member), PeerId(rejoin.key)
        gone = next((gone for gone in self.away if gone.peer == member), None)
        if gone is None or (key != member and (key in self._known or not valid_peer(key))):
            return False
        waits = step < gone.step + self._wait(member, step)
        return self.paused or not (waits or self.updates - gone.updates > MOST_AWAY)

    def _wait(self, member: PeerId, step: int) -> int:
        """`2^k` steps, after k returns within the last thousand, whatever its keys were called in between."""
        link = _ancestors(member, self.successors)
        times = sum(peer in link for when, peer in self.returns if when > step - STRIKE_STEPS)
        return min(1 << min(times, 16), MOST_WAIT)

    @property
    def _known(self) -> frozenset[PeerId]:
        """Keys that were ever seen."""
        successors = {key for pair in self.successors for key in pair}
        return frozenset({*self.members, *self.banned, *self.put_out, *(gone.peer for gone in self.away), *successors})

    @property
    def quorum(self) -> int:
        """More than half of the members, and more than all liars that may be left: no two quorums are disjoint, and none
        consists of liars (SPEC G1). Not the majority of those who are left: seven liars would be that after three honest
        drop-outs."""
        return max(len(self.members) // 2 + 1, self.liars + 1)

    @property
    def restart_quorum(self) -> int:
        """With so many waiting a restart begins by itself: of any quorum that signed something later, one of them is honest
        and has it (SPEC B5)."""
        return len(self.members) + self.liars - self.quorum + 1

    @cached_property
    def liars(self) -> int:
        """`L`: how many liars there may still be. Only bans lower it: nobody can tell who is gone for good (SPEC G1)."""
        return max(0, self.byzantine - self.liars_gone)

    @property
    def liars_gone(self) -> int:
        """How many were banned; who was so under two keys is one."""
        return len(set(self.banned) - {new for old, new in self.successors if old in self.banned})

    def moves(self, members: int, contributors: int) -> bool:
        """Whether a step may change the model (SPEC G2): with no more than `b` gone for whatever reason, since those may be
        the liars; or if liars cannot be half of the contributors. With more gone, the run pauses until some are back."""
        return self.admitted - members <= self.byzantine or 2 * self.liars < contributors


def scales_after(scales: Scales, record: StepRecord, roster: Roster, run: Run) -> Scales:
    """The scales of the next step; τ does not follow distances of which liars may have reported half (SPEC A6)."""
    outnumbered = 2 * roster.liars >= len(record.contributors)
    return scales.after(record.spread, record.applied, run.parameters, outnumbered=outnumbered)


def _with_successors(banned: set[PeerId], successors: Iterable[Pair]) -> set[PeerId]:
    """Who is banned is banned under later keys too."""
    for old, new in successors:
        if old in banned:
            banned = banned | {new}
    return banned


def _ancestors(peer: PeerId, successors: Iterable[Pair]) -> set[PeerId]:
    """The keys that this one took the place of."""
    found = {peer}
    for old, new in reversed(list(successors)):
        if new in found:
            found.add(old)
    return found
