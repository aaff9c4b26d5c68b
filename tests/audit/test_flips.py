"""A flipped bit anywhere in a folder is found; `make audit-flips` tries many more."""

from pathlib import Path

import pytest

from tests.audit.flips import QUICK, flips, unfound
from troth.audit.folder import audit
from troth.network.manifest.manifest import Manifest


@pytest.mark.parametrize("seed", range(4))
def test_every_flipped_bit_is_found(peer: Path, manifest: Manifest, seed: int) -> None:
    assert unfound(peer, manifest, 15, seed) == []
    assert audit(peer, manifest, QUICK).right, "all of them were undone"


def test_flips_reach_every_kind_of_file(peer: Path) -> None:
    kinds = {path.suffix for path, _, _ in flips(peer, 500, 0)}
    assert kinds == {".jsonl", ".json", ".safetensors", ".audit", ""}
