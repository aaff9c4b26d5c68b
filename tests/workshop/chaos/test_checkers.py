"""Checkers can fail: a bug is planted for each that it finds, and no other does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch
from torch import Tensor

from tests.workshop.chaos.planted import PLANTED
from tests.workshop.chaos.planted.search import SEEDS
from troth.crypto import Identity
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.records import Candidate, Judgement, Returned, StepRecord, encode_record
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import LeftOutError
from troth.protocol.wire.frames import Packet, Relayed, Value
from troth.protocol.wire.messages import ChargeKind, Envelope, GuiltySide
from troth.training.work import Training, TrainingWork
from troth.workshop.chaos.check_progress import excused
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.plan_file import load
from troth.workshop.chaos.world import World, held_bytes
from troth.workshop.simulation.exchange import DropOut

# D coordinates

PLANS = SEEDS.with_name("plans")


def plan(peers: int = 5, steps: int = 4, attacks: dict[int, str] | None = None, **given: Any) -> Plan:
    liars = given.pop("liars", dict.fromkeys(attacks or {}, frozenset[str]()))
    crashes = given.pop("crashes", {})
    intensity = dict.fromkeys(liars, (1.0, 1))
    return Plan(1, peers, steps, liars, {}, attacks or {}, intensity, crashes, Network(latency=0.3), **given)


def failing(world: World) -> set[str]:
    return {name for name, check in CHECKERS.items() if check(world)}


@contextmanager
def _fivefold_updates() -> Iterator[None]:
    original = TrainingWork.update

    def far(self: TrainingWork, training: Training, aggregate_D: Tensor, step: int) -> Training:
        return original(self, training, 5 * aggregate_D, step)

    with patch.object(TrainingWork, "update", far):
        yield


def test_harm_alone_finds_updates_that_are_too_long() -> None:
    """Everyone does the same, so that nothing else shows it."""
    with _fivefold_updates():
        assert failing(play(plan(steps=2))) == {"harm"}
    assert failing(play(plan(steps=2))) == set()


def test_harm_looks_at_aggregates_whoever_covers_them() -> None:
    """The red team's attack: everything at 1e30, in a world with liars."""
    world = play(plan(7, 3, {0: "covered-aggregate", 1: "covered-aggregate"}))
    assert CHECKERS["harm"](world) == []
    for outcome in world.witness:
        kept = outcome.state.audit_records[outcome.record.step]
        object.__setattr__(kept, "aggregate_D", torch.full_like(kept.aggregate_D, 1e30))
    assert len(CHECKERS["harm"](world)) >= 3


def test_aggregates_of_honest_owners_are_checked_beside_covering_liars() -> None:
    with PLANTED["V2 skipped"]():
        world = play(plan(7, 5, {0: "covered-aggregate", 1: "wrong-aggregate"}))
    assert CHECKERS["aggregates"](world)


def test_progress_alone_finds_a_model_that_stands_still() -> None:
    """Records go on being made."""
    original = Roster.moves

    def rarely(self: Roster, members: int, contributors: int) -> bool:
        return contributors == members and original(self, members, contributors)  # in the first step, all do

    with patch.object(Roster, "moves", rarely):
        assert failing(play(plan())) == {"progress"}


def test_progress_is_excused_beyond_the_guarantee_only() -> None:
    """Three of five are gone for good: the others stop, and nobody promised otherwise."""
    world = play(plan(crashes={number: DropOut(2, 0) for number in range(3)}))
    assert len(world.records) < 4
    assert excused(world)
    assert CHECKERS["progress"](world) == []


def _with_a_record_of_its_own(world: World) -> StepRecord:
    """Peer 0 ends step 1 with another record than the rest."""
    outcome = world.outcomes[0][1]
    record = msgspec.structs.replace(outcome.record, struck=(world.run.founders[1],))
    world.outcomes[0] = {**world.outcomes[0], 1: replace(outcome, record=record)}
    return record


def test_agreement_excuses_a_peer_that_the_network_fails_for_what_it_cannot_prove() -> None:
    """[Q4, U2] Announcements assume that frames between honest members arrive within Δ. A peer that loses them may write a record
    of its own, which no quorum signs; one that is reached may not, nor may anybody prove a second record."""
    world = play(plan(steps=3))
    own = _with_a_record_of_its_own(world)
    different = ["step 1: honest peers have different records"]
    assert CHECKERS["agreement"](world) == different, "all are reached"
    elsewhere = replace(world, plan=replace(world.plan, network=Network(latency=0.3, loss={1: 0.43})))
    assert CHECKERS["agreement"](elsewhere) == different, "another is not"
    lossy = replace(world, plan=replace(world.plan, network=Network(latency=0.3, loss={0: 0.43})))
    assert CHECKERS["agreement"](lossy) == []
    lossy.histories[1, 0].add(encode_record(own))
    assert CHECKERS["agreement"](lossy) == different, "it was certified"


def test_a_peer_that_loses_four_packets_of_ten_falls_out_and_breaks_nothing() -> None:
    """[U2] Door 7468: it ends step 0 with a record of its own, that nobody else signs, and is expelled in everybody else's."""
    world = play(load(PLANS / "lossy-link.json").smallest)
    assert sorted(map(len, world.written[0, 0].values())) == [1, 5]
    assert len(world.outcomes[0]) == 1, "and it does not go on from there"
    assert failing(world) == set()


def test_safety_alone_sees_a_history_that_was_given_up() -> None:
    """The others look at what peers hold in the end."""
    world = play(plan())
    world.histories[2, 0].add(b"another record of the same step")
    assert failing(world) == {"safety"}


def test_safety_sees_a_record_that_liars_made() -> None:
    world = play(plan(4, 2, {0: "silent-validation"}))
    for outcomes in world.outcomes.values():
        for outcome in outcomes.values():
            kept = {peer: sig for peer, sig in outcome.certificate.items() if peer not in world.honest}
            object.__setattr__(outcome, "certificate", kept)
    assert "no honest peer signed" in CHECKERS["safety"](world)[0]


@pytest.mark.long
def test_bans_and_seats_find_who_was_banned_and_stays() -> None:
    """It votes as the honest do, so that nothing else shows it."""
    liar = {0: frozenset({"equivocate"})}
    with PLANTED["votes counted from those already out"]():
        assert failing(play(plan(7, 4, liars=liar))) == {"bans", "seats"}, "whoever is banned has no seat"
    assert failing(play(plan(7, 4, liars=liar))) == set()


def test_bans_reach_later_keys() -> None:
    world, successor = play(plan(steps=3)), Identity.from_secret(bytes(32)).peer
    banned = world.run.founders[0]
    first, second, third = world.records
    guilty = Judgement(None, banned, ChargeKind.EQUIVOCATION, 0, None, 0, GuiltySide.ACCUSED)
    world.records[:] = [
        msgspec.structs.replace(first, returned=(Returned(banned, successor),)),
        msgspec.structs.replace(second, judgements=(guilty,), members=(successor,)),
        msgspec.structs.replace(third, members=(successor,)),
    ]
    assert CHECKERS["bans"](world) == ["step 2: a stranger was banned before, and is a member"]


@pytest.mark.long
def test_rejoins_finds_a_stranger_in_the_place_of_a_member() -> None:
    """Packets to a key that nobody has go nowhere, and checkers know no number for it."""
    liars, gone = {0: frozenset({"false-rejoin"})}, {2: DropOut(1, 2)}
    with PLANTED["a request to come back counts whoever signed it"]():
        assert "rejoins" in failing(play(plan(6, 6, liars=liars, crashes=gone)))
    assert failing(play(plan(6, 6, liars=liars, crashes=gone))) == set()


@pytest.mark.long
def test_memory_alone_finds_a_peer_that_keeps_everything() -> None:
    """With a buffer for each of them; the channel's own account says nothing of it."""
    original = BroadcastChannel.route

    def hoarding(self: BroadcastChannel, sender: Any, packet: Packet) -> None:
        self.__dict__.setdefault("_hoard", []).append((packet.frame, bytes(1 << 17)))
        original(self, sender, packet)

    with patch.object(BroadcastChannel, "route", hoarding):
        assert failing(play(plan(4, 12))) == {"memory"}
    assert failing(play(plan(4, 12))) == set()


def test_held_bytes_counts_what_frames_hold_and_each_once() -> None:
    """Whatever kind of frame it is in, and however deep."""
    envelope = Envelope(bytes(1000), bytes(64))
    frame = Relayed(bytes(32), Value(envelope))
    assert 1000 < held_bytes({"early": [(b"", frame)]}) < 1300
    assert held_bytes([frame, frame]) == held_bytes([frame])
    assert held_bytes([Value(envelope), Relayed(bytes(32), Value(envelope))]) > 2000


# The door


@cache
def with_a_stranger() -> World:
    """Somebody honest comes in."""
    return play(plan(steps=14, byzantine=1, probation=4, strangers={5: (0.1, "honest")}))


def changed(world: World, records: list[StepRecord]) -> World:
    """The same world with other records."""
    other = replace(world)
    other.records = records
    return other


@pytest.mark.long
def test_nothing_is_wrong_with_a_stranger_that_works_for_its_seat() -> None:
    world = with_a_stranger()
    assert sum(len(record.admitted) for record in world.records) == 1
    assert failing(world) == set()


def test_the_door_is_watched_step_by_step() -> None:
    """A probation with a hole in it; a slot too many; a key that was banned; somebody who missed a step and stays."""
    world = with_a_stranger()
    (entry,) = [k for k, record in enumerate(world.records) if record.admitted]
    key = world.records[entry].admitted[0].key
    slots = tuple(Candidate(bytes([k]) * 32, "", 0, 0, 0) for k in range(world.run.parameters.slots + 1))
    careless, idle = Candidate(key, "", 0, 1, 2), Candidate(key, "", 0, 0, 0)
    banned = Judgement(None, key, ChargeKind.EQUIVOCATION, 0, None, 0, GuiltySide.ACCUSED)
    changes: dict[str, dict[int, dict[str, Any]]] = {
        "without 4 steps of work": {entry - 1: {"probed": ()}},
        "candidates under": {entry: {"candidates": slots}},
        "is on probation, and a member or banned": {0: {"judgements": (banned,)}},
        "worked in 2 steps and missed 1, 3 and 0 are counted": {entry - 1: {"probed": ()}},
        "missed 3 steps of 4, and is a candidate": {entry - 2: {"candidates": (careless,)}, entry - 1: {"probed": ()}},
        "did not begin, and is a candidate": {
            entry - 2: {"candidates": (idle,)},
            entry - 1: {"candidates": (idle,), "probed": ()},
        },
    }
    for text, altered in changes.items():
        records = list(world.records)
        for step, fields in altered.items():
            records[step] = msgspec.structs.replace(records[step], **fields)
        found = CHECKERS["door"](changed(world, records))
        assert any(text in one for one in found), text


def test_honest_strangers_are_not_made_to_stop_and_keep_slots_and_seats() -> None:
    world = with_a_stranger()
    (entry,) = [k for k, record in enumerate(world.records) if record.admitted]
    key = world.records[entry].admitted[0].key
    assert CHECKERS["welcome"](replace(world, stopped={5: LeftOutError("it had enough")}))
    lost = list(world.records)
    lost[entry - 1] = msgspec.structs.replace(lost[entry - 1], candidates=())
    assert any("lost its slot" in one for one in CHECKERS["welcome"](changed(world, lost)))
    gone = list(world.records)
    gone[entry + 1] = msgspec.structs.replace(gone[entry + 1], absent=(key,))
    assert any("is honest, and absent" in one for one in CHECKERS["welcome"](changed(world, gone)))


# Promises that earlier versions of the protocol did not keep


def test_a_flood_of_early_frames_is_bounded() -> None:
    assert failing(play(plan(4, 5, liars={0: frozenset({"flood"})}))) == set()


def test_one_liar_of_four_covers_no_harm() -> None:
    assert failing(play(plan(4, 4, {0: "covered-once"}))) == set()


def test_one_of_four_who_leaves_stops_nothing() -> None:
    assert failing(play(plan(4, 4, {0: "leave"}))) == set()


HOARDING = plan(6, 8, liars=dict.fromkeys(range(2), frozenset({"hoard-signatures"})), crashes={2: DropOut(3, 0)})


def test_hoarded_signatures_capture_nobody() -> None:
    """Two of six lie and one is gone: all who stay hold the same, or pause alike."""
    world = play(HOARDING)
    assert {len(world.outcomes[number]) for number in world.steady} == {len(world.records)}


def test_signatures_are_hoarded() -> None:
    assert play(HOARDING).lies["hoard-signatures"] > 0


BLOCKED = plan(
    12,
    8,
    dict.fromkeys(range(5), "block-returns"),
    crashes={number: DropOut(2 + k, 0, 20.0) for k, number in enumerate((5, 6, 7))},
)


@pytest.mark.long
def test_liars_who_let_nobody_back_ban_nobody_honest() -> None:
    """Five of twelve lie, three honest peers are gone for a while: beyond the full guarantee, and safe all the same."""
    world = play(BLOCKED)
    assert CHECKERS["safety"](world) == []
    assert CHECKERS["no honest ban"](world) == []
