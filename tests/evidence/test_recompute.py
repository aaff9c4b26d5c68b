"""Recomputing a ban with the state at hand: confirmed, refuted, or not possible on this machine."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from troth.crypto import PeerId
from troth.evidence.errors import RecomputeError
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.simulation import ProtocolSimulation


def test_with_the_state_at_hand_the_recomputation_is_repeated(attacked: ProtocolSimulation) -> None:
    """[E1] And a state that is not the signed one is refused."""
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    assert recompute(proof, evidence.training) is Recomputed.CONFIRMED
    other = dataclasses.replace(evidence.training, parameters_D=evidence.training.parameters_D + 1)
    with pytest.raises(RecomputeError):
        recompute(proof, other)


def test_a_wrong_ban_is_refuted_and_other_bits_are_noticed(attacked: ProtocolSimulation) -> None:
    """[E1] A framed peer's gradient proves right; where most roots do not come out, nothing is said about anyone."""
    evidence = attacked.evidence[0]
    assert evidence.training is not None
    proof = verify_ban(evidence.text)
    assert proof.disputed is not None
    assert proof.disputed.step == proof.step - 1 == proof.judgement.step
    honest = next(peer for peer in proof.disputed.contributors if PeerId(peer) in attacked.honest)
    framed = dataclasses.replace(proof, judgement=msgspec.structs.replace(proof.judgement, target=honest))
    assert recompute(framed, evidence.training) is Recomputed.REFUTED
    other_bits = msgspec.structs.replace(proof.disputed, roots=tuple(bytes(32) for _ in proof.disputed.roots))
    foreign = dataclasses.replace(proof, before=(*proof.before[:-1], other_bits))
    assert recompute(foreign, evidence.training) is Recomputed.OTHER_CLASS


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
