"""Everything that was agreed on, in the order in which it was: append-only, each line chained to the one before.

A line is JSON: what it says, and the digest of the chain up to it. Whoever changes, drops or swaps a line breaks the chain from
there on. Files hold so many steps each, and the oldest go by policy.
"""

import json
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from troth.crypto import Context, Digest, PeerId, tagged_hash
from troth.errors import OperatorError
from troth.protocol.frames import Link
from troth.protocol.messages import Announced
from troth.protocol.records import decode_record

FORMAT = "troth journal 1"
_FILES_READ = 2  # of the last ones, for those who were gone


class JournalError(OperatorError):
    """It cannot be written, or its chain is broken; the message says where."""


class Journal:
    """One peer's."""

    def __init__(self, folder: Path, run: Digest, *, steps_per_file: int = 100, keep_files: int = 20) -> None:
        self._folder = folder
        self._run = run
        self._steps_per_file = steps_per_file
        self._keep = keep_files
        self._chain = tagged_hash("troth/journal/1", run)
        self._file: int | None = None
        self._first = -1  # the first step in the file that is open
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("steps-*.jsonl"))[-1:]:
                self._go_on(path)
        except OSError as error:
            raise JournalError(f"cannot write a journal to {folder}: {error.strerror}") from error

    def _go_on(self, path: Path) -> None:
        """After a line that the power cut tore is cut off."""
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._chain = Digest(bytes.fromhex(json.loads(line)["chain"]))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, len(whole))
        self._first = int(path.stem.removeprefix("steps-"))

    def announced(self, place: Context, said: Mapping[PeerId, Announced]) -> None:
        envelopes = {
            peer.hex(): [b64encode(one.envelope.payload).decode(), b64encode(one.envelope.signature).decode()]
            for peer, one in said.items()
        }
        where = [place.step, place.attempt, place.phase, place.incarnation]
        self._write(place.step, {"kind": "announced", "place": where, "said": envelopes})

    def recorded(self, links: Sequence[Link]) -> None:
        """Records of steps, and who signed them: this peer's own, when they are certified, and those that others made while it
        was gone. From here on they last."""
        for link in links:
            signatures = {peer.hex(): signature.hex() for peer, signature in sorted(link.signatures.items())}
            what = {"kind": "record", "record": link.record.hex(), "signatures": signatures}
            self._write(decode_record(link.record).step, what)
        if self._file is not None:
            os.fdatasync(self._file)

    def links(self, step: int) -> list[Link]:
        """The records before this step, without a gap, as far as they are still here."""
        found: dict[int, Link] = {}
        for path in sorted(self._folder.glob("steps-*.jsonl"))[-_FILES_READ:]:
            for line in path.read_bytes().splitlines():
                if b'"kind": "record"' not in line:
                    continue
                try:
                    what = json.loads(line)["what"]
                    signed = {bytes.fromhex(peer): bytes.fromhex(said) for peer, said in what["signatures"].items()}
                    link = Link(bytes.fromhex(what["record"]), signed)
                    found[decode_record(link.record).step] = link
                except (ValueError, LookupError, TypeError, AttributeError):
                    continue  # a damaged line is a gap
        first = step
        while first - 1 in found:
            first -= 1
        return [found[k] for k in range(first, step)]

    def _write(self, step: int, what: dict[str, Any]) -> None:
        try:
            if self._file is None or step >= self._first + self._steps_per_file:
                self._turn_over(step)
            assert self._file is not None
            body = json.dumps(what, sort_keys=True)
            self._chain = tagged_hash("troth/journal/1", self._chain, body.encode())
            os.write(self._file, f'{{"chain": "{self._chain.hex()}", "what": {body}}}\n'.encode())
        except OSError as error:
            raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error

    def _turn_over(self, step: int) -> None:
        self.close()
        self._first = step - step % self._steps_per_file
        path = self._folder / f"steps-{self._first:09}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        head = {"kind": "begin", "format": FORMAT, "run": self._run.hex(), "after": self._chain.hex()}
        self._write(self._first, head)
        for old in sorted(self._folder.glob("steps-*.jsonl"))[: -self._keep]:
            old.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """What a file says, line by line; raises `JournalError` where the chain breaks."""
    chain: bytes | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            what, said = entry["what"], bytes.fromhex(entry["chain"])
            before = chain if chain is not None else bytes.fromhex(what["after"])
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path}, line {number}: this is not a line of a journal") from error
        chain = tagged_hash("troth/journal/1", before, json.dumps(what, sort_keys=True).encode())
        if chain != said:
            raise JournalError(f"{path}, line {number}: the chain is broken here")
        yield what
