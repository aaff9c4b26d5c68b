"""Records are certified by the next step's Commits: everyone has the same signatures, or nobody goes on."""

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from tests.protocol.altered_runs import AlteredRun
from tests.protocol.small_runs import SMALL, kept_promises, records
from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.records import encode_record, record_bytes_to_sign
from troth.protocol.core.run import UncertifiedError
from troth.protocol.step.attempt import StepContext, signs_last
from troth.protocol.wire.messages import Accuse, Clip, Commit, Message, Report
from troth.protocol.wire.phases import seal

AT = 3  # the step in which somebody signs something else
Signing = Callable[[AlteredRun, PeerId, Slot, Commit], bytes | None]


def _of_another_record(run: AlteredRun, me: PeerId, slot: Slot, _: Commit) -> bytes:
    digest = Digest(b"x" * 32)
    return run.peers[me].identity.sign(record_bytes_to_sign(run.run.id, slot.step - 1, me, digest))


def _of_an_earlier_record(run: AlteredRun, me: PeerId, slot: Slot, _: Commit) -> bytes:
    raw = encode_record(records(run)[slot.step - 2])
    digest = run.tools.digest(raw)
    return run.peers[me].identity.sign(record_bytes_to_sign(run.run.id, slot.step - 2, me, digest))


def _somebody_elses(run: AlteredRun, me: PeerId, slot: Slot, _: Commit) -> bytes:
    other = next(peer for peer in run.honest if peer != me)
    digest = run.tools.digest(encode_record(records(run)[slot.step - 1]))
    return run.peers[other].identity.sign(record_bytes_to_sign(run.run.id, slot.step - 1, other, digest))


SIGNINGS: dict[str, Signing] = {
    "none": lambda *_: None,
    "zeros": lambda *_: bytes(64),
    "another record": _of_another_record,
    "an earlier record": _of_an_earlier_record,
    "somebody else's": _somebody_elses,
}


def run_with_signings(count: int, signing: Signing, step: int = AT) -> AlteredRun:
    """A run in which the first members put something else than their signature into a Commit."""
    run = AlteredRun()
    for peer in run.honest[:count]:

        def change(slot: Slot, message: Message, me: PeerId = peer) -> Message:
            if isinstance(message, Commit) and slot.step == step:
                return msgspec.structs.replace(message, signature=signing(run, me, slot, message))
            return message

        run.alter([peer], change)
    return run.play()


@pytest.mark.parametrize("what", SIGNINGS)
def test_a_commit_without_the_right_signature_is_out(what: str) -> None:
    """[U2, N1] A member that does not stand for the last record takes no part in the step; nobody is banned for it."""
    run = run_with_signings(1, SIGNINGS[what])
    victim = run.honest[0]
    by_step = records(run)
    assert [record.absent for record in by_step] == [(victim,) if record.step == AT else () for record in by_step]
    assert kept_promises(run) == {}
    assert run.gone.keys() == {victim}
    for outcome in run.outcomes[AT].values():
        assert outcome.certificate.keys() == set(run.honest) - {victim}


def test_in_the_first_step_there_is_nothing_to_sign() -> None:
    """[U2] Bytes that look like a signature there are none."""
    run = run_with_signings(1, lambda *_: bytes(64), step=0)
    assert records(run)[0].absent == (run.honest[0],)
    assert all(outcome.certificate == {} for outcome in run.outcomes[0].values())


def test_everyone_has_the_same_certificate() -> None:
    """[U2] It comes with announcements, on which all agree: none can be handed signatures that others do not get."""
    run = run_with_signings(2, SIGNINGS["zeros"])
    for before, now in pairwise(run.outcomes):
        certificates = [outcome.certificate for outcome in now.values()]
        assert all(certificate == certificates[0] for certificate in certificates)
        (digest,) = {run.tools.digest(encode_record(outcome.record)) for outcome in before.values()}
        step = next(iter(before.values())).record.step
        for signer, signature in certificates[0].items():
            assert run.tools.verify(signer, record_bytes_to_sign(run.run.id, step, signer, digest), signature)


@pytest.mark.parametrize(("few", "goes_on"), [(3, True), (4, False)])
def test_with_fewer_than_a_quorum_all_stop_alike(few: int, goes_on: bool) -> None:
    """[U2, N4] Of seven, four must sign. Else nobody can prove the record: everyone stands where it stood, none went on."""
    run = run_with_signings(few, SIGNINGS["none"])
    if goes_on:
        assert len(run.trace) == 6 + 1
        assert records(run)[AT].absent == tuple(run.honest[:few])
        return
    assert len(run.trace) == AT
    assert run.outcomes[AT] == {}
    assert run.gone.keys() == set(run.honest)
    assert {run.states[peer].step for peer in run.honest} == {AT}
    assert run.stalled is not None
    assert "needed" in run.stalled


def test_it_says_that_the_record_is_not_certain() -> None:
    """[U2] Enough are left to go on, but too few of them were members then: the record before is nobody's to build on."""
    run = AlteredRun()
    for step, _ in enumerate(run.steps()):
        if step == 1:
            break
    state, peer = run.states[run.honest[0]], run.peers[run.honest[0]]
    assert state.last is not None
    strict = dataclasses.replace(state.last, quorum=8)
    run.states = {who: dataclasses.replace(old, last=strict) for who, old in run.states.items()}
    assert run.one_step() is None
    assert {type(why) for why in run.gone.values()} == {UncertifiedError}
    assert run.stalled is not None
    assert "7 signed its record, 8 are needed" in run.stalled
    assert peer.me in run.gone


def test_a_member_that_was_none_then_has_nothing_to_sign() -> None:
    """[U2, B3] Those who came back with the last record: without a signature they are heard, with one they are out."""
    run = AlteredRun().play()
    state, (peer, other) = run.states[run.honest[0]], run.honest[:2]
    assert state.last is not None
    slot = Slot(run.run.id, state.step, 1)

    def heard(members: tuple[bytes, ...], signature: bytes | None) -> bool:
        assert state.last is not None
        last = dataclasses.replace(state.last, record=msgspec.structs.replace(state.last.record, members=members))
        context = StepContext.at(run.peers[peer], dataclasses.replace(state, last=last))
        commit = Commit(None, bytes(32), bytes(32), signature=signature)
        said = run.tools.open(slot, other, seal(run.peers[other].identity, slot, commit))
        return signs_last(context, said)  # type: ignore[arg-type]

    digest = state.last.digest
    signature = run.peers[other].identity.sign(record_bytes_to_sign(run.run.id, state.last.record.step, other, digest))
    everyone = tuple(PeerId(member) for member in state.last.record.members)
    others = tuple(member for member in everyone if member != other)
    assert heard(everyone, signature)
    assert not heard(everyone, None)
    assert heard(others, None)
    assert not heard(others, signature)


@pytest.mark.long
def test_evidence_waits_for_the_certificate() -> None:
    """[U2, E1] A ban is known in its step; what proves it comes with the step after, whose Commits sign the record."""
    run, seen = AlteredRun(SMALL), []
    for report in run.steps():
        seen.append((len(run.bans), len(run.evidence), len(report.bans)))
    assert len(run.bans) == 2
    for (_, before, new), (_, after, _) in pairwise(seen):
        assert after == before + new
    kept_promises(run)


# Messages are about what was announced before (SPEC E1)


@pytest.mark.parametrize("kind", [Clip, Report, Accuse])
def test_a_message_about_something_else_is_not_heard(kind: type[Message]) -> None:
    """[E1, N1, N3] Clip names the roots, Report the aggregates, Accuse the reports: another basis is no basis."""
    run = AlteredRun()
    victim = run.honest[0]

    def change(slot: Slot, message: Message) -> Message:
        wrong = isinstance(message, kind) and slot.step == AT
        return msgspec.structs.replace(message, basis=b"x" * 32) if wrong else message

    run.alter([victim], change).play()
    record = records(run)[AT]
    assert kept_promises(run) == {}
    if kind is Accuse:
        assert (record.struck, record.absent) == ((victim,), ())
        assert all(victim not in outcome.accuses[0] for outcome in run.outcomes[AT].values())
        following = records(run)[AT + 1]
        assert following.contributors == following.members, "everyone audits"
    else:
        assert (record.struck, record.absent) == ((), (victim,))
        assert victim not in record.contributors
