"""Audits that are dealt with the roles: by validators, or by everyone, and those that are owed."""

import dataclasses
from collections import Counter

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tests.protocol.samples import CLOSE, KEYS, STEP, dealt_audits, run_of
from troth.crypto import Digest, PeerId, derive
from troth.protocol.core.records import Judgement, Owed
from troth.protocol.core.roles import AuditDuty, PendingAudits, Roles, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import ChargeKind, GuiltySide


@st.composite
def situations(draw: st.DrawFn, everyone: bool) -> tuple[Roster, PendingAudits, Roles, int]:
    """Some of sixteen are members, some were banned, some left; some contributed last, some are owed an audit."""
    members = tuple(sorted(draw(st.sets(st.sampled_from(KEYS), min_size=4))))
    others = [peer for peer in KEYS if peer not in members]
    banned = tuple(sorted(draw(st.sets(st.sampled_from(others))))) if others else ()
    due = PendingAudits(
        STEP,
        tuple(sorted(draw(st.sets(st.sampled_from(KEYS), min_size=1)))),
        owed=tuple(Owed(peer, STEP - 1, 1) for peer in sorted(draw(st.sets(st.sampled_from(KEYS), max_size=6)))),
        everyone=everyone,
    )
    asked = draw(st.integers(1, 5))
    roster = Roster(members, banned)
    roles = draw_roles(run_of(16, asked), roster, Digest(derive(draw(st.integers(0, 10**6)))), due)
    return roster, due, roles, min(asked, (len(members) - 1) // 3)


@given(situations(everyone=True))
def test_when_everyone_audits_all_contribute_and_each_target_has_five_auditors(
    situation: tuple[Roster, PendingAudits, Roles, int],
) -> None:
    """[R6, R7] Also those who left since, and those whose audit is owed; but nobody who is banned already."""
    roster, due, roles, _ = situation
    assert roles.validators == ()
    assert sorted(roles.owners) == list(roster.members)
    dealt = Counter(audit for _, audit in dealt_audits(roles))
    last = {AuditDuty(peer, STEP) for peer in due.contributors if peer not in roster.banned}
    owed = {AuditDuty(PeerId(audit.target), STEP - 1) for audit in due.owed if audit.target not in roster.banned}
    assert dealt == {audit: min(5, len(set(roster.members) - {audit.target})) for audit in last | owed}
    assert all(auditor in roster.members and auditor != audit.target for auditor, audit in dealt_audits(roles))


@given(situations(everyone=False))
def test_otherwise_validators_alone_audit_and_do_what_is_owed_besides(
    situation: tuple[Roster, PendingAudits, Roles, int],
) -> None:
    """[R3, R4, R7] One target each of the last step, and the owed ones in turn; never themselves."""
    roster, due, roles, count = situation
    assert len(roles.validators) == count
    assert sorted((*roles.validators, *roles.owners)) == list(roster.members)
    assert all(auditor in roles.validators and auditor != audit.target for auditor, audit in dealt_audits(roles))
    dealt = Counter(audit for _, audit in dealt_audits(roles))
    assert set(dealt.values()) <= {1}
    last = Counter(auditor for auditor, audit in dealt_audits(roles) if audit.step == STEP)
    candidates = set(due.contributors) - set(roster.banned)
    assert set(last.values()) <= {1}
    assert sum(last.values()) in (min(count, len(candidates)), min(count, len(candidates)) - 1)
    assert {audit.target for audit in dealt if audit.step == STEP} <= candidates
    owed = {PeerId(audit.target) for audit in due.owed if audit.target not in roster.banned}
    done = {audit.target for audit in dealt if audit.step == STEP - 1}
    # With a single validator nobody else could do what is owed by that one.
    assert done == (owed - set(roles.validators) if count == 1 else owed)
    shares = Counter(auditor for auditor, audit in dealt_audits(roles) if audit.step == STEP - 1)
    assert max(shares.values(), default=0) <= -(-len(owed) // count) + 1


@given(st.integers(4, 16), st.integers(0, 10**6))
def test_everyone_audits_its_successors_in_one_cycle(members: int, seed: int) -> None:
    """[R6] One cycle and not several small ones: no few can audit each other alone."""
    run = run_of(members)
    roles = draw_roles(
        run, Roster.founding(run), Digest(derive(seed)), PendingAudits(STEP, run.founders, everyone=True)
    )
    after = {auditor: {audit.target for audit in audits} for auditor, audits in roles.audits.items()}
    assert {len(targets) for targets in after.values()} == {min(5, members - 1)}
    if members > 6:  # whom the next one audits too, but for the next one itself, stands behind it
        ring = [run.founders[0]]
        while len(ring) < members:
            follows = [peer for peer in after[ring[-1]] if len(after[ring[-1]] & after[peer]) == 4]
            assert len(follows) == 1
            ring += follows
        assert sorted(ring) == list(run.founders)


def test_cycles_are_drawn_and_not_given() -> None:
    """[R6] Over 120 draws each of fifteen others audits the first peer about equally often: nobody can arrange it."""
    run, seen = run_of(16), Counter[PeerId]()
    for k in range(120):
        roles = draw_roles(run, Roster.founding(run), Digest(derive(9, k)), PendingAudits(STEP, KEYS, everyone=True))
        seen.update(auditor for auditor, audit in dealt_audits(roles) if audit.target == KEYS[0])
    assert len(seen) == 15
    assert max(abs(count - 40) for count in seen.values()) < 5 * 40**0.5


def test_three_members_can_spare_no_validator_and_audit_nobody_unless_asked_to() -> None:
    """[R3, R6] Without liars to fear nobody audits; after a missing coin everyone does, and what is owed."""
    run = run_of(3)
    quiet = draw_roles(run, Roster.founding(run), Digest(bytes(32)), PendingAudits(STEP, run.founders))
    assert (quiet.audits, quiet.validators, len(quiet.owners)) == ({}, (), 3)
    owed = tuple(Owed(peer, STEP - 1, 1) for peer in run.founders)
    asked = draw_roles(
        run, Roster.founding(run), Digest(bytes(32)), PendingAudits(STEP, run.founders, owed, everyone=True)
    )
    assert (asked.validators, len(asked.owners)) == ((), 3)
    dealt = Counter(audit for _, audit in dealt_audits(asked))
    assert dealt == {AuditDuty(peer, step): 2 for peer in run.founders for step in (STEP, STEP - 1)}


@given(st.integers(2, 3), st.integers(0, 10**6))
def test_where_none_can_be_spared_but_a_liar_may_be_left_everyone_audits(members: int, seed: int) -> None:
    """[R3, R6] Four founders of whom one may lie, and some are gone: all contribute, and all are audited by all others."""
    run = run_of(4, byzantine=1)
    roster = dataclasses.replace(Roster.founding(run), members=KEYS[:members])
    roles = draw_roles(run, roster, Digest(derive(seed)), PendingAudits(STEP, KEYS[:4]))
    assert (roles.validators, sorted(roles.owners)) == ((), list(KEYS[:members]))
    expected = {
        (auditor, AuditDuty(target, STEP)) for auditor in KEYS[:members] for target in KEYS[:4] if target != auditor
    }
    assert set(dealt_audits(roles)) == expected
    caught = dataclasses.replace(roster, banned=(KEYS[3],))  # L = 0
    assert draw_roles(run, caught, Digest(derive(seed)), PendingAudits(STEP, KEYS[:4])).audits == {}


@pytest.mark.parametrize("everyone", [False, True])
def test_an_owed_audit_is_dealt_to_members_that_were_there_then(everyone: bool) -> None:
    """[R7] A member that came back in or after that step has no audit record of it."""
    run, lied = run_of(16, validators=5), STEP - 3
    returns = tuple((lied - 1 + k % 3, KEYS[k]) for k in range(12))
    roster = dataclasses.replace(Roster.founding(run), returns=returns)
    due = PendingAudits(STEP, KEYS, tuple(Owed(peer, lied, 3) for peer in KEYS[12:]), everyone=everyone)
    able = {*KEYS[12:], *(peer for when, peer in returns if when < lied)}
    for k in range(40):
        roles = draw_roles(run, roster, Digest(derive(k)), due)
        asked = able & set(roles.audits if everyone else roles.validators)
        dealt = [(auditor, audit) for auditor, audit in dealt_audits(roles) if audit.step == lied]
        assert all(auditor in asked and auditor != audit.target for auditor, audit in dealt)
        if len(asked) > 1:
            counted = Counter(audit.target for _, audit in dealt)
            assert counted == {peer: min(5, len(asked - {peer})) if everyone else 1 for peer in KEYS[12:]}


def test_a_record_says_what_the_next_step_has_to_audit() -> None:
    """[R6, R7]"""
    assert PendingAudits.after(CLOSE) == PendingAudits(STEP, KEYS[:5])
    owed = tuple(Owed(peer, STEP - 1, 2) for peer in KEYS[1:3])
    record = msgspec.structs.replace(CLOSE, struck=(KEYS[8],), owed=owed)
    assert PendingAudits.after(record) == PendingAudits(STEP, KEYS[:5], owed, everyone=True)


@pytest.mark.parametrize("verdict", [GuiltySide.ACCUSED, GuiltySide.ACCUSER, None])
def test_after_a_ban_everyone_audits(verdict: GuiltySide | None) -> None:
    """[R6] Whoever it was that lied, the accused or its accuser; a trial that was dismissed found nobody."""
    judgement = Judgement(KEYS[0], KEYS[1], ChargeKind.GRADIENT, STEP - 1, None, 0, verdict)
    record = msgspec.structs.replace(CLOSE, judgements=(judgement,))
    assert PendingAudits.after(record).everyone is (verdict is not None)
