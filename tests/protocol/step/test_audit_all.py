"""Whoever keeps a coin to itself brings everyone's audit upon all; and an audit that is lost is owed."""

import dataclasses
from collections import Counter
from functools import cache, partial

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from tests.evidence.forger import Forger
from tests.protocol.core.test_roles import KEYS, run_of
from tests.protocol.small_runs import SMALL, finished, kept_promises, liars_gone, records, rewired, run_on
from troth.crypto import Digest, PeerId, derive
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import MOST_OWED, Judgement, Owed, StepRecord
from troth.protocol.core.roles import Audit, PendingAudits, Roles, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.step.trials import Trials
from troth.protocol.wire.messages import Accuse, Announced, Envelope, Kind, Verdict, Vote
from troth.simulation import ProtocolSimulation, Scenario
from troth.simulation.lockstep.drop_outs import DropOut, DroppingChannel, PowerCutError
from troth.simulation.lockstep.reliable import ReliableChannel

STEP = 40  # the step before the one that roles are drawn for
RECORD = StepRecord(
    step=STEP,
    members=KEYS,
    contributors=KEYS[:5],
    roots=(bytes(32),) * 5,
    parts=5,
    seed_randomness=bytes(32),
    randomness=bytes(32),
    state_before=bytes(32),
    state_after=bytes(32),
    updated=True,
    updates=STEP + 1,
    tau=1.0,
    spread=1.0,
    length=1.0,
    norm=1.0,
    factor=1.0,
    judgements=(),
)


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


def pairs(roles: Roles) -> list[tuple[PeerId, Audit]]:
    return [(auditor, audit) for auditor, audits in roles.audits.items() for audit in audits]


@given(situations(everyone=True))
def test_when_everyone_audits_all_contribute_and_each_target_has_five_auditors(
    situation: tuple[Roster, PendingAudits, Roles, int],
) -> None:
    """[R6, R7] Also those who left since, and those whose audit is owed; but nobody who is banned already."""
    roster, due, roles, _ = situation
    assert roles.validators == ()
    assert sorted(roles.owners) == list(roster.members)
    dealt = Counter(audit for _, audit in pairs(roles))
    last = {Audit(peer, STEP) for peer in due.contributors if peer not in roster.banned}
    owed = {Audit(PeerId(audit.target), STEP - 1) for audit in due.owed if audit.target not in roster.banned}
    others = {audit: len(set(roster.members) - {audit.target}) for audit in last}
    assert dealt == {**{audit: min(5, count) for audit, count in others.items()}, **dict.fromkeys(owed, 1)}
    assert all(auditor in roster.members and auditor != audit.target for auditor, audit in pairs(roles))


@given(situations(everyone=False))
def test_otherwise_validators_alone_audit_and_do_what_is_owed_besides(
    situation: tuple[Roster, PendingAudits, Roles, int],
) -> None:
    """[R3, R4, R7] One target each of the last step, and the owed ones in turn; never themselves."""
    roster, due, roles, count = situation
    assert len(roles.validators) == count
    assert sorted((*roles.validators, *roles.owners)) == list(roster.members)
    assert all(auditor in roles.validators and auditor != audit.target for auditor, audit in pairs(roles))
    dealt = Counter(audit for _, audit in pairs(roles))
    assert set(dealt.values()) <= {1}
    last = Counter(auditor for auditor, audit in pairs(roles) if audit.step == STEP)
    candidates = set(due.contributors) - set(roster.banned)
    assert set(last.values()) <= {1}
    assert sum(last.values()) in (min(count, len(candidates)), min(count, len(candidates)) - 1)
    assert {audit.target for audit in dealt if audit.step == STEP} <= candidates
    owed = {PeerId(audit.target) for audit in due.owed if audit.target not in roster.banned}
    done = {audit.target for audit in dealt if audit.step == STEP - 1}
    # With a single validator nobody else could do what is owed by that one.
    assert done == (owed - set(roles.validators) if count == 1 else owed)
    shares = Counter(auditor for auditor, audit in pairs(roles) if audit.step == STEP - 1)
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
        seen.update(auditor for auditor, audit in pairs(roles) if audit.target == KEYS[0])
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
    dealt = Counter(audit for _, audit in pairs(asked))
    assert dealt == {Audit(peer, step): count for peer in run.founders for step, count in ((STEP, 2), (STEP - 1, 1))}


@given(st.integers(2, 3), st.integers(0, 10**6))
def test_where_none_can_be_spared_but_a_liar_may_be_left_everyone_audits(members: int, seed: int) -> None:
    """[R3, R6] Four founders of whom one may lie, and some are gone: all contribute, and all are audited by all others."""
    run = run_of(4, byzantine=1)
    roster = dataclasses.replace(Roster.founding(run), members=KEYS[:members])
    roles = draw_roles(run, roster, Digest(derive(seed)), PendingAudits(STEP, KEYS[:4]))
    assert (roles.validators, sorted(roles.owners)) == ((), list(KEYS[:members]))
    expected = {
        (auditor, Audit(target, STEP)) for auditor in KEYS[:members] for target in KEYS[:4] if target != auditor
    }
    assert set(pairs(roles)) == expected
    caught = dataclasses.replace(roster, banned=(KEYS[3],))  # L = 0
    assert draw_roles(run, caught, Digest(derive(seed)), PendingAudits(STEP, KEYS[:4])).audits == {}


@pytest.mark.parametrize("everyone", [False, True])
def test_an_owed_audit_is_dealt_to_who_was_there_then(everyone: bool) -> None:
    """[R7] Whoever came back in or after that step has not kept what it takes."""
    run, lied = run_of(16, validators=5), STEP - 3
    returns = tuple((lied - 1 + k % 3, KEYS[k]) for k in range(12))
    roster = dataclasses.replace(Roster.founding(run), returns=returns)
    due = PendingAudits(STEP, KEYS, tuple(Owed(peer, lied, 3) for peer in KEYS[12:]), everyone=everyone)
    able = {*KEYS[12:], *(peer for when, peer in returns if when < lied)}
    for k in range(40):
        roles = draw_roles(run, roster, Digest(derive(k)), due)
        asked = able & set(roles.audits if everyone else roles.validators)
        dealt = [(auditor, audit) for auditor, audit in pairs(roles) if audit.step == lied]
        assert all(auditor in asked and auditor != audit.target for auditor, audit in dealt)
        if len(asked) > 1:
            assert Counter(audit.target for _, audit in dealt) == dict.fromkeys(KEYS[12:], 1)


def test_a_record_says_what_the_next_step_has_to_audit() -> None:
    """[R6, R7]"""
    assert PendingAudits.after(RECORD) == PendingAudits(STEP, KEYS[:5])
    owed = tuple(Owed(peer, STEP - 1, 2) for peer in KEYS[1:3])
    record = msgspec.structs.replace(RECORD, struck=(KEYS[8],), owed=owed)
    assert PendingAudits.after(record) == PendingAudits(STEP, KEYS[:5], owed, everyone=True)


def accuse_of(peer: PeerId) -> Announced:
    return Announced(peer, Accuse((), bytes(32)), Envelope(b"", bytes(64)))


FIRST = (Owed(KEYS[2], STEP, 1),)
OTHERS = (Owed(KEYS[3], STEP, 1),)


@pytest.mark.parametrize(
    ("heard", "times", "owed", "unaudited"),
    [
        (KEYS[:2], 3, (), ()),
        (KEYS[1:2], 3, FIRST, ()),
        (KEYS[:1], 1, (*OTHERS, Owed(KEYS[4], STEP - 1, 2)), ()),
        (KEYS[:1], 2, (*OTHERS, Owed(KEYS[4], STEP - 1, 3)), ()),
        (KEYS[:1], 3, OTHERS, (KEYS[4],)),
        ((), 3, (*FIRST, *OTHERS), (KEYS[4],)),
    ],
)
def test_an_audit_is_done_by_whoever_was_heard(
    heard: tuple[PeerId, ...], times: int, owed: tuple[Owed, ...], unaudited: tuple[PeerId, ...]
) -> None:
    """[R7] Come to nothing up to three times: owed. Once more: said so, and dropped."""
    owed = tuple(sorted(owed))
    audits = {KEYS[0]: (Audit(KEYS[2], STEP),), KEYS[1]: (Audit(KEYS[3], STEP), Audit(KEYS[4], STEP - 1))}
    roles = Roles(audits, KEYS[:2], KEYS[2:], (0, 1))
    due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[4], STEP - 1, times),))
    trials = Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in heard}, roles)
    assert not trials.audits_are_open
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)  # audits are heard once
    assert trials.lost_audits(roles, due) == (owed, unaudited)
    guilty = {KEYS[2], KEYS[4]}
    trials.judgements = tuple(Judgement(None, peer, Kind.COVER, STEP, 0, 0, Verdict.ACCUSED) for peer in sorted(guilty))
    left = tuple(audit for audit in owed if audit.target not in guilty)
    assert trials.lost_audits(roles, due) == (left, tuple(peer for peer in unaudited if peer not in guilty))


@pytest.mark.parametrize("verdict", [None, Verdict.ACCUSER], ids=["dismissed", "decided"])
def test_a_dismissed_audit_is_owed_too(verdict: Verdict | None) -> None:
    """[R7, T4] Its auditor was heard, but too few jurors were: else one crash in the trial's step would free the liar."""
    audits: dict[PeerId, tuple[Audit, ...]] = {KEYS[0]: (Audit(KEYS[2], STEP),), KEYS[1]: (Audit(KEYS[3], STEP),)}
    roles, trials = Roles(audits, KEYS[:2], KEYS[2:], (0, 1)), Trials(Roster(KEYS))
    trials.hear_audits({peer: accuse_of(peer) for peer in KEYS}, roles)
    trials.judgements = (Judgement(KEYS[0], KEYS[2], Kind.GRADIENT, STEP, None, 0, verdict),)
    due = PendingAudits(STEP, KEYS[2:])
    assert trials.lost_audits(roles, due) == ((FIRST, ()) if verdict is None else ((), ()))


def test_what_nobody_could_be_dealt_is_owed_and_in_the_end_unaudited() -> None:
    """[R7] The only validator is the one that is owed: it cannot audit itself, and the record says so."""
    roles = Roles({KEYS[0]: (Audit(KEYS[2], STEP),)}, KEYS[:1], KEYS[1:], (0, 1))
    trials = Trials(Roster(KEYS))
    trials.hear_audits({KEYS[0]: accuse_of(KEYS[0])}, roles)
    for times in range(1, MOST_OWED):
        due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[0], STEP - times, times),))
        assert trials.lost_audits(roles, due) == ((Owed(KEYS[0], STEP - times, times + 1),), ())
    due = PendingAudits(STEP, KEYS[2:], owed=(Owed(KEYS[0], STEP - MOST_OWED, MOST_OWED),))
    assert trials.lost_audits(roles, due) == ((), KEYS[:1])


@given(st.lists(st.integers(0, 2500), max_size=8, unique=True), st.integers(0, 2500))
def test_three_strikes_within_a_thousand_steps_are_too_many(earlier: list[int], now: int) -> None:
    """[N3] Two before this one and fewer than a thousand steps ago, whoever else was struck when."""
    earlier = sorted(when for when in earlier if when < now)
    assume(all(later - first >= 1000 for first, later in zip(earlier, earlier[2:], strict=False)))  # else it is gone
    roster, me, other = Roster(KEYS), KEYS[3], KEYS[4]
    for when in earlier:
        assert roster.expelled(when, [me], ()) == ()
        roster = roster.after(msgspec.structs.replace(RECORD, step=when, struck=(me,)))
    recent = [when for when in earlier if now - when < 1000]
    assert roster.expelled(now, [other, me], ()) == ((me,) if len(recent) >= 2 else ())
    assert [when for when, _ in roster.strikes] == [when for when in earlier if when > earlier[-1] - 1000]


def test_the_thousandth_step_is_not_within_a_thousand() -> None:
    """[N3] Steps 0, 500 and 999 are; 0, 500 and 1000 are not."""
    roster = Roster(KEYS, strikes=((0, KEYS[0]), (500, KEYS[0])))
    assert roster.expelled(999, [KEYS[0]], ()) == (KEYS[0],)
    assert roster.expelled(1000, [KEYS[0]], ()) == ()


def test_old_strikes_are_forgotten_and_new_ones_remembered() -> None:
    """[N3] The table stays small: at most what a thousand steps can hold."""
    roster = Roster(KEYS, strikes=((STEP - 1000, KEYS[0]), (STEP - 999, KEYS[1])))
    after = roster.after(msgspec.structs.replace(RECORD, struck=(KEYS[2],)))
    assert after.strikes == ((STEP - 999, KEYS[1]), (STEP, KEYS[2]))


def test_who_is_expelled_leaves_without_a_ban() -> None:
    """[N3, N1, T5] Like the absent, and unlike the banned."""
    ban = Judgement(None, KEYS[2], Kind.AGGREGATE, STEP, 0, 0, 1)  # type: ignore[arg-type]
    record = msgspec.structs.replace(RECORD, expelled=(KEYS[0],), absent=(KEYS[1],), judgements=(ban,))
    roster = Roster(KEYS).after(record)
    assert roster.members == KEYS[3:]
    assert roster.banned == (KEYS[2],)


class _Withholding:
    """Wraps a channel: keeps coin B to itself in these steps, and does everything else."""

    def __init__(self, inner: ReliableChannel, steps: tuple[int, ...]) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._inner, name)

    async def announce(self, slot, message):  # type: ignore[no-untyped-def]
        if isinstance(message, Accuse) and slot.step in self._steps:
            return await self._inner.announce_last(slot, lambda _: None)
        return await self._inner.announce(slot, message)


def test_a_peer_that_withholds_its_coin_three_times_is_expelled() -> None:
    """[N3, R6] It is struck, everyone audits next, and the third time it has to go; nobody is banned for it."""
    simulation = ProtocolSimulation(dataclasses.replace(SMALL, byzantine=0, steps=9, evaluate_every=9))
    silent = simulation.honest[2]
    rewired(simulation, silent, lambda channel: _Withholding(channel, (1, 3, 6)))  # type: ignore[arg-type]
    run_on(simulation)
    assert kept_promises(simulation) == {}
    for record in records(simulation):
        assert record.struck == ((silent,) if record.step in (1, 3, 6) else ())
        assert record.expelled == ((silent,) if record.step == 6 else ())
        everyone = record.step in (0, 2, 4, 7)  # in step 0 there is nothing to audit yet
        assert (record.contributors == record.members) == everyone
        assert (silent in record.members) == (record.step <= 6)
        assert record.absent == ()
    # One in each of the quiet steps 1, 3, 5, 6 and 8; in steps 2, 4 and 7 five for each of six contributors of the step before;
    # at the end five for each of the last five.
    assert simulation.audits == 5 + 3 * 6 * 5 + 5 * 5


@pytest.fixture(scope="module")
def ground() -> ProtocolSimulation:
    """Seven of sixteen flip signs, and withhold coin B whenever it would have an honest validator audit them."""
    scenario = Scenario(
        task="quadratic:dimension=60",
        byzantine=7,
        attack="grind",
        attack_start=2,
        steps=60,
        evaluate_every=60,
    )
    return finished(scenario, until=liars_gone)


def test_withholding_a_coin_only_hastens_the_end(ground: ProtocolSimulation) -> None:
    """[R6, N3] The step after has no validators, and what the liar wanted to avoid comes to all of them."""
    banned = kept_promises(ground)
    assert banned == dict.fromkeys(ground.byzantine, Kind.GRADIENT)
    told = records(ground)
    struck = [record for record in told if record.struck]
    assert struck
    for record in struck:
        assert {ground.numbers[PeerId(peer)] for peer in record.struck} <= set(ground.byzantine)
        following = told[record.step + 1]
        assert following.contributors == following.members, "no validators: everyone contributes"
        assert following.banned, "and everyone audits"
    by_audit_all = {ban.peer for ban in ground.bans if told[ban.step - 1].struck}
    assert len(by_audit_all) > len(ground.byzantine) / 2


def test_grinding_saves_nobody_compared_to_plain_lying(ground: ProtocolSimulation) -> None:
    """[R6] The same seed without the grinding takes longer to get rid of them."""
    last = max(ban.step for ban in ground.bans)
    plain = finished(
        dataclasses.replace(ground.scenario, attack="sign-flip"), until=lambda s: liars_gone(s) or s.steps_done > last
    )
    assert not liars_gone(plain)


# With this seed an honest validator audits a liar in step 4, the step after the only one in which it lied; and if that one is
# lost, others who are honest.
ONCE = dataclasses.replace(SMALL, peers=16, attack_stop=4, steps=10, evaluate_every=10, seed=3)


@cache
def _undisturbed() -> ProtocolSimulation:
    return finished(ONCE, until=lambda s: bool(s.bans))


@cache
def once_and_cut(*cuts: tuple[int, int]) -> tuple[ProtocolSimulation, PeerId]:
    """The liar's auditor loses power in step 4, at this call; then whoever was drawn in its place, at that call, and so on."""
    probe = _undisturbed()
    judgement = verify_ban(probe.evidence[0].text).judgement
    assert (probe.bans[0].step, judgement.step) == (4, 3)
    assert judgement.accuser is not None
    lost, target = [PeerId(judgement.accuser)], PeerId(judgement.target)
    for _ in cuts[1:]:
        state = _cut(lost, cuts).states
        seen = next(s for peer, s in state.items() if s.step == 4 + len(lost) and peer not in lost)
        roles = draw_roles(probe.run, seen.roster, seen.randomness, seen.pending_audits)
        (second,) = [auditor for auditor, audit in pairs(roles) if audit == Audit(target, 3)]
        lost.append(second)
    return run_on(_cut(lost, cuts, stop=False)), target


def _cut(lost: list[PeerId], cuts: tuple[tuple[int, int], ...], stop: bool = True) -> ProtocolSimulation:
    simulation = ProtocolSimulation(ONCE)
    for peer, cut in zip(lost, cuts, strict=False):
        rewired(simulation, peer, partial(DroppingChannel, drop_out=DropOut(*cut)))
    return run_on(simulation, lambda s: s.steps_done == 4 + len(lost)) if stop else simulation


BEFORE_REPORT, BEFORE_ACCUSE = 5, 6  # calls of the channel: commit, scatter, clip, gather, reveal, report, accuse


@pytest.mark.parametrize("call", [BEFORE_REPORT, BEFORE_ACCUSE])
@pytest.mark.parametrize("losses", [1, 2, 3])
def test_an_audit_that_is_lost_with_its_validator_is_owed_and_convicts(losses: int, call: int) -> None:
    """[R7, K1, E1] The lie of step 3 is judged up to four steps later, with evidence that reaches back so far."""
    simulation, target = once_and_cut(*((4 + lost, call) for lost in range(losses)))
    assert kept_promises(simulation) == {simulation.numbers[target]: Kind.GRADIENT}
    told = records(simulation)
    assert len(simulation.gone) == losses
    assert all(isinstance(why, PowerCutError) for why in simulation.gone.values())
    for lost in range(losses):
        record = told[4 + lost]
        assert Owed(target, 3, lost + 1) in record.owed  # beside what the lost one was to audit of the step before
        (gone,) = [
            peer for peer in simulation.gone if peer in (record.struck if call == BEFORE_ACCUSE else record.absent)
        ]
        assert [old.absent for old in told].count((gone,)) == 1
    # Where a coin was missed it was still dealt audits in the next step, but others have the same targets.
    assert all(record.owed == () for record in told if not 4 <= record.step < 4 + losses)
    assert all(target != owed.target or owed.step == 3 for record in told for owed in record.owed)
    assert all(record.unaudited == () for record in told)
    (ban,), (evidence,) = simulation.bans, simulation.evidence
    proof = verify_ban(evidence.text)
    assert (ban.step, proof.judgement.step, proof.disputed) == (4 + losses, 3, told[3])
    assert [record.step for record in proof.before] == list(range(losses, 4 + losses))
    assert evidence.training is not None
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
    assert "of step 3" in proof.sentence()


@pytest.mark.parametrize("call", [BEFORE_REPORT, BEFORE_ACCUSE])
def test_an_audit_that_is_lost_four_times_is_dropped_and_the_record_says_so(call: int) -> None:
    """[R7, K1] What it takes is not kept for ever: the liar of step 3 gets away with it, and everyone can see that."""
    simulation, target = once_and_cut(*((4 + lost, call) for lost in range(4)))
    assert kept_promises(simulation) == {}
    told = records(simulation)
    of_the_lie = [[owed for owed in record.owed if (owed.target, owed.step) == (target, 3)] for record in told]
    assert of_the_lie == [[Owed(target, 3, record.step - 3)] if 4 <= record.step < 7 else [] for record in told]
    assert [record.unaudited for record in told] == [(target,) if record.step == 7 else () for record in told]
    witness = simulation.states[next(peer for peer in simulation.honest if peer not in simulation.gone)]
    assert 3 not in witness.audit_records
    assert len(simulation.gone) == 4


class _Mute:
    """Wraps a channel: casts no vote in these steps, as one whose machine stops in the trial."""

    def __init__(self, inner: ReliableChannel, steps: tuple[int, ...]) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._inner, name)

    async def announce(self, slot, message):  # type: ignore[no-untyped-def]
        if isinstance(message, Vote) and slot.step in self._steps:
            return await self._inner.announce_last(slot, lambda _: None)
        return await self._inner.announce(slot, message)


DISMISSED = dataclasses.replace(ONCE, seed=13)  # the same, if it is to be done again by others


@pytest.mark.parametrize("dismissals", [1, 3, 4])
def test_a_trial_that_is_dismissed_is_held_again(dismissals: int) -> None:
    """[R7, T4] Too few vote, the liar is not convicted; the audit is dealt again, three times at most."""
    simulation, steps = ProtocolSimulation(DISMISSED), tuple(range(4, 4 + dismissals))
    for peer in simulation.honest[:8]:
        rewired(simulation, peer, lambda channel: _Mute(channel, steps))  # type: ignore[arg-type]
    run_on(simulation)
    told = records(simulation)
    probe = verify_ban(finished(DISMISSED, until=lambda s: bool(s.bans)).evidence[0].text)
    guilty = simulation.numbers[probe.banned]
    assert kept_promises(simulation) == ({guilty: Kind.GRADIENT} if dismissals < 4 else {})
    for step in steps:
        (judgement,) = [j for j in told[step].judgements if j.target == probe.banned]
        assert judgement.verdict is None
    times = [{owed.times for owed in told[step].owed if owed.target == probe.banned} for step in steps]
    assert times == [{1}, {2}, {3}, set()][:dismissals]
    assert [record.step for record in told if probe.banned in record.unaudited] == ([7] if dismissals == 4 else [])


def test_evidence_of_an_owed_audit_says_that_it_was_owed() -> None:
    """[R7, E1] Without the debt in the record before, the accuser was drawn for something else."""
    simulation, _ = once_and_cut((4, BEFORE_REPORT))
    forger = Forger(simulation, simulation.evidence[0])
    assert forger.refusal(before=forger.last()) == ""
    assert "not drawn" in forger.refusal(before=forger.last(owed=()))
    assert "neighbouring" in forger.refusal(before=forger.file.before[-1:])
