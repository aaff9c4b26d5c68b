"""What members have in common between two steps, but for the model: scales, the roster and what is held against keys, and the
digest that stands for all of it."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from troth.crypto import Digest, PeerId, tagged_hash, valid_peer
from troth.protocol.core.door import CLOSED, Door
from troth.protocol.core.parts import Bounds
from troth.protocol.core.records import Returned, StepRecord
from troth.protocol.core.run import AlarmError, Parameters, Run, effective_validators
from troth.protocol.wire.messages import NO_BASIS, Malformed
from troth.protocol.wire.primitives import ReportTable

# Scales of a step: the clipping radius, and limits on distances of aggregates and lengths of updates (SPEC A6, V3, U3).
#
# They are functions of announced numbers, so the same at every honest peer. Single correctly rounded operations only: no two
# honest peers may fall on different sides of a threshold.


TAU_STEPS = 32  # steps that an automatic τ looks back (SPEC A6)
TAU_CHANGE = 0.02  # largest relative change of τ in a step
FAR_FACTOR = 4.0  # an aggregate this many times farther away than gradients are long is disputed (SPEC V3)
LEAST_SHARE = 0.05  # least length, relative to an even part's: else a part of nearly all zeros would be disputed
FIRST_UPDATES = 8  # updates whose length is limited by the same step's gradients alone (SPEC U3)
APPLIED_STEPS = 64  # updates that the limit of later ones looks back
UPDATE_FACTOR = 2.0  # limit of an update, as a multiple of the usual length
LEAST_GRADIENT = 1 / 16  # least limit, relative to the gradients: else a limit once too small would last for long


@dataclass(frozen=True)
class Scales:
    """Clipping radius of a step, and the history that the scales of the next one follow from."""

    tau: float
    medians: tuple[float, ...] = ()  # `pooled_norm` of the last steps, oldest first
    applied: tuple[float, ...] = ()  # lengths of the last updates, oldest first
    updates: int = 0  # updates of the model so far

    @classmethod
    def first(cls, parameters: Parameters) -> "Scales":
        return cls(parameters.tau)

    def longest_update(self, length: float) -> float:
        """`C`, the limit of an update's length; `length` is `M`, the lower median of this step's gradients (SPEC U3)."""
        if self.updates < FIRST_UPDATES:
            return UPDATE_FACTOR * max(length, self.tau)
        return UPDATE_FACTOR * max(lower_median(self.applied), length * LEAST_GRADIENT)

    def after(
        self, spread: float, applied: float | None, parameters: Parameters, *, outnumbered: bool = False
    ) -> "Scales":
        """Scales of the next step. `spread` is this step's `pooled_norm`, `applied` the length of its update, if any.

        `outnumbered`: liars may be half of the contributors, so τ must not rise with their distances, neither now nor when
        more members are back; falling only clips more (SPEC A6)."""
        medians, tau = self.medians, self.tau
        if outnumbered:
            spread = min(spread, lower_median(medians)) if medians and applied is not None else 0.0
        if spread > 0:
            medians = (*medians, spread)[-TAU_STEPS:]
            following = self._next_tau(medians, parameters)
            tau = min(tau, following) if outnumbered else following
        if applied is None:
            return Scales(tau, medians, self.applied, self.updates)
        return Scales(tau, medians, (*self.applied, applied)[-APPLIED_STEPS:], self.updates + 1)

    def _next_tau(self, medians: Sequence[float], parameters: Parameters) -> float:
        """`c·median₃₂`, at most 2 % more or less than now, within the run's bounds (SPEC A6)."""
        if parameters.tau_auto is None:
            return self.tau
        wanted = parameters.tau_auto * lower_median(medians)
        slow = min(max(wanted, self.tau * (1 - TAU_CHANGE)), self.tau * (1 + TAU_CHANGE))
        return min(max(slow, parameters.tau_least), parameters.tau_most)


def update_factor(norm: float, longest: float) -> float:
    """Factor of the aggregate: `min(1, C/‖ĝ‖)` (SPEC U3)."""
    return 1.0 if norm <= longest else longest / norm


def whole_norm(norms: Iterable[float]) -> float:
    """Length of a vector, from the lengths of its parts."""
    return math.sqrt(math.fsum(norm * norm for norm in norms))


def pooled_norm(table: ReportTable, bounds: Bounds) -> float:
    """Lower median, over peers and parts, of `norm/√(d/D)`: the distance of a whole vector (SPEC A6)."""
    norms_CP = table.norms_CP / np.sqrt(np.diff(bounds) / bounds[-1])
    middle = (norms_CP.size - 1) // 2
    # Zeros with and without a sign compare equal: on every machine the one without comes out.
    return float(np.partition(norms_CP, middle, axis=None)[middle]) + 0.0


def lower_median(numbers: Sequence[float]) -> float:
    """The ⌈k/2⌉-th smallest of k."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def part_taus(tau: float, bounds: Bounds) -> tuple[float, ...]:
    """Clipping radius of each part: `τ√(d/D)` for d of D numbers (SPEC A1)."""
    return tuple(tau * math.sqrt((stop - start) / bounds[-1]) for start, stop in pairwise(bounds))


def far_parts(table: ReportTable, length: float, taus: Sequence[float], bounds: Bounds) -> set[int]:
    """Parts whose aggregate is farther from the contributors than gradients are long (SPEC V3).

    `N_p > 4·max(M_p, τ_p, 0.05·√(d/D)·M)` with lower medians over the contributors: `N_p` of `‖g_i[p] − ĝ[p]‖`, `M_p` of
    `‖g_i[p]‖`, and `M` of `‖g_i‖`, given as `length`.
    """
    least_P = LEAST_SHARE * np.array(part_taus(length, bounds))
    far_P = FAR_FACTOR * np.maximum(np.maximum(table.median_lengths_P, taus), least_P)
    return set(np.flatnonzero(table.median_norms_P > far_P).tolist())


# The members of a step, what is held against keys, and the guarantee that follows.


MOST_STRIKES = 3  # strikes within `STRIKE_STEPS` that expel (SPEC F3)
STRIKE_STEPS = 1000  # steps for which strikes, link disputes and returns count
BAD_LINKS = 2  # bad links that a member may have without anybody lying, however small L is
MOST_AWAY = 500  # updates after which an absent peer cannot come back (SPEC B8)
LONGEST_REST_S = 3600.0  # between two steps of a pause (SPEC G3) …
MOST_DOUBLINGS = 12  # … and how often it doubles
MOST_WAIT = 64  # upper limit, in steps, of the wait before a return (SPEC B8)

Pair = tuple[PeerId, PeerId]
_NEVER = -1  # updates by the time of a change that was none


class Away(NamedTuple):
    """An absent peer."""

    step: int  # in which it fell out
    peer: PeerId
    updates: int = 0  # updates of the model by then


class RecordKey(NamedTuple):
    """The key with which a peer signs records, if that is another than its own (SPEC U6)."""

    peer: PeerId
    key: PeerId
    updates: int = _NEVER  # updates of the model when it changed to this key; none for what the run was founded with


@dataclass(frozen=True)
class Roster:
    """The members at the start of a step, sorted by key, and the bans, strikes, disputes and absences held against keys.

    All of it follows from the founders and the records since (SPEC U2).
    """

    members: tuple[PeerId, ...]
    banned: tuple[PeerId, ...] = ()
    byzantine: int = 0  # b, the most liars among all seats
    admitted: int = 0  # number of peers that were ever members
    strikes: tuple[tuple[int, PeerId], ...] = ()  # step of the strike, member
    link_disputes: tuple[tuple[int, PeerId, PeerId], ...] = ()  # step in which it began, pair of members
    away: tuple[Away, ...] = ()
    returns: tuple[tuple[int, PeerId], ...] = ()  # step of the return, key since then
    left: tuple[PeerId, ...] = ()  # members that left in the step before
    ever_expelled: tuple[PeerId, ...] = ()  # keys that were ever expelled
    successors: tuple[Pair, ...] = ()  # old key, successor key
    updates: int = 0  # updates of the model so far
    paused: bool = False  # the step before made no update (SPEC G2)
    founders: tuple[int, int] = (0, 0)  # their number, and b among them: b grows with admissions (SPEC J7)
    door: Door = CLOSED
    addresses: tuple[tuple[PeerId, str], ...] = ()  # of members that were strangers
    record_keys: tuple[RecordKey, ...] = ()  # of members and absent peers, in their order
    changed: int = -1  # step of the last record that changed members or keys; −1: none
    disputable: tuple[PeerId, ...] = ()  # banned by judgement: such bans leave L as it was
    still: int = 0  # steps in a row without an update
    idle: int = 0  # of these, those since more members were there than ever in that time (SPEC G3)
    most_idle: int = 0  # members, at most, in that time
    takers: tuple[Pair, ...] = ()  # a banned stranger that left a seat, and the newcomer that has it now (SPEC J7)
    alarmed: bool = False  # a ban was one too many: the run has ended (SPEC G4)

    @classmethod
    def founding(cls, run: Run) -> "Roster":
        most = (len(run.founders) - 1) // 2  # upper limit of b, also for a run beyond the guarantee [G1]
        byzantine, count = min(run.parameters.byzantine, most), len(run.founders)
        door = Door.founding(run)
        keys = tuple(RecordKey(peer, key) for peer, key in run.record_keys)
        founders = count, byzantine
        return cls(run.founders, (), byzantine, count, founders=founders, door=door, record_keys=keys)

    def after(self, record: StepRecord) -> "Roster":
        """Roster of the next step (SPEC T5, N1, N3, F3, B3, J7). A key that left before its verdict is banned all the same."""
        step, oldest = record.step, record.step - STRIKE_STEPS
        back = [(PeerId(rejoin.member), PeerId(rejoin.key)) for rejoin in record.returned]
        successors = (*self.successors, *(pair for pair in back if pair[0] != pair[1]))
        newcomers = [PeerId(newcomer.key) for newcomer in record.admitted]
        admitted = self.admitted + len(newcomers)

        def now(peer: PeerId) -> PeerId:
            return dict(back).get(peer, peer)

        banned = _with_successors({*self.banned, *record.banned}, successors)
        staying = {
            *(peer for peer in self.members if peer not in record.leaving),
            *(key for _, key in back),
            *newcomers,
        }
        away = [gone for gone in self.away if gone.peer not in dict(back) and not self._gave_up(gone, record)]
        absent = [Away(step, PeerId(peer), record.updates) for peer in record.absent]
        new_keys = {
            PeerId(one.member): RecordKey(PeerId(one.member), PeerId(one.key), record.updates) for one in record.rekeyed
        }
        keys = {one.peer: one for one in self.record_keys} | new_keys
        here = (staying | {gone.peer for gone in (*away, *absent)}) - banned
        following = Roster(
            members=tuple(sorted(staying - banned)),
            banned=tuple(sorted(banned)),
            byzantine=self.byzantine,
            admitted=admitted,
            strikes=(
                *(strike for strike in self.strikes if strike[0] > oldest),
                *((step, PeerId(peer)) for peer in (*record.struck, *record.slowed)),
            ),
            link_disputes=(
                *((when, now(one), now(other)) for when, one, other in self.link_disputes if when > oldest),
                *((step, PeerId(one), PeerId(other)) for one, other in record.link_disputes),
            ),
            away=tuple(gone for gone in (*away, *absent) if gone.peer not in banned),
            returns=(
                *(old for old in self.returns if old[0] > oldest),
                *((step, key) for key in (*(key for _, key in back), *newcomers)),
            ),
            left=tuple(sorted(record.leaving)),
            ever_expelled=tuple(sorted({*self.ever_expelled, *map(PeerId, record.expelled)})),
            successors=successors,
            updates=record.updates,
            paused=not record.updated,
            founders=self.founders,
            addresses=(*self.addresses, *((PeerId(one.key), one.address) for one in record.admitted)),
            record_keys=tuple(keys[peer] for peer in sorted(here & keys.keys())),
            changed=step if record.changes_roster else self.changed,
            disputable=self._disputable_after(record, successors),
            takers=tuple((seat, now(taker)) for seat, taker in self.takers if now(taker) in here),
            door=self.door.after(
                record,
                turned_away=set(record.banned) - self._ever_members - set(self.banned),
                members=staying,
                entered=len(newcomers) + sum(old in self.came_in for old, _ in back),
            ),
        )
        still, idle, most_idle = self._idling(record, len(staying))
        following = replace(following, still=still, idle=idle, most_idle=most_idle)
        return following._seated(newcomers, banned=bool(record.banned), ended=self.alarmed)

    def _seated(self, newcomers: Iterable[PeerId], *, banned: bool, ended: bool) -> "Roster":
        """With newcomers on the seats that are vacant, and with b among all seats (SPEC J7)."""
        takers = (*self.takers, *zip(sorted(self.vacant), newcomers, strict=False))
        following = replace(self, takers=takers)
        byzantine = following._byzantine_among(following.seats)
        # Only with a ban: where others leave, and b falls, no record would say that the run ended.
        return replace(following, byzantine=byzantine, alarmed=ended or (banned and following.member_bans > byzantine))

    def _idling(self, record: StepRecord, members: int) -> tuple[int, int, int]:
        """Steps without an update, those of them that count for the rest between steps, and the most members meanwhile."""
        if record.updated:
            return 0, 0, 0
        return self.still + 1, 0 if members > self.most_idle else self.idle + 1, max(members, self.most_idle)

    def rest(self, delta: float) -> float:
        """Seconds between the steps of a pause: twice as many with each, up to an hour, and few again only when more members are
        there than ever since the last update. Else one liar that calls all to the next step, again and again, would have the
        records run past those who are away. By clocks that run apart by 100 parts in a million all end within Δ (SPEC G3)."""
        return min(delta * 2.0 ** min(self.idle, MOST_DOUBLINGS), LONGEST_REST_S)

    def _disputable_after(self, record: StepRecord, successors: tuple[Pair, ...]) -> tuple[PeerId, ...]:
        """The banned whose ban rests on judgement, but for those who had the seat of such a one: it is vacant again (SPEC J7)."""
        takers, new = {taker for _, taker in self.takers}, record.disputable - set(self.banned)
        own = {peer for peer in new if not _with_successors({peer}, successors) & takers}
        return tuple(sorted(_with_successors({*self.disputable, *own}, successors)))

    def refuses(self, record: StepRecord) -> str | None:
        """Why a record, whoever signed it, cannot come next: the run has ended, or it hides that it ends here (SPEC G4)."""
        if self.alarmed:
            return f"the run ended in step {self.changed}, with more bans than the {self.byzantine} liars that it withstands"
        if record != self.marked(record):
            return "it does not say truly whether more members are banned than may lie"
        return None

    def marked(self, record: StepRecord) -> StepRecord:
        """A record of these members that says truly whether it ends the run for too many bans (SPEC G4)."""
        alarm = bool(record.banned) and self.after(record).alarmed
        return record if record.alarm == alarm else msgspec.structs.replace(record, alarm=alarm)

    @property
    def alarm(self) -> AlarmError | None:
        """What people are told if the run has ended for too many bans."""
        return AlarmError(self.changed, self.member_bans, self.byzantine) if self.alarmed else None

    @property
    def member_bans(self) -> int:
        """Number of banned founders, one under two keys counts once, and of seats that bans of strangers left vacant. With more
        than b an honest one is among them, or the promise was wrong: people have to see to it (SPEC G4)."""
        return len(_once(self.banned, self.successors) - {*self.door.turned_away, *self.came_in}) + len(self.vacant)

    def expelled(self, step: int, struck: Iterable[PeerId], pairs: Iterable[Pair]) -> tuple[PeerId, ...]:
        """Members to expel: three strikes, or link disputes with half of the roster (SPEC N3, F3)."""
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
        """Whether `count` is at least half, and more than `L`: in a small roster `L` liars are half of it (SPEC N5, F3)."""
        return 2 * count >= of and count > self.liars

    def disputed(self, pairs: Iterable[Pair]) -> frozenset[PeerId]:
        """Members that, with these pairs, are in dispute with more members than `L` and than `BAD_LINKS` (SPEC F3).

        The members with most disputes come first, and their pairs count for nobody else: a bad link must not be held against
        everyone at its other end."""
        left = {peer: set(others) for peer, others in self.disputed_links(pairs).items()}
        found: set[PeerId] = set()
        while (most := max(map(len, left.values()), default=0)) > max(self.liars, BAD_LINKS):
            worst = {peer for peer, others in left.items() if len(others) == most}
            found |= worst
            left = {peer: others - worst for peer, others in left.items() if peer not in worst}
        return frozenset(found)

    def disputed_links(self, pairs: Iterable[Pair] = (), before: int | None = None) -> dict[PeerId, frozenset[PeerId]]:
        """Members in link disputes, by member, `pairs` included; only those that began `before` a step, if it is given."""
        found: dict[PeerId, set[PeerId]] = {}
        for one, other in (*((a, b) for since, a, b in self.link_disputes if before is None or since < before), *pairs):
            if one in self.members and other in self.members:
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set()).add(one)
        return {peer: frozenset(others) for peer, others in found.items()}

    def _byzantine_among(self, seats: int) -> int:
        """`b` among so many: the same share as among the founders (SPEC J7)."""
        count, byzantine = self.founders
        return byzantine * seats // count if count else self.byzantine

    def _gave_up(self, gone: Away, record: StepRecord) -> bool:
        """Whether an absent peer that came in by the door has lost its seat: else strangers who come and go would be counted on
        for ever, and the run pause (SPEC J7). Only where a record changes the roster, since followers of those see no others."""
        return record.changes_roster and gone.peer in self.came_in and record.updates - gone.updates > MOST_AWAY

    # Keys that sign records

    def record_key(self, peer: PeerId) -> PeerId:
        """The key with which a peer signs records: its own, until it changes to another (SPEC U6)."""
        return next((one.key for one in self.record_keys if one.peer == peer), peer)

    @cached_property
    def signers(self) -> dict[PeerId, PeerId]:
        """The members, and the keys with which they sign the record of this step."""
        return {
            **{peer: peer for peer in self.members},
            **{k.peer: k.key for k in self.record_keys if k.peer in self.members},
        }

    def may_rekey(self, peer: PeerId, every: int) -> bool:
        """Whether a member may change to another record key: once in `every` updates, all at the same time."""
        last = next((one.updates for one in self.record_keys if one.peer == peer), _NEVER)
        return self.updates // every > last // every

    @property
    def may_ask(self) -> frozenset[PeerId]:
        """Keys whose requests are heard: members, absent peers, earlier keys of both, and candidates."""
        now = {*self.members, *(gone.peer for gone in self.away), *self.door.keys}
        return frozenset(now.union(*(_ancestors(peer, self.successors) for peer in now)))

    def absent_since(self, member: PeerId) -> int | None:
        return next((gone.step for gone in self.away if gone.peer == member), None)

    def may_return(self, rejoin: Returned, step: int) -> bool:
        """Whether the peer is absent, not for too long, comes under its own key or one never seen, and has waited long enough.

        The wait doubles with every return: a bad link costs time, not the seat. While the run pauses there is none (SPEC B8)."""
        member, key = PeerId(rejoin.member), PeerId(rejoin.key)
        gone = next((gone for gone in self.away if gone.peer == member), None)
        if gone is None or (key != member and (key in self.known or not valid_peer(key))):
            return False
        if member in self.came_in and not self.door.most_admitted(len(self.members)):
            return False  # seats of the absent cost no work: they fill no faster than others [J7]
        waits = step < gone.step + self._wait(member, step)
        return self.paused or not (waits or self.updates - gone.updates > MOST_AWAY)

    def _wait(self, member: PeerId, step: int) -> int:
        """`2^k` steps after k returns within the last thousand, under whatever keys (SPEC B8)."""
        link = _ancestors(member, self.successors)
        times = sum(peer in link for when, peer in self.returns if when > step - STRIKE_STEPS)
        return min(1 << min(times, 16), MOST_WAIT)

    @property
    def known(self) -> frozenset[PeerId]:
        """All keys that were ever seen."""
        return self._ever_members | self.door.keys | set(self.banned)

    @property
    def _ever_members(self) -> frozenset[PeerId]:
        """Keys that were ever members, but for some that were banned. Whoever follows only the records that change the roster
        knows them too, and nobody else's ban makes a liar less."""
        successors = {key for pair in self.successors for key in pair}
        return frozenset({*self.members, *self.ever_expelled, *(gone.peer for gone in self.away), *successors})

    @property
    def quorum(self) -> int:
        """More than half of the members, and more than `L`: two quorums share a member, and none is all liars (SPEC G1).

        A mere majority of those who are left would be seven liars of sixteen after three honest drop-outs."""
        return max(len(self.members) // 2 + 1, self.liars + 1)

    @property
    def restart_quorum(self) -> int:
        """Number of waiting members with whom a restart begins by itself: any quorum that signed something later has an
        honest member among them (SPEC B5)."""
        return len(self.members) + self.liars - self.quorum + 1

    @cached_property
    def liars(self) -> int:
        """`L`, the most liars that may still be members. Only bans that nobody can refute lower it: nobody can tell who is gone
        for good, and a wrong ban must not make liars a quorum (SPEC G1)."""
        return max(0, self.byzantine - self.liars_gone)

    @property
    def liars_gone(self) -> int:
        """Number of founders whose ban nobody can refute, one under two keys counts once. Whoever came in by the door takes its
        seat along instead, and the share that the seat had in `b`: else strangers could come in to be banned, until nobody counts
        on the liars that are left (SPEC J7)."""
        others = {*self.door.turned_away, *self.came_in, *self.disputable}
        return len(_once(self.banned, self.successors) - others)

    @property
    def seats(self) -> int:
        """Number of founders, of those who came in by the door and are members, or may be again, and of seats that bans of such
        left vacant (SPEC J7)."""
        count, _ = self.founders
        here = {*self.members, *(gone.peer for gone in self.away)}
        return count + len(here & self.came_in) + len(self.vacant) if count else self.admitted

    @cached_property
    def vacant(self) -> frozenset[PeerId]:
        """Keys of strangers banned by judgement whose seat nobody has: a taker that leaves cannot make it vanish (SPEC J7)."""
        taken = {seat for seat, _ in self.takers}
        return frozenset((_once(self.disputable, self.successors) & self.came_in) - taken)

    @cached_property
    def came_in(self) -> frozenset[PeerId]:
        """Keys of members that were strangers, and their successor keys."""
        return frozenset(_with_successors({key for key, _ in self.addresses}, self.successors))

    def moves(self, members: int, contributors: int) -> bool:
        """Whether a step may change the model (SPEC G2): at most `b` are gone, for whatever reason, since those may be the
        liars; or liars cannot be half of the contributors. With more gone, the run pauses until some are back."""
        return self.seats - members <= self.byzantine or 2 * self.liars < contributors


def moves_with(roster: Roster, members: int, validators: int) -> bool:
    """Whether a step in which all of so many members do their part changes the model."""
    return roster.moves(members, members - effective_validators(members, validators))


def least_to_move(roster: Roster, validators: int) -> int:
    """The least number of members with whom a step changes the model; more than there ever were if none will do."""
    return next(
        (members for members in range(1, roster.admitted + 1) if moves_with(roster, members, validators)),
        roster.admitted + 1,
    )


def _with_successors(peers: set[PeerId], successors: Iterable[Pair]) -> set[PeerId]:
    """Add the successor keys of these peers (SPEC B8)."""
    for old, new in successors:
        if old in peers:
            peers = peers | {new}
    return peers


def _once(peers: Collection[PeerId], successors: Iterable[Pair]) -> set[PeerId]:
    """Of keys that are one peer's, the oldest."""
    return set(peers) - {new for old, new in successors if old in peers}


def _ancestors(peer: PeerId, successors: Iterable[Pair]) -> set[PeerId]:
    """This key, and all keys whose successor it is."""
    found = {peer}
    for old, new in reversed(list(successors)):
        if new in found:
            found.add(old)
    return found


# Standing: everything that members have in common but the model, under one digest in the record (SPEC J8).
#
# Whoever follows only the records that changed the members knows who signs, and lacks strikes, disputes, scales and the door.
# With the standing it begins from one record, as if it had followed all of them.


@dataclass(frozen=True)
class CommonState:
    """The common state between two steps, but for the model."""

    roster: Roster
    scales: Scales
    randomness: Digest
    earlier_randomness: Digest

    def after(self, record: StepRecord, run: Run) -> "CommonState":
        """The common state after a record; τ does not rise with distances of which liars may have reported half (SPEC A6)."""
        outnumbered = 2 * self.roster.liars >= len(record.contributors)
        scales = self.scales.after(record.spread, record.applied, run.parameters, outnumbered=outnumbered)
        return CommonState(self.roster.after(record), scales, Digest(record.randomness), self.randomness)

    def standing_after(self, record: StepRecord, run: Run) -> Digest:
        """The standing that a record has to name: only where strangers may come."""
        if not run.parameters.probation or record.closing:
            return NO_BASIS
        return self.after(record, run).digest

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(_fields(self))

    @property
    def digest(self) -> Digest:
        return digest_of(self.encode())


def digest_of(encoded: bytes) -> Digest:
    return tagged_hash("troth/standing/1", encoded)


def decode_standing(raw: bytes) -> CommonState | Malformed:
    """A standing as a peer sent it. Whoever uses it compares its digest."""
    try:
        return msgspec.msgpack.decode(raw, type=CommonState, strict=True)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        return Malformed(f"not a standing: {error}")


def _fields(value: Any) -> Any:
    """The fields of a dataclass by name, and nothing that it remembers besides."""
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: _fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
