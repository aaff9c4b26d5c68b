"""Bugs in going on and in coming back (SPEC N4, N6, F2, B1–B5, U2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from tests.workshop.chaos.planted.replace import instead_of
from troth.crypto import PeerId, Slot, derive
from troth.protocol.broadcast.link import SignedSlots, next_incarnation
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roles import Coins, SeededEntropy
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import State, is_request
from troth.protocol.recovery.catch_up import CatchUp
from troth.protocol.recovery.ledger import Ledger
from troth.protocol.step import step as step_module
from troth.protocol.step.attempt import Attempt, Clipped, signs_last
from troth.protocol.wire.messages import SignedRejoin
from troth.protocol.wire.primitives import Primitives


def minority_goes_on() -> Any:
    return patch.object(Attempt, "need_quorum", lambda _self, _heard: None)


def record_not_compared() -> Any:
    return instead_of(signs_last, lambda *_: True)


def without_a_certificate() -> Any:
    return patch.object(Attempt, "need_certificate", lambda _self: None)


def not_said_again() -> Any:
    """A member that lacks an aggregate goes by what others say in Reveal, and is left out (SPEC N6)."""

    async def unasked(_attempt: Attempt[Any], clipped: Clipped, _undecided: list[int]) -> Clipped:
        return clipped

    return instead_of(step_module.confirm, unasked)


def majority_of_those_left() -> Any:
    """The rule of an earlier version: more than half, however many liars there may be."""
    return patch.object(Roster, "quorum", property(lambda self: len(self.members) // 2 + 1))


def pause_without_rest() -> Any:
    return patch.object(Roster, "rest", lambda _self, _delta: 0.0)


def refutable_bans_lower_l() -> Any:
    return patch.object(StepRecord, "disputable", property(lambda _self: frozenset()))


def begins_with_a_quorum() -> Any:
    return patch.object(Roster, "restart_quorum", property(lambda self: self.quorum))


def link_disputes_not_remembered() -> Any:
    original = Roster.after

    def after(self: Roster, record: StepRecord) -> Roster:
        return replace(original(self, record), link_disputes=())

    return patch.object(Roster, "after", after)


@contextmanager
def signed_again_after_a_crash() -> Iterator[None]:
    """The journal is forgotten. A machine that starts again tosses other coins, so it signs another message."""
    original, lives = SeededEntropy.coins, count()

    def fresh(self: SeededEntropy, step: int, attempt: int) -> Coins:
        member = self.__dict__.setdefault("life", next(lives))
        return Coins(
            *(derive(coin, member) for coin in (original(self, step, attempt).a, original(self, step, attempt).b))
        )

    with patch.object(SignedSlots, "claim", lambda *_: None), patch.object(SeededEntropy, "coins", fresh):
        yield


def first_teller_believed() -> Any:
    original = ObservedAnnouncement.__init__

    def gullible(self: ObservedAnnouncement, slot: Slot, members: Any, _quorum: int, *given: Any) -> None:
        original(self, slot, members, 1, *given)

    return patch.object(ObservedAnnouncement, "__init__", gullible)


def requests_unchecked() -> Any:
    def lenient(_slot: Slot, rejoin: SignedRejoin, roster: Roster, _tools: Primitives) -> bool:
        return roster.absent_since(PeerId(rejoin.member)) is not None

    return instead_of(is_request, lenient)


def same_incarnation() -> Any:
    return instead_of(next_incarnation, lambda _signed_slots, now: now)


def audits_due_after_a_restart() -> Any:
    return patch.object(State, "restarted", lambda self, incarnation: replace(self, incarnation=incarnation))


def nothing_borrowed() -> Any:
    return patch.object(CatchUp, "_borrow", lambda *_: None)


def keys_erased_too_soon() -> Any:
    def hasty(self: Ledger[Any], peer: PeerId) -> set[PeerId]:
        last = self.state.last
        return {self.state.roster.record_key(peer), *(() if last is None else (last.signers.get(peer, peer),))}

    return patch.object(Ledger, "record_keys_of", hasty)
