"""A wrong ban cannot become a takeover: which bans lower L, and where a run ends for people to look (SPEC G1, G4)."""

import dataclasses
from contextlib import nullcontext

import msgspec
import pytest

from tests.protocol.samples import CLOSE, KEYS, run_of
from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.evidence.file_format import UnprovedError
from troth.evidence.signed_records import open_record
from troth.evidence.verify import verify_ban
from troth.protocol.core.records import (
    Judgement,
    Newcomer,
    Returned,
    StepRecord,
    decode_record,
    encode_record,
    record_bytes_to_sign,
)
from troth.protocol.core.roster import CommonState, Roster, Scales
from troth.protocol.core.run import AlarmError
from troth.protocol.history import HistoryEnd, SignedRecord, open_next
from troth.protocol.recovery.following import Changes
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.protocol.wire.primitives import UNSHARED
from troth.workshop.simulation import ProtocolSimulation, Scenario

REFUTABLE = (
    ChargeKind.AUDITED_REPORT,
    ChargeKind.DEVIATION,
    ChargeKind.REPORT,
    ChargeKind.AGGREGATE,
    ChargeKind.COVER,
    ChargeKind.ROUNDING,
)
SURE = (ChargeKind.GRADIENT, ChargeKind.EQUIVOCATION)


def _ban(peer: PeerId, kind: ChargeKind, *, accuser: PeerId | None = None) -> Judgement:
    """A judgement that bans this peer: as the accused or, given somebody that it accused, as a false accuser."""
    if accuser is not None:
        return Judgement(peer, accuser, kind, 3, None, 0, GuiltySide.ACCUSER)
    return Judgement(KEYS[-1], peer, kind, 3, None, 0, GuiltySide.ACCUSED)


def _banning(roster: Roster, *judgements: Judgement, step: int = 4) -> Roster:
    return roster.after(_record(roster, *judgements, step=step))


def _record(roster: Roster, *judgements: Judgement, step: int = 4) -> StepRecord:
    return msgspec.structs.replace(
        CLOSE, step=step, members=roster.members, judgements=judgements, closing=False, changed=roster.changed
    )


def test_kinds_are_all_named() -> None:
    assert {*REFUTABLE, *SURE} == set(ChargeKind)


@pytest.mark.parametrize("kind", REFUTABLE)
def test_a_ban_that_rests_on_judgement_leaves_the_number_of_liars(kind: ChargeKind) -> None:
    """[G1] Seven owners framed in one step left L at 0, and seven liars were a quorum of the nine that stayed."""
    roster = Roster.founding(run_of(16, byzantine=7))
    framed = _banning(roster, *(_ban(peer, kind) for peer in KEYS[:7]))
    assert (framed.liars, len(framed.members), framed.quorum) == (7, 9, 8)
    assert not framed.alarmed


@pytest.mark.parametrize("kind", SURE)
def test_a_ban_that_nobody_can_refute_lowers_it(kind: ChargeKind) -> None:
    """[G1] Two signatures for one slot, or a gradient compared bit by bit; but not an accusation of one that was false."""
    roster = Roster.founding(run_of(16, byzantine=7))
    assert _banning(roster, *(_ban(peer, kind) for peer in KEYS[:7])).liars == 0
    assert _banning(roster, *(_ban(peer, kind, accuser=KEYS[9]) for peer in KEYS[:7])).liars == 7


def test_of_several_judgements_one_that_is_sure_is_enough() -> None:
    """[G1] And a ban is counted once, under however many keys, and in however many steps it is repeated."""
    roster = Roster.founding(run_of(16, byzantine=7))
    both = _banning(roster, _ban(KEYS[0], ChargeKind.AGGREGATE), _ban(KEYS[0], ChargeKind.GRADIENT))
    assert (both.liars, both.member_bans) == (6, 1)
    again = _banning(both, _ban(KEYS[0], ChargeKind.COVER), step=5)
    assert (again.liars, again.member_bans) == (6, 1)


@pytest.mark.parametrize("bans", [6, 7, 8, 9])
def test_more_bans_than_liars_end_the_run(bans: int) -> None:
    """[G4] Exactly b may all be right; with one more an honest member is among them, or the promise was wrong."""
    roster = Roster.founding(run_of(16, byzantine=7))
    kinds = [SURE[0] if k % 2 else REFUTABLE[0] for k in range(bans)]
    after = _banning(roster, *(_ban(peer, kind) for peer, kind in zip(KEYS, kinds, strict=False)))
    assert after.alarmed == (bans > 7)
    following = _record(after, step=5)
    assert (after.refuses(following) is not None) == (bans > 7)
    assert isinstance(after.alarm, AlarmError) == (bans > 7)


def test_a_run_that_withstands_nobody_ends_with_the_first_ban() -> None:
    """[G4] Machines that compute wrongly count: with b = 0 nobody can tell them from liars."""
    assert _banning(Roster.founding(run_of(3, byzantine=0)), _ban(KEYS[0], ChargeKind.GRADIENT)).alarmed


def test_a_record_has_to_say_truly_whether_it_ends_the_run() -> None:
    """[G4] Else liars, a quorum by then, would go on from one that hides it, or end a run that need not end."""
    roster = Roster.founding(run_of(16, byzantine=1))
    last = _record(roster, _ban(KEYS[0], ChargeKind.REPORT), _ban(KEYS[1], ChargeKind.REPORT))
    assert roster.refuses(last) is not None
    assert roster.refuses(msgspec.structs.replace(last, alarm=True)) is None
    quiet = _record(roster, _ban(KEYS[0], ChargeKind.REPORT))
    assert roster.refuses(quiet) is None
    assert roster.refuses(msgspec.structs.replace(quiet, alarm=True)) is not None


def _grown(founders: int = 8, byzantine: int = 3, strangers: int = 8) -> Roster:
    roster = Roster.founding(run_of(founders, byzantine=byzantine))
    newcomers = tuple(Newcomer(bytes(peer), "") for peer in KEYS[founders : founders + strangers])
    return roster.after(msgspec.structs.replace(_record(roster), admitted=newcomers))


def test_members_who_came_in_count_with_the_share_that_they_bring() -> None:
    """[G4, G1, J7] Framing them neither lowers L, nor b, nor what it takes to raise the alarm."""
    roster = _grown()
    assert (roster.seats, roster.byzantine, roster.liars) == (16, 6, 6)
    framed = _banning(roster, *(_ban(peer, ChargeKind.AGGREGATE) for peer in KEYS[8:14]), step=5)
    assert (framed.seats, framed.byzantine, framed.liars, framed.alarmed) == (16, 6, 6, False)
    assert _banning(framed, _ban(KEYS[14], ChargeKind.AGGREGATE), step=6).alarmed
    sure = _banning(roster, *(_ban(peer, ChargeKind.GRADIENT) for peer in KEYS[8:12]), step=5)
    assert (sure.seats, sure.byzantine, sure.alarmed) == (12, 4, False), "they take their seats along, as before"
    assert (sure.member_bans, framed.member_bans) == (0, 6), "and their bans"


@pytest.mark.parametrize("kind", list(ChargeKind))
@pytest.mark.parametrize(("founders", "byzantine"), [(4, 1), (8, 3), (11, 4)])
def test_one_stranger_after_another_neither_ends_the_run_nor_makes_it_stall(
    kind: ChargeKind, founders: int, byzantine: int
) -> None:
    """[J7, G4] One machine comes in, is banned, and comes in again under another key. b grew with every ban over a report, so
    that in the end nobody could be missed, and then the alarm came: with four founders after two liars, one at a time."""
    roster = Roster.founding(run_of(founders, byzantine=byzantine))
    for number, stranger in enumerate(KEYS[founders:]):
        come = msgspec.structs.replace(_record(roster, step=2 * number), admitted=(Newcomer(bytes(stranger), ""),))
        assert roster.refuses(come) is None
        roster = roster.after(come)
        assert roster.seats == founders + 1
        roster = _banning(roster, _ban(stranger, kind), step=2 * number + 1)
        assert (roster.liars, roster.byzantine, roster.alarmed) == (byzantine, byzantine, False)
        assert roster.member_bans == (kind in REFUTABLE)
        assert not {*KEYS[founders:]} & {*roster.members}


def test_several_strangers_at_once_take_no_more_seats_than_there_are() -> None:
    """[J7, B8] Two framed, one of them under two keys: two seats stay, and three newcomers take these and one more."""
    roster = _grown(strangers=4)
    roster = roster.after(msgspec.structs.replace(_record(roster, step=5), absent=(bytes(KEYS[8]),)))
    back = Returned(bytes(KEYS[8]), b"k" * 32)
    roster = roster.after(msgspec.structs.replace(_record(roster, step=6), returned=(back,)))
    roster = _banning(roster, _ban(KEYS[8], ChargeKind.COVER), _ban(KEYS[9], ChargeKind.REPORT), step=7)
    assert (roster.seats, roster.member_bans, len(roster.members)) == (12, 2, 10)
    three = tuple(Newcomer(bytes(peer), "") for peer in KEYS[12:15])
    roster = roster.after(msgspec.structs.replace(_record(roster, step=8), admitted=three))
    assert (roster.seats, roster.member_bans, len(roster.members)) == (13, 0, 13)


@pytest.mark.parametrize("kind", [ChargeKind.GRADIENT, ChargeKind.REPORT, None])
def test_whoever_has_the_seat_of_a_banned_one_cannot_make_it_vanish(kind: ChargeKind | None) -> None:
    """[J7, G1] By being banned or expelled: else liars who framed newcomers would take their seats one by one, and leave, until b
    is less than they are."""
    roster = _banning(_grown(strangers=4), *(_ban(peer, ChargeKind.COVER) for peer in KEYS[8:11]), step=5)
    for number, taker in enumerate(KEYS[12:15]):
        come = msgspec.structs.replace(_record(roster, step=6 + 2 * number), admitted=(Newcomer(bytes(taker), ""),))
        roster = roster.after(come)
        assert (roster.seats, roster.member_bans) == (12, 2)
        if kind is not None:
            roster = _banning(roster, _ban(taker, kind), step=7 + 2 * number)
        else:
            gone = msgspec.structs.replace(_record(roster, step=7 + 2 * number), expelled=(bytes(taker),))
            roster = roster.after(gone)
        assert (roster.seats, roster.byzantine, roster.member_bans) == (12, 4, 3)


def test_who_leaves_raises_no_alarm() -> None:
    """[G4, J7] Five liars of sixteen seats are banned, as promised. Where honest newcomers leave for good, b falls below that; no
    record says then that the run ended, and whoever comes back refused all that followed."""
    roster = _banning(_grown(), *(_ban(peer, ChargeKind.GRADIENT) for peer in KEYS[:5]), step=5)
    gone = msgspec.structs.replace(_record(roster, step=6), expelled=tuple(map(bytes, KEYS[8:])))
    assert roster.refuses(gone) is None
    roster = roster.after(gone)
    assert (roster.byzantine, roster.member_bans, roster.alarm) == (3, 5, None)
    assert roster.refuses(_record(roster, step=7)) is None
    last = _record(roster, _ban(KEYS[5], ChargeKind.GRADIENT), step=7)
    assert roster.refuses(last) is not None
    assert roster.refuses(msgspec.structs.replace(last, alarm=True)) is None


def test_a_successor_key_is_the_same_member() -> None:
    """[G4, G1, B8] It comes back under another key: one ban, refutable or not, whichever key it names."""
    roster = Roster.founding(run_of(7, byzantine=1))
    gone = roster.after(msgspec.structs.replace(_record(roster), absent=(bytes(KEYS[0]),)))
    back = Returned(bytes(KEYS[0]), bytes(KEYS[15]))
    here = gone.after(msgspec.structs.replace(_record(gone, step=5), returned=(back,)))
    for key in (KEYS[0], KEYS[15]):
        framed = _banning(here, _ban(key, ChargeKind.AGGREGATE), step=6)
        assert (framed.member_bans, framed.liars, framed.alarmed) == (1, 1, False)
        sure = _banning(here, _ban(key, ChargeKind.GRADIENT), step=6)
        assert (sure.member_bans, sure.liars) == (1, 0)


# ------------------------------------------------------------------------------------------------------------ whole runs

LIARS = Scenario(
    task="quadratic:dimension=60",
    peers=16,
    byzantine=3,
    attack="wrong-aggregate",
    attack_start=2,
    steps=12,
    evaluate_every=12,
    seed=2,
)


def _promising(scenario: Scenario, byzantine: int) -> ProtocolSimulation:
    """A run that promises to withstand fewer liars than there are."""
    run = ProtocolSimulation(scenario).run
    fewer = dataclasses.replace(run, parameters=dataclasses.replace(run.parameters, byzantine=byzantine))
    return ProtocolSimulation(scenario, run=fewer)


def _run(scenario: Scenario, byzantine: int) -> ProtocolSimulation:
    simulation = _promising(scenario, byzantine)
    for _ in simulation.steps():
        pass
    return simulation


@pytest.mark.long
def test_bans_over_aggregates_up_to_the_promise_leave_the_run_going_and_l_as_it_was() -> None:
    """[G1] All three liars are owners who cheat: they are banned, and thirteen honest members go on, as if three liars were
    still among them."""
    seen = _run(LIARS, 3)
    roster = seen.states[seen.honest[0]].roster
    assert {ban.peer for ban in seen.bans} == set(seen.byzantine)
    assert (roster.liars, len(roster.members), roster.quorum) == (3, 13, 7)
    assert seen.steps_done == LIARS.steps
    assert seen.stalled is None


@pytest.mark.parametrize("byzantine", [0, 1, 2])
def test_with_one_ban_too_many_the_record_is_signed_and_marked_and_the_last(byzantine: int) -> None:
    """[G4] All stop alike, say why, and hold evidence that is certified by the record's own signatures."""
    seen = _run(LIARS, byzantine)
    last = decode_record(seen.trace[-1])
    assert last.alarm
    assert last.ends_run
    assert not last.closing
    assert not any(decode_record(raw).alarm for raw in seen.trace[:-1])
    assert seen.steps_done < 12
    assert seen.agreement
    assert all(seen.states[peer].closed for peer in seen.honest)
    assert seen.stalled is not None
    assert f"withstands {byzantine} liar" in seen.stalled
    assert len(seen.evidence) == len(seen.bans) > byzantine, "also of the bans in the last record"
    for one in seen.evidence:
        assert seen.numbers[verify_ban(one.text, seen.run.id).banned] in seen.byzantine


@pytest.mark.long
def test_the_closing_step_raises_the_alarm_too() -> None:
    """[G4, U4, E1] Its record is refused by all who follow if it does not say so, and so is the evidence that it certifies."""
    last_step = dataclasses.replace(LIARS, attack="sign-flip", attack_start=5, steps=6, evaluate_every=6)
    for byzantine, alarmed in ((3, False), (2, True)):
        seen = _run(last_step, byzantine)
        last, roster = decode_record(seen.trace[-1]), Roster.founding(seen.run)
        for raw in seen.trace:
            assert roster.refuses(decode_record(raw)) is None
            roster = roster.after(decode_record(raw))
        assert (last.closing, last.alarm, len(last.banned)) == (True, alarmed, 3)
        assert (seen.stalled is not None) == alarmed
        assert {seen.numbers[verify_ban(one.text, seen.run.id).banned] for one in seen.evidence} == set(seen.byzantine)


def test_whether_a_record_hides_the_alarm_is_looked_at_when_a_quorum_signed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """[G4, B2, J8] The longest that nobody signed cost two seconds each of whoever is on the way back, or in."""
    run = run_of(16, byzantine=7)
    changes, asked = Changes.founding(run), list[int]()
    record = _record(changes.roster, _ban(KEYS[0], ChargeKind.REPORT))
    unsigned = CertifiedRecord(encode_record(record), {bytes(peer): bytes(64) for peer in KEYS})
    monkeypatch.setattr(Roster, "refuses", lambda _roster, one: asked.append(one.step))
    assert changes.opened(unsigned, UNSHARED) is None
    assert "does not fit" in str(open_next(run, _before(record, changes.roster), unsigned, UNSHARED))
    with pytest.raises(UnprovedError):
        open_record(run, SignedRecord.of(unsigned), changes.roster, UNSHARED)
    assert not asked


def test_nobody_takes_a_record_after_it() -> None:
    """[G4] Not a follower, not a stranger, not a reader of evidence, even if all who are left sign it."""
    seen = _run(LIARS, 1)
    roster = seen.states[seen.honest[0]].roster
    record = _record(roster, step=roster.changed + 1)
    raw = encode_record(record)
    keys = [Identity.from_secret(derive(LIARS.seed, "identity", number)) for number in range(LIARS.peers)]
    signed = {
        one.peer: one.sign(record_bytes_to_sign(seen.run.id, record.step, one.peer, blob_digest(raw)))
        for one in keys
        if one.peer in roster.members
    }
    certified = CertifiedRecord(raw, {bytes(peer): bytes(one) for peer, one in signed.items()})
    unaware = dataclasses.replace(roster, alarmed=False)
    for here, accepts in ((unaware, True), (roster, False)):
        changes = dataclasses.replace(Changes.founding(seen.run), roster=here, step=here.changed)
        assert (changes.opened(certified, UNSHARED) is not None) == accepts
        expected = nullcontext() if accepts else pytest.raises(UnprovedError, match=r"the run ended in step \d+")
        with expected:
            open_record(seen.run, SignedRecord.of(certified), here, UNSHARED)
        flaw = str(open_next(seen.run, _before(record, here), certified, UNSHARED))
        assert ("ended" in flaw) != accepts


def _before(record: StepRecord, roster: Roster) -> HistoryEnd:
    """The place that this record continues, but for its standing."""
    scales, draw = Scales(record.tau, updates=record.updates - record.updated), Digest(record.seed_randomness)
    before = Digest(record.state_before)
    return HistoryEnd(record.step, before, record.incarnation, CommonState(roster, scales, draw, draw))
