"""Roles in a step: a pure function of the agreed randomness."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from troth.crypto import Digest, PeerId, Seed, Slot, derive, stream, tagged_hash
from troth.protocol.core.door import AUDITS
from troth.protocol.core.parts import Bounds, part_bounds
from troth.protocol.core.records import MOST_OWED, Owed, StepRecord
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run, effective_validators
from troth.protocol.wire.primitives import Primitives

# Auditors of each target where everyone audits: colluders look away, and choose among several draws (SPEC R6).
CYCLE_AUDITORS = 5


def first_randomness(run: Run) -> tuple[Digest, Digest]:
    """Stand-ins for the draws of steps −1 and −2 (SPEC R2)."""
    return tagged_hash("troth/randomness/first/1", run.id), tagged_hash("troth/randomness/before/1", run.id)


@dataclass(frozen=True)
class PendingAudits:
    """Work that is still to be audited: the last step's contributors, and earlier audits that came to nothing."""

    step: int  # the last step
    contributors: tuple[PeerId, ...]
    owed: tuple[Owed, ...] = ()  # audits of earlier steps that came to nothing, or beside a liar's (SPEC R7, R8)
    everyone: bool = False  # a liar was caught, or may have chosen among several draws: everyone audits (SPEC R6)
    probed: tuple[PeerId, ...] = ()  # candidates that committed to a gradient in the last step (SPEC J6)

    @property
    def owed_steps(self) -> frozenset[int]:
        """Steps before the last one of which audits are owed: at most `MOST_OWED`, whatever the list says, since an audit that
        comes to nothing is dealt again in the very next step, and no oftener than that (SPEC R7)."""
        return frozenset(audit.step for audit in self.owed if self.step - MOST_OWED <= audit.step < self.step)

    @classmethod
    def after(cls, record: StepRecord) -> "PendingAudits":
        members = {PeerId(peer) for peer in record.members}
        return cls(
            record.step,
            tuple(PeerId(peer) for peer in record.contributors),
            record.owed,
            # A liar that made the others discard a draw, or a step, must not gain by the new draw. Where a member was caught
            # there are more; candidates could have everyone audit as often as they like [R6].
            everyone=bool(record.struck)
            or not members.isdisjoint(record.banned)
            or record.began
            or record.unjudged
            or record.in_vain,
            probed=tuple(PeerId(key) for key, _ in record.probed),
        )

    @classmethod
    def between(cls, before: StepRecord, record: StepRecord) -> "PendingAudits":
        """Audits that were pending in a step after another; if the run restarted in between, everyone audits (SPEC B5)."""
        due = cls.after(before)
        return due if record.incarnation == before.incarnation else replace(due, everyone=True)


NO_PENDING_AUDITS = PendingAudits(-1, ())


@dataclass(frozen=True)
class AuditDuty:
    """A target, and the step whose work is to be recomputed."""

    target: PeerId
    step: int


@dataclass(frozen=True)
class Roles:
    """Auditors with their targets; contributors in the order of the parts they own."""

    audits: dict[PeerId, tuple[AuditDuty, ...]]  # by auditor
    validators: tuple[PeerId, ...]  # auditors that contribute nothing
    owners: tuple[PeerId, ...]  # the contributors: owners[p] owns part p
    bounds: Bounds

    def owner_of(self, part: int, out: frozenset[PeerId] = frozenset()) -> PeerId:
        """The part's owner or, if it is out, the next contributor in the permutation that is not (SPEC N1)."""
        if self.owners[part] not in out:
            return self.owners[part]
        order = (*self.owners[part:], *self.owners[:part])
        return next(peer for peer in order if peer not in out)


def draw_roles(run: Run, roster: Roster, randomness: Digest, due: PendingAudits) -> Roles:
    """Draw auditors, distinct targets among the last step's contributors, and owners from `randomness` (SPEC R3–R7, B4).

    In the first step nobody has contributed yet: all contribute, nobody audits. A contributor that left since is still a
    target; a banned one is not, since nothing more could come of it. Where too few are left to spare a validator, all
    contribute and audit.
    """
    members = roster.members
    count = effective_validators(len(members), run.parameters.validators) if due.contributors else 0
    everyone = due.everyone or (count == 0 and roster.liars > 0)  # none to spare, but liars may be left [R3, R6]
    order = [members[k] for k in stream(randomness, "validators").permutation(len(members))]
    fresh = {peer for when, peer in roster.returns if when >= due.step - 1}  # just back: these contribute [B4]
    targets = sorted(set(due.contributors) - set(roster.banned))
    if everyone:
        validators: tuple[PeerId, ...] = ()
        dealt = list(_in_a_cycle(members, targets, randomness))
    else:
        validators = tuple(peer for peer in order if peer not in fresh)[:count]
        dealt = list(_to_validators(validators, targets, randomness))
    auditors = [peer for peer in order if peer in validators or not validators] if count or everyone else []
    owed = [audit for audit in sorted(due.owed) if audit.target not in roster.banned]
    just_back = {peer for when, peer in roster.returns if when == due.step - 1} & set(targets)
    extra = sorted(just_back - {target for _, target in dealt})
    pairs = [
        *((auditor, AuditDuty(target, due.step)) for auditor, target in dealt),
        *((auditor, AuditDuty(target, due.step)) for auditor, target in _in_turn(auditors, extra)),
        *_again(auditors, owed, roster, CYCLE_AUDITORS if everyone else 1),
        *_of_candidates(roster, due, randomness, everyone=everyone),
    ]
    contributors = sorted(set(members) - set(validators))
    owners = tuple(contributors[k] for k in stream(randomness, "owners").permutation(len(contributors)))
    return Roles(
        audits={peer: mine for peer in members if (mine := tuple(audit for who, audit in pairs if who == peer))},
        validators=validators,
        owners=owners,
        bounds=part_bounds(run.parameters.size, len(owners), run.parameters.coding),
    )


def closing_roles(run: Run, roster: Roster, randomness: Digest, due: PendingAudits) -> Roles:
    """Everyone audits the last step, as after a withheld coin (SPEC R6), and earlier audits that are pending."""
    drawn = draw_roles(run, roster, randomness, replace(due, everyone=True))
    return replace(drawn, validators=roster.members, owners=(), bounds=(0,))


def gradient_seed(randomness: Digest, peer: PeerId) -> Seed:
    """`ξ_i = H(r, key_i)`, with the draw before the one that gave the roles (SPEC R2)."""
    return derive(randomness, "gradient", peer)


def _to_validators(
    validators: Sequence[PeerId], candidates: Sequence[PeerId], randomness: Digest
) -> Iterator[tuple[PeerId, PeerId]]:
    """Give each validator the first candidate in a random order that is neither taken nor itself (SPEC R4)."""
    free = [candidates[k] for k in stream(randomness, "targets").permutation(len(candidates))]
    for validator in validators:
        target = next((peer for peer in free if peer != validator), None)
        if target is not None:
            free.remove(target)
            yield validator, target


def _in_a_cycle(
    members: Sequence[PeerId], targets: Sequence[PeerId], randomness: Digest
) -> Iterator[tuple[PeerId, PeerId]]:
    """Put everyone in one random cycle; the members before a target audit it (SPEC R6)."""
    everyone = sorted({*members, *targets})
    ring = [everyone[k] for k in stream(randomness, "cycle").permutation(len(everyone))]
    for slot, peer in enumerate(ring):
        if peer in targets:
            before = (*reversed(ring[:slot]), *reversed(ring[slot + 1 :]))
            for auditor in islice((other for other in before if other in members), CYCLE_AUDITORS):
                yield auditor, peer


def _again(
    auditors: Sequence[PeerId], owed: Sequence[Owed], roster: Roster, count: int
) -> Iterator[tuple[PeerId, AuditDuty]]:
    """Deal audits of earlier steps, each to so many auditors that were members then, and so have what they need (SPEC R7)."""
    since = {peer: when for when, peer in roster.returns}
    dealt = dict.fromkeys(auditors, 0)
    for audit in owed:
        able = [peer for peer in auditors if since.get(peer, -1) < audit.step and peer != audit.target]
        for auditor in sorted(able, key=lambda peer: dealt[peer])[:count]:  # the first of those with the fewest
            dealt[auditor] += 1
            yield auditor, AuditDuty(PeerId(audit.target), audit.step)


def _of_candidates(
    roster: Roster, due: PendingAudits, randomness: Digest, *, everyone: bool
) -> Iterator[tuple[PeerId, AuditDuty]]:
    """Draw, for each candidate apart, whether its last gradient is audited, and by whom among those who have what they need: a
    budget of its own, so that strangers take nothing from the audits of members. As many audits as are wanted are by honest
    members: liars would let their fellows pass (SPEC J6)."""
    since = {peer: when for when, peer in roster.returns}
    members, honest = len(roster.members), len(roster.members) - roster.liars
    for key in due.probed:
        able = [peer for peer in roster.members if since.get(peer, -1) < due.step and peer != key]
        draw = stream(randomness, "probation", key)
        audited = everyone or draw.uniform(1)[0] * roster.door.probation * honest < AUDITS * members
        order = [able[k] for k in draw.permutation(len(able))]
        for auditor in order[: CYCLE_AUDITORS if everyone else 1] if audited and key not in roster.banned else ():
            yield auditor, AuditDuty(key, due.step)


def _in_turn(auditors: Sequence[PeerId], owed: Sequence[PeerId]) -> Iterator[tuple[PeerId, PeerId]]:
    """Deal extra targets, one after another, to auditors in their random order, never to themselves (SPEC R7)."""
    for number, target in enumerate(owed):
        order = islice(cycle(auditors), number % max(1, len(auditors)), None)
        auditor = next((peer for peer in islice(order, len(auditors)) if peer != target), None)
        if auditor is not None:
            yield auditor, target


# Shared randomness from coins that everyone commits to before anyone opens (SPEC R1, C2).
#
# Two coins, because targets must not be known while anyone can still lie: coin A is opened once the aggregates are fixed and
# gives the projections; coin B is opened with the accusations and gives the next step's roles.


@dataclass(frozen=True)
class Coins:
    """Two secrets of 32 bytes, drawn afresh for every attempt."""

    a: bytes
    b: bytes


class SeededEntropy:
    """Repeatable secrets, for runs in which all peers are ours. Never with anyone else: the seed gives all of them away."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(*(derive(self._seed, "coin", which, self._number, step, attempt) for which in ("A", "B")))


def right_openings(
    which: str,
    commitments: Mapping[PeerId, bytes],
    openings: Mapping[PeerId, bytes],
    slot: Slot,
    tools: Primitives,
) -> dict[PeerId, bytes]:
    """Coins that fit their commitments. `slot` is that of the message with the commitments (SPEC C2, N2)."""
    return {
        peer: coin
        for peer, coin in openings.items()
        if peer in commitments and tools.coin_commitment(coin, slot, peer, which) == commitments[peer]
    }


def combine(purpose: str, step: int, attempt: int, coins: Mapping[PeerId, bytes]) -> Digest:
    """Hash all opened coins, in the order of keys: unpredictable if a single one is honest (SPEC A4, R1)."""
    parts = [part for peer in sorted(coins) for part in (peer, coins[peer])]
    return tagged_hash(f"troth/randomness/{purpose}/1", step.to_bytes(8, "big"), attempt.to_bytes(2, "big"), *parts)
