"""What audits of the last steps need, on disk: a restart of everyone must not be a way out for who lied just before it (SPEC K1).

One file for each step, beside the checkpoints; the model that gradients were taken at is the checkpoint's of that step.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from troth.crypto import Digest, PeerId
from troth.files import write_bytes
from troth.network.disk.checkpoints import CheckpointError, Checkpoints
from troth.protocol.core.state import AuditRecord, State
from troth.protocol.wire.messages import Announced, Bytes32, Envelope, Malformed, Phase, decode
from troth.protocol.wire.primitives import from_blob, to_blob
from troth.training.work import Training

FORMAT = "troth kept 2"
_FILES = 3  # as many as there are models


class _Saved(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: str
    run: Bytes32
    step: int
    state: Bytes32  # digest of the model that gradients were taken at
    seed_randomness: Bytes32
    owners: tuple[Bytes32, ...]
    bounds: tuple[int, ...]
    tau: float
    aggregate: bytes
    projection_key: Bytes32
    attempt: int
    commits: dict[Bytes32, Envelope]
    reports: dict[Bytes32, Envelope]
    clips: dict[Bytes32, Envelope]
    accuses: dict[Bytes32, Envelope]


class AuditRecordFiles:
    """Those of the last steps, of small models; of large ones the last step before an orderly stop."""

    def __init__(self, folder: Path, run: Digest, checkpoints: Checkpoints) -> None:
        self._folder = folder
        self._run = run
        self._checkpoints = checkpoints

    def save(self, state: State[Training], *, whole: bool = False) -> None:
        """What the step before this state leaves to be audited."""
        kept = state.audit_records.get(state.step - 1)
        if kept is None or not (whole or self._checkpoints.is_small(kept.training)):
            return
        try:
            self._checkpoints.save_model(kept.step, kept.training)  # there already, if it is small
            write_bytes(self._path(kept.step), msgspec.msgpack.encode(self._saved(kept)))
            for old in sorted(self._folder.glob("step-*.kept"))[:-_FILES]:
                old.unlink()
        except OSError as error:
            raise CheckpointError(
                f"cannot write to {self._folder}: {error.strerror}; make room and join again"
            ) from error

    def onto(self, state: State[Training]) -> State[Training]:
        """The state with what was kept of the two steps before it, as far as it is there and whole."""
        found = {step: self._read(step) for step in (state.step - 2, state.step - 1)}
        return replace(state, audit_records={step: kept for step, kept in found.items() if kept is not None})

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:09}.kept"

    def _saved(self, kept: AuditRecord[Training]) -> _Saved:
        return _Saved(
            FORMAT,
            self._run,
            kept.step,
            self._checkpoints.digest(kept.training),
            kept.seed_randomness,
            kept.owners,
            kept.bounds,
            kept.tau,
            to_blob(kept.aggregate_D),
            kept.projection_key,
            kept.attempt,
            *(
                {bytes(peer): one.envelope for peer, one in said.items()}
                for said in (kept.commits, kept.reports, kept.clips, kept.accuses)
            ),
        )

    def _read(self, step: int) -> AuditRecord[Training] | None:
        try:
            saved = msgspec.msgpack.decode(self._path(step).read_bytes(), type=_Saved, strict=True)
        except (OSError, ValueError):
            return None
        training = self._checkpoints.model(step, Digest(saved.state))
        commits, reports = _opened(Phase.COMMIT, saved.commits), _opened(Phase.REPORT, saved.reports)
        clips, accuses = _opened(Phase.CLIP, saved.clips), _opened(Phase.ACCUSE, saved.accuses)
        if (saved.format, saved.run, saved.step) != (FORMAT, self._run, step) or training is None:
            return None
        if commits is None or reports is None or clips is None or accuses is None:
            return None
        return AuditRecord(
            step=step,
            training=training,
            seed_randomness=Digest(saved.seed_randomness),
            owners=tuple(map(PeerId, saved.owners)),
            bounds=saved.bounds,
            tau=saved.tau,
            aggregate_D=from_blob(saved.aggregate),
            projection_key=Digest(saved.projection_key),
            attempt=saved.attempt,
            commits=commits,
            reports=reports,
            clips=clips,
            accuses=accuses,
        )


def _opened(phase: Phase, said: Mapping[bytes, Envelope]) -> dict[PeerId, Announced] | None:
    """This peer checked the signatures before it wrote them down."""
    opened = {PeerId(peer): (decode(phase, envelope.payload), envelope) for peer, envelope in said.items()}
    found = {
        peer: Announced(peer, message, envelope)
        for peer, (message, envelope) in opened.items()
        if not isinstance(message, Malformed)
    }
    return found if len(found) == len(said) else None
