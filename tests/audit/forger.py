"""Somebody who holds a folder and has read the code: rewrites whatever is not signed, chains and check digests included."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from troth.crypto import Digest, Identity, blob_digest, derive
from troth.network.disk import checkpoints
from troth.network.disk.checkpoints import SavedState
from troth.network.manifest.manifest import Manifest
from troth.protocol.core.records import StepRecord, decode_record, encode_record, record_bytes_to_sign
from troth.protocol.history import first_digest, next_digest

Line = dict[str, Any]


class Forger:
    """The lines of a journal of one file, to be changed; `write` makes a chain that holds, and checkpoints that fit it."""

    def __init__(self, folder: Path, manifest: Manifest, seed: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self._seed = seed
        (self.path,) = (folder / "journal").glob("steps-*.jsonl")
        self.lines: list[Line] = [json.loads(line)["what"] for line in self.path.read_text().splitlines()]

    def write(self, *, marks: bool = True) -> None:
        chain, written = first_digest(self.manifest.run.id), []
        for line in self.lines:
            content = json.dumps(line, sort_keys=True).encode()
            chain = next_digest(chain, content)
            written.append(b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), content))
        self.path.write_bytes(b"".join(written))
        if marks:
            self.mark(chain)

    def mark(self, chain: Digest) -> None:
        """Have all checkpoints name this end of the chain."""
        for path in (self.folder / "checkpoints").glob("step-*.json"):
            saved = checkpoints.read_exactly(path.read_bytes())
            self.rewrite(path, replace(saved, marks=replace(saved.marks, journal=chain)))

    def rewrite(self, path: Path, saved: SavedState) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(saved.checked()), indent=1))

    # Lines

    def announced(self, step: int, phase: int | None = None) -> list[Line]:
        return [
            line
            for line in self.lines
            if line["kind"] == "announced" and line["slot"][0] == step and phase in (None, line["slot"][2])
        ]

    def at(self, step: int) -> int:
        """Number of the line with the record of this step."""
        return next(
            number
            for number, line in enumerate(self.lines)
            if line["kind"] == "record" and decode_record(bytes.fromhex(line["record"])).step == step
        )

    def record(self, step: int) -> StepRecord:
        return decode_record(bytes.fromhex(self.lines[self.at(step)]["record"]))

    def drop_record(self, step: int) -> None:
        at = self.at(step)
        del self.lines[at : at + 2]

    def cut_after(self, step: int) -> None:
        """End the journal with this step's record and its signatures."""
        del self.lines[self.at(step) + 2 :]

    # With the keys of all members: a run whose members lie together

    def sign(self, step: int, record: StepRecord, signers: int | None = None) -> None:
        """Put another record of the step into the journal, under the signatures of its members, or of so many."""
        at, raw = self.at(step), encode_record(record)
        keys = {one.peer: one for one in self.identities()}
        signed = {
            peer.hex(): keys[peer].sign(record_bytes_to_sign(self.manifest.run.id, step, peer, blob_digest(raw))).hex()
            for peer in map(type(next(iter(keys))), record.members[:signers])
        }
        self.lines[at] = {"kind": "record", "record": raw.hex()}
        self.lines[at + 1] = {"kind": "signatures", "of": blob_digest(raw).hex(), "signatures": signed}

    def identities(self) -> Sequence[Identity]:
        count = len(self.manifest.founders)
        return [Identity.from_secret(derive(self._seed, "identity", k)) for k in range(count)]


def payload_of(line: Line, peer: str) -> bytes:
    return b64decode(line["said"][peer][0])


def with_payload(line: Line, peer: str, change: Callable[[bytes], bytes]) -> None:
    line["said"][peer][0] = b64encode(change(payload_of(line, peer))).decode()
