"""A small run that was closed, with its model: made by hand, so that every record in it can be forged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save_file
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.evidence.file_format import to_text
from troth.evidence.model_file import ModelFile, model_file
from troth.protocol.core.records import Judgement, Returned, StepRecord, encode_record, record_bytes_to_sign
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import ChargeKind, GuiltySide
from troth.training import OPTIMIZERS, Problem, Task, make_task
from troth.training.work import Training, state_digest, tensor_digests

TASK = "factors:dimension=24"  # two vectors of one shape, so that names matter
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace")


def people(purpose: str, count: int) -> list[Identity]:
    return sorted((Identity.from_secret(derive(0, purpose, k)) for k in range(count)), key=lambda one: one.peer)


CHANGES = (3, 5, 9)  # steps in which the members change


def described(names: Sequence[str] = NAMES, task: str = TASK) -> bytes:
    return json.dumps({"task": task, "device": "cpu", "one_by_one": False, "founders": list(names)}).encode()


@dataclass
class ClosedRun:
    """Seven founders, one of whom may lie. One was banned, one left and came back under another key."""

    names: Sequence[str] = NAMES
    task: Task = field(default_factory=lambda: make_task(TASK))
    founders: list[Identity] = field(default_factory=lambda: people("founder", 7))
    successor: Identity = field(default_factory=lambda: people("successor", 1)[0])

    def __post_init__(self) -> None:
        self.problem = Problem(self.task)
        parameters_D = self.problem.initial(0)
        self.training = Training(parameters_D, OPTIMIZERS["adamw"]().start(parameters_D))
        parameters = Parameters(size=self.problem.size, tau=1.0, byzantine=1)
        keys = tuple(one.peer for one in self.founders)
        self.run = Run(keys, described(self.names), parameters, derive(0, "nonce"))
        liar, loser = keys[0], keys[1]
        banned = Judgement(None, liar, ChargeKind.EQUIVOCATION, 3, None, 0, GuiltySide.ACCUSED)
        after = keys[1:]
        self.members = tuple(sorted((*keys[2:], self.successor.peer)))
        self.changes = [
            self.record(3, keys, judgements=(banned,)),
            self.record(5, after, absent=(loser,)),
            self.record(9, keys[2:], returned=(Returned(loser, self.successor.peer),)),
        ]
        self.closing = self.record(
            20, self.members, contributors=(), roots=(), parts=1, updated=False, updates=18, closing=True
        )

    def record(self, step: int, members: Sequence[PeerId], **changes: Any) -> StepRecord:
        zero, digest = bytes(32), state_digest(self.training)
        keys = tuple(members)
        usual = StepRecord(
            step,
            keys,
            keys,
            (zero,) * len(keys),
            2,
            zero,
            zero,
            digest,
            digest,
            True,
            step,
            1.0,
            0.1,
            1.0,
            1.0,
            1.0,
            (),
        )
        changed = max((change for change in CHANGES if change < step), default=-1)
        return msgspec.structs.replace(usual, **{"changed": changed, **changes})

    def signed(
        self, record: StepRecord, signers: Sequence[Identity] | None = None, run: Digest | None = None
    ) -> CertifiedRecord:
        """The record under the signatures of all its members, or of these."""
        raw = encode_record(record)
        everyone = [one for one in (*self.founders, self.successor) if one.peer in record.members]
        signatures: dict[bytes, bytes] = {
            one.peer: one.sign(record_bytes_to_sign(run or self.run.id, record.step, one.peer, blob_digest(raw)))
            for one in (everyone if signers is None else signers)
        }
        return CertifiedRecord(raw, signatures)

    def file(
        self, last: CertifiedRecord | None = None, history: Sequence[CertifiedRecord] | None = None, **changes: Any
    ) -> ModelFile:
        tensors = tensor_digests(self.training)
        changed = [self.signed(one) for one in self.changes] if history is None else history
        made = model_file(self.run, 21, tensors, changed, last or self.signed(self.closing))
        return msgspec.structs.replace(made, **changes)

    def text(self, **changes: Any) -> str:
        return to_text(self.file(**changes))

    def weights(self) -> dict[str, Tensor]:
        return self.problem.state_dict(self.training.parameters_D)

    def write(self, folder: Path, text: str | None = None, weights: Mapping[str, Tensor] | None = None) -> Path:
        """Write `model.json` and the weights; the path of the former."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(self.text() if text is None else text)
        save_file(dict(self.weights() if weights is None else weights), folder / "model.safetensors")
        return folder / "model.json"
