"""Members that lose power or their links, and come back among liars who would rather not have them back (SPEC B1–B3, B7)."""

from dataclasses import replace
from typing import cast
from unittest.mock import patch

import msgspec
import pytest

from tests.protocol.channel_internals import let_pass
from tests.protocol.channel_wrappers import AlteringChannel
from tests.protocol.returning_members import LOST, SUCCESSORS
from tests.protocol.scripted_world import LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import SignedSlots
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Noticed, Said
from troth.protocol.wire.messages import ChargeKind, Commit, Message, Phase, SignedRejoin
from troth.workshop.chaos import peers as honest_module
from troth.workshop.chaos.check_progress import comeback, follows
from troth.workshop.chaos.plan import Cut, Network
from troth.workshop.simulation.exchange import DropOut, PowerCutError


class _Forgetful(honest_module.NotedSignedSlots):
    """A journal that does not last."""

    def claim(self, slot: Slot) -> None:
        pass


class _CutWhileSpeaking(ForwardingChannel):
    """Loses power when a value has been sent and nothing is decided yet: once."""

    def __init__(self, inner: Channel, cuts: list[Slot]) -> None:
        super().__init__(inner)
        self._cuts = cuts

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        coroutine = self._inner.announce(slot, message, view)
        if slot.step == 3 and not self._cuts:
            self._cuts.append(slot)
            coroutine.send(None)  # until it waits for the first answer
            coroutine.close()
            raise PowerCutError("in the middle of Commit")
        return await coroutine


def _cut_in_commit(*, journal: bool, kind: type[SignedSlots] = honest_module.NotedSignedSlots) -> WorldRun:
    """One of five loses power for a moment, within which the others still wait for the slowest of them, who contributes."""
    crashes = {LOST: DropOut(step=99, call=0, down=0.2, journal=journal)}
    network = Network(latency=0.1, slow={1: 0.9, 3: 0.9})  # at most one of these validates
    cuts: list[Slot] = []
    mine = peer_ids(1, 5)[LOST]

    def wrap(peer: PeerId, channel: Channel, _noticed: Noticed) -> Channel:
        return _CutWhileSpeaking(channel, cuts) if peer == mine else channel

    with patch.object(honest_module, "NotedSignedSlots", kind):
        seen = run_world(plan(liars=(), crashes=crashes, steps=9, network=network), wrap=wrap)
    assert len(cuts) == 1
    return seen


@pytest.mark.long
@pytest.mark.parametrize("journal", [True, False])
def test_a_power_cut_does_not_look_like_a_lie(journal: bool) -> None:
    """[B1, B3] With the journal it comes back under its own key, without it under a new one; nobody is banned."""
    seen = _cut_in_commit(journal=journal)
    seen.check_promises()
    assert not any(record.banned for record in seen.records)
    assert set(seen.returned) == {max(seen.returned)}
    (back,) = next(record.returned for record in seen.records if record.returned)
    assert (back.key == back.member) == journal
    assert back.member == peer_ids(1, 5)[LOST]
    assert back.key in seen.records[-1].members


def test_a_member_that_ignores_its_journal_is_banned() -> None:
    """[B1, Q6] It speaks again with other coins: two messages for one slot. So the test above can fail."""
    seen = _cut_in_commit(journal=True, kind=_Forgetful)
    (judgement,) = (judgement for record in seen.records for judgement in record.judgements)
    assert (judgement.kind, judgement.banned) == (ChargeKind.EQUIVOCATION, peer_ids(1, 5)[LOST])


@pytest.mark.long
@pytest.mark.parametrize("call", [0, 2, 6])
@pytest.mark.parametrize("journal", [True, False])
def test_a_member_that_lost_power_between_phases_is_back_within_a_few_steps(call: int, journal: bool) -> None:
    """[B2, B3] Before Commit, Clip or Accuse; for longer than anyone waits."""
    crashes = {LOST: DropOut(2, call, 20.0, journal)}
    seen = run_world(plan(seed=call, liars=(), crashes=crashes, steps=16)).check_promises()
    assert list(seen.returned.values()) == [[LOST]]
    assert not any(record.banned for record in seen.records)


@pytest.mark.long
@pytest.mark.parametrize("healed", [64, 70, 74])
def test_a_member_cut_off_again_while_it_is_served_can_still_observe(healed: int) -> None:
    """[B7] It asked between two cuts, and members sent into the void for a while; then it asks again, soon."""
    alone = frozenset({LOST})
    network = Network(latency=0.1, cuts=(Cut(alone, 6.0, 30.0), Cut(alone, 44.0, float(healed))))
    world = run_world(plan(liars=(), peers=5, steps=40, network=network)).check_promises().world
    assert follows(world) == []
    assert comeback(world) == []


@pytest.mark.long
@pytest.mark.parametrize("lie", ["not signed", "twice", "of another step", "of a member"])
def test_a_member_that_lists_a_false_request_is_out(lie: str) -> None:
    """[B3, N1] Else everyone could say that somebody asked, and nobody could tell who made it up."""

    class Lists(LiarScript):
        def __init__(self) -> None:
            self.audit_records: list[SignedRejoin] = []

        def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
            if not isinstance(message, Commit) or slot.step < 2:
                return message
            self.audit_records += message.rejoins
            gone = peer_ids(1, 5)[LOST]
            lies = {
                "not signed": (SignedRejoin(gone, gone, bytes(64)),) if slot.step == 4 else None,
                "twice": message.rejoins * 2 if message.rejoins else None,
                "of another step": tuple(self.audit_records) if self.audit_records and not message.rejoins else None,
                "of a member": (SignedRejoin(peer_ids(1, 5)[3], SUCCESSORS[0], bytes(64)),) if slot.step == 4 else None,
            }[lie]
            return message if lies is None else msgspec.structs.replace(message, rejoins=lies)

    seen = run_world(plan(crashes={LOST: DropOut(2, 4, 5.0)}, steps=12), Lists()).check_promises()
    absent = {number for numbers in seen.named("absent").values() for number in numbers}
    assert absent == {0, LOST}
    assert LOST in {number for numbers in seen.returned.values() for number in numbers}


def _lists_nobody(_slot: Slot, message: Message) -> Message:
    return msgspec.structs.replace(message, rejoins=()) if isinstance(message, Commit) else message


@pytest.mark.long
def test_a_request_listed_by_one_member_only_is_granted_as_soon_as_any() -> None:
    """[B3] Seven liars of sixteen would otherwise keep out every victim of a power cut."""
    listing = peer_ids(1, 5)[4]

    def wrap(peer: PeerId, channel: Channel, _noticed: Noticed) -> Channel:
        return (
            channel
            if peer == listing or not isinstance(channel, BroadcastChannel)
            else AlteringChannel(channel, _lists_nobody)
        )

    made = plan(liars=(), crashes={LOST: DropOut(2, 4, 5.0)}, steps=9)
    with_one, with_all = run_world(made, wrap=wrap).check_promises(), run_world(made).check_promises()
    assert with_one.returned == with_all.returned == {min(with_all.returned): [LOST]}


class _ServesHonestly(LiarScript):
    serves = True


def _moved(seen: WorldRun) -> str:
    return "".join("m" if record.updated else "." for record in seen.records)


def test_of_four_one_is_gone_and_the_rest_trains_on() -> None:
    """[G2] It may be the liar."""
    seen = run_world(plan(peers=4, steps=8, crashes={1: DropOut(2, 2)}), _ServesHonestly()).check_promises()
    assert _moved(seen) == "mmmmmmmm"
    assert [len(record.members) for record in seen.records] == [4, 4, 4, 3, 3, 3, 3, 3]


@pytest.mark.long
def test_of_four_two_are_gone_and_the_run_pauses_until_one_is_back() -> None:
    """[G2, B3] Records go on, the model does not move, and updates are not used up."""
    crashes = {1: DropOut(2, 2), 2: DropOut(4, 2, 20.0)}
    seen = run_world(plan(peers=4, steps=36, crashes=crashes), _ServesHonestly()).check_promises()
    ((back, who),) = seen.returned.items()
    assert who == [2]
    assert _moved(seen) == "m" * 4 + "." * (back - 3) + "m" * (35 - back)
    assert [record.updates for record in seen.records][back] == 4


@pytest.mark.long
@pytest.mark.parametrize("away", [30.0, 3000.0])
def test_a_run_that_pauses_makes_no_steps_until_somebody_asks(away: float) -> None:
    """[G3] However long the pause is, there are a few records without an update, and training goes on."""
    crashes = {1: DropOut(2, 2), 2: DropOut(4, 2, away)}
    seen = run_world(plan(peers=4, steps=20, crashes=crashes), _ServesHonestly()).check_promises()
    assert list(seen.returned.values()) == [[2]]
    assert _moved(seen).count(".") <= 8
    assert seen.records[-1].updated
    assert seen.world.step_ends[len(seen.records) - 1] > away


@pytest.mark.long
def test_of_four_two_are_gone_at_once_and_the_run_stops_until_one_is_back() -> None:
    """[N4, B5] Two are no quorum; three are as many as begin by themselves."""
    cuts = {1: DropOut(2, 2, 40.0), 2: DropOut(2, 2, 400.0)}
    seen = run_world(replace(plan(peers=4, steps=10), blackout=cuts))
    assert len(seen.records) == 10
    assert seen.records[-1].incarnation >= 1
    assert seen.named("absent", "banned", "expelled") == {2: [2]}
    assert seen.world.step_ends[2] > 40.0


class _SlowToSee(ForwardingChannel):
    """Ends each step a little later, well within the time for it."""

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        said = await self._inner.announce(slot, message, view)
        if slot.phase == Phase.ACCUSE:
            await let_pass(cast(BroadcastChannel, self._inner), 0.8)
        return said


@pytest.mark.long
def test_a_returning_member_comes_in_and_stays_where_honest_members_are_no_more_than_liars() -> None:
    """[B2] Liars tell observers nothing, so all announcements take a proof that liars signed too: the first of a step, of which
    it comes before the parts are there, and the last, of which it comes when the next step has begun."""
    crashes = {2: DropOut(3, 0, 10.0), 3: DropOut(4, 0, 10.0)}
    seen = run_world(plan(seed=2, peers=6, steps=25, liars=(0, 1), crashes=crashes), LiarScript())
    assert sorted(number for back in seen.returned.values() for number in back) == [2, 3]
    assert seen.named("absent") == {3: [2], 4: [3]}


def test_two_members_that_come_back_in_one_step_hear_each_other() -> None:
    """[B3, F1] Neither knows, before that step is over, that the other is a member too; its messages must not be lost."""
    slow, crashes = peer_ids(1, 7)[2], {2: DropOut(2, 2, 3.0), 5: DropOut(2, 2, 3.0)}

    def wrap(peer: PeerId, channel: Channel, _noticed: Noticed) -> Channel:
        return _SlowToSee(channel) if peer == slow and isinstance(channel, BroadcastChannel) else channel

    seen = run_world(plan(peers=7, liars=(), crashes=crashes, steps=8), wrap=wrap).check_promises()
    assert sorted(number for numbers in seen.returned.values() for number in numbers) == [2, 5]
    assert seen.link_disputes == {}


@pytest.mark.long
@pytest.mark.parametrize("away", [0.05, 0.3])
def test_a_member_with_a_slow_link_comes_back_while_the_others_step_quickly(away: float) -> None:
    """[B2, B3] Frames that reach it are several steps old, and so is its request when it arrives."""
    network = Network(least=0.01, far={LOST: away})
    crashes = {LOST: DropOut(2, 0, 2.0, journal=True)}
    seen = run_world(plan(liars=(), crashes=crashes, steps=150, network=network)).check_promises()
    assert list(seen.returned.values()) == [[LOST]]
    assert min(seen.returned) < 140
