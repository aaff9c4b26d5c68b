"""Files beside the evidence: found again, and refused where they are missing or damaged."""

from pathlib import Path

import pytest

from tests.evidence.exhibited_bans import ban_of_kind
from troth.crypto import Digest
from troth.evidence.companion_files import BlobsFile, StateFile, load_companions, save_evidence
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
    save_evidence(path, evidence, proof)
    beside = load_companions(path, proof)
    assert beside.missing is None
    assert recompute(proof, beside.training, beside.blobs) is Recomputed.CONFIRMED
    if proof.disputed is not None:
        state = StateFile(Digest(proof.disputed.state_before))
        (tmp_path / state.name).unlink()
        assert load_companions(path, proof).missing == state.name
        return
    blobs = BlobsFile.of(path)
    blobs.save({digest: Blob(bytes(blob.view) + b"more") for digest, blob in evidence.blobs.items()})
    assert load_companions(path, proof).blobs == {}, "of another length"
    blobs.path.write_bytes(b"\xff" * 100)
    with pytest.raises(RecomputeError, match="damaged"):
        load_companions(path, proof)
    blobs.path.unlink()
    assert load_companions(path, proof).missing == blobs.path.name
