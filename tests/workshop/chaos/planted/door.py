"""Bugs at the door (SPEC J1–J8, G1)."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.workshop.chaos.planted.replace import instead_of
from troth.crypto import Digest, PeerId, Seed, derive
from troth.protocol.core import roles as roles_module
from troth.protocol.core.door import Door, Entrance, best_tickets, decide, has_work, right_probe
from troth.protocol.core.records import Newcomer, StepRecord
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import Roster, decode_standing
from troth.protocol.recovery.following import Changes, NewestRecord
from troth.protocol.wire.blob import CollectedVectors
from troth.protocol.wire.frames import HistoryShown
from troth.protocol.wire.messages import Malformed, Ticket
from troth.protocol.wire.primitives import Primitives

# Probation


def half_a_probation() -> Any:
    def soon(door: Door, step: int, *given: Any, most: int, **more: Any) -> Entrance:
        made = decide(door, step, *given, most=most, **more)
        half = [c for c in made.candidates if c.worked >= max(1, door.probation // 2)]
        half = half[: max(0, most - len(made.admitted))]
        admitted = (*made.admitted, *(Newcomer(candidate.key, candidate.address) for candidate in half))
        return Entrance(tuple(c for c in made.candidates if c not in half), admitted)

    return instead_of(decide, soon)


def misses_count_as_work() -> Any:
    def generous(door: Door, step: int, probed: Collection[PeerId], *given: Any, **more: Any) -> Entrance:
        begun = {PeerId(candidate.key) for candidate in door.candidates if candidate.worked}
        return decide(door, step, {*probed, *begun}, *given, **more)

    return instead_of(decide, generous)


def misses_not_counted() -> Any:
    def lenient(door: Door, *given: Any, **more: Any) -> Entrance:
        return decide(door, *given, **{**more, "lenient": True})

    return instead_of(decide, lenient)


def candidates_unaudited() -> Any:
    return patch.object(roles_module, "_of_candidates", lambda *_given, **_more: ())


def probes_unsigned() -> Any:
    return instead_of(right_probe, lambda *_: True)


def seeds_for_all() -> Any:
    def common(randomness: Digest, _peer: PeerId) -> Seed:
        return derive(randomness, "gradient")

    return instead_of(gradient_seed, common)


# Slots and seats


def tickets_without_work() -> Any:
    return instead_of(has_work, lambda *_: True)


def tickets_unsigned() -> Any:
    class Lenient(Primitives):
        def verify(self, _peer: PeerId, _message: bytes, _signature: bytes) -> bool:
            return True

    def lenient(run: Digest, door: Door, tickets: list[Ticket], known: Collection[PeerId], _tools: Any) -> list[Ticket]:
        return best_tickets(run, door, tickets, known, Lenient())

    return instead_of(best_tickets, lenient)


def tickets_for_any_draw() -> Any:
    original = Door.after

    def after(self: Door, record: StepRecord, **given: Any) -> Door:
        return replace(original(self, record, **given), seed=self.seed)

    return patch.object(Door, "after", after)


@contextmanager
def slots_in_every_step() -> Iterator[None]:
    """Tickets stay those of the last draw."""
    original, lottery = Door.after, Door.is_lottery

    def after(self: Door, record: StepRecord, **given: Any) -> Door:
        drawn = Digest(record.randomness) if lottery(self, record.step) else self.seed
        return replace(original(self, record, **given), seed=drawn)

    with (
        patch.object(Door, "is_lottery", lambda self, _step: self.probation > 0),
        patch.object(Door, "after", after),
    ):
        yield


def all_who_are_done() -> Any:
    return patch.object(Door, "most_admitted", lambda _self, members: members)


def banned_knock_again() -> Any:
    return patch.object(
        Roster, "known", property(lambda self: (self._ever_members | self.door.keys) - set(self.banned))
    )


def everyone_who_ever_came() -> Any:
    return patch.object(Roster, "seats", property(lambda self: self.admitted))


def strangers_bans_count() -> Any:
    def gone(self: Roster) -> int:
        again = {new for old, new in self.successors if old in self.banned}
        return len(set(self.banned) - again)

    return patch.object(Roster, "liars_gone", property(gone))


# What strangers are told


def standing_unchecked() -> Any:
    def believed(
        cls: type[NewestRecord], changes: Changes, shown: HistoryShown, tools: Primitives
    ) -> NewestRecord | None:
        record = None if shown.tip is None else changes.opened(shown.tip, tools)
        standing = decode_standing(shown.standing)
        if record is None or shown.tip is None or record.closing or isinstance(standing, Malformed):
            return None
        return cls(changes, shown.tip, record, standing, tools.digest(shown.tip.record))

    return patch.object(NewestRecord, "of", classmethod(believed))


def chunks_unchecked() -> Any:
    def put(self: CollectedVectors, number: int, chunk: memoryview) -> bool:
        place = self._places[number]
        if number in self._missing:
            room = place.vector[place.start : place.start + len(chunk)]
            room[:] = np.frombuffer(chunk, np.uint8)[: len(room)]
            self._missing.discard(number)
        return True

    return patch.object(CollectedVectors, "put", put)
