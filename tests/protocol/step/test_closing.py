"""The closing step: nobody contributes, everyone audits, and the run's model is signed, or taken back by one step."""

import dataclasses
from collections.abc import Mapping

import msgspec
import pytest

from tests.protocol.altered_runs import CALM, AlteredRun
from tests.protocol.small_runs import BEFORE_REPORT, LIE_ONCE, SMALL, all_records, kept_promises, wrap_channel
from troth.crypto import PeerId, Slot
from troth.evidence.verify import verify_ban
from troth.protocol.core.channel import NothingNoticed
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import AuditDuty, Roles, closing_roles
from troth.protocol.core.state import Outcome, State
from troth.protocol.wire.messages import Accusation, Accuse, ChargeKind, Close, Commit, Envelope, Message, Phase
from troth.protocol.wire.phases import seal
from troth.training.work import Training
from troth.workshop.simulation import Scenario
from troth.workshop.simulation.exchange import DropOut, DroppingChannel

LAST = CALM.total_steps - 1  # then comes the closing step
CLOSING = LAST + 1


def _roles(run: AlteredRun, state: State[Training]) -> Roles:
    return closing_roles(run.run, state.roster, state.randomness, state.pending_audits)


def ends(run: AlteredRun) -> tuple[StepRecord, StepRecord, Outcome[Training]]:
    """The last step's record, the closing one, and one member's outcome of it."""
    *_, last, closing = all_records(run)
    return last, closing, next(iter(run.outcomes[-1].values()))


def test_a_quiet_run_is_audited_and_signed() -> None:
    """[U4] Everyone's work of the last step, five times; the model is the last one; all sign."""
    run = AlteredRun().play()
    last, closing, outcome = ends(run)
    assert (closing.step, closing.closing, closing.contributors, closing.updated) == (CLOSING, True, (), False)
    assert not any(record.closing for record in all_records(run)[:-1])
    assert closing.state_before == closing.state_after == last.state_after
    assert closing.updates == last.updates == 6
    assert outcome.state.closed
    assert outcome.closing.keys() == set(run.honest)
    audited = [audit for other in run.outcomes[-1].values() for audit in other.audited]
    assert sorted(audit.target for audit in audited) == sorted(PeerId(peer) for peer in last.contributors * 5)
    assert kept_promises(run) == {}


@pytest.mark.parametrize("attack", ["sign-flip", "covered-aggregate:shift=2"])
def test_a_lie_in_the_last_step_is_found_and_taken_back(attack: str) -> None:
    """[U4, R6] Else it would be the one to lie in. The model of the run is the one before that step; no step is made twice."""
    scenario = dataclasses.replace(SMALL, attack=attack, attack_start=LAST, steps=6, evaluate_every=6)
    run = AlteredRun(scenario).play()
    last, closing, outcome = ends(run)
    banned = kept_promises(run)
    contributing = {run.numbers[PeerId(peer)] for peer in last.contributors} & set(run.byzantine)
    assert banned.keys() >= contributing != set()
    assert set(closing.banned) == {peer for peer, number in run.numbers.items() if number in banned}
    assert last.updated
    assert closing.state_before == last.state_after != last.state_before
    assert closing.state_after == last.state_before
    assert closing.unaudited == (), "five have just audited everyone (SPEC R8)"
    work = run.peers[run.honest[0]].work
    assert {work.digest(run.states[peer].training) for peer in run.honest} == {closing.state_after}
    assert all(verify_ban(evidence.text).judgement.step == LAST for evidence in run.evidence)
    assert outcome.closing.keys() >= set(run.honest)


def test_a_false_accusation_there_takes_nothing_back() -> None:
    """[U4, T4] The accuser is banned, and the last step stands."""
    run = AlteredRun(dataclasses.replace(SMALL, attack_start=LAST, attack_probability=1e-12, steps=6, evaluate_every=6))
    liar = next(peer for peer, number in run.numbers.items() if number in run.byzantine)

    def change(slot: Slot, message: Message) -> Message:
        if not isinstance(message, Accuse) or slot.step != CLOSING:
            return message
        kept = run.states[liar].audit_records[LAST]
        target = next(a.target for a in _roles(run, run.states[liar]).audits[liar])
        digest = run.tools.digest(kept.commits[target].envelope.payload)
        lie = Accusation(target, ChargeKind.GRADIENT, LAST, None, digest)
        return msgspec.structs.replace(message, accusations=(lie,))

    run.alter([liar], change).play()
    last, closing, _ = ends(run)
    assert set(closing.banned) == {liar}
    assert closing.state_after == last.state_after
    assert kept_promises(run) == {run.numbers[liar]: ChargeKind.GRADIENT}


@pytest.mark.long
def test_owed_audits_are_done_there() -> None:
    """[U4, R7] The lie was in the step before the last, and its auditor lost power. The last step itself stands."""
    run = AlteredRun(dataclasses.replace(LIE_ONCE, steps=5, evaluate_every=5))
    probe = AlteredRun(dataclasses.replace(LIE_ONCE, steps=5, evaluate_every=5)).play()
    judgement = verify_ban(probe.evidence[0].text).judgement
    assert (judgement.step, judgement.accuser is not None) == (3, True)
    wrap_channel(run, PeerId(judgement.accuser or b""), lambda c: DroppingChannel(c, DropOut(4, BEFORE_REPORT)))
    last, closing, _ = ends(run.play())
    assert [(owed.target, owed.step) for owed in last.owed if owed.step == 3] == [(judgement.target, 3)]
    assert closing.banned == (judgement.target,)
    assert closing.state_after == last.state_after
    (evidence,) = run.evidence
    assert verify_ban(evidence.text).judgement.step == 3


@pytest.mark.long
def test_silent_auditors_leave_their_targets_unaudited() -> None:
    """[U4, R7] No step follows, so nothing can be owed any more: the record says whose work nobody looked at."""
    run = AlteredRun(dataclasses.replace(CALM, peers=16))
    silent: set[PeerId] = set()

    def auditors(state: State[Training]) -> dict[AuditDuty, set[PeerId]]:
        roles = _roles(run, state)
        found: dict[AuditDuty, set[PeerId]] = {}
        for auditor, audits in roles.audits.items():
            for audit in audits:
                found.setdefault(audit, set()).add(auditor)
        return found

    def change(slot: Slot, message: Message) -> Message | None:
        if slot.step == CLOSING and isinstance(message, Accuse):
            if not silent:
                everyone = auditors(run.states[run.honest[0]])
                silent.update(everyone[min(everyone, key=lambda audit: audit.target)])
            return None if me_of[slot] in silent else message
        return message

    me_of: dict[Slot, PeerId] = {}
    for peer in run.honest:

        def mine(slot: Slot, message: Message, me: PeerId = peer) -> Message | None:
            me_of[slot] = me
            return change(slot, message)

        run.alter([peer], mine)
    _, closing, outcome = ends(run.play())
    everyone = auditors(run.outcomes[-2][run.honest[0]].state)
    lost = {audit.target for audit, who in everyone.items() if who <= silent}
    assert len(silent) == 5
    assert set(closing.unaudited) == lost != set()
    assert closing.owed == ()
    assert (closing.absent, closing.struck) == ((), ()), "they were there, and may sign"
    assert len(outcome.closing) == 16


@pytest.mark.parametrize(("wrong", "closed"), [(3, True), (4, False)])
def test_without_a_quorum_of_signatures_the_run_is_not_closed(wrong: int, closed: bool) -> None:
    """[U4] Signatures that do not fit are none. All see the same, and a ban of that step has no evidence then."""
    run = AlteredRun()

    def change(_: Slot, message: Message) -> Message:
        return Close(bytes(64)) if isinstance(message, Close) else message

    run.alter(run.honest[:wrong], change).play()
    _, closing, outcome = ends(run)
    assert closing.closing
    for other in run.outcomes[-1].values():
        assert other.closing.keys() == set(run.honest[wrong:])
    assert outcome.state.last is not None
    assert (len(outcome.closing) >= outcome.state.last.quorum) == closed


def test_an_unclosed_run_shows_no_evidence_that_proves_nothing() -> None:
    """[U4, E1] Six of seven do not sign: the last step's liars are named, but nobody could check it."""
    scenario = dataclasses.replace(SMALL, attack_start=LAST, steps=6, evaluate_every=6)
    run = AlteredRun(scenario)
    run.alter(run.honest[1:], lambda _, message: Close(bytes(64)) if isinstance(message, Close) else message).play()
    assert run.bans
    assert run.evidence == []


def test_a_member_that_is_silent_at_the_end_is_absent() -> None:
    """[U4, N1] In Commit; the others close the run without it."""
    run, gone = AlteredRun(), AlteredRun().honest[0]
    run.alter([gone], lambda c, m: None if isinstance(m, Commit) and c.step == CLOSING else m).play()
    _, closing, outcome = ends(run)
    assert closing.absent == (gone,)
    assert outcome.closing.keys() == set(run.honest) - {gone}


def test_a_member_that_commits_to_a_gradient_there_is_out() -> None:
    """[U4] Nobody contributes to the closing step."""
    run, liar = AlteredRun(), AlteredRun().honest[0]

    def change(slot: Slot, message: Message) -> Message:
        if isinstance(message, Commit) and slot.step == CLOSING:
            return msgspec.structs.replace(message, root=bytes(32), length=1.0)
        return message

    run.alter([liar], change).play()
    assert ends(run)[1].absent == (liar,)


class _Equivocating(NothingNoticed):
    """Everyone found that this peer said two things."""

    def __init__(self, run: AlteredRun, liar: PeerId) -> None:
        self._run, self._liar = run, liar

    def equivocations(self, step: int) -> Mapping[PeerId, tuple[Slot, Envelope, Envelope]]:
        if step != CLOSING:
            return {}
        slot, identity = Slot(self._run.run.id, step, Phase.ACCUSE), self._run.peers[self._liar].identity
        one, other = (seal(identity, slot, Accuse((), coin * 32)) for coin in (b"a", b"b"))
        return {self._liar: (slot, one, other)}


def test_equivocations_there_are_banned_too() -> None:
    """[U4, Q6] The two messages prove it, in the last record as in any other; nothing is taken back for it."""
    run = AlteredRun(
        Scenario(**{**dataclasses.asdict(CALM), "byzantine": 1, "attack_start": LAST, "attack_probability": 1e-12})
    )
    liar = next(peer for peer, number in run.numbers.items() if number in run.byzantine)
    for peer in list(run.peers):
        run.peers[peer] = dataclasses.replace(run.peers[peer], noticed=_Equivocating(run, liar))
    last, closing, _ = ends(run.play())
    assert closing.banned == (liar,)
    assert closing.state_after == last.state_after
    (evidence,) = run.evidence
    assert verify_ban(evidence.text).judgement.kind == ChargeKind.EQUIVOCATION
