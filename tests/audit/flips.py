"""Flipped bits, anywhere in a peer's folder: `python -m tests.audit.flips 500 0` tries 500, drawn from the seed 0, and says
which the audit did not find, and which others who read the folder took for something else."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.audit.folders import witnessed
from troth.audit.folder import AuditError, AuditOptions, audit
from troth.crypto import stream
from troth.network.disk.checkpoints import Checkpoints, find_model
from troth.network.disk.chunks import invitation_from
from troth.network.disk.journal import Journal
from troth.network.disk.lock import DiskError
from troth.network.manifest.manifest import Manifest
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import Scenario

QUICK = AuditOptions(sample=0, processes=0)
_NOT_READ = {"lock"}  # it tells people which process holds the folder


def flips(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """File, place and bit; every file is as likely as any other, or the journal would be all of them."""
    draw = stream(seed, "flips")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_READ)
    for which in draw.integers(len(files), count).tolist():
        path = files[which]
        yield path, int(draw.integers(path.stat().st_size, 1)[0]), int(draw.integers(8, 1)[0])


class Readers:
    """Those who read a folder beside the audit: what each takes from it, and that none of them takes damage for anything else."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._run = manifest.run.id
        self._work = manifest.work(manifest.problem(manifest.make_task()), Primitives())
        self._first = manifest.first_state(self._work)
        readers = {"join": self._changes, "invite": self._invitation, "export": self._model}
        self._right = {name: (read, read()) for name, read in readers.items()}
        self._models = {self._work.digest(self._first.training), *self._checkpoints()}

    def misled(self) -> Iterator[str]:
        """The readers that take something else from the folder now, and do not refuse it."""
        for name, (read, right) in self._right.items():
            if _unless_refused(read) not in (None, right):
                yield name
        if not {one for one in (_unless_refused(self._newest),) if one is not None} <= self._models:
            yield "join, the newest checkpoint"

    def _changes(self) -> object:
        journal = Journal(self._folder / "journal", self._run)
        journal.close()
        return journal.roster_changes.before(1 << 62)

    def _invitation(self) -> object:
        return invitation_from(self._folder)

    def _model(self) -> object:
        return self._work.digest(find_model(self._folder, self._run, self._work).training)

    def _newest(self) -> bytes:
        """Of a peer that comes back: an older one is all right, since the others tell it what it missed."""
        found = Checkpoints(self._folder / "checkpoints", self._run, self._work).last(self._first)
        return self._work.digest(found.state.training)

    def _checkpoints(self) -> Iterator[bytes]:
        for path in (self._folder / "checkpoints").glob("*.safetensors"):
            yield self._work.digest(find_model(path, self._run, self._work).training)


def _unless_refused(read: Callable[[], object]) -> object:
    try:
        return read()
    except DiskError:
        return None


def unfound(folder: Path, manifest: Manifest, count: int, seed: int) -> list[str]:
    """Flips after which the audit finds nothing wrong, or a reader is misled; each is undone."""
    missed, readers = [], Readers(folder, manifest)
    for path, place, bit in flips(folder, count, seed):
        good = path.read_bytes()
        raw = bytearray(good)
        raw[place] ^= 1 << bit
        path.write_bytes(raw)
        flip = f"{path.relative_to(folder)}, byte {place}, bit {bit}"
        try:
            if audit(folder, manifest, QUICK).right:
                missed.append(flip)
        except AuditError:
            pass  # it cannot be taken for this run's folder any more
        missed += [f"{flip}: {name} takes it for something else" for name in readers.misled()]
        path.write_bytes(good)
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
