"""Deriving a step's record from its announcements: the protocol's own step, run by an observer that hears a journal (SPEC E5).

Everything in a record but the content of a model, and the factor of the optimizer's step (SPEC U7), follows from what was
announced: who contributed, the draws, the roles, every verdict, strike, absence and return, the length of the update. So
the step is not checked rule by rule: it is made again, by the code that members run, and its record compared with the
certified one, byte for byte.

Blobs are not needed for that. Aggregates stand in the journal by digest and norm; that a quorum held them is announced too.
"""

from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from troth.clip.blocks import FLOAT32, Form
from troth.crypto import Digest, Identity, PeerId, Seed, Slot
from troth.protocol.core.channel import (
    AttemptView,
    Equivocations,
    Exchange,
    Gather,
    NothingNoticed,
    Said,
)
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import Coins
from troth.protocol.core.run import CannotGoOnError, Parameters, Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.step.closing import close_run
from troth.protocol.step.step import run_step
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    NO_BASIS,
    Center,
    ChargeKind,
    Clip,
    Envelope,
    Malformed,
    Message,
    Phase,
    said_as,
)
from troth.protocol.wire.primitives import Primitives

R = TypeVar("R")
Place = tuple[int, int]  # attempt and phase of an announcement
Announcements = Mapping[Place, Said]  # of one step of one incarnation
Updates = int  # a state goes by the number of updates that lead to it

_VERIFIED = 1 << 14  # signatures that are remembered: those under a record come with the next Commits too


class UnseenError(Exception):
    """The journal does not hold the whole step: this peer was away, or was not heard."""


class RetraceError(Exception):
    """The step cannot have gone on like this; the message says why."""


class PaperTools(Primitives):
    """Primitives for somebody who holds no blobs: an aggregate is as long as its owner announced, and rounded as much."""

    def __init__(self) -> None:
        super().__init__()
        self._verified: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.verified = 0  # signatures that were really verified

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        key = peer, message, signature
        if key not in self._verified:
            while len(self._verified) >= _VERIFIED:
                del self._verified[next(iter(self._verified))]
            self._verified[key] = super().verify(peer, message, signature)
            self.verified += 1
        return self._verified[key]

    def aggregate_norm(self, blob: Blob, form: Form = FLOAT32) -> float | None:
        return _center(blob).norm

    def rounding(self, blob: Blob, form: Form) -> float:
        return _center(blob).rounding

    def joined(self, blobs: Sequence[Blob], form: Form = FLOAT32) -> Tensor:
        return torch.empty(0)


@dataclass(frozen=True)
class PaperBlob:
    """Length of an aggregate, and what its owner announced of it, without its numbers."""

    length: int  # in bytes
    center: Center

    def __len__(self) -> int:
        return self.length


def _center(blob: Blob) -> Center:
    return cast(PaperBlob, blob).center


class JournalChannel:
    """`protocol.core.channel.Channel` that answers with what a journal says was announced."""

    def __init__(self, announcements: Announcements, parameters: Parameters) -> None:
        self._announcements = announcements
        self._parameters = parameters
        self.used: set[Place] = set()

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        place = slot.attempt, int(slot.phase)
        said = self._announcements.get(place)
        name = f"{Phase(slot.phase).name.capitalize()}, attempt {slot.attempt}"
        if said is None:
            raise UnseenError(f"the journal does not hold its announcements from {name} on")
        if len(said) < view.quorum:
            raise UnseenError(f"fewer than a quorum were heard in {name}")
        if strangers := said.keys() - view.members:
            raise RetraceError(f"{min(strangers).hex()} takes no part in {name}")
        self.used.add(place)
        return said

    async def exchange(self, slot: Slot, blobs: Exchange[R], view: AttemptView) -> R:
        return cast(R, self._gathered(slot, blobs) if isinstance(blobs, Gather) else {})

    def _gathered(self, slot: Slot, blobs: Gather) -> dict[int, PaperBlob]:
        """All wanted aggregates, as their owners announced them."""
        if not blobs.wanted:
            return {}
        code = self._parameters.coding
        bounds = part_bounds(self._parameters.size, len(blobs.wanted), code)
        clips = self._announcements[slot.attempt, int(Phase.CLIP)]
        centers = {(owner, one.part): one for owner, said in clips.items() for one in said_as(said, Clip).centers}
        return {
            part: PaperBlob(code.centers.length(bounds[part + 1] - bounds[part]), centers[blobs.owners[part], part])
            for part in blobs.wanted
        }


@dataclass
class PaperWork:
    """`protocol.core.channel.Work` without models: the content of a state is what records say, always the same, and so is how
    much the optimizer's step was shortened, which takes a model to know (SPEC U7)."""

    contents: dict[Updates, Digest] = field(default_factory=dict)
    factor: float = 1.0  # of the optimizer's step in the step that is being made again

    def claim(self, updates: Updates, content: Digest) -> None:
        """Take a record's word for the content of a state, unless an earlier record named it."""
        self.contents.setdefault(updates, content)

    def forget(self, before: Updates) -> None:
        for old in [updates for updates in self.contents if updates < before]:
            del self.contents[old]

    def update(self, training: Updates, aggregate_D: Tensor, updates: int) -> Updates:
        return updates + 1

    def shortened(self, training: Updates) -> float:
        return self.factor

    def digest(self, training: Updates) -> Digest:
        if training not in self.contents:
            raise RetraceError("no record names the content of a state that this one depends on")
        return self.contents[training]

    @property
    def looks_ahead(self) -> bool:
        return False

    def expect(self, gradients: Sequence[tuple[Updates, Seed]]) -> None:
        pass

    def took_ahead(self) -> float:
        return 0.0

    def hardware_class(self) -> Digest:
        return Digest(bytes(32))

    def _no_model(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("there is no model here: an observer computes nothing, and hands nothing out")

    gradient = recompute = index = length = chunk = collect = _no_model


class _NoEntropy:
    """Coins of an observer: nobody hears of them."""

    def coins(self, step: int, attempt: int) -> Coins:
        return Coins(bytes(32), bytes(32))


@dataclass(frozen=True)
class _Equivocated(NothingNoticed):
    """Equivocations that the record names: their proof lies in evidence files, not in announcements (SPEC Q6)."""

    record: StepRecord
    run: Digest

    def equivocations(self, step: int) -> Equivocations:
        nothing = Envelope(b"", bytes(64))
        found = [j for j in self.record.judgements if j.kind == ChargeKind.EQUIVOCATION]
        return {
            PeerId(j.target): (Slot(self.run, j.step, 0, j.attempt, self.record.incarnation), nothing, nothing)
            for j in found
        }


class Retracer:
    """Makes steps of one run again."""

    def __init__(self, run: Run, tools: PaperTools) -> None:
        self._run = run
        self._identity = Identity.generate()  # of an observer: it signs nothing that anybody sees
        self.tools = tools
        self.work = PaperWork()

    def outcome(self, state: State[Updates], record: StepRecord, said: Announcements) -> Outcome[Updates]:
        """The step's end as it follows from the announcements.

        Raises `UnseenError` if they are not all there, `RetraceError` if the step cannot have gone on like this."""
        self._claim(state, record)
        channel = JournalChannel(said, self._run.parameters)
        peer = Peer(
            self._identity,
            self._run,
            self.work,
            channel,
            _NoEntropy(),
            self.tools,
            noticed=_Equivocated(record, self._run.id),
            observing=True,
        )
        try:
            ended = _drive(close_run(peer, state) if record.closing else run_step(peer, state))
        except CannotGoOnError as error:
            raise RetraceError(f"nobody could go on from these announcements: {error}") from error
        if left := said.keys() - channel.used:
            attempt, phase = min(left)
            raise RetraceError(f"{Phase(phase).name.capitalize()}, attempt {attempt}, has no place in the step")
        return ended

    def _claim(self, state: State[Updates], record: StepRecord) -> None:
        """Contents, and the factor of U7, that only the record itself can name; the sample makes some of these states again."""
        self.work.factor = record.shortened
        after = state.training + record.updated
        if record.content and not record.undone:
            self.work.claim(after, Digest(record.state_after))
        for judgement in record.judgements:
            kept = state.audit_records.get(judgement.step)
            if kept is not None and judgement.state != NO_BASIS:
                self.work.claim(kept.training, Digest(judgement.state))
        if record.undone and (last := state.audit_records.get(state.step - 1)) is not None:
            self.work.claim(last.training, Digest(record.state_after))
        self.work.forget(state.training - 8)


def open_said(slot: Slot, envelopes: Mapping[PeerId, Envelope], tools: Primitives) -> tuple[Said, Collection[PeerId]]:
    """Decoded messages in the order of keys, and the senders whose message is malformed. Signatures are checked elsewhere."""
    read = {peer: tools.read(slot, peer, envelopes[peer]) for peer in sorted(envelopes)}
    said = {peer: one for peer, one in read.items() if not isinstance(one, Malformed)}
    return said, envelopes.keys() - said.keys()


def differences(made: StepRecord, certified: StepRecord) -> list[str]:
    """Names of the fields in which two records differ."""
    return [
        name.replace("_", " ")
        for name in StepRecord.__struct_fields__
        if getattr(made, name) != getattr(certified, name)
    ]


def restarted(state: State[Updates], record: StepRecord) -> State[Updates]:
    """The state that a record's step began with: a later incarnation begins with a restart (SPEC B6)."""
    return state if record.incarnation == state.incarnation else state.restarted(record.incarnation)


def _drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that waits for nothing: its channel answers at once."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(R, done.value)
    raise AssertionError("an observer of a journal waits for nothing")
