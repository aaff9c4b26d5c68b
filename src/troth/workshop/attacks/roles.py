"""Liars in every role of the protocol: they vanish, accuse, keep coins back, misjudge, and lie as owners and reporters.

First, public state, worked out as any member can: owners of parts, and the audits of the next step.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from troth.clip.blocks import PLAIN, Code
from troth.clip.centered_clip import judge_center
from troth.clip.exact import exact_norm
from troth.clip.fast import centered_clip
from troth.clip.rounded_center import CONVICT_ROUNDING
from troth.crypto import Digest, PeerId, Slot, blob_digest, stream
from troth.protocol.core.channel import AttemptView, Exchange, Gather, ProvenParts, Said, Scatter
from troth.protocol.core.parts import part_bounds, rows_of
from troth.protocol.core.roles import PendingAudits, combine, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import CannotGoOnError, Run
from troth.protocol.core.state import returning
from troth.protocol.step.deliveries import bitmap, bits_of
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import (
    MOST_CHARGES,
    NO_BASIS,
    Accusation,
    Accuse,
    Announced,
    Ballot,
    Center,
    ChargeKind,
    Clip,
    Commit,
    GuiltySide,
    Message,
    Phase,
    Report,
    Reveal,
    Vote,
)
from troth.protocol.wire.phases import phase_of
from troth.workshop.attacks.base import Choose, ColludingChannel, Collusion, GradientAttack, cast_as
from troth.workshop.attacks.gradient_lies import SignFlip


def owners_now(collusion: Collusion, members: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Owner of each part, in an attempt with these members."""
    assert collusion.state is not None
    state = collusion.state()
    roles = draw_roles(collusion.run, state.roster, state.randomness, state.pending_audits)
    out = frozenset(state.roster.members) - frozenset(members)
    return tuple(roles.owner_of(part, out) for part in range(len(roles.owners)))


def contributors_of(
    commits: Mapping[PeerId, Announced], members: Collection[PeerId] | None = None
) -> tuple[PeerId, ...]:
    """Peers that committed to a gradient, and are still members."""
    rooted = {peer for peer, said in commits.items() if isinstance(said.message, Commit) and said.message.root}
    return tuple(sorted(rooted if members is None else rooted & set(members)))


def audits_to_come(
    collusion: Collusion,
    slot: Slot,
    commits: Mapping[PeerId, Announced],
    members: Collection[PeerId],
    coins: Mapping[PeerId, bytes],
) -> set[tuple[PeerId, PeerId]]:
    """Pairs of auditor and target in the next step, if these coins B are opened: drawn as everyone will."""
    assert collusion.state is not None
    roster, step = collusion.state().roster, slot.step
    back = [PeerId(request.key) for request in returning(commits, roster, step)]
    after = replace(
        roster,
        members=tuple(sorted({*members, *back})),
        returns=(*roster.returns, *((step, key) for key in back)),
    )
    due = PendingAudits(step, contributors_of(commits, members), everyone=bool(set(members) - coins.keys()))
    roles = draw_roles(collusion.run, after, combine("roles", step, slot.attempt, coins), due)
    return {(auditor, audit.target) for auditor, audits in roles.audits.items() for audit in audits}


def audits_among_committed(
    run: Run,
    slot: Slot,
    commits: Mapping[PeerId, Announced],
    coins: Mapping[PeerId, bytes],
    *,
    everyone: bool = False,
) -> set[tuple[PeerId, PeerId]]:
    """Pairs of auditor and target in the next step, guessed from Commits and coins alone: as if nobody left or came back."""
    pending = PendingAudits(slot.step, contributors_of(commits), everyone=everyone)
    drawn = combine("roles", slot.step, slot.attempt, coins)
    roles = draw_roles(run, Roster(tuple(sorted(commits))), drawn, pending)
    return {(auditor, audit.target) for auditor, audits in roles.audits.items() for audit in audits}


# Liars that stop speaking, for good

_PHASES = {"commit": Phase.COMMIT, "clip": Phase.CLIP, "reveal": Phase.REVEAL, "report": Phase.REPORT}


class VanishedError(CannotGoOnError):
    """The attacker stops its machine."""


class Vanisher(ColludingChannel):
    """Goes silent for good, after the announcement that the attack names."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if phase_of(message) > _PHASES[self._collusion.attack.after]:
            raise VanishedError(f"vanished after {self._collusion.attack.after}")
        return message

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        after_commit = isinstance(blobs, Scatter) and self._collusion.attack.after == "commit"
        if after_commit and self._active(slot.step):
            raise VanishedError("vanished after commit")
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class Vanish(GradientAttack, behaves=Vanisher, choices={"after": _PHASES}):
    """go silent for good right after an announcement: after=commit, clip, reveal or report"""

    after: str = "commit"


class Leaver(ColludingChannel):
    """Says nothing more, from the first announcement of a step on."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        raise VanishedError("left the run")


@dataclass(frozen=True)
class Leave(GradientAttack, behaves=Leaver):
    """leave: no lie, no sign of life, as many at once as the run says it can bear"""


# Accusers of the innocent and of everyone, and validators that accuse nobody

_MOST_LIES = 1024  # accusations in a message


class FalseAccuser(ColludingChannel):
    """As owner, accuses an honest contributor of a wrong report about its part."""

    _mine: tuple[int, ...] = ()
    _honest_contributors: tuple[PeerId, ...] = ()
    # Digests of others' messages in the last steps.
    _signed: Mapping[tuple[int, ChargeKind, PeerId], Digest] = MappingProxyType({})

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        received = await super().exchange(slot, blobs, view)
        if isinstance(blobs, Scatter):
            self._mine = (*(self._mine if slot.attempt else ()), *received)
            honest = sorted({peer for sent in received.values() for peer in sent} - self._colluders)
            self._honest_contributors = tuple(honest) or self._honest_contributors
        return received

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Accuse):
            return msgspec.structs.replace(message, accusations=(*message.accusations, *self._lies(slot.step)))
        return message

    def _heard(self, slot: Slot, announced: Said) -> None:
        """Keep digests: an accusation that names no message which was really sent is not heard (SPEC E2)."""
        if slot.phase in (Phase.COMMIT, Phase.REPORT):
            step, commit = slot.step, slot.phase == Phase.COMMIT
            kinds = (ChargeKind.GRADIENT,) if commit else (k for k in ChargeKind if k != ChargeKind.GRADIENT)
            recent = {key: digest for key, digest in self._signed.items() if key[0] >= step - 2}
            said = {peer: blob_digest(one.envelope.payload) for peer, one in announced.items()}
            self._signed = recent | {(step, kind, p): said[p] for kind in kinds for p in said}

    def _lie(self, peer: PeerId, kind: ChargeKind, step: int, part: int | None) -> Accusation:
        """An accusation of a message that was really sent."""
        return Accusation(peer, kind, step, part, self._signed.get((step, kind, peer), NO_BASIS))

    def _lies(self, step: int) -> list[Accusation]:
        return self._accusing(self._honest_contributors[:1], step)

    def _accusing(self, victims: Sequence[PeerId], step: int) -> list[Accusation]:
        """Accuse each victim of a wrong report about the first part that this member owns."""
        return [self._lie(victim, ChargeKind.REPORT, step, part) for part in self._mine[:1] for victim in victims]


@dataclass(frozen=True)
class FalseAccusation(GradientAttack, behaves=FalseAccuser):
    """as owner of a part, accuse an honest contributor of a wrong report"""


class MassAccuser(FalseAccuser):
    """Accuses everyone it knows of everything there is, in this step and the two before."""

    def _lies(self, step: int) -> list[Accusation]:
        parts = (None, *range(len(self._run.founders)))
        lies = [
            self._lie(peer, kind, max(0, step - ago), part)
            for peer in self._run.founders
            if peer not in self._colluders
            for kind in ChargeKind
            for ago in (0, 1, 2)
            for part in (parts if kind == ChargeKind.REPORT else (None,))
        ]
        return lies[:_MOST_LIES]


@dataclass(frozen=True)
class MassAccusation(GradientAttack, behaves=MassAccuser):
    """accuse everyone of everything, to keep the others busy"""


class SilentValidator(ColludingChannel):
    """Recomputes nothing and accuses nobody, whatever it sees."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        return msgspec.structs.replace(message, accusations=()) if isinstance(message, Accuse) else message


@dataclass(frozen=True)
class SilentValidation(GradientAttack, behaves=SilentValidator):
    """as validator, never accuse anybody"""


class CoinGrinder(ColludingChannel):
    """Speaks last in Accuse, and keeps its coin B to itself where opening it would have an honest validator audit it."""

    def _at_last(self, slot: Slot, message: Message) -> Choose | None:
        if not isinstance(message, Accuse):
            return None
        return lambda honest: None if self._would_be_audited(slot, message, honest) else message

    def _would_be_audited(self, slot: Slot, said: Accuse, honest: Mapping[PeerId, Announced]) -> bool:
        """Whether the next roles, if all liars open their coins, have an honest validator audit this one."""
        coins = {peer: a.message.coin for peer, a in honest.items() if isinstance(a.message, Accuse)}
        ours = self._collusion.shared(("coin B", slot.step, slot.attempt), dict[PeerId, bytes])
        ours[self._me] = said.coin
        audits = audits_among_committed(self._run, slot, self._commits, {**coins, **ours})
        return any(target == self._me and auditor not in self._colluders for auditor, target in audits)


@dataclass(frozen=True)
class Grind(SignFlip, behaves=CoinGrinder):
    """flip signs, and withhold coin B whenever it would have an honest validator audit the liar"""


class LyingJuror(ColludingChannel):
    """Votes for the opposite of what it found, in every trial."""

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Vote) and self._active(slot.step):
            other = {GuiltySide.ACCUSED: GuiltySide.ACCUSER}
            lies = Vote(tuple(cast_as(b, other.get(b.verdict, GuiltySide.ACCUSED)) for b in message.ballots))
            return await self._honest.announce(slot, lies, view)
        return await super().announce(slot, message, view)


@dataclass(frozen=True)
class LyingJury(SignFlip, behaves=LyingJuror):
    """flip signs, and in every trial vote for the opposite of what was found"""


# Burdens for everyone else: votes full of charges that nobody brought, complaints about parts that did come.

_LATE = 2**61  # steps that nobody will ever make, in numbers with the longest encoding


class PaddingJuror(ColludingChannel):
    """Votes as its coalition does, and on thousands of invented charges besides."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Vote):
            return Vote((*message.ballots, *self._padding()[: MOST_CHARGES - len(message.ballots)]))
        return message

    def _padding(self) -> tuple[Ballot, ...]:
        """The same for all colluders: a charge that several vote on costs the others the most."""
        count = self._collusion.attack.ballots
        return self._collusion.shared("padding", lambda: invented(bytes(self._run.id), count))


def invented(seed: bytes, count: int) -> tuple[Ballot, ...]:
    """Ballots on aggregates of steps that were never made, by and of keys that nobody has."""
    keys = stream(seed, "padding").words(8 * count).tobytes()
    return tuple(
        Ballot(
            keys[64 * k : 64 * k + 32],
            keys[64 * k + 32 : 64 * k + 64],
            ChargeKind.AGGREGATE,
            _LATE + k,
            1000,
            GuiltySide.ACCUSER,
        )
        for k in range(count)
    )


@dataclass(frozen=True)
class PadVotes(SignFlip, behaves=PaddingJuror):
    """flip signs, and add to every vote as many ballots on charges that nobody brought as a message can hold"""

    ballots: int = MOST_CHARGES - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.ballots <= MOST_CHARGES:
            raise ValueError(f"ballots must be from 1 to {MOST_CHARGES}, got {self.ballots}")


class Complainer(ColludingChannel):
    """As owner, claims that a contributor's part did not come: another in each attempt, one colluding owner after the other."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Clip) and (missed := self._misses(slot)) is not None:
            return msgspec.structs.replace(message, centers=(), missing=(missed,))
        return message

    def _misses(self, slot: Slot) -> PeerId | None:
        """Contributor whose part this owner claims not to have, if it is its turn."""
        owners = owners_now(self._collusion, self._members)
        ours = [peer for peer in dict.fromkeys(owners) if peer in self._colluders]
        others = sorted(set(owners) - {self._me}, key=lambda peer: (peer in self._colluders, owners.index(peer)))
        who, turn = divmod(slot.attempt, max(1, len(self._members) // 2))
        its_turn = who < len(ours) and ours[who] == self._me
        return others[turn] if its_turn and turn < len(others) else None


@dataclass(frozen=True)
class Complain(GradientAttack, behaves=Complainer):
    """as owner, complain about parts that did come: every complaint repeats the attempt"""


# Owners that lie about the aggregate of their part: a wrong one, or one that nobody gets. P contributors, D coordinates.


class ShiftingOwner(ColludingChannel):
    """Announces and serves a wrong aggregate: by default the mean of its rows turned round."""

    _parts: int
    _arrived: Mapping[int, Mapping[PeerId, Tensor]] = MappingProxyType({})  # by part and contributor
    _forged: Mapping[int, Blob] = MappingProxyType({})

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Gather):
            blobs = replace(blobs, mine={**blobs.mine, **self._forged})
        if isinstance(blobs, Scatter) and blobs.parts and not slot.attempt:
            self._parts = len(blobs.parts)  # one for each drawn contributor, whether it committed or not
        received = await super().exchange(slot, blobs, view)
        if isinstance(blobs, Scatter):
            self._keep_rows(slot, blobs, received)
        return received

    def _keep_rows(self, slot: Slot, blobs: Scatter, received: ProvenParts) -> None:
        rows = dict(self._arrived) if slot.attempt else {}
        for part, (_, own) in blobs.parts.items():
            # Others may send blobs of any length.
            sent = received.get(part, {}).items()
            fitting = {contributor: proven for contributor, proven in sent if len(proven.blob) == len(own.blob)}
            if fitting:
                rows[part] = dict(zip(fitting, rows_of(list(fitting.values()), code=self._code), strict=True))
        self._arrived = rows

    @property
    def _rows(self) -> dict[int, list[Tensor]]:
        """Rows by part, in the order in which they came."""
        return {part: list(rows.values()) for part, rows in self._arrived.items()}

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Clip):
            self._forged = {}
        return await super().announce(slot, message, view)

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Clip):
            forged = tuple(self._forge(slot, center) for center in message.centers)
            return msgspec.structs.replace(message, centers=forged)
        return message

    def _forge(self, slot: Slot, center: Center) -> Center:
        wrong_D, form = self._code.round_center(self._wrong(slot, center.part)), self._code.centers
        forged = Blob.of(wrong_D, form)
        self._forged = {**self._forged, center.part: forged}
        return Center(center.part, forged.digest, exact_norm(wrong_D), form.rounding(forged.view))

    @property
    def _code(self) -> Code:
        return self._run.parameters.coding

    def _bounds(self) -> tuple[int, ...]:
        return part_bounds(self._run.parameters.size, self._parts, self._code)

    def _tau(self, length: int) -> float:
        whole = self._run.parameters.tau if self._collusion.state is None else self._collusion.state().scales.tau
        return whole * math.sqrt(length / self._run.parameters.size)

    def _wrong(self, slot: Slot, part: int) -> Tensor:
        rows_PD, attack, parameters = torch.stack(self._rows[part]), self._collusion.attack, self._run.parameters
        if isinstance(attack, WrongAggregate) and attack.border:
            tau = parameters.tau * math.sqrt(rows_PD.shape[1] / parameters.size)
            share = 0.5 + float(stream(self._run.id, "border", self._me, slot.step, part).uniform(1)[0])
            return at_the_border(rows_PD, tau, share, self._code)
        return -rows_PD.mean(dim=0)


def at_the_border(rows_PD: Tensor, tau: float, share: float, code: Code = PLAIN) -> Tensor:
    """An aggregate off the clipped centre by this share of what V2 lets pass (SPEC V2)."""
    center_D = centered_clip(rows_PD, tau=tau)
    towards_D = center_D / (float(torch.linalg.vector_norm(center_D)) or 1.0)

    def off(length: float) -> float:
        away_D = center_D + length * towards_D
        residual, tolerance = judge_center(
            rows_PD, away_D, tau=tau, rounding=CONVICT_ROUNDING * code.rounding(center_D)
        )
        return residual / tolerance

    least, most = 0.0, tau
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if off(middle) < share else (least, middle)
    return center_D + least * towards_D


@dataclass(frozen=True)
class WrongAggregate(GradientAttack, behaves=ShiftingOwner):
    """as owner of a part, announce the mean of its rows turned round instead of the clipped centre"""

    border: bool = False  # instead: off by about as much as passes, where peers that compute differently would disagree


class WithholdingOwner(ColludingChannel):
    """Announces its aggregate and hands it to nobody."""

    async def exchange(self, slot: Slot, blobs: Exchange[Any], view: AttemptView) -> Any:
        if isinstance(blobs, Gather) and self._active(slot.step):
            blobs = replace(blobs, mine={})
        return await super().exchange(slot, blobs, view)


@dataclass(frozen=True)
class WithheldAggregate(GradientAttack, behaves=WithholdingOwner):
    """as owner of a part, announce the aggregate but hand it to nobody"""


class LyingReporter(ColludingChannel):
    """Reports twice the right numbers about its first part."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if not isinstance(message, Report) or not message.numbers:
            return message
        numbers = np.frombuffer(message.numbers, "<f8").copy()
        numbers[1 : self._run.parameters.projections + 2] *= 2  # not its own length, which must add up
        return msgspec.structs.replace(message, numbers=numbers.tobytes())


@dataclass(frozen=True)
class WrongReport(GradientAttack, behaves=LyingReporter):
    """report wrong distances from the aggregate of one part"""


class BlockingDoorkeeper(FalseAccuser):
    """Lists no member that wants to come back.

    Where liars are half of the members it disputes links with honest ones; where they are more, it has them banned.
    """

    def _instead(self, slot: Slot, message: Message) -> Message:
        match message:
            case Commit():
                return msgspec.structs.replace(message, rejoins=())
            case Reveal() if self._half(1) and not slot.attempt:
                return msgspec.structs.replace(message, held=self._without_victim(slot.step, message.held))
            case Vote() if self._half(2):
                return Vote(tuple(map(self._winning, message.ballots)))
            case Accuse() if self._half(2):
                return msgspec.structs.replace(message, accusations=tuple(self._lies(slot.step)))
        return message

    def _half(self, more: int) -> bool:
        """Whether liars are half of the members at the start of the step; with 2, more than half."""
        assert self._collusion.state is not None
        members = self._collusion.state().roster.members
        return 2 * len(self._colluders & set(members)) >= len(members) + (more - 1)

    def _without_victim(self, step: int, held: bytes) -> bytes:
        """Deny one honest owner's aggregates: the same for all liars, another in each step (SPEC F1, F3)."""
        owners = owners_now(self._collusion, self._members)
        honest = sorted(set(owners) - self._colluders)
        if not honest:
            return held
        bits = bits_of([held], len(owners))[0].tolist()
        return bitmap([bit and owner != honest[step % len(honest)] for bit, owner in zip(bits, owners, strict=True)])

    def _lies(self, step: int) -> list[Accusation]:
        return self._accusing(self._honest_contributors, step)

    def _winning(self, ballot: Ballot) -> Ballot:
        if ballot.target in self._colluders:
            return cast_as(ballot, GuiltySide.ACCUSER)
        return cast_as(ballot, GuiltySide.ACCUSED) if ballot.accuser in self._colluders else ballot


@dataclass(frozen=True)
class BlockReturns(GradientAttack, behaves=BlockingDoorkeeper):
    """let nobody come back; where enough are gone, break off with the rest, and vote them out"""
