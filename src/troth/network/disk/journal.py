"""Everything that was agreed on, in the order in which it was: append-only, each line chained to the one before.

A line is JSON: what it says, and the digest of the chain up to it. Whoever changes, drops or swaps a line breaks the chain from
there on. Files hold so many steps each, and the oldest go by policy. A record and the signatures over it are lines of their own:
signatures may come later.

The whole chain is checked when a peer starts. What ends before the place that the last checkpoint names was cut or rolled back.
"""

import errno
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from troth.crypto import Digest, PeerId, Slot, blob_digest, tagged_hash
from troth.errors import OperatorError
from troth.files import sync_folder
from troth.protocol.core.records import decode_record
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Announced

FORMAT = "troth journal 2"
_FILES_READ = 2  # of the last ones, for those who were gone
_NAME = re.compile(r"steps-([0-9]{9})\.jsonl")
_LINE = re.compile(rb'\{"chain": "([0-9a-f]{64})", "what": (\{.*\})\}')  # as it is written, and no other way


class JournalError(OperatorError):
    """It cannot be written, is not this run's, or was changed; the message says where, and names the way out."""


class Journal:
    """One peer's. Nothing on disk is changed before all of it was found to be in order."""

    def __init__(
        self,
        folder: Path,
        run: Digest,
        *,
        after: Digest | None = None,
        steps_per_file: int = 100,
        keep_files: int = 20,
    ) -> None:
        """`after` is the line that the last checkpoint was written after."""
        self._folder = folder
        self._run = run
        self._steps_per_file = steps_per_file
        self._keep = keep_files
        self._chain = _first_link(run)
        self._file: int | None = None
        self._length = 0  # of the file that is open, in bytes
        self._synced = True
        self._first = -1  # the first step in the file that is open
        self.cut = 0  # bytes of a torn last line
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if last := self._check(after):
                self._go_on(last)
        except OSError as error:
            raise JournalError(f"cannot read and write the journal in {folder}: {error.strerror}") from error

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("steps-*.jsonl") if _NAME.fullmatch(path.name))

    def _check(self, after: Digest | None) -> Path | None:
        """Follow the chain through all files to its end. The last file, if there is one."""
        files, chain = self._files(), None
        reached = after is None
        for path in files:
            self._length = 0
            for number, (line, what) in enumerate(_read(path, chain, last=path == files[-1]), 1):
                if number == 1:
                    self._check_begin(path, what)
                chain = line.chain
                self._length += line.length
                reached |= chain == after
        if not reached:
            raise JournalError(
                f"the journal in {self._folder} ends before the last checkpoint: it was cut, or is an older copy; "
                + _way_out(self._folder)
            )
        self._chain = chain or self._chain
        return files[-1] if files else None

    def _check_begin(self, path: Path, what: bytes) -> None:
        begin = _parsed(path, 1, what)
        if begin.get("format") != FORMAT:
            raise JournalError(
                f"{path} was written by another version of Troth: use that one, or choose another folder with --folder"
            )
        if begin.get("run") != self._run.hex():
            raise JournalError(f"{path} is another run's journal: choose another folder with --folder")

    def _go_on(self, path: Path) -> None:
        """After a line that the power cut tore is cut off; a file that holds nothing else goes."""
        self.cut = path.stat().st_size - self._length
        if not self._length:
            path.unlink()
            return
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if self.cut:
            os.ftruncate(self._file, self._length)
            os.fsync(self._file)
        self._first = int(path.stem.removeprefix("steps-"))

    def announced(self, slot: Slot, said: Mapping[PeerId, Announced]) -> None:
        envelopes = {
            peer.hex(): [b64encode(one.envelope.payload).decode(), b64encode(one.envelope.signature).decode()]
            for peer, one in said.items()
        }
        where = [slot.step, slot.attempt, slot.phase, slot.incarnation]
        self._write(slot.step, {"kind": "announced", "place": where, "said": envelopes})

    def recorded(self, certified: Sequence[CertifiedRecord]) -> None:
        """Records of steps, and who signed them: this peer's own, when they are certified, and those that others made while it
        was gone. From here on they last."""
        for one in certified:
            step, signed = decode_record(one.record).step, sorted(one.signatures.items())
            self._write(step, {"kind": "record", "record": one.record.hex()})
            signatures = {peer.hex(): signature.hex() for peer, signature in signed}
            self._write(step, {"kind": "signatures", "of": blob_digest(one.record).hex(), "signatures": signatures})
        self.settle()

    def settle(self) -> Digest:
        """Make everything so far last. Where the chain ends, for the checkpoint."""
        if self._file is not None and not self._synced:
            try:
                os.fdatasync(self._file)
            except OSError as error:
                raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error
            self._synced = True
        return self._chain

    def certified(self, step: int) -> list[CertifiedRecord]:
        """The records before this step, without a gap, as far as they are still here."""
        records: dict[int, bytes] = {}
        signatures: dict[bytes, dict[bytes, bytes]] = {}
        for path in self._files()[-_FILES_READ:]:
            for what in read_journal(path):
                try:
                    if what["kind"] == "record":
                        raw = bytes.fromhex(what["record"])
                        records[decode_record(raw).step] = raw
                    elif what["kind"] == "signatures":
                        signed = {bytes.fromhex(peer): bytes.fromhex(said) for peer, said in what["signatures"].items()}
                        signatures.setdefault(bytes.fromhex(what["of"]), {}).update(signed)
                except (ValueError, LookupError, TypeError, AttributeError) as error:
                    raise JournalError(f"{path} holds what is no record; {_way_out(self._folder)}") from error
        found = {
            k: CertifiedRecord(raw, signatures[digest])
            for k, raw in records.items()
            if (digest := blob_digest(raw)) in signatures
        }
        first = step
        while first - 1 in found:
            first -= 1
        return [found[k] for k in range(first, step)]

    def _write(self, step: int, what: dict[str, Any]) -> None:
        try:
            if self._file is None or step >= self._first + self._steps_per_file:
                self._turn_over(step)
            self._append(what)
        except OSError as error:
            raise JournalError(f"cannot write to the journal in {self._folder}: {error.strerror}") from error

    def _append(self, what: dict[str, Any]) -> None:
        """A whole line or nothing: what follows half a line would not be read again."""
        assert self._file is not None
        body = json.dumps(what, sort_keys=True).encode()
        chain = _next_link(self._chain, body)
        line = b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), body)
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, self._length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._chain, self._length, self._synced = chain, self._length + len(line), False

    def _turn_over(self, step: int) -> None:
        self.settle()  # else a power cut might tear this file, and keep the next
        self.close()
        self._first = step - step % self._steps_per_file
        path = self._folder / f"steps-{self._first:09}.jsonl"
        self._file, self._length = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 0
        self._append({"kind": "begin", "format": FORMAT, "run": self._run.hex(), "after": self._chain.hex()})
        sync_folder(self._folder)
        for old in self._files()[: -self._keep]:
            old.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """What a file says, line by line; raises `JournalError` where the chain breaks."""
    try:
        for number, (_, what) in enumerate(_read(path, None, last=True), 1):
            yield _parsed(path, number, what)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error


class _Read(NamedTuple):
    chain: Digest
    length: int  # of the line, in bytes


def _read(path: Path, chain: Digest | None, *, last: bool) -> Iterator[tuple[_Read, bytes]]:
    """A file's lines, as far as the chain holds, which may begin anywhere if nothing is known of what came before. Only the last
    line of the last file may be torn; it is left out."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if last and not raw.endswith(b"\n"):
                return
            found = _LINE.fullmatch(raw.removesuffix(b"\n"))
            if found is None:
                raise JournalError(f"{path}, line {number}: this is not a line of a journal; {_way_out(path.parent)}")
            said, what = Digest(bytes.fromhex(found[1].decode())), found[2]
            before = _before(path, what) if number == 1 else chain
            if (number == 1 and chain not in (None, before)) or before is None or _next_link(before, what) != said:
                raise JournalError(f"{path}, line {number}: the chain is broken here; {_way_out(path.parent)}")
            chain = said
            yield _Read(said, len(raw)), what


def _before(path: Path, what: bytes) -> Digest | None:
    """The chain up to this file, as its first line names it."""
    named = _parsed(path, 1, what).get("after")
    return Digest(bytes.fromhex(named)) if isinstance(named, str) and re.fullmatch("[0-9a-f]{64}", named) else None


def _parsed(path: Path, number: int, what: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(what)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise JournalError(f"{path}, line {number}: this is not a line of a journal; {_way_out(path.parent)}")
    return parsed


def _first_link(run: Digest) -> Digest:
    return tagged_hash("troth/journal/1", run)


def _next_link(chain: Digest, what: bytes) -> Digest:
    return tagged_hash("troth/journal/1", chain, what)


def _way_out(folder: Path) -> str:
    return (
        f"put the right one back, or move {folder} and the folder checkpoints beside it away: "
        "the others then tell this peer what it missed"
    )
