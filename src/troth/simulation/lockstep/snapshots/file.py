"""A snapshot as a file: tensors in the safetensors format, everything else as bytes beside them, and a digest over all.

A file is written beside, synced and renamed: whatever happens, there is a whole one or none. The digest finds accidents.
"""

import os
from collections.abc import Mapping
from errno import EIO
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from troth.crypto import Digest, blob_digests, tagged_hash
from troth.files import write_by
from troth.simulation.lockstep.snapshots.graph import Graph
from troth.simulation.lockstep.snapshots.snapshot import Snapshot, SnapshotError
from troth.version import __version__

FORMAT: Final = "troth snapshot 1"
_NODES: Final = "nodes"


def write_snapshot(path: Path, snapshot: Snapshot, note: str = "") -> None:
    """Write a file whole or not at all; `note` is the caller's. Raises OSError if that fails."""
    tensors = _named(snapshot.whole)
    header = {
        "format": FORMAT,
        "version": __version__,
        "of": snapshot.of,
        "place": snapshot.place,
        "step": str(snapshot.step),
        "note": note,
    }
    header["check"] = _digest(header, tensors).hex()

    def write(partial: Path) -> None:
        try:
            save_file(tensors, partial, metadata=header)
        except SafetensorError as error:  # the library wraps the system's errors
            raise OSError(EIO, str(error)) from error

    # A name of this process: one that was cut off from its parent may still be writing.
    beside = f".{os.getpid()}.partial"
    try:
        write_by(path, write, beside)
    except OSError:
        path.with_name(path.name + beside).unlink(missing_ok=True)
        raise


def read_snapshot(path: Path) -> tuple[Snapshot, str]:
    """The snapshot in a file, and the note. Raises OSError if there is none, and `SnapshotError` if it cannot be used."""
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            if header.get("format") != FORMAT or header.get("version") != __version__:
                raise SnapshotError(f"it was written by {header.get('format')} of Troth {header.get('version')}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except SafetensorError as error:
        raise SnapshotError(f"it is damaged: {error}") from error
    if header.pop("check", "") != _digest(header, tensors).hex():
        raise SnapshotError("it is damaged: its digest does not fit")
    nodes = tensors.pop(_NODES).numpy().tobytes()
    graph = Graph(nodes, tuple(tensors[f"{number}"] for number in range(len(tensors))))
    return Snapshot(header["of"], header["place"], int(header["step"]), graph), header["note"]


def _named(graph: Graph) -> dict[str, Tensor]:
    nodes = torch.frombuffer(bytearray(graph.nodes), dtype=torch.uint8)
    return {_NODES: nodes, **{f"{number}": tensor for number, tensor in enumerate(graph.tensors)}}


def _digest(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Digest:
    names = sorted(tensors)
    views = [tensors[name].reshape(-1).view(torch.uint8).numpy().data for name in names]
    parts = [part.encode() for pair in sorted(header.items()) for part in pair]
    for name, digest in zip(names, blob_digests(views), strict=True):
        parts += [name.encode(), str(tensors[name].dtype).encode(), repr(tuple(tensors[name].shape)).encode(), digest]
    return tagged_hash("troth/snapshot/1", *parts)
