"""Accusers of the innocent and of everyone, and validators that accuse nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from troth.attacks.colluder import ColludingChannel
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import Digest, PeerId, Slot, blob_digest
from troth.protocol.core.channel import AttemptView, Exchange, Said, Scatter
from troth.protocol.wire.messages import NO_BASIS, Accusation, Accuse, Kind, Message, Phase

_MOST_LIES = 1024  # accusations in a message


class FalseAccuser(ColludingChannel):
    """As owner, accuses an honest contributor of a wrong report about its part."""

    _mine: tuple[int, ...] = ()
    _honest_contributors: tuple[PeerId, ...] = ()
    # Digests of others' messages in the last steps.
    _signed: Mapping[tuple[int, Kind, PeerId], Digest] = MappingProxyType({})

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
            kinds = (Kind.GRADIENT,) if commit else (k for k in Kind if k != Kind.GRADIENT)
            recent = {key: digest for key, digest in self._signed.items() if key[0] >= step - 2}
            said = {peer: blob_digest(one.envelope.payload) for peer, one in announced.items()}
            self._signed = recent | {(step, kind, p): said[p] for kind in kinds for p in said}

    def _lie(self, peer: PeerId, kind: Kind, step: int, part: int | None) -> Accusation:
        """An accusation of a message that was really sent."""
        return Accusation(peer, kind, step, part, self._signed.get((step, kind, peer), NO_BASIS))

    def _lies(self, step: int) -> list[Accusation]:
        return self._accusing(self._honest_contributors[:1], step)

    def _accusing(self, victims: Sequence[PeerId], step: int) -> list[Accusation]:
        """Accuse each victim of a wrong report about the first part that this member owns."""
        return [self._lie(victim, Kind.REPORT, step, part) for part in self._mine[:1] for victim in victims]


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
            for kind in Kind
            for ago in (0, 1, 2)
            for part in (parts if kind == Kind.REPORT else (None,))
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
