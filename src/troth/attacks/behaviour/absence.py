"""Liars that stop speaking, for good."""

from dataclasses import dataclass
from typing import Any

from troth.attacks.colluder import ColludingChannel
from troth.attacks.errors import AttackError
from troth.attacks.gradient.base import GradientAttack
from troth.crypto import Slot
from troth.protocol.core.channel import AttemptView, Exchange, Scatter
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.wire.messages import Message, Phase
from troth.protocol.wire.phases import phase_of

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
class Vanish(GradientAttack, behaves=Vanisher):
    """go silent for good right after an announcement: after=commit, clip, reveal or report"""

    after: str = "commit"

    def __post_init__(self) -> None:
        if self.after not in _PHASES:
            raise AttackError(f"vanish:after= is one of {', '.join(_PHASES)}, got '{self.after}'")


class Leaver(ColludingChannel):
    """Says nothing more, from the first announcement of a step on."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        raise VanishedError("left the run")


@dataclass(frozen=True)
class Leave(GradientAttack, behaves=Leaver):
    """leave: no lie, no sign of life, as many at once as the run says it can bear"""
