"""Room on a disk for a peer's folder: asked for before anything is fetched, and not when the first checkpoint fails."""

import shutil
from pathlib import Path

from troth.network.disk.errors import DiskError
from troth.training.work import Training

_AGGREGATES = 16  # of a large model, between two checkpoints
_REST = 1 << 26  # bytes, for journal, audit records, log and evidence


def least_room(training: Training, keep_checkpoints: int) -> int:
    """Bytes that a folder needs for this run: checkpoints, one more while it is written, aggregates, and the model at the end."""
    model = 4 * training.parameters_D.numel()
    state = sum(4 * vector.numel() for vector in training.vectors)
    return (keep_checkpoints + 1) * state + (_AGGREGATES + 1) * model + _REST


def check_room(folder: Path, needed: int) -> None:
    """Raises DiskError if the folder's disk has less than that free, beside what the folder holds already."""
    here = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0
    free = shutil.disk_usage(here).free
    if free + held < needed:
        raise DiskError(
            f"too little room for {folder}: the model, checkpoints and aggregates of this run take {_gb(needed)}, and "
            f"{_gb(free + held)} are free; make room there, or choose a folder on another disk",
            wrong_folder=True,
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
