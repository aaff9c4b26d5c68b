"""Flipped bits, anywhere in a peer's folder: `python -m tests.audit.flips 500 0` tries 500, drawn from the seed 0, and says
which were not found."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.audit.folders import witnessed
from troth.audit.folder import AuditError, AuditOptions, audit
from troth.crypto import stream
from troth.network.manifest.manifest import Manifest
from troth.simulation import Scenario

QUICK = AuditOptions(sample=0, processes=0)
_NOT_READ = {"lock"}  # it tells people which process holds the folder


def flips(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """File, place and bit; every file is as likely as any other, or the journal would be all of them."""
    draw = stream(seed, "flips")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_READ)
    for which in draw.integers(len(files), count).tolist():
        path = files[which]
        yield path, int(draw.integers(path.stat().st_size, 1)[0]), int(draw.integers(8, 1)[0])


def unfound(folder: Path, manifest: Manifest, count: int, seed: int) -> list[str]:
    """Flips after which the audit finds nothing wrong; each is undone."""
    missed = []
    for path, place, bit in flips(folder, count, seed):
        raw = bytearray(path.read_bytes())
        raw[place] ^= 1 << bit
        path.write_bytes(raw)
        try:
            if audit(folder, manifest, QUICK).right:
                missed.append(f"{path.relative_to(folder)}, byte {place}, bit {bit}")
        except AuditError:
            pass  # it cannot be taken for this run's folder any more
        raw[place] ^= 1 << bit
        path.write_bytes(raw)
    return missed


def main(count: int = 500, seed: int = 0) -> int:
    scenario = Scenario(
        task="quadratic:dimension=24", peers=6, byzantine=2, attack="wrong-aggregate", attack_start=2, steps=10
    )
    with tempfile.TemporaryDirectory() as folder:
        peer = Path(folder) / "peer"
        manifest = witnessed(peer, scenario)
        assert audit(peer, manifest, QUICK).right
        missed = unfound(peer, manifest, count, seed)
    print("\n".join([*missed, f"{count - len(missed)} of {count} flipped bits were found"]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
