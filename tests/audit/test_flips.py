"""A flipped bit anywhere in a folder is found; `make audit-flips` tries many more."""

from pathlib import Path

import pytest

from tests.audit.flips import QUICK, Readers, flips, unfound
from troth.audit.folder import audit
from troth.network.manifest.manifest import Manifest


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_every_flipped_bit_is_found(peer: Path, manifest: Manifest, seed: int) -> None:
    assert unfound(peer, manifest, 15, seed) == []
    assert audit(peer, manifest, QUICK).right, "all of them were undone"


def test_flips_reach_every_kind_of_file(peer: Path) -> None:
    found = list(flips(peer, 500, 0))
    assert {path.suffix for path, _, _ in found} == {".jsonl", ".json", ".safetensors", ".audit", ""}
    assert "journal/roster-changes.jsonl" in {str(path.relative_to(peer)) for path, _, _ in found}


@pytest.mark.parametrize("kind", ["journal/roster-changes.jsonl", "checkpoints/*.safetensors", "checkpoints/*.json"])
def test_no_reader_takes_damage_for_something_else(peer: Path, manifest: Manifest, kind: str) -> None:
    """Whoever opens a folder mends it, refuses it, or comes back from an older checkpoint; people are told in any case."""
    readers = Readers(peer, manifest)
    assert not list(readers.misled())
    for path in peer.glob(kind):
        good = path.read_bytes()
        for place in range(0, len(good), max(1, len(good) // 20)):
            raw = bytearray(good)
            raw[place] ^= 1 << place % 8
            path.write_bytes(raw)
            assert list(readers.misled()) == [], f"{path}, byte {place}"
        path.write_bytes(good)


def test_the_readers_are_tested_too(peer: Path, manifest: Manifest) -> None:
    """Damage that looks like an older folder misleads all whom it should not."""
    readers = Readers(peer, manifest)
    newest = max((peer / "checkpoints").glob("*.safetensors"))
    older = sorted((peer / "checkpoints").glob("*.safetensors"))[0]
    newest.unlink()
    newest.with_suffix(".json").unlink()
    older.rename(newest)
    older.with_suffix(".json").rename(newest.with_suffix(".json"))
    assert "export" in list(readers.misled())
