"""Strangers at the door of a world: the honest get in, and those who cheat are found by what they signed (SPEC J3–J7)."""

import dataclasses
from functools import cache
from typing import Any, cast

import pytest

from tests.protocol.scripted_world import WorldRun, plan, run_world
from troth.crypto import Identity, PeerId, derive
from troth.evidence.bans import BanEvidence, History
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.member import Member
from troth.protocol.recovery.requests import DoorClosedError, Knocking
from troth.protocol.wire.messages import ChargeKind
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.check_door import door
from troth.workshop.chaos.check_history import agreement
from troth.workshop.chaos.plan import LAZY
from troth.workshop.chaos.strangers import Stranger
from troth.workshop.chaos.virtual_time import VirtualLink

FOUNDERS, PROBATION = 5, 8


@cache
def world_of(*behaviours: str, steps: int = 26, content_every: int = 1) -> WorldRun:
    strangers = {FOUNDERS + number: (0.5 + 0.3 * number, how) for number, how in enumerate(behaviours)}
    made = dataclasses.replace(plan(liars=(), steps=steps), byzantine=1, probation=PROBATION, strangers=strangers)
    return run_world(dataclasses.replace(made, content_every=content_every))


def joined(seen: WorldRun) -> dict[int, int]:
    """By number, the step in which somebody was admitted."""
    return {seen.world.numbers[PeerId(one.key)]: record.step for record in seen.records for one in record.admitted}


def banned(seen: WorldRun) -> dict[int, int]:
    return {seen.world.numbers[peer]: record.step for record in seen.records for peer in record.banned}


def evidence_of(seen: WorldRun) -> list[BanEvidence]:
    history = History(seen.world.run)
    return [made for outcome in seen.world.witness for made in history.add(outcome)]


@pytest.mark.long
@pytest.mark.parametrize("content_every", [1, 6])
def test_an_honest_stranger_becomes_a_member(content_every: int) -> None:
    """[J3–J7] After its probation, of which it misses nothing; then it contributes, and holds the same model."""
    seen = world_of("honest", content_every=content_every)
    newcomer = FOUNDERS
    (step,) = joined(seen).values()
    worked = [record.step for record in seen.records if record.probed]
    assert worked == list(range(step - PROBATION + 1, step + 1))
    key = next(peer for peer, number in seen.world.numbers.items() if number == newcomer)
    assert all(key in record.contributors or key in record.members for record in seen.records[step + 1 :])
    assert any(key in record.contributors for record in seen.records[step + 1 :])
    assert seen.records[step].content, "whoever comes in can be given the model"
    assert max(seen.world.outcomes[newcomer]) == len(seen.records) - 1
    assert agreement(seen.world) == []
    assert banned(seen) == {}
    assert all(key not in record.contributors for record in seen.records[: step + 1]), "probation moves no model"


@pytest.mark.long
@pytest.mark.parametrize("behaviour", sorted(LAZY - {"two"}))
def test_a_lazy_stranger_is_banned_and_not_admitted(behaviour: str) -> None:
    """[J5, J6] Noise, zeros, old gradients, gradients of somebody else's seed; an honest one beside it gets in."""
    seen = world_of(behaviour, "honest")
    assert FOUNDERS in banned(seen)
    assert list(joined(seen)) == [FOUNDERS + 1]
    assert agreement(seen.world) == []


@pytest.mark.long
@pytest.mark.parametrize("behaviour", ["two", "flood"])
def test_whoever_signs_two_commitments_or_comes_under_many_names_does_not_get_in(behaviour: str) -> None:
    """[J3, J4, J5] Of two commitments none counts; slots that stay empty are lost again, and the honest one gets in."""
    seen = world_of(behaviour, "honest", steps=34)
    assert list(joined(seen)) == [FOUNDERS + 1]
    assert banned(seen) == {}
    assert agreement(seen.world) == []


@pytest.mark.long
def test_one_that_is_honest_until_it_is_in_is_banned_as_a_member() -> None:
    """[J7, T5]"""
    seen = world_of("turns")
    assert joined(seen)[FOUNDERS] < banned(seen)[FOUNDERS]
    assert agreement(seen.world) == []


@pytest.mark.parametrize("behaviour", ["noise", "turns"])
def test_a_stranger_that_never_saw_the_run_can_check_the_ban(behaviour: str) -> None:
    """[J6, E2, E3] From its own signed commitment, and the state beside the file."""
    (made,) = evidence_of(world_of(behaviour))
    proof = verify_ban(made.text, world_of(behaviour).world.run.id)
    assert proof.judgement.kind == ChargeKind.GRADIENT
    assert not proof.rests_on_votes
    problem = world_of(behaviour).world.work.problem
    assert recompute(proof, made.training, made.blobs, lambda _run: problem) is Recomputed.CONFIRMED


@pytest.mark.long
def test_two_at_once_wait_for_each_other() -> None:
    """[J7] A run of five takes in one member in a probation."""
    seen = world_of("honest", "honest", steps=36)
    first, second = sorted(joined(seen).values())
    assert second - first >= PROBATION
    assert agreement(seen.world) == []
    assert banned(seen) == {}


@pytest.mark.long
def test_a_newcomer_that_lost_its_folder_does_not_sign_under_its_key_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """[B1] It finds that it has a seat when it has followed the run, and may have signed any slot: it comes back under a
    successor key. One that remembers goes on, and so does one without a seat."""
    seen = world_of("honest")
    (step,) = joined(seen).values()
    run, after, before = seen.world.run, seen.world.witness[step].state, seen.world.witness[step - 1].state
    newcomer, nobody = Identity.from_secret(derive(1, "identity", FOUNDERS)), cast(Any, None)
    assert newcomer.peer in after.roster.members

    def ends(found: State[Any], *, remembers: bool) -> str:
        async def followed(self: Member[Any], *_: Any) -> None:
            self._ledger.state = found

        monkeypatch.setattr(Member, "_follow_from_the_founders", followed)
        peer = Peer(newcomer, run, nobody, nobody, nobody, Primitives())
        member = Member(peer, State.first(run, nobody), lambda _key: nobody)
        with pytest.raises(CannotGoOnError) as why:
            cast(Any, anext(member.join(remembers=remembers))).send(None)
        return type(why.value).__name__

    async def knocks(_self: Any) -> None:
        raise DoorClosedError("it knocked")

    monkeypatch.setattr(Knocking, "run", knocks)
    assert ends(after, remembers=False) == "LostFolderError"
    assert ends(after, remembers=True) == ends(before, remembers=False) == "DoorClosedError"


@pytest.mark.long
@pytest.mark.parametrize(("late_by", "missed"), [(1.0, 1), (2.0, 2)])
def test_a_stranger_whose_machine_stutters_once_becomes_a_member(
    late_by: float, missed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[J5, J7] Its gradient comes so many steps late; if the next one begins late, that is late too. It keeps its slot, works for
    as many steps as the others, and comes in so many steps later."""
    steady = world_of("honest")
    (usual,) = joined(steady).values()
    stutters, begun, links, original = usual - 5, Stranger.__init__, list[VirtualLink](), Member._probe
    ends = steady.world.step_ends

    def begins(self: Stranger, *given: Any) -> None:
        begun(self, *given)
        links.append(self._link)

    async def late(self: Member[Any], channel: BroadcastChannel) -> None:
        if self.state.step == stutters:
            await links[0].work(late_by * (ends[stutters] - ends[stutters - 1]))
        await original(self, channel)

    monkeypatch.setattr(Stranger, "__init__", begins)
    monkeypatch.setattr(Member, "_probe", late)
    seen = world_of.__wrapped__("honest")
    assert joined(seen) == {FOUNDERS: usual + missed}
    assert sum(bool(record.probed) for record in seen.records) == PROBATION
    assert max(candidate.missed for record in seen.records for candidate in record.candidates) == missed
    assert agreement(seen.world) == []
    assert door(seen.world) == []
