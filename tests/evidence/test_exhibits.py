"""Evidence that speaks for itself: signed messages and a recomputation show that a ban is right, or that it is not."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.evidence.exhibited_bans import ATTACKS, QUICK, ExhibitedBan, recomputed
from tests.evidence.forger import Forger
from troth.api.verify import Result, verify
from troth.clip.fast import centered_clip
from troth.crypto import PeerId
from troth.evidence.bans import BanEvidence
from troth.evidence.companion_files import save_evidence
from troth.evidence.file_format import RecomputeError, SignedMessage, UnprovedError
from troth.evidence.recompute import Recomputed
from troth.evidence.verify import verify_ban
from troth.protocol.core.parts import ProvenPart, part_bounds, rows_of
from troth.protocol.core.records import aggregate_message, aggregates_basis, decode_record, roots_basis
from troth.protocol.core.roster import part_taus
from troth.protocol.core.state import Outcome
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    Accuse,
    Center,
    ChargeKind,
    Clip,
    Commit,
    GuiltySide,
    Message,
    Phase,
    Report,
    Vote,
)
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training
from troth.workshop.simulation import ProtocolSimulation


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_ban_is_recomputed_from_what_was_signed(runs: dict[str, ProtocolSimulation], attack: str) -> None:
    """[E3]"""
    simulation = runs[attack]
    assert len(simulation.evidence) == len(simulation.bans) == 3
    proofs = [verify_ban(evidence.text) for evidence in simulation.evidence]
    assert {proof.judgement.kind for proof in proofs} == ATTACKS[attack]
    assert all(proof.exhibit is not None and "can be recomputed" in proof.rests_on() for proof in proofs)
    assert {recomputed(evidence) for evidence in simulation.evidence} == {Recomputed.CONFIRMED}


@pytest.mark.long
def test_parts_are_kept_only_for_bans() -> None:
    """[E3] They are large, and liars can have every part laid open in every attempt."""
    simulation = ProtocolSimulation(dataclasses.replace(QUICK, attack="mass-accusation"))
    shown, disputed, history = 0, 0, simulation.history.add

    def add(outcome: Outcome[Training]) -> list[BanEvidence]:
        nonlocal shown, disputed
        judged = [j for j in outcome.record.judgements if j.part is not None]
        banned = {(j.attempt, j.part) for j in judged if j.banned is not None}
        assert {(one.attempt, one.part) for one in outcome.disclosed} <= banned
        shown, disputed = shown + len(outcome.disclosed), disputed + len({(j.attempt, j.part) for j in judged})
        return history(outcome)

    simulation.history.add = add  # type: ignore[method-assign]
    for _ in simulation.steps():
        pass
    assert 0 < shown <= disputed


def test_a_reporter_banned_by_a_quorum_for_a_right_report_is_cleared(
    runs: dict[str, ProtocolSimulation], tmp_path: Path
) -> None:
    """[E3] All members together turn the verdict on a false accusation round, and sign it: the votes prove it, and what the
    accused signed refutes it."""
    simulation = runs["false-accusation"]
    forger, evidence = Forger(simulation, simulation.evidence[0]), simulation.evidence[0]
    record = decode_record(bytes.fromhex(forger.file.record.record))
    (judged,) = (j for j in record.judgements if j.banned is not None and j.banned.hex() == forger.file.banned)
    turned = msgspec.structs.replace(judged, verdict=GuiltySide.ACCUSED)
    judgements = tuple(turned if j == judged else j for j in record.judgements)

    def guilty(vote: Vote) -> Vote:
        return Vote(tuple(msgspec.structs.replace(ballot, verdict=GuiltySide.ACCUSED) for ballot in vote.ballots))

    framed = forger.text(
        banned=judged.target.hex(),
        votes=[forger.message(vote, Phase.VOTE, guilty, attempt=judged.attempt) for vote in forger.file.votes],
        record=forger.record(forger.file.record, judgements=judgements),
    )
    assert verify_ban(framed).banned == judged.target
    assert recomputed(evidence, framed) is Recomputed.REFUTED
    path = tmp_path / "ban-framed.json"
    save_evidence(path, evidence, verify_ban(evidence.text).state)
    path.write_text(framed)
    verdict = verify(path, simulation.run.id.hex())
    assert (verdict.result, verdict.proved, verdict.sentence) == (Result.NOT_PROVED, False, "")
    assert "the ban is wrong, whatever anyone voted" in verdict.reason
    assert verify(path, simulation.run.id.hex(), recompute=False).result is Result.VOTED


def test_an_owner_whose_aggregate_is_right_is_cleared(runs: dict[str, ProtocolSimulation]) -> None:
    """[E3, T6] The same owner, had it announced the clipped centre: banned by the same votes, and cleared by what it signed."""
    framed = ExhibitedBan(runs, ChargeKind.AGGREGATE)
    shown, evidence, (part, tools) = (
        framed.proof.exhibit,
        framed.evidence,
        (framed.proof.judgement.part, Primitives()),
    )
    assert shown is not None
    assert part is not None
    rows_PD = rows_of([ProvenPart(evidence.blobs[digest], path) for digest, path in shown.proven_parts.values()])
    bounds = part_bounds(60, shown.step.parts)
    right = Blob.of(centered_clip(rows_PD, tau=part_taus(shown.step.tau, bounds)[part]))
    digest, norm = right.digest, tools.aggregate_norm(right)
    assert norm is not None
    aggregates = [*shown.aggregates[:part], digest, *shown.aggregates[part + 1 :]]
    assert shown.projection_key is not None
    about = aggregates_basis(aggregates, shown.projection_key, shown.step.tau)
    clips = framed.signed_again(Phase.CLIP, framed.exhibit.clips, centers=(Center(part, digest, norm),))
    cleared: dict[str, Any] = {
        "aggregates": [one.hex() for one in aggregates],
        "clips": clips,
        "reports": framed.signed_again(Phase.REPORT, framed.exhibit.reports, basis=about),
        "accuses": [],
    }
    blobs = {**evidence.blobs, digest: right}
    assert "another message was judged" in framed.refusal(**cleared), (
        "what the owner might have said is not what it said"
    )
    judged = aggregate_message(tools.digest(bytes.fromhex(clips[0].payload)), None)
    text = framed.text(**cleared, judged=judged)
    assert recomputed(evidence, text, blobs=blobs) is Recomputed.REFUTED


@pytest.mark.parametrize("tau", [-1.0, 0.0, 1e200, math.inf, math.nan])
def test_a_radius_that_the_run_cannot_have_is_refused(runs: dict[str, ProtocolSimulation], tau: float) -> None:
    """[E3, A6] All members together sign it, and the owner with them, so that whoever recomputes its ban comes to no end."""
    banned = ExhibitedBan(runs, ChargeKind.AGGREGATE)
    shown, evidence, part, tools = banned.proof.exhibit, banned.evidence, banned.proof.judgement.part, Primitives()
    assert shown is not None
    assert part is not None
    assert shown.projection_key is not None
    zeros = Blob(bytes(len(evidence.blobs[shown.aggregates[part]])))
    aggregates = [*shown.aggregates[:part], zeros.digest, *shown.aggregates[part + 1 :]]
    center, basis = Center(part, zeros.digest, 0.0), roots_basis(shown.roots, tau)
    clips = banned.signed_again(Phase.CLIP, banned.exhibit.clips, centers=(center,), basis=basis)
    about = aggregates_basis(aggregates, shown.projection_key, tau)
    text = banned.text(
        judged=aggregate_message(tools.digest(bytes.fromhex(clips[0].payload)), None),
        tau=tau,
        aggregates=[one.hex() for one in aggregates],
        clips=clips,
        reports=banned.signed_again(Phase.REPORT, banned.exhibit.reports, basis=about),
        accuses=[],
    )
    with pytest.raises(UnprovedError, match="radius"):
        recomputed(evidence, text, blobs={**evidence.blobs, zeros.digest: zeros})


@pytest.mark.parametrize(
    "kind", [ChargeKind.GRADIENT, ChargeKind.REPORT, ChargeKind.AGGREGATE, ChargeKind.AUDITED_REPORT, ChargeKind.COVER]
)
def test_an_exhibit_is_signed_and_holds_just_the_needed_messages(
    runs: dict[str, ProtocolSimulation], kind: ChargeKind
) -> None:
    """[E1] Signed again as it was, it is accepted; each refusal below is for what was changed."""
    forged = ExhibitedBan(runs, kind)
    file, exhibit = forged.forger.file, forged.exhibit
    same = {
        "commits": forged.signed_again(Phase.COMMIT, exhibit.commits),
        "clips": forged.signed_again(Phase.CLIP, exhibit.clips),
        "reports": forged.signed_again(Phase.REPORT, exhibit.reports),
        "accuses": forged.signed_again(Phase.ACCUSE, exhibit.accuses),
    }
    assert forged.refusal(**same) == ""
    for name, messages in same.items():
        other = next(peer for peer in forged.forger.run.founders if peer.hex() not in {m.sender for m in messages})
        foreign = [SignedMessage(other.hex(), message.payload, message.signature) for message in messages]
        if messages:
            assert "signature" in forged.refusal(**{name: foreign})
            assert "two" in forged.refusal(**{name: [*messages, messages[0]]})
            assert forged.refusal(**{name: messages[1:]})
        else:
            assert "does not hold" in forged.refusal(**{name: _needless_message(forged, name, other)})
    assert forged.refusal(attempt=exhibit.attempt + 1)
    assert not exhibit.parts or forged.refusal(parts=exhibit.parts[1:])
    assert verify_ban(forged.forger.text(exhibit=None)).exhibit is None
    assert "lied together" in verify_ban(forged.forger.text(exhibit=None)).rests_on()
    assert file.exhibit is exhibit


def _needless_message(forged: ExhibitedBan, name: str, sender: PeerId) -> list[SignedMessage]:
    """A message of a kind that this exhibit does not need."""
    spare: dict[str, tuple[Message, Phase]] = {
        "commits": (Commit(bytes(32), bytes(32), bytes(32), length=0.0), Phase.COMMIT),
        "clips": (Clip(()), Phase.CLIP),
        "reports": (Report(b""), Phase.REPORT),
        "accuses": (Accuse((), bytes(32)), Phase.ACCUSE),
    }
    message, phase = spare[name]
    attempt = 0 if phase == Phase.COMMIT else forged.exhibit.attempt
    identity, step = forged.forger.identities[sender], forged.proof.judgement.step
    return [forged.forger.sign(identity, phase, message, step, attempt)]


def test_an_exhibit_is_about_one_and_the_same_work(runs: dict[str, ProtocolSimulation]) -> None:
    """[E2] Every message is validly signed by its sender, but speaks of something else."""
    report, aggregate, cover = (
        ExhibitedBan(runs, kind) for kind in (ChargeKind.REPORT, ChargeKind.AGGREGATE, ChargeKind.COVER)
    )
    other = bytes(32)
    for forged in (report, aggregate, cover):
        away = forged.signed_again(Phase.REPORT, forged.exhibit.reports, basis=other)
        assert "other aggregates" in forged.refusal(reports=away)
        assert "other aggregates" in forged.refusal(projection_key=other.hex())
        assert "every part" in forged.refusal(aggregates=forged.exhibit.aggregates[1:])
        assert "committed to nothing" in forged.refusal(
            commits=forged.signed_again(Phase.COMMIT, forged.exhibit.commits, root=None, length=None)
        )
    for forged in (aggregate, cover):
        elsewhere = forged.signed_again(Phase.CLIP, forged.exhibit.clips, centers=())
        assert "did not announce" in forged.refusal(clips=elsewhere)
        deaf = forged.signed_again(Phase.ACCUSE, forged.exhibit.accuses, basis=other)
        assert "other reports" in forged.refusal(accuses=deaf)
    made = aggregate.signed_again(Phase.CLIP, aggregate.exhibit.clips, basis=other)
    assert "other gradients" in aggregate.refusal(clips=made)
    roots = aggregate.signed_again(Phase.COMMIT, aggregate.exhibit.commits, root=other)
    assert "other gradients" in aggregate.refusal(commits=roots)
    assert "record says" in cover.refusal(commits=cover.signed_again(Phase.COMMIT, cover.exhibit.commits, root=other))
    longer = report.signed_again(Phase.REPORT, report.exhibit.reports, numbers=bytes(8))
    assert "a report: " in report.refusal(reports=longer)


def test_a_right_message_for_the_same_slot_clears_nobody(runs: dict[str, ProtocolSimulation]) -> None:
    """[E2] A banned member signs, long after, what it should have said: the votes name what it did say."""
    liar = ExhibitedBan(runs, ChargeKind.REPORT)
    better = liar.signed_again(Phase.REPORT, liar.exhibit.reports, numbers=bytes(8 * liar.proof.before[-1].parts * 18))
    assert "another message was judged" in liar.refusal(reports=better)


def test_another_reporter_clears_no_owner(runs: dict[str, ProtocolSimulation]) -> None:
    """[E3, T7] An owner let a wrong report pass, and shows the gradient of somebody whose report was right."""
    cover = ExhibitedBan(runs, ChargeKind.COVER)
    step, wrong = cover.proof.disputed, {commit.sender for commit in cover.exhibit.commits}
    assert step is not None
    pairs = zip(map(PeerId, step.contributors), step.roots, strict=True)
    honest, root = next((peer, root) for peer, root in pairs if peer.hex() not in wrong)
    commit = Commit(root, bytes(32), bytes(32), length=1.0)
    signed = cover.forger.sign(cover.forger.identities[honest], Phase.COMMIT, commit, step.step)
    assert "does not hold" in cover.refusal(commits=[signed])
    assert "does not hold" in cover.refusal(commits=[*cover.exhibit.commits, signed])


def test_an_accusation_of_another_message_shows_nothing(runs: dict[str, ProtocolSimulation]) -> None:
    """[E2] The accused message must be the one that was judged: another one may have been right."""
    forged = ExhibitedBan(runs, ChargeKind.GRADIENT)
    before = forged.forger.file.accusation

    def other(accuse: Accuse) -> Accuse:
        changed = tuple(msgspec.structs.replace(a, message=bytes(32)) for a in accuse.accusations)
        return msgspec.structs.replace(accuse, accusations=changed)

    accusation = forged.forger.message(before, Phase.ACCUSE, other)
    assert "of another" in forged.forger.refusal(accusation=accusation)


def test_blobs_that_were_not_committed_to_prove_nothing(runs: dict[str, ProtocolSimulation]) -> None:
    """[C3] The digest of a blob is whatever the file says; the path ties it to the signed root."""
    forged = ExhibitedBan(runs, ChargeKind.REPORT)
    (proven,) = forged.exhibit.parts
    blob = Blob(bytes(len(next(iter(forged.evidence.blobs.values())))))
    parcels = [msgspec.structs.replace(proven, digest=blob.digest.hex())]
    text = forged.forger.text(exhibit=msgspec.structs.replace(forged.exhibit, parts=parcels))
    with pytest.raises(RecomputeError, match="committed to"):
        recomputed(forged.evidence, text, blobs={**forged.evidence.blobs, blob.digest: blob})
