"""Lies in the protocol itself: as owner of a part, reporter, accuser, validator or juror; and silence.

Each is a wrapper around the honest member's channel; the member's own code knows nothing of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from troth.aggregation import centered_clip, exact_norm, judge_center
from troth.attacks.colluder import ColludingChannel, cast_as
from troth.attacks.errors import AttackError
from troth.attacks.gradient import GradientAttack, SignFlip
from troth.crypto import Digest, PeerId, Slot, blob_digest, stream
from troth.protocol.core.channel import ProvenParts
from troth.protocol.core.coins import combine
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.parts import ProvenPart, rows_of
from troth.protocol.core.roles import PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.wire.messages import (
    NO_BASIS,
    Accusation,
    Accuse,
    Announced,
    Center,
    Clip,
    Commit,
    Kind,
    Message,
    Phase,
    Report,
    Verdict,
    Vote,
    phase_of,
)
from troth.protocol.wire.primitives import to_blob

# D coordinates


class VanishedError(CannotGoOnError):
    """The attacker stops its machine."""


class ShiftingOwner(ColludingChannel):
    """Announces and serves, in place of the clipped centre, something else: here the mean of its rows turned round."""

    _rows: dict[int, list[Tensor]]
    _forged: dict[int, bytes]

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        received = await super().scatter(slot, proven_parts)
        kept = self._rows if slot.attempt else {}
        lengths = {part: len(proven.blob) for part, (_, proven) in proven_parts.items()}  # others may send anything
        fitting = {
            part: [proven for proven in sent.values() if len(proven.blob) == lengths[part]]
            for part, sent in received.items()
            if part in lengths
        }
        self._rows = kept | {
            part: list(rows_of(proven_parts)) for part, proven_parts in fitting.items() if proven_parts
        }
        return received

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        self._forged = {} if isinstance(message, Clip) else getattr(self, "_forged", {})
        if isinstance(message, Clip) and self._active(slot.step):
            forged = tuple(self._forge(slot, center) for center in message.centers)
            message = msgspec.structs.replace(message, centers=forged)
        return await super().announce(slot, message)

    def _forge(self, slot: Slot, center: Center) -> Center:
        wrong_D = self._wrong(slot, center.part)
        self._forged[center.part] = to_blob(wrong_D)
        return Center(center.part, blob_digest(self._forged[center.part]), exact_norm(wrong_D))

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, attack, parameters = torch.stack(self._rows[part]), self._collusion.attack, self._run.parameters
        if isinstance(attack, WrongAggregate) and attack.border:
            tau = parameters.tau * math.sqrt(rows_PD.shape[1] / parameters.size)
            share = 0.5 + float(stream(self._run.id, "border", self._me, slot.step, part).uniform(1)[0])
            return at_the_border(rows_PD, tau, share)
        return -rows_PD.mean(dim=0)

    async def gather(self, slot: Slot, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]) -> Mapping[int, bytes]:
        return await super().gather(slot, {**mine, **self._forged}, wanted)


def at_the_border(rows_PD: Tensor, tau: float, share: float) -> Tensor:
    """Off the clipped centre by so large a share of what is let pass (SPEC V2)."""
    center_D = centered_clip(rows_PD, tau=tau)
    towards_D = center_D / (float(torch.linalg.vector_norm(center_D)) or 1.0)

    def off(length: float) -> float:
        away_D = center_D + length * towards_D
        residual, tolerance = judge_center(rows_PD, away_D, tau=tau)
        return residual / tolerance

    least, most = 0.0, tau
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if off(middle) < share else (least, middle)
    return center_D + least * towards_D


class WithholdingOwner(ColludingChannel):
    """Announces its aggregate and hands it to nobody."""

    async def gather(self, slot: Slot, mine: Mapping[int, bytes], wanted: Mapping[int, Digest]) -> Mapping[int, bytes]:
        return await super().gather(slot, {} if self._active(slot.step) else mine, wanted)


class LyingReporter(ColludingChannel):
    """Reports twice the right numbers about its first part."""

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Report) and message.numbers and self._active(slot.step):
            numbers = np.frombuffer(message.numbers, "<f8").copy()
            numbers[1 : self._run.parameters.projections + 2] *= 2  # not its own length, which must add up
            message = msgspec.structs.replace(message, numbers=numbers.tobytes())
        return await super().announce(slot, message)


class FalseAccuser(ColludingChannel):
    """As owner, accuses an honest contributor of a wrong report about its part."""

    _mine: tuple[int, ...] = ()
    _honest_contributors: tuple[PeerId, ...] = ()
    _signed: Mapping[tuple[int, Kind, PeerId], Digest] = MappingProxyType({})  # what others said in the last steps

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        received = await super().scatter(slot, proven_parts)
        self._mine = (*(self._mine if slot.attempt else ()), *received)
        honest = sorted({peer for sent in received.values() for peer in sent} - self._colluders)
        self._honest_contributors = tuple(honest) or self._honest_contributors
        return received

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse) and self._active(slot.step):
            message = msgspec.structs.replace(message, accusations=(*message.accusations, *self._lies(slot.step)))
        announced = await super().announce(slot, message)
        self._note(slot.step, message, announced)
        return announced

    def _note(self, step: int, message: Message, announced: Mapping[PeerId, Announced]) -> None:
        """An accusation that names no message which was really sent is not heard (SPEC E2)."""
        if isinstance(message, Commit | Report):
            kinds = (Kind.GRADIENT,) if isinstance(message, Commit) else (k for k in Kind if k != Kind.GRADIENT)
            recent = {key: digest for key, digest in self._signed.items() if key[0] >= step - 2}
            said = {peer: blob_digest(one.envelope.payload) for peer, one in announced.items()}
            self._signed = recent | {(step, kind, p): said[p] for kind in kinds for p in said}

    def _lie(self, peer: PeerId, kind: Kind, step: int, part: int | None) -> Accusation:
        """Of a message that was really sent."""
        return Accusation(peer, kind, step, part, self._signed.get((step, kind, peer), NO_BASIS))

    def _lies(self, step: int) -> list[Accusation]:
        if not self._mine or not self._honest_contributors:
            return []
        return [self._lie(self._honest_contributors[0], Kind.REPORT, step, self._mine[0])]


class MassAccuser(FalseAccuser):
    """Accuses everyone it knows of everything there is, in this step and the two before."""

    def _lies(self, step: int) -> list[Accusation]:
        parts = (None, *range(len(self._run.founders)))
        lies = [
            self._lie(peer, kind, max(0, step - ago), part)
            for peer in self._run.founders
            if peer not in self._colluders
            for kind in Kind
            for ago in (0, 1, 2)
            for part in (parts if kind == Kind.REPORT else (None,))
        ]
        return lies[:1024]


class SilentValidator(ColludingChannel):
    """Recomputes nothing and accuses nobody, whatever it sees."""

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse) and self._active(slot.step):
            message = msgspec.structs.replace(message, accusations=())
        return await super().announce(slot, message)


class LyingJuror(ColludingChannel):
    """Votes for the opposite of what it found, in every trial."""

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Vote) and self._active(slot.step):
            other = {Verdict.ACCUSED: Verdict.ACCUSER}
            lies = Vote(tuple(cast_as(b, other.get(b.verdict, Verdict.ACCUSED)) for b in message.ballots))
            return await self._honest.announce(slot, lies)
        return await super().announce(slot, message)


class Vanisher(ColludingChannel):
    """Goes silent for good, after the announcement that the attack names."""

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if self._active(slot.step) and phase_of(message) > _PHASES[self._collusion.attack.after]:
            raise VanishedError(f"vanished after {self._collusion.attack.after}")
        return await super().announce(slot, message)

    async def scatter(self, slot: Slot, proven_parts: Mapping[int, tuple[PeerId, ProvenPart]]) -> ProvenParts:
        if self._active(slot.step) and self._collusion.attack.after == "commit":
            raise VanishedError("vanished after commit")
        return await super().scatter(slot, proven_parts)


class CoinGrinder(ColludingChannel):
    """Speaks last in Accuse, and keeps its coin B to itself where opening it would have an honest validator audit it."""

    _commits: Mapping[PeerId, Announced]

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        if isinstance(message, Accuse) and self._active(slot.step):
            said = self._shielding(message)
            assert isinstance(said, Accuse)

            def choose(honest: Mapping[PeerId, Announced]) -> Message | None:
                return None if self._would_be_audited(slot, said, honest) else said

            return await self._honest.announce_last(slot, choose)
        announced = await super().announce(slot, message)
        if isinstance(message, Commit):
            self._commits = announced
        return announced

    def _would_be_audited(self, slot: Slot, said: Accuse, honest: Mapping[PeerId, Announced]) -> bool:
        """Draw the next roles as everyone will, if all of us open our coins."""
        coins = {peer: a.message.coin for peer, a in honest.items() if isinstance(a.message, Accuse)}
        shared: dict[PeerId, bytes] = self._collusion.board.setdefault(("coin B", slot.step, slot.attempt), {})
        shared[self._me] = said.coin
        drawn = combine("roles", slot.step, slot.attempt, {**coins, **shared})
        contributors = tuple(
            peer for peer, a in sorted(self._commits.items()) if isinstance(a.message, Commit) and a.message.root
        )
        members = tuple(sorted(self._commits))
        roles = draw_roles(self._run, Roster(members), drawn, PendingAudits(slot.step, contributors))
        return any(
            audit.target == self._me
            for auditor, audits in roles.audits.items()
            if auditor not in self._colluders
            for audit in audits
        )


_PHASES = {"commit": Phase.COMMIT, "clip": Phase.CLIP, "reveal": Phase.REVEAL, "report": Phase.REPORT}


@dataclass(frozen=True)
class WrongAggregate(GradientAttack):
    """as owner of a part, announce the mean of its rows turned round instead of the clipped centre"""

    border: bool = False  # instead: off by about as much as is let pass, where peers that see it differently would part
    behaviour: ClassVar[type[ColludingChannel]] = ShiftingOwner
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class WithheldAggregate(GradientAttack):
    """as owner of a part, announce the aggregate but hand it to nobody"""

    behaviour: ClassVar[type[ColludingChannel]] = WithholdingOwner
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class WrongReport(GradientAttack):
    """report wrong distances from the aggregate of one part"""

    behaviour: ClassVar[type[ColludingChannel]] = LyingReporter
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class FalseAccusation(GradientAttack):
    """as owner of a part, accuse an honest contributor of a wrong report"""

    behaviour: ClassVar[type[ColludingChannel]] = FalseAccuser
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class MassAccusation(GradientAttack):
    """accuse everyone of everything, to keep the others busy"""

    behaviour: ClassVar[type[ColludingChannel]] = MassAccuser
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class SilentValidation(GradientAttack):
    """as validator, never accuse anybody"""

    behaviour: ClassVar[type[ColludingChannel]] = SilentValidator
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class LyingJury(SignFlip):
    """flip signs, and in every trial vote for the opposite of what was found"""

    behaviour: ClassVar[type[ColludingChannel]] = LyingJuror
    needs_protocol: ClassVar[bool] = True


@dataclass(frozen=True)
class Vanish(GradientAttack):
    """go silent for good right after an announcement: after=commit, clip, reveal or report"""

    after: str = "commit"
    behaviour: ClassVar[type[ColludingChannel]] = Vanisher
    needs_protocol: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.after not in _PHASES:
            raise AttackError(f"vanish:after= is one of {', '.join(_PHASES)}, got '{self.after}'")


@dataclass(frozen=True)
class Grind(SignFlip):
    """flip signs, and withhold coin B whenever it would have an honest validator audit the liar"""

    behaviour: ClassVar[type[ColludingChannel]] = CoinGrinder
    needs_protocol: ClassVar[bool] = True
