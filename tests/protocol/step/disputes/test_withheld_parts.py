"""Liars that withhold parts or aggregates, or say that they did not come: each attempt costs them something (SPEC F1–F3)."""

from collections.abc import Iterable

import pytest
from msgspec import structs

from tests.protocol.scripted_world import FIRST_LYING_STEP, LiarLink, LiarScript, peer_ids, plan, run_world
from tests.protocol.step.disputes.lying_scripts import LIAR, VICTIM, KeepsFromOne
from troth.crypto import PeerId, Slot
from troth.protocol.wire.frames import BlobSent, Packet, PartSent, PartShown
from troth.protocol.wire.messages import Clip, Message, Reveal
from troth.workshop.chaos.plan import Network


def test_a_part_withheld_from_one_owner_costs_one_attempt() -> None:
    """[F2, N5] The first time it is handed round in a second attempt, from then on in the first."""
    victim = peer_ids(1, 5)[VICTIM]

    class Withholds(LiarScript):
        def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
            return () if isinstance(packet.frame, PartSent) and to == victim else (packet,)

    seen = run_world(plan(), Withholds()).check_promises()
    assert sum(seen.extra_attempts) == 1
    assert seen.link_disputes == {seen.extra_attempts.index(1): [{LIAR, VICTIM}]}
    again = [
        r
        for r in seen.records[seen.extra_attempts.index(1) + 1 :]
        if {victim, peer_ids(1, 5)[LIAR]} <= set(r.contributors)
    ]
    assert len(again) >= 3


def test_a_liar_that_withholds_parts_from_another_owner_in_every_step_pays_each_attempt_with_a_link_dispute() -> None:
    """[F1, F3, N5] Until it has link disputes with half of the members."""
    seen = run_world(plan(steps=12), KeepsFromOne(peer_ids(1, 5)[1:], (PartSent,))).check_promises()
    assert 0 < sum(seen.extra_attempts) == sum(map(len, seen.link_disputes.values())) <= 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


class _MissesParts(LiarScript):
    """Says as owner, in the first attempt, that somebody's part did not come: always the same one's, or never twice the same."""

    def __init__(self, victim: PeerId | None = None) -> None:
        self._victim = victim
        self._came: dict[int, list[PeerId]] = {}
        self._named: set[PeerId] = set()

    def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
        match packet.frame:
            case PartSent():
                self._came.setdefault(packet.slot.step, []).append(sender)
            case PartShown(contributor=contributor):
                self._came.setdefault(packet.slot.step, []).append(PeerId(contributor))
        return True

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        if not isinstance(message, Clip) or slot.attempt or slot.step < FIRST_LYING_STEP or not message.centers:
            return message
        came = self._came[slot.step]
        others = (
            [peer for peer in came if peer not in self._named] if self._victim is None else {self._victim} & set(came)
        )
        missing = tuple(others)[:1]
        self._named |= set(missing)
        return structs.replace(message, centers=(), missing=missing) if missing else message


@pytest.mark.long
def test_an_owner_that_says_that_parts_did_not_come_pays_each_attempt_with_a_link_dispute() -> None:
    """[F1, F3, N5] The honest contributors it names keep their place."""
    seen = run_world(plan(steps=12), _MissesParts()).check_promises()
    assert 0 < sum(seen.extra_attempts) == sum(map(len, seen.link_disputes.values())) <= 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


@pytest.mark.long
def test_an_owner_that_misses_the_same_part_again_gets_a_link_dispute_with_its_carrier() -> None:
    """[F2, F3, N5] Each complaint costs it another link dispute, until it has them with half of the members."""
    seen = run_world(plan(steps=12), _MissesParts(peer_ids(1, 5)[VICTIM])).check_promises()
    first, *later = [pair for pairs in seen.link_disputes.values() for pair in pairs]
    assert first == {LIAR, VICTIM}
    assert len(later) == 2
    assert all(LIAR in pair and VICTIM not in pair for pair in later)
    assert sum(seen.extra_attempts) == 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


def test_an_owner_that_refuses_its_aggregate_to_one_member_makes_it_wait_once() -> None:
    """[F1, F2] From the second time on it is asked for from everyone at once."""
    victim = peer_ids(1, 5)[VICTIM]

    class Refuses(LiarScript):
        def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
            return () if isinstance(packet.frame, BlobSent) and to == victim else (packet,)

    seen = run_world(plan(network=Network(latency=0.05)), Refuses()).check_promises()
    ((first, pairs),) = seen.link_disputes.items()
    assert pairs == [{LIAR, VICTIM}]
    owning = [r.step for r in seen.records if peer_ids(1, 5)[LIAR] in r.contributors]
    assert first == owning[0]
    assert seen.seconds[first] > 3.0, "as long as a blob may take"
    assert len(owning) >= 4
    assert max(seen.seconds[step] for step in owning[1:]) < 1.0
    assert not seen.slow


class _LacksAggregates(LiarScript):
    """In one step all liars say that they lack the aggregates of three parts."""

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        if isinstance(message, Reveal) and slot.step == FIRST_LYING_STEP:
            return structs.replace(message, held=bytes([message.held[0] & ~0b111]))
        return message


@pytest.mark.long
def test_one_lie_does_not_multiply_what_everyone_sends() -> None:
    """[F2] Three liars of eight have three link disputes each, for a thousand steps. A part takes one relay more, not all."""
    seen = run_world(plan(peers=8, liars=(0, 1, 2), steps=7), _LacksAggregates()).check_promises()
    assert len(seen.link_disputes[FIRST_LYING_STEP]) >= 6
    assert max(seen.bulk[step] for step in range(FIRST_LYING_STEP + 1, 7)) < 1.2 * seen.bulk[1]
