"""Burdens for everyone else: votes full of charges that nobody brought, complaints about parts that did come."""

from dataclasses import dataclass

import msgspec

from troth.crypto import PeerId, Slot, stream
from troth.protocol.wire.messages import MOST_CHARGES, Ballot, ChargeKind, Clip, GuiltySide, Message, Vote
from troth.workshop.attacks.base import ColludingChannel, GradientAttack
from troth.workshop.attacks.gradient_lies import SignFlip
from troth.workshop.attacks.roles import owners_now

_LATE = 2**61  # steps that nobody will ever make, in numbers with the longest encoding


class PaddingJuror(ColludingChannel):
    """Votes as its coalition does, and on thousands of invented charges besides."""

    def _instead(self, slot: Slot, message: Message) -> Message:
        if isinstance(message, Vote):
            return Vote((*message.ballots, *self._padding()[: MOST_CHARGES - len(message.ballots)]))
        return message

    def _padding(self) -> tuple[Ballot, ...]:
        """The same for all colluders: a charge that several vote on costs the others the most."""
        made: tuple[Ballot, ...] = self._collusion.board.setdefault("padding", None) or invented(
            bytes(self._run.id), self._collusion.attack.ballots
        )
        self._collusion.board["padding"] = made
        return made


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
class PadVotes(SignFlip, behaves=PaddingJuror):
    """flip signs, and add to every vote as many ballots on charges that nobody brought as a message can hold"""

    ballots: int = MOST_CHARGES - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.ballots <= MOST_CHARGES:
            raise ValueError(f"ballots must be from 1 to {MOST_CHARGES}, got {self.ballots}")


@dataclass(frozen=True)
class Complain(GradientAttack, behaves=Complainer):
    """as owner, complain about parts that did come: every complaint repeats the attempt"""
