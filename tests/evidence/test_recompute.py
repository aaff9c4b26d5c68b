"""Recomputing a ban with the state at hand: confirmed, refuted, or not possible on this machine."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.evidence.forger import Forger
from tests.protocol.small_runs import run_on
from troth.api.verify import Result, verify
from troth.crypto import Digest, PeerId
from troth.evidence.companion_files import save_evidence
from troth.evidence.file_format import RecomputeError
from troth.evidence.recompute import Recomputed, problem_of, recompute
from troth.evidence.verify import Proof, verify_ban
from troth.protocol.core.parts import commit_parts, part_bounds
from troth.protocol.core.roles import gradient_seed
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.hardware import class_digest
from troth.training.optimizers import SGD, constant
from troth.training.task import with_options
from troth.training.work import TrainingWork
from troth.workshop.simulation import ProtocolSimulation, Scenario

LYING_QUORUM = Scenario(
    task="quadratic:dimension=60",
    peers=16,
    byzantine=9,
    beyond_guarantee=True,
    attack="sign-flip",
    attack_start=1,
    steps=14,
    evaluate_every=14,
    seed=1,
)


def test_with_the_state_at_hand_the_recomputation_is_repeated(attacked: ProtocolSimulation) -> None:
    """[E1] And a state that is not the signed one is refused."""
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
    other = dataclasses.replace(evidence.training, parameters_D=evidence.training.parameters_D + 1)
    with pytest.raises(RecomputeError):
        recompute(proof, other)


def framed(proof: Proof, honest: frozenset[PeerId]) -> Proof:
    """The same ban, of an honest contributor."""
    assert proof.disputed is not None
    target = next(peer for peer in proof.disputed.contributors if PeerId(peer) in honest)
    return dataclasses.replace(proof, judgement=msgspec.structs.replace(proof.judgement, target=target))


def with_roots(proof: Proof, roots: Mapping[bytes, bytes]) -> Proof:
    """The same ban, where these contributors committed to something else."""
    old = proof.disputed
    assert old is not None
    changed = tuple(roots.get(peer, root) for peer, root in zip(old.contributors, old.roots, strict=True))
    return dataclasses.replace(proof, before=(*proof.before[:-1], msgspec.structs.replace(old, roots=changed)))


def others_than(proof: Proof) -> list[bytes]:
    assert proof.disputed is not None
    return [peer for peer in proof.disputed.contributors if peer != proof.judgement.target]


def test_whoever_gradient_comes_out_is_innocent(attacked: ProtocolSimulation) -> None:
    """[E1, E6] Even if everybody else's does not: a lying quorum lies in every step, and says then that hardware differs."""
    evidence = attacked.evidence[0]
    proof = verify_ban(evidence.text)
    assert proof.disputed is not None
    assert proof.disputed.step == proof.step - 1 == proof.judgement.step
    wrong = framed(proof, frozenset(attacked.honest))
    assert recompute(wrong, evidence.training) is Recomputed.REFUTED
    alone = with_roots(wrong, dict.fromkeys(others_than(wrong), bytes(32)))
    assert recompute(alone, evidence.training) is Recomputed.REFUTED


def test_one_that_comes_out_shows_which_bits_this_machine_computes(attacked: ProtocolSimulation) -> None:
    """[E6] Where nobody's comes out nothing is said about anyone; a liar's ban is right although most others lie as well."""
    evidence = attacked.evidence[0]
    proof = verify_ban(evidence.text)
    honest, *_ = (peer for peer in others_than(proof) if PeerId(peer) in attacked.honest)
    most = dict.fromkeys(set(others_than(proof)) - {honest}, bytes(32))
    assert recompute(with_roots(proof, most), evidence.training) is Recomputed.CONFIRMED
    assert recompute(with_roots(proof, {**most, honest: bytes(32)}), evidence.training) is Recomputed.OTHER_CLASS


def test_zeros_come_out_everywhere_and_show_nothing(attacked: ProtocolSimulation) -> None:
    """[E6] A gradient that no rounding touches is no sign of the run's hardware: else a machine of another class, which gets
    the zeros right and nothing else, would call the honest guilty."""
    evidence = attacked.evidence[0]
    proof = verify_ban(evidence.text)
    problem = problem_of(proof.run)
    assert problem is not None
    zeros = Problem(with_options(problem.task, clip_norm=1e-300))  # gradients that vanish, whoever computes them
    assert proof.disputed is not None
    bounds = part_bounds(problem.size, proof.disputed.parts)
    work, seed = TrainingWork(zeros, SGD(), constant(1.0, 1), Primitives()), Digest(proof.disputed.seed_randomness)
    assert evidence.training is not None
    nothing = {}
    for peer in others_than(proof):
        gradient_D = work.gradient_now(evidence.training, gradient_seed(seed, PeerId(peer)))
        assert not gradient_D.any()
        nothing[peer] = commit_parts(gradient_D, bounds).root
    same = with_roots(proof, nothing)
    assert recompute(same, evidence.training, problem=lambda _run: zeros) is Recomputed.OTHER_CLASS


def test_in_a_run_of_several_classes_the_accuseds_own_word_counts(attacked: ProtocolSimulation) -> None:
    """[E6, D3] Its Commit names its class. Others' gradients come out here, and say nothing about a machine of another."""
    evidence = attacked.evidence[0]
    proof = verify_ban(evidence.text)
    problem, accused = problem_of(proof.run), PeerId(proof.judgement.target)
    assert problem is not None
    assert proof.exhibit is not None
    several = dataclasses.replace(proof.run, parameters=dataclasses.replace(proof.run.parameters, deviation=1e-3))

    def named(hardware: bytes) -> Proof:
        shown = dataclasses.replace(proof.exhibit, hardware={accused: hardware})  # type: ignore[type-var]
        return dataclasses.replace(proof, run=several, exhibit=shown)

    here = class_digest(problem)
    assert recompute(named(here), evidence.training) is Recomputed.CONFIRMED
    assert recompute(named(bytes(32)), evidence.training) is Recomputed.OTHER_CLASS
    all_lie = dict.fromkeys(others_than(proof), bytes(32))
    assert recompute(with_roots(named(here), all_lie), evidence.training) is Recomputed.CONFIRMED


@pytest.mark.long
def test_a_lying_quorum_makes_no_wrong_ban_look_right(tmp_path: Path) -> None:
    """[E3, E6] Nine of sixteen lie in every step, and ban whoever accuses one of them."""
    simulation = run_on(ProtocolSimulation(LYING_QUORUM))
    wrong = [one for one in simulation.evidence if verify_ban(one.text).banned in simulation.honest]
    assert wrong, "else this test shows nothing"
    for number, evidence in enumerate(wrong):
        path = tmp_path / f"ban-{number}.json"
        save_evidence(path, evidence, verify_ban(evidence.text).state)
        verdict = verify(path, simulation.run.id.hex())
        assert (verdict.result, bool(verdict), verdict.sentence) == (Result.NOT_PROVED, False, "")
        assert "the ban is wrong" in verdict.reason


def test_a_quorum_that_writes_another_record_of_the_step_proves_nothing(attacked: ProtocolSimulation) -> None:
    """[E6] Under another seed no honest gradient comes out, and the liars commit to what does: recomputed, an honest member is
    guilty. But its signature is under the right record, in its next Commit, and not under theirs."""
    evidence = attacked.evidence[0]
    proof = framed(verify_ban(evidence.text), frozenset(attacked.honest))
    innocent, problem = PeerId(proof.judgement.target), problem_of(proof.run)
    assert innocent in proof.signers
    assert problem is not None
    assert proof.disputed is not None
    assert evidence.training is not None
    written = msgspec.structs.replace(proof.disputed, seed_randomness=bytes(32))
    work, bounds = (
        TrainingWork(problem, SGD(), constant(1.0, 1), Primitives()),
        part_bounds(problem.size, written.parts),
    )
    lies = {
        peer: commit_parts(
            work.gradient_now(evidence.training, gradient_seed(Digest(bytes(32)), PeerId(peer))), bounds
        ).root
        for peer in others_than(proof)
    }
    forged = with_roots(dataclasses.replace(proof, before=(*proof.before[:-1], written)), lies)
    assert recompute(forged, evidence.training) is Recomputed.CONFIRMED, "else this test shows nothing"
    assert not dataclasses.replace(forged, signers=proof.signers - {innocent}).own_word


def test_a_recomputation_proves_what_the_banned_peer_signed(attacked: ProtocolSimulation, tmp_path: Path) -> None:
    """[E6] Without its signature under the record of the step the same ban, recomputed as well, rests on votes."""
    evidence = attacked.evidence[0]
    path = tmp_path / "ban-a.json"
    save_evidence(path, evidence, verify_ban(evidence.text).state)
    assert verify(path, attacked.run.id.hex()).result is Result.PROVED
    forger = Forger(attacked, evidence)
    *earlier, disputed = forger.file.before
    others = {peer: one for peer, one in disputed.signatures.items() if peer != forger.file.banned}
    path.write_text(forger.text(before=[*earlier, msgspec.structs.replace(disputed, signatures=others)]))
    verdict = verify(path, attacked.run.id.hex())
    assert verdict.result is Result.VOTED
    assert "recomputed here, and it is as they voted, but the banned peer did not sign the record" in verdict.reason


def test_a_state_that_only_voters_name_proves_nothing(attacked: ProtocolSimulation) -> None:
    """[E6, U5] The banned peer signed a record with a chained digest: which content that is, the others say."""
    proof = verify_ban(attacked.evidence[0].text)
    seldom = dataclasses.replace(proof.run, parameters=dataclasses.replace(proof.run.parameters, content_every=4))
    named = msgspec.structs.replace(proof.judgement, state=b"s" * 32)
    chained = dataclasses.replace(proof, run=seldom, judgement=named)
    assert proof.own_word
    assert not chained.own_word
    assert "only those who voted name the state" in chained.not_own_word()


def test_a_false_accusation_about_a_part_rests_on_votes(runs: dict[str, ProtocolSimulation], tmp_path: Path) -> None:
    """[E6] The reporter may have committed to one gradient before the owner, and to another before those who vote: nothing
    that the owner signed is in the file."""
    simulation = runs["false-accusation"]
    evidence = simulation.evidence[0]
    path = tmp_path / "ban-a.json"
    save_evidence(path, evidence, verify_ban(evidence.text).state)
    verdict = verify(path, simulation.run.id.hex())
    assert verdict.result is Result.VOTED
    assert "did not sign the commitment" in verdict.reason


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (b'{"task": "evil.py", "device": "cpu", "one_by_one": false}', "`task`"),
        (b'{"task": "quadratic:dimension=1000000000000", "device": "cpu", "one_by_one": false}', "parameters"),
        (
            b'{"task": "char-transformer:data=evil.py", "device": "cpu", "one_by_one": false}',
            "data that you have to name",
        ),
        (b'{"task": 3}', "does not say what it trains"),
        (b"nonsense", "does not say what it trains"),
    ],
)
def test_a_hostile_description_runs_no_file_and_takes_no_memory(
    attacked: ProtocolSimulation, description: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[E1] Evidence comes from strangers: `troth verify` must be safe on it."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('executed')")
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    hostile = dataclasses.replace(proof, run=dataclasses.replace(proof.run, description=description))
    with pytest.raises(RecomputeError, match=reason):
        recompute(hostile, evidence.training)
