"""The door as a function of agreed values: tickets, slots, probation, admission, and the guarantee after it (SPEC J3–J7)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.protocol.returning_members import IDENTITIES, PEERS, roster_after
from troth.crypto import Digest, Identity, PeerId, Slot, derive, stream
from troth.protocol.core.door import (
    AUDITS,
    Door,
    ListedProbes,
    best_nonce,
    best_tickets,
    decide,
    has_work,
    least_probation,
    probe_bytes,
    signed_ticket,
    ticket_hash,
    usual_slots,
)
from troth.protocol.core.records import Candidate, Judgement, Newcomer
from troth.protocol.core.roles import CYCLE_AUDITORS, AuditDuty, PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run, RunError, usual_content_every
from troth.protocol.wire.messages import ChargeKind, Commit, GuiltySide, Phase, Probe, Ticket
from troth.protocol.wire.primitives import Primitives

RUN = Digest(b"r" * 32)
STRANGERS = [Identity.from_secret(derive(7, "stranger", number)) for number in range(8)]
IDENTITY_OF = {identity.peer: identity for identity in (*STRANGERS, *IDENTITIES)}
TOOLS = Primitives()
KEYS = sorted(identity.peer for identity in STRANGERS)
OPEN = Door(probation=8, slots=2, ticket_bits=3, seed=Digest(b"s" * 32))


def run_with(founders: tuple[PeerId, ...] = tuple(sorted(PEERS)), **parameters: Any) -> Run:
    given = {"size": 100, "tau": 1.0, "byzantine": 2, "probation": 8, **parameters}
    return Run(founders, b"", Parameters(**given), bytes(32))


def tickets_of(key: PeerId, count: int, door: Door = OPEN) -> list[Ticket]:
    right = (ticket for nonce in range(10_000) if has_work(RUN, door, ticket := unsigned(key, nonce)))
    return [signed_ticket(RUN, door.seed, IDENTITY_OF[key], next(right).nonce, "") for _ in range(count)]


def unsigned(key: bytes, nonce: int, address: str = "") -> Ticket:
    return Ticket(key, nonce, address, bytes(64))


def goes_on(door: Door, step: int, *probed: PeerId, **more: Any) -> tuple[tuple[Candidate, ...], tuple[PeerId, ...]]:
    members, room = more.pop("members", 8), more.pop("room", 100)
    most = min(room, door.most_admitted(members))
    given: dict[str, Any] = {"tickets": [], "most": most, "out": (), "lenient": False, **more}
    found = decide(door, step, probed, **given)
    return found.candidates, tuple(PeerId(newcomer.key) for newcomer in found.admitted)


# Tickets


def test_a_ticket_costs_work_for_one_key_and_one_draw() -> None:
    """[J4]"""
    (ticket,) = tickets_of(KEYS[0], 1)
    assert ticket_hash(RUN, OPEN.seed, ticket) < 1 << 253
    others = [has_work(RUN, replace(OPEN, seed=Digest(bytes([k]) * 32), ticket_bits=40), ticket) for k in range(20)]
    assert not any(others)
    assert has_work(RUN, replace(OPEN, ticket_bits=0), unsigned(KEYS[0], 5))


@pytest.mark.parametrize("address", ["", "127.0.0.1:7000", "x" * 128])
def test_the_quick_search_finds_what_the_plain_one_finds(address: str) -> None:
    """[J4]"""
    for first in (0, 1000, 2**61):
        plain = min(
            (unsigned(KEYS[0], nonce, address) for nonce in range(first, first + 300)),
            key=lambda ticket: ticket_hash(RUN, OPEN.seed, ticket),
        )
        assert best_nonce(RUN, OPEN.seed, KEYS[0], address, range(first, first + 300)) == (
            ticket_hash(RUN, OPEN.seed, plain).to_bytes(32, "big"),
            plain.nonce,
        )


def test_the_smallest_tickets_count_one_for_each_key() -> None:
    """[J4] However many a key has; keys that were ever seen, and bytes that are no key, win nothing."""
    heard = [ticket for key in KEYS[:4] for ticket in tickets_of(key, 3)]
    best = best_tickets(RUN, OPEN, heard, (), TOOLS)
    ranked = sorted(heard, key=lambda ticket: ticket_hash(RUN, OPEN.seed, ticket))
    assert best[0] == ranked[0]
    assert len({ticket.key for ticket in best}) == len(best) == OPEN.slots
    known = best_tickets(RUN, OPEN, heard, {PeerId(ticket.key) for ticket in best}, TOOLS)
    assert not {ticket.key for ticket in known} & {ticket.key for ticket in best}
    assert (
        best_tickets(RUN, replace(OPEN, ticket_bits=0), [unsigned(bytes(32), 1), unsigned(b"\xff" * 32, 1)], (), TOOLS)
        == []
    )
    assert (
        best_tickets(
            RUN, replace(OPEN, candidates=(Candidate(KEYS[0], "", 0, 0, 0),)), tickets_of(KEYS[0], 1), (), TOOLS
        )
        == []
    )


def test_slots_are_given_away_eight_times_in_a_probation() -> None:
    """[J4] In between nobody gets one: else whoever is quickest would, and not whoever worked most. Seldomer, and an empty slot
    would stay empty for longer."""
    assert [step for step in range(17) if OPEN.is_lottery(step)] == [1, 3, 5, 7, 9, 11, 13, 15]
    for probation, every in ((16, 2), (32, 4), (128, 16)):
        door = replace(OPEN, probation=probation)
        assert [step for step in range(64) if door.is_lottery(step)] == list(range(every - 1, 64, every))
    assert not any(Door().is_lottery(step) for step in range(50))
    won = best_tickets(RUN, OPEN, [*tickets_of(KEYS[0], 1), *tickets_of(KEYS[1], 1)], (), TOOLS)
    assert goes_on(OPEN, 2, tickets=won) == ((), ())
    seated, _ = goes_on(OPEN, 3, tickets=won)
    assert seated == (Candidate(KEYS[0], "", 3, 0, 0), Candidate(KEYS[1], "", 3, 0, 0))
    full = replace(OPEN, candidates=seated)
    assert goes_on(full, 5, tickets=tickets_of(KEYS[2], 1))[0] == seated


# Probation


@pytest.mark.parametrize(("probation", "steps"), [(8, 8), (32, 32), (128, 32), (256, 64)])
def test_a_slot_that_nobody_works_in_is_lost_after_a_quarter_of_a_probation(probation: int, steps: int) -> None:
    """[J5] There is time to fetch a model whose content is named every 16 steps. Were it the whole probation, whoever wins more
    slots than it can work for would keep others out with them for four times as long."""
    door = replace(OPEN, probation=probation, candidates=(Candidate(KEYS[0], "", 3, 0, 0),))
    assert goes_on(door, 3 + steps - 1)[0] == door.candidates
    assert goes_on(door, 3 + steps)[0] == ()
    assert steps >= min(probation, 2 * usual_content_every(1 << 40))


def test_longer_probations_have_more_slots() -> None:
    """[J3] One falls free every eight steps, where all are worked in: as many as a record holds, and four at least."""
    assert [usual_slots(probation) for probation in (0, 8, 32, 64, 128, 1000)] == [4, 4, 4, 8, 16, 16]
    run_with(probation=1000, slots=usual_slots(1000))


def test_a_candidate_has_time_to_begin() -> None:
    """[J5] To fetch the state. Until then nothing is a miss; the banned are out at once."""
    waiting, working = Candidate(KEYS[0], "", 3, 0, 0), Candidate(KEYS[1], "", 3, 1, 0)
    door = replace(OPEN, candidates=(waiting, working))
    assert goes_on(door, 6)[0] == (waiting, replaced(working, missed=1))
    assert goes_on(door, 10, KEYS[1])[0] == (waiting, replaced(working, worked=2))
    assert goes_on(door, 11, KEYS[1])[0] == (replaced(working, worked=2),)
    assert goes_on(door, 11, KEYS[0])[0] == (replaced(waiting, worked=1), replaced(working, missed=1))
    assert goes_on(door, 6, KEYS[0], KEYS[1], out={KEYS[0]})[0] == (replaced(working, worked=2),)


def replaced(candidate: Candidate, **fields: int) -> Candidate:
    return msgspec.structs.replace(candidate, **fields)


def on_probation(door: Door, says: Callable[[Candidate], bool], **more: Any) -> tuple[Candidate, int | None]:
    """A candidate from its slot to the end: it commits in the steps in which `says` tells it to. Its last standing, and the step
    in which it was admitted, if it was."""
    candidate = Candidate(KEYS[0], "", 0, 0, 0)
    for step in range(1, 40 * door.probation):
        probed = [KEYS[0]] if says(candidate) else []
        candidates, admitted = goes_on(replace(door, candidates=(candidate,)), step, *probed, **more)
        if not candidates:
            return candidate, step if admitted else None
        (candidate,) = candidates
    raise AssertionError("a slot for ever")


@pytest.mark.parametrize("probation", [2, 8, 32, 128])
def test_whatever_a_candidate_misses_its_seat_costs_a_whole_probation(probation: int) -> None:
    """[J5, J7] Misses in the first steps or the last, now and then, or as many as it may: T commitments, in at most a seventh
    more steps and two."""
    door = replace(OPEN, probation=probation)
    habits: dict[str, Callable[[Candidate], bool]] = {
        "none": lambda _: True,
        "after the first": lambda one: one.worked != 1 or one.missed == 2,
        "before the last": lambda one: one.worked != probation - 1 or one.missed >= 2,
        "now and then": lambda one: one.worked == 0 or one.worked % 10 > 0 or one.missed * 10 >= one.worked,
        "as many as it may": lambda one: not may_miss(door, one),
    }
    for name, says in habits.items():
        last, admitted = on_probation(door, says)
        assert last.worked == probation - 1, f"{name}: its last commitment is in the step that admits it"
        assert admitted == probation + last.missed, name
        assert last.missed <= (probation + 16) / 7, name
    most, _ = on_probation(door, habits["as many as it may"])
    assert most.missed == {2: 2, 8: 3, 32: 6, 128: 20}[probation]


def may_miss(door: Door, one: Candidate) -> bool:
    return bool(one.worked and goes_on(replace(door, candidates=(one,)), 1)[0])


@pytest.mark.parametrize("worked", [1, 2, 5, 20, 127])
def test_one_miss_too_many_costs_the_slot(worked: int) -> None:
    """[J5] Two, and one more in each eight steps since it began; to stop working is to lose the slot, soon in proportion to the
    work before. So a slot cannot be kept for less than seven gradients in eight steps."""
    door, habit = replace(OPEN, probation=128), Candidate(KEYS[0], "", 0, worked, 0)
    idle = 0
    while (left := goes_on(replace(door, candidates=(habit,)), 999)[0]) != ():
        (habit,), idle = left, idle + 1
    assert idle == habit.missed == max(m for m in range(200) if m <= 2 + (worked + m) // 8)


@pytest.mark.parametrize("working", [1, 2, 3, 5])
def test_whoever_misses_more_than_one_step_in_seven_does_not_come_in(working: int) -> None:
    """[J5] By turns a gradient and a miss, or up to five and one: half the work for twice the time is no bargain on offer."""
    door = replace(OPEN, probation=128)
    turn = iter(range(10_000))
    last, admitted = on_probation(door, lambda _: next(turn) % (working + 1) < working)
    assert admitted is None
    assert last.worked < 64


def test_an_honest_candidate_that_is_late_now_and_then_comes_in() -> None:
    """[J5] With one miss in twenty steps, drawn: 99 of 100 in a probation of 128 steps. Before, one in a thousand did."""
    door, came, rounds = replace(OPEN, probation=128), 0, 300
    for number in range(rounds):
        late = iter(stream(Digest(number.to_bytes(32)), "late").uniform(1000) < 0.05)
        came += on_probation(door, lambda _, late=late: not next(late))[1] is not None  # type: ignore[misc]
    assert came / rounds > 0.95


def test_nobody_is_audited_more_or_less_because_another_misses() -> None:
    """[J5, J6] Each candidate is drawn apart."""
    run = run_with(probation=100)
    roster, due = Roster.founding(run), PendingAudits(5, run.founders, probed=(KEYS[0],))
    both = replace(due, probed=tuple(KEYS[:2]))
    for number in range(100):
        alone, beside = (draw_roles(run, roster, Digest(number.to_bytes(32)), one).audits for one in (due, both))
        assert audits_of(KEYS[0], alone) == audits_of(KEYS[0], beside)


def audits_of(key: PeerId, audits: Mapping[PeerId, tuple[AuditDuty, ...]]) -> list[PeerId]:
    return [who for who, mine in audits.items() for audit in mine if audit.target == key]


def test_after_a_restart_nobody_is_blamed_for_a_miss() -> None:
    """[J5] It goes on where it was, and has worked no more than before."""
    working = Candidate(KEYS[1], "", 3, 1, 2)
    door = replace(OPEN, candidates=(Candidate(KEYS[0], "", 3, 0, 0), working))
    assert goes_on(door, 60, lenient=True)[0] == door.candidates
    assert goes_on(door, 60)[0] == ()
    assert goes_on(door, 60, KEYS[1], lenient=True)[0][1] == replaced(working, worked=2)


def test_admission_comes_after_the_last_step_of_probation() -> None:
    """[J7] Not a step sooner; those who worked most come first; one in eight members within a probation; and nobody who is gone,
    though it has worked enough."""

    def door(worked: int, missed: int = 0) -> Door:
        return replace(
            OPEN, candidates=(Candidate(KEYS[0], "", 1, worked - 1, missed), Candidate(KEYS[1], "", 3, worked, 0))
        )

    assert goes_on(door(6), 10, *KEYS[:2])[1] == ()
    assert goes_on(door(7), 11, *KEYS[:2]) == ((Candidate(KEYS[0], "", 1, 7, 0),), (KEYS[1],))
    assert goes_on(door(8), 12, *KEYS[:2])[1] == (KEYS[1],)
    assert goes_on(door(8), 12, *KEYS[:2], members=16)[1] == (KEYS[0], KEYS[1])
    assert goes_on(door(8), 12, *KEYS[:2], members=16, room=1)[1] == (KEYS[1],)
    lately = replace(door(8), admissions=(6,))
    going_on = tuple(replaced(one, worked=one.worked + 1) for one in lately.candidates)
    assert goes_on(lately, 12, *KEYS[:2]) == (going_on, ()), "they go on working"
    assert goes_on(lately, 12, *KEYS[:2], out={KEYS[1]}, members=16)[1] == (KEYS[0],)
    waiting = replace(OPEN, candidates=(Candidate(KEYS[0], "", 1, 7, 0), Candidate(KEYS[1], "", 1, 12, 0)))
    gone = Candidate(KEYS[1], "", 1, 12, 1)
    assert goes_on(waiting, 12, KEYS[0]) == ((gone,), (KEYS[0],)), "the other one missed the step"


def test_admissions_count_for_one_probation() -> None:
    """[J7]"""
    record = roster_after(roster_of(), step=9, admitted=(Newcomer(KEYS[0], ""),)).door
    assert record.admissions == (9,)
    assert roster_after(replace(roster_of(), door=record), step=16).door.admissions == (9,)
    assert roster_after(replace(roster_of(), door=record), step=17).door.admissions == ()


def roster_of(**parameters: Any) -> Roster:
    return Roster.founding(run_with(**parameters))


# Probes


def probe(identity: Identity, slot: Slot, root: bytes) -> Probe:
    signed = probe_bytes(slot, identity.peer, Digest(root), Primitives())
    return Probe(identity.peer, root, identity.sign(signed))


def listed(slot: Slot, door: Door, *attempts: list[tuple[Probe, ...]]) -> ListedProbes:
    """What counts after so many attempts at a step."""
    found = ListedProbes(door, Primitives())
    for number, told in enumerate(attempts):
        found.hear(slot._replace(attempt=number), told)
    return found


def test_one_voice_is_enough_for_a_probe_and_two_probes_are_none() -> None:
    """[J5] Signed by a candidate, for this step and incarnation; whoever signs two has committed to nothing. So liars who do not
    pass a commitment on make nobody miss a step."""
    slot, one, other = Slot(RUN, 6, Phase.COMMIT), STRANGERS[0], STRANGERS[1]
    door = replace(OPEN, candidates=tuple(Candidate(each.peer, "", 3, 0, 0) for each in (one, other)))
    right = probe(one, slot, b"1" * 32)
    found = listed(slot, door, [(), (right,), (right,)])
    assert list(found.counted) == [one.peer]
    assert not found.signed_two
    message = found.counted[one.peer].message
    assert isinstance(message, Commit)
    assert message.root == right.root
    two = listed(slot, door, [(right,), (probe(one, slot, b"2" * 32),)])
    assert (two.counted, two.signed_two) == ({}, frozenset({one.peer}))
    wrong = [
        probe(STRANGERS[2], slot, b"1" * 32),  # no candidate
        probe(one, slot._replace(step=5), b"1" * 32),
        probe(one, slot._replace(incarnation=1), b"1" * 32),
        Probe(other.peer, right.root, right.signature),  # a copy
    ]
    none = listed(slot, door, [tuple(wrong)])
    assert (none.counted, none.signed_two) == ({}, frozenset()), "nobody can make another sign two"


def test_a_commitment_that_was_listed_cannot_be_taken_back() -> None:
    """[J5] A friend lists it in the first attempt, sees the draw, has the attempt repeated, and lists it no more, or a second one
    beside it: then it would be a miss that spares an audit. It counts, or the slot is lost."""
    slot, one = Slot(RUN, 6, Phase.COMMIT), STRANGERS[0]
    door = replace(OPEN, candidates=(Candidate(one.peer, "", 3, 5, 0),))
    fake, second = probe(one, slot, b"1" * 32), probe(one, slot, b"2" * 32)
    dropped = listed(slot, door, [(fake,), ()], [(), ()])
    assert list(dropped.counted) == [one.peer]
    replaced_by_another = listed(slot, door, [(fake,), ()], [(second,), ()])
    assert (replaced_by_another.counted, replaced_by_another.signed_two) == ({}, frozenset({one.peer}))
    for found in (dropped, replaced_by_another):
        candidates, _ = goes_on(door, 6, *found.counted, out=found.signed_two)
        assert candidates == ((Candidate(one.peer, "", 3, 6, 0),) if found is dropped else ())


def test_what_a_candidate_signs_is_a_commit_of_its_step() -> None:
    """[J5] So a key commits to one gradient in a step, as a candidate or as a member."""
    slot = Slot(RUN, 6, Phase.REVEAL, 3)
    assert probe_bytes(slot, KEYS[0], Digest(b"1" * 32), Primitives()) == probe_bytes(
        Slot(RUN, 6, Phase.COMMIT), KEYS[0], Digest(b"1" * 32), Primitives()
    )


# Audits


@pytest.mark.parametrize("probation", [12, 100])
@pytest.mark.parametrize("byzantine", [0, 2])
def test_a_candidates_gradients_are_audited_six_times_in_expectation(probation: int, byzantine: int) -> None:
    """[J6] By members that do not lie, and whatever members are audited; by one member that was there, drawn anew. Would liars
    count as auditors, seven of sixteen would let one of thirty in that never worked."""
    run = run_with(probation=probation, byzantine=byzantine)
    roster = Roster.founding(run)
    due = PendingAudits(5, run.founders, probed=(KEYS[0],))
    auditors: list[PeerId] = []
    for number in range(600):
        plain = draw_roles(run, roster, Digest(number.to_bytes(32)), replace(due, probed=()))
        drawn = draw_roles(run, roster, Digest(number.to_bytes(32)), due)
        mine = [who for who, audits in drawn.audits.items() for audit in audits if audit.target == KEYS[0]]
        assert len(mine) <= 1
        auditors += mine
        assert (drawn.owners, drawn.validators) == (plain.owners, plain.validators)
    by_honest = [who for who in auditors if who not in run.founders[:byzantine]]
    expected = 600 * AUDITS / probation
    assert abs(len(by_honest) - expected) < 5 * (expected * (1 - AUDITS / probation)) ** 0.5
    assert set(auditors) == set(run.founders)


@pytest.mark.parametrize(("members", "liars", "least"), [(4, 1, 8), (16, 7, 11), (7, 2, 9), (5, 0, 6), (1, 0, 6)])
def test_a_probation_of_the_least_length_has_six_audits(members: int, liars: int, least: int) -> None:
    """[J6] In expectation, by honest members; one step less has fewer, though all of its gradients are audited."""
    assert least_probation(members, liars) == least
    for steps, enough in ((least, True), (least - 1, False)):
        chance = min(1.0, AUDITS / steps * members / (members - liars))
        assert (steps * chance * (members - liars) / members >= AUDITS - 1e-9) is enough


def test_where_everyone_audits_candidates_are_audited_too() -> None:
    """[J6, R6] By several; but not by one that has just come, nor by itself."""
    run = run_with(probation=1000)
    roster = replace(Roster.founding(run), returns=((5, run.founders[0]),))
    due = PendingAudits(5, run.founders, everyone=True, probed=(KEYS[0],))
    drawn = draw_roles(run, roster, RUN, due)
    mine = [who for who, audits in drawn.audits.items() for audit in audits if audit.target == KEYS[0]]
    assert len(mine) == CYCLE_AUDITORS
    assert run.founders[0] not in mine
    gone = draw_roles(run, replace(roster, banned=(KEYS[0],)), RUN, due)
    assert not [audit for audits in gone.audits.values() for audit in audits if audit.target == KEYS[0]]


# The guarantee


def test_admissions_raise_the_number_of_liars_by_the_founders_share() -> None:
    """[J7, G1] And the quorum with it."""
    roster = Roster.founding(run_with(byzantine=2))
    shares = [(roster.admitted, roster.liars, roster.quorum)]
    for number, key in enumerate(KEYS):
        roster = roster_after(roster, step=number, admitted=(Newcomer(key, ""),))
        shares.append((roster.admitted, roster.liars, roster.quorum))
    founders = len(PEERS)
    assert [liars for _, liars, _ in shares] == [2 * admitted // founders for admitted, _, _ in shares]
    assert all(quorum > liars and 2 * quorum > admitted for admitted, liars, quorum in shares)
    assert set(KEYS) <= set(roster.members)


def test_a_banned_candidate_makes_no_liar_less() -> None:
    """[J6, G1] It never was a member: else liars would send strangers to be banned until honest votes count for nothing."""
    roster = replace(roster_of(), door=replace(roster_of().door, candidates=(Candidate(KEYS[0], "", 3, 1, 0),)))
    ban = Judgement(PEERS[0], KEYS[0], ChargeKind.GRADIENT, 4, None, 0, GuiltySide.ACCUSED)
    after = roster_after(roster, step=5, judgements=(ban,))
    assert (after.liars, after.quorum) == (roster.liars, roster.quorum)
    assert KEYS[0] in after.banned
    assert KEYS[0] in after.known
    follower = roster_after(roster_of(), step=5, judgements=(ban,))  # of records that change the roster
    assert (follower.liars, follower.door.turned_away) == (after.liars, after.door.turned_away)


# The run


def test_a_closed_door_leaves_no_trace() -> None:
    """[J3] The run is the same as before there were doors."""
    closed = run_with(probation=0)
    assert "slots" not in closed.parameters.plain()
    assert Parameters.from_plain(closed.parameters.plain()) == closed.parameters
    assert Parameters.from_plain(run_with().parameters.plain()) == run_with().parameters
    assert closed.id != run_with().id
    assert goes_on(Door(), 7, *KEYS) == ((), ())


@pytest.mark.parametrize(
    "wrong", [{"probation": -1}, {"probation": 1 << 20}, {"slots": 0}, {"slots": 17}, {"ticket_bits": 65}]
)
def test_doors_that_no_run_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="`probation` must be"):
        run_with(**wrong)


def test_strangers_need_a_run_of_one_class() -> None:
    """[J6] Their gradients are compared by their bits."""
    with pytest.raises(RunError, match="without `deviation`"):
        run_with(deviation=0.01)
