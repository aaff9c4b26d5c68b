"""Files beside the evidence: found again, and refused where they are missing or damaged."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.evidence.exhibited_bans import ban_of_kind
from troth.crypto import Digest
from troth.evidence.companion_files import blobs_of, load_companions, save_evidence, state_name
from troth.evidence.file_format import RecomputeError
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.simulation import ProtocolSimulation


@pytest.mark.parametrize("kind", [ChargeKind.REPORT, ChargeKind.AGGREGATE, ChargeKind.AUDITED_REPORT, ChargeKind.COVER])
def test_a_blob_that_is_missing_or_damaged_is_named(runs: dict[str, ProtocolSimulation], kind: ChargeKind) -> None:
    _, evidence = ban_of_kind(runs, kind)
    proof, digest = verify_ban(evidence.text), next(iter(evidence.blobs))
    without = {other: blob for other, blob in evidence.blobs.items() if other != digest}
    with pytest.raises(RecomputeError, match="not beside"):
        recompute(proof, evidence.training, without)
    with pytest.raises(RecomputeError, match="damaged"):
        recompute(proof, evidence.training, {**evidence.blobs, digest: Blob(bytes(len(evidence.blobs[digest])))})


@pytest.mark.parametrize(
    "kind", [ChargeKind.GRADIENT, ChargeKind.REPORT, ChargeKind.AGGREGATE, ChargeKind.AUDITED_REPORT, ChargeKind.COVER]
)
def test_companion_files_are_found_again(runs: dict[str, ProtocolSimulation], kind: ChargeKind, tmp_path: Path) -> None:
    _, evidence = ban_of_kind(runs, kind)
    proof, path = verify_ban(evidence.text), tmp_path / "ban-step1-peer1.json"
    save_evidence(path, evidence, proof.state)
    beside = load_companions(path, proof)
    assert beside.missing is None
    assert recompute(proof, beside.training, beside.blobs) is Recomputed.CONFIRMED
    if proof.disputed is not None:
        state = state_name(Digest(proof.disputed.state_before))
        (tmp_path / state).unlink()
        assert load_companions(path, proof).missing == state
        return
    longer = {digest: Blob(bytes(blob.view) + b"more") for digest, blob in evidence.blobs.items()}
    save_evidence(path, replace(evidence, blobs=longer), proof.state)
    assert load_companions(path, proof).blobs == {}, "of another length"
    blobs_of(path).write_bytes(b"\xff" * 100)
    with pytest.raises(RecomputeError, match="damaged"):
        load_companions(path, proof)
    blobs_of(path).unlink()
    assert load_companions(path, proof).missing == blobs_of(path).name
