"""The door: strangers that are let in have worked for it, not too many are, and nothing keeps the honest out (SPEC J3–J8).

Everything is computed again, from records and from what members listed.
"""

from collections.abc import Iterator
from itertools import pairwise

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.door import Door, probe_bytes, ticket_bytes, ticket_hash
from troth.protocol.core.records import Judgement
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import Outcome
from troth.protocol.wire.messages import ChargeKind, Commit, GuiltySide, Phase, Ticket, said_as
from troth.training.work import Training
from troth.workshop.chaos.check_progress import held_against
from troth.workshop.chaos.plan import HONEST, LAZY
from troth.workshop.chaos.world import BOUNDS, World
from troth.workshop.simulation.primitives import MemoPrimitives

_LEAST_BETWEEN, _LOTTERIES = 2, 8  # steps between two draws; draws in a probation
_LEAST_TO_BEGIN, _TO_BEGIN = 32, 4  # steps, and the share of a probation, within which a candidate has to begin
_SEATS_AT_ONCE = 8
_SPARE_MISSES, _STEPS_A_MISS = 2, 8  # misses of a candidate, and steps after which there is one more


def door(world: World) -> list[str]:
    """Slots go to tickets, seats to a probation of signed commitments with few misses, and neither to more than there may be."""
    if not world.plan.probation:
        return []
    return [
        *_unearned(world),
        *_too_many(world),
        *_slots(world),
        *_unsigned(world),
        *_missed(world),
        *_without_a_ticket(world),
    ]


def lazy(world: World) -> list[str]:
    """Strangers that did not compute what they committed to are no members in the end."""
    if not world.plan.within or not world.witness:
        return []
    members = {world.numbers.get(peer) for peer in world.witness[-1].state.roster.members}
    return [
        f"stranger {number} is a member, and never computed a gradient ({how})"
        for number, (_, how) in sorted(world.plan.strangers.items())
        if how in LAZY and number in members
    ]


def _unearned(world: World) -> Iterator[str]:
    """A seat costs as many commitments as probation is long, since the slot was won, and the last of them in this very step; of
    steps that nobody recorded, each counts as one."""
    probation, by_step = world.plan.probation, {record.step: record for record in world.records}
    for record in world.records:
        before = by_step.get(record.step - 1)
        seated = {} if before is None else {candidate.key: candidate.seated for candidate in before.candidates}
        for newcomer in record.admitted:
            steps = range(seated.get(newcomer.key, record.step if before else 0), record.step + 1)
            worked = sum(step not in by_step or newcomer.key in dict(by_step[step].probed) for step in steps)
            if worked < probation or newcomer.key not in dict(record.probed):
                yield f"step {record.step}: {world.name(newcomer.key)} was admitted without {probation} steps of work"


def _too_many(world: World) -> Iterator[str]:
    """Those who once came in, and come back, count like those who come in (SPEC J7)."""
    entered, by_the_door = list[tuple[int, int, int]](), set[bytes]()  # step, how many, members
    for record in world.records:
        back = [one for one in record.returned if one.member in by_the_door]
        by_the_door |= {one.key for one in record.admitted} | {one.key for one in back}
        entered.append((record.step, len(record.admitted) + len(back), len(record.members)))
        window = [one for one in entered if record.step - world.plan.probation < one[0]]
        count, most = sum(one[1] for one in window), max(max(1, one[2] // _SEATS_AT_ONCE) for one in window)
        if count > most:
            yield f"step {record.step}: {count} came in within one probation, at most {most} may"


def _slots(world: World) -> Iterator[str]:
    """A candidate has one slot, is no member, and was never banned."""
    banned, slots = set[bytes](), world.run.parameters.slots
    for before, record in pairwise(world.records):
        banned |= set(before.banned)
        keys = [candidate.key for candidate in before.candidates]
        if len(keys) > slots or len(set(keys)) < len(keys):
            yield f"step {before.step}: {len(keys)} candidates under {len(set(keys))} keys for {slots} slots"
        if record.step != before.step + 1:
            continue
        for key in sorted({key for key, _ in record.probed} & {*record.members, *banned}):
            yield f"step {record.step}: {world.name(key)} is on probation, and a member or banned"


def _unsigned(world: World) -> Iterator[str]:
    """Commitments that count were signed by candidates, each for this step."""
    tools = MemoPrimitives()
    for before, outcome in pairwise(world.witness):
        record, candidates = outcome.record, {candidate.key for candidate in before.record.candidates}
        kept = outcome.state.audit_records.get(record.step)
        if kept is None or record.step != before.record.step + 1:
            continue
        slot = Slot(world.run.id, record.step, Phase.COMMIT, incarnation=record.incarnation)
        for peer, said in sorted(kept.probed.items()):
            root = said_as(said, Commit).root
            signed = root is not None and tools.verify(
                peer, probe_bytes(slot, peer, Digest(root), tools), said.envelope.signature
            )
            if not signed or peer not in candidates:
                yield f"step {record.step}: {world.name(peer)} did not sign the gradient that counts as its own"


def _missed(world: World) -> Iterator[str]:
    """Work and misses are counted right, and whoever misses too many steps, or does not begin, is no candidate (SPEC J5)."""
    most_idle = min(world.plan.probation, max(_LEAST_TO_BEGIN, world.plan.probation // _TO_BEGIN))
    for before, record in pairwise(world.records):
        if record.step != before.step + 1:
            continue
        probed, old = dict(record.probed), {candidate.key: candidate for candidate in before.candidates}
        for candidate in (candidate for candidate in record.candidates if candidate.key in old):
            worked, missed = old[candidate.key].worked, old[candidate.key].missed
            if candidate.key in probed:
                worked += 1
            elif worked and not record.began:
                missed += 1
            who = f"step {record.step}: {world.name(candidate.key)}"
            if (candidate.worked, candidate.missed) != (worked, missed):
                counted = f"{candidate.worked} and {candidate.missed} are counted"
                yield f"{who} worked in {worked} steps and missed {missed}, {counted}"
            if missed > _SPARE_MISSES + (worked + missed) // _STEPS_A_MISS:
                yield f"{who} missed {missed} steps of {worked + missed}, and is a candidate"
            if not worked and not record.began and record.step - candidate.seated >= most_idle:
                yield f"{who} did not begin, and is a candidate"


def _without_a_ticket(world: World) -> Iterator[str]:
    """Slots are given away every few steps, to the best tickets that anyone listed (SPEC J4)."""
    between, seed = max(_LEAST_BETWEEN, world.plan.probation // _LOTTERIES), Door.founding(world.run).seed
    for before, outcome in pairwise(world.witness):
        record = outcome.record
        seed = Digest(before.record.randomness) if (before.record.step + 1) % between == 0 else seed
        new = {candidate.key for candidate in record.candidates} - {one.key for one in before.record.candidates}
        if not new or record.step != before.record.step + 1:
            continue
        if (record.step + 1) % between:
            yield f"step {record.step}: a slot was given away between two draws"
            continue
        listed = _right_tickets(world, before.state.roster, seed, outcome)
        if not new <= listed.keys():
            yield f"step {record.step}: a slot went to somebody without a ticket"
        passed_over = listed.keys() - new - {one.key for one in before.record.candidates}
        if new and passed_over and max(listed.get(key, 0) for key in new) > min(listed[key] for key in passed_over):
            yield f"step {record.step}: a slot went to a worse ticket than was listed"


def _right_tickets(world: World, roster: Roster, seed: Digest, outcome: Outcome[Training]) -> dict[bytes, int]:
    """The smallest number of each key that may have a slot, among the tickets that members listed."""
    found, tools = dict[bytes, int](), MemoPrimitives()
    tickets: set[Ticket] = {one for said in outcome.commits.values() for one in said_as(said, Commit).tickets}
    for ticket in tickets:
        number = ticket_hash(world.run.id, seed, ticket)
        back = {one.key for one in outcome.record.returned}
        may = PeerId(ticket.key) not in roster.known and ticket.key not in back
        signed = tools.verify(PeerId(ticket.key), ticket_bytes(world.run.id, seed, ticket), ticket.signature)
        if may and signed and number >> (256 - world.run.parameters.ticket_bits) == 0:
            found[ticket.key] = min(number, found.get(ticket.key, number))
    return found


# Seats: how many liars are reckoned with, and how many are a quorum, as people come in, go and are banned (SPEC G1, J7).


def seats(world: World) -> list[str]:
    """`b` is the founders' share of all seats, only bans of founders that nobody can refute lower `L`, a quorum is more than
    half, and than `L`; and a record after which more members are banned than there may be liars says so, and is the last.

    Counted from the records: seats of those who came in last until they are banned for good reason or expelled (worlds are too
    short for the rest), whatever keys they come back under.
    """
    broken: list[str] = []
    founders = len(world.run.founders)
    promised = min(world.plan.promised, (founders - 1) // 2)
    first = {bytes(key): bytes(key) for key in world.run.founders}  # the first key of every member's seat
    entered, banned, sure, expelled = set[bytes](), set[bytes](), set[bytes](), set[bytes]()
    for outcome in world.witness:
        record, roster = outcome.record, outcome.state.roster
        first |= {one.key: first.get(one.member, one.member) for one in record.returned}
        entered |= {one.key for one in record.admitted}
        new = {first.get(key, key) for key in record.banned} - banned
        sure |= new & {first.get(j.target, j.target) for j in record.judgements if _nobody_can_refute(j)}
        banned |= new
        expelled |= {first.get(key, key) for key in record.expelled}
        count = founders + len(entered - sure - expelled)
        byzantine = promised * count // founders
        liars = max(0, byzantine - len(sure & set(world.run.founders)))
        quorum = max(len(roster.members) // 2 + 1, liars + 1)
        held = (roster.seats, roster.byzantine, roster.liars, roster.quorum)
        if held != (count, byzantine, liars, quorum):
            wanted = f"{count}, {byzantine}, {liars} and {quorum}"
            broken.append(f"step {record.step}: seats, b, L and quorum should be {wanted}, and are {held}")
        too_many = len(banned & {*world.run.founders, *(entered - sure)}) > byzantine  # [G4]
        if record.alarm != too_many or (record.alarm and record is not world.records[-1]):
            broken.append(f"step {record.step}: {len(banned)} bans, and the alarm is {record.alarm}")
        late = {PeerId(key) for key in banned} & set(roster.members)
        broken += [f"step {record.step}: {world.name(key)} was banned, and has a seat" for key in sorted(late)]
    return broken


def _nobody_can_refute(judgement: Judgement) -> bool:
    """A gradient compared bit by bit, or two signatures for one slot."""
    return judgement.verdict == GuiltySide.ACCUSED and judgement.kind in (ChargeKind.GRADIENT, ChargeKind.EQUIVOCATION)


# Welcome: honest strangers whom nothing fails come in, whatever liars and other strangers do (SPEC J3–J8).

_STEPS = 8  # that following, catching up and a draw may take, beside probation


def welcome(world: World) -> list[str]:
    """Within the full guarantee: no honest candidate that stays loses its slot, nor its seat once it is in, and whoever came
    early enough is in."""
    if not world.plan.within or not world.records:
        return []
    steady = {
        number for number, (_, how) in world.plan.strangers.items() if how == HONEST and number not in world.plan.leaves
    }
    return [
        *_stopped(world, steady),
        *_lost_slots(world, steady),
        *held_against(world, steady),
        *_outside(world, steady),
    ]


def _stopped(world: World, steady: set[int]) -> Iterator[str]:
    """Nobody makes it give up, or believe that there are two histories."""
    for number in sorted(steady & world.stopped.keys()):
        yield f"{number} is honest, and stopped: {world.stopped[number]}"


def _lost_slots(world: World, steady: set[int]) -> Iterator[str]:
    for before, record in pairwise(world.records):
        if record.step != before.step + 1 or record.began:
            continue
        left = {one.key for one in record.candidates} | {one.key for one in record.admitted}
        for candidate in before.candidates:
            number = world.numbers.get(PeerId(candidate.key))
            if number in steady and candidate.worked and candidate.key not in left:
                yield f"step {record.step}: {number} is honest, and lost its slot"


def _outside(world: World, steady: set[int]) -> Iterator[str]:
    """Of several who work at once, one comes in after the other; those at the door before it may take the slots for as long.
    With a shorter probation than `troth new` takes, it may be over before a content is named that can be fetched (SPEC J6)."""
    probation, strangers = world.plan.probation, len(world.plan.strangers)
    if probation < 2 * world.plan.content_every:
        return
    roster = world.witness[-1].state.roster
    inside = {world.numbers.get(peer) for peer in (*roster.members, *(gone.peer for gone in roster.away))}
    many = any(how == "flood" for _, how in world.plan.strangers.values())
    for number in sorted(steady - inside):
        # Members answer when a step ends, and whoever answers nothing has a quiet step's time for it, however quick steps are.
        later = [end for end in world.step_ends.values() if end > world.plan.strangers[number][0]]
        steps = sum(end > min(later) + BOUNDS.quiet_step + 4 * BOUNDS.delta for end in later)
        if steps >= _STEPS + probation * (strangers + 1) and not many:
            yield f"{number} is honest, at the door for {steps} steps with a probation of {probation}, and no member"
