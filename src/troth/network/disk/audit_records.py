"""Audit records on disk: a restart must not save liars from the audit of their last steps, or from an owed one (SPEC K1, R7).

One file for each step, beside the checkpoints. The model that gradients were taken at is in the checkpoint of that step; a large
one is made again like any other (`disk.replay`), and its aggregate lies in a file of its own (`disk.aggregates`).

There are at most `MOST_OWED` + 2 files: those of the last three steps, and of steps that the last state or the one before it owes
audits of; there a peer goes back to, if its last record is not certified. Liars may keep audits owed in every step, but no audit
for long: each is dealt again three times, in one step after another, and then given up. So the disk does not grow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from torch import Tensor

from troth.crypto import Digest, PeerId, blob_digest
from troth.files import write_bytes
from troth.network.disk.checkpoints import AggregateFiles, Checkpoints
from troth.network.disk.lock import or_disk_error, step_files
from troth.protocol.core.records import StepRecord, aggregates_digest
from troth.protocol.core.state import AuditRecord, State
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Announced, Bytes32, Clip, Commit, Envelope, Malformed, Phase, said_as
from troth.protocol.wire.phases import decode
from troth.resting import rest
from troth.training.work import Training

FORMAT = "troth audit record 7"
_SAME = ("step", "seed_randomness", "owners", "bounds", "tau", "projection_key", "attempt")  # in memory and in the file
_SAID = {
    "commits": Phase.COMMIT,
    "reports": Phase.REPORT,
    "clips": Phase.CLIP,
    "accuses": Phase.ACCUSE,
    "probed": Phase.COMMIT,
}
_LAST = 3  # steps whose records are kept in any case
Restore = Callable[[int, Digest], Training | None]  # the model at the start of a step, if it can be made again


def _cannot(_step: int, _model: Digest) -> Training | None:
    return None


class SavedAuditRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file, field by field."""

    format: str
    run: Bytes32
    step: int
    model: Bytes32  # digest of the state that gradients were taken at, as records name it (SPEC U5)
    names_content: bool  # that is the digest of its content
    state: Bytes32 | None  # digest of its content; None if the model is large: nobody has computed it
    seed_randomness: Bytes32
    owners: tuple[Bytes32, ...]
    bounds: tuple[int, ...]
    tau: float
    aggregate: bytes | None  # None if it lies in a file of its own
    projection_key: Bytes32
    attempt: int
    commits: dict[Bytes32, Envelope]
    reports: dict[Bytes32, Envelope]
    clips: dict[Bytes32, Envelope]
    accuses: dict[Bytes32, Envelope]
    probed: dict[Bytes32, Envelope]
    check: Bytes32 = bytes(32)  # over all of the above: after an accident this peer would accuse honest members

    def checked(self) -> "SavedAuditRecord":
        return msgspec.structs.replace(self, check=self._digest())

    @property
    def is_whole(self) -> bool:
        return self.check == self._digest()

    def _digest(self) -> Digest:
        return blob_digest(msgspec.msgpack.encode(msgspec.structs.replace(self, check=bytes(32))))


def read_exactly(raw: bytes) -> SavedAuditRecord:
    """The content of a file, for people who check it: raises ValueError for anything but what is written there."""
    saved = msgspec.msgpack.decode(raw, type=SavedAuditRecord, strict=True)
    if saved.format != FORMAT:
        raise ValueError("another version of Troth wrote this file")
    if msgspec.msgpack.encode(saved) != raw:
        raise ValueError("it is not written the one way audit records are written")
    if not saved.is_whole:
        raise ValueError("its checksum does not fit")
    return saved


class AuditRecordFiles:
    """The audit records of the last steps, and of earlier ones that are owed."""

    def __init__(self, folder: Path, run: Digest, checkpoints: Checkpoints, aggregates: AggregateFiles) -> None:
        self._folder = folder
        self._run = run
        self._checkpoints = checkpoints
        self._aggregates = aggregates
        self._owed: dict[int, frozenset[int]] = {}  # steps that states owe audits of, by the step that begins there

    def save(self, state: State[Training]) -> tuple[int, ...]:
        """Save the audit record of the step before this state, and delete those that nobody needs. Return the steps of
        which audits are owed, in order, as far as their records are here: their models and aggregates are needed too."""
        before = self._owed.get(state.step - 1, frozenset())
        self._owed = {state.step - 1: before, state.step: state.pending_audits.owed_steps}
        record, owed = state.audit_records.get(state.step - 1), before | state.pending_audits.owed_steps
        with or_disk_error(f"write to {self._folder}"):
            if record is not None:
                write_bytes(self._path(record.step), msgspec.msgpack.encode(self._saved(record).checked()))
            files = step_files(self._folder, "audit")
            for step, path in files.items():
                if step < state.step - _LAST and step not in owed:
                    path.unlink()
        return tuple(sorted(owed & files.keys()))

    def onto(
        self,
        state: State[Training],
        earlier: Sequence[State[Training]] = (),
        records: Mapping[int, StepRecord] = MappingProxyType({}),
        restore: Restore = _cannot,
    ) -> State[Training]:
        """The state with the audit records of the two steps before it, and of those that are owed, as far as they are there and
        whole. `earlier` states are those before, whose models may not be on disk; `restore` makes older ones again. An owed audit
        is done by a record that fits the certified one, or not at all: its step may have been made again without this peer."""
        self._owed[state.step] = owed = state.pending_audits.owed_steps
        last = {one.last.record.step: one.last.record for one in (*earlier, state) if one.last is not None}
        agreed, two = {**records, **last}, {state.step - 2, state.step - 1}
        wanted = sorted(two | (owed & agreed.keys()))
        found = {step: self._read(step, earlier, restore if step in owed else _cannot) for step in wanted}
        kept = {step: one for step, one in found.items() if one is not None and self._is_of(one, agreed.get(step))}
        return replace(state, audit_records=kept)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09}.audit"

    def _saved(self, record: AuditRecord[Training]) -> SavedAuditRecord:
        small = self._checkpoints.is_small(record.training)
        same: dict[str, Any] = {name: getattr(record, name) for name in _SAME}
        said: dict[str, Any] = {name: _envelopes(getattr(record, name)) for name in _SAID}
        return SavedAuditRecord(
            FORMAT,
            self._run,
            model=record.model,
            names_content=record.content,
            state=self._checkpoints.work.digest(record.training) if small else None,
            aggregate=bytes(self._aggregates.code.centers.pack(record.aggregate_D)) if small else None,
            **same,
            **said,
        )

    def _read(self, step: int, earlier: Sequence[State[Training]], restore: Restore) -> AuditRecord[Training] | None:
        try:
            saved = msgspec.msgpack.decode(self._path(step).read_bytes(), type=SavedAuditRecord, strict=True)
        except (OSError, ValueError):
            return None
        if (saved.format, saved.run, saved.step) != (FORMAT, self._run, step) or not saved.is_whole:
            return None
        said = {name: _opened(phase, getattr(saved, name)) for name, phase in _SAID.items()}
        opened: dict[str, Any] = {name: messages for name, messages in said.items() if messages is not None}
        if len(opened) < len(said):
            return None
        aggregate_D, training = self._aggregate(saved, opened["clips"]), self._training(saved, earlier, restore)
        if aggregate_D is None or training is None:
            return None
        same: dict[str, Any] = {name: getattr(saved, name) for name in _SAME}
        return AuditRecord(
            training=training,
            model=Digest(saved.model),
            content=saved.names_content,
            aggregate_D=aggregate_D,
            **same,
            **opened,
        )

    def _training(
        self, saved: SavedAuditRecord, earlier: Sequence[State[Training]], restore: Restore
    ) -> Training | None:
        if saved.state is not None:
            return self._checkpoints.model(saved.step, Digest(saved.state))
        wanted = saved.step, Digest(saved.model)
        known = next((one.training for one in earlier if (one.step, one.model) == wanted), None)
        return known or restore(*wanted)

    def _aggregate(self, saved: SavedAuditRecord, clips: Mapping[PeerId, Announced]) -> Tensor | None:
        """The aggregate that the owners announced."""
        if saved.aggregate is not None:
            return Blob(saved.aggregate).numbers_D(form=self._aggregates.code.centers)
        found = self._aggregates.read_parts(saved.step, saved.bounds)
        said = {center.part: center.digest for one in clips.values() for center in said_as(one, Clip).centers}
        if found is None or not all(said.get(part) == blob.digest for part, blob in enumerate(found[1])):
            return None
        rest(found[:1], self._folder)
        return found[0]

    def _is_of(self, kept: AuditRecord[Training], record: StepRecord | None) -> bool:
        """Whether an audit record is of the step that was agreed on, as far as that is known: a step may have been discarded,
        and made again otherwise."""
        if record is None:
            return True
        commits = {**kept.commits, **kept.probed}
        roots = {peer: said_as(commits[PeerId(peer)], Commit).root for peer in record.commitments if peer in commits}
        blobs = Blob.cut(kept.aggregate_D, kept.bounds, self._aggregates.code.centers)
        aggregates = aggregates_digest(blob.digest for blob in blobs)
        return kept.model == record.state_before and roots == record.commitments and aggregates == record.aggregates


def _envelopes(announced: Mapping[PeerId, Announced]) -> dict[bytes, Envelope]:
    return {bytes(peer): one.envelope for peer, one in announced.items()}


def _opened(phase: Phase, envelopes: Mapping[bytes, Envelope]) -> dict[PeerId, Announced] | None:
    """The messages inside the envelopes; None if one is malformed. This peer checked the signatures before it saved them."""
    opened = {PeerId(peer): (decode(phase, envelope.payload), envelope) for peer, envelope in envelopes.items()}
    found = {
        peer: Announced(peer, message, envelope)
        for peer, (message, envelope) in opened.items()
        if not isinstance(message, Malformed)
    }
    return found if len(found) == len(envelopes) else None
