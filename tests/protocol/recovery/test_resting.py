"""A run that pauses rests: no steps, no records, until somebody comes back (SPEC G3)."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from tests.protocol.scripted_world import LiarLink, LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.announcement import Timing
from troth.protocol.broadcast.announcer import Announcer
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.wire.frames import Busy, Packet, Value, View
from troth.protocol.wire.messages import Phase
from troth.workshop.chaos.check_history import agreement, no_honest_ban
from troth.workshop.chaos.check_progress import excused
from troth.workshop.chaos.plan import Cut, Network
from troth.workshop.simulation.exchange import DropOut

_HOUR = 3600.0


class _Serves(LiarScript):
    """A liar that does nothing dishonest, and answers members that come back."""

    serves = True


def _moved(seen: WorldRun) -> str:
    return "".join("m" if record.updated else "." for record in seen.records)


def _starts(
    made_seed: int, peers: int, run: Callable[[], WorldRun]
) -> tuple[WorldRun, Mapping[int, Mapping[int, Timing]]]:
    """A world, and by step and number the timing of every member's Commit."""
    timings: dict[int, dict[int, Timing]] = defaultdict(dict)
    keys, enter = peer_ids(made_seed, peers), Announcer._enter

    def noted(self: Announcer, slot: Slot) -> Timing:
        timing = enter(self, slot)
        if slot.phase == Phase.COMMIT and not self._position.observing:
            timings[slot.step][keys.index(self._identity.peer)] = timing
        return timing

    with patch.object(Announcer, "_enter", noted):
        return run(), timings


@pytest.mark.long
def test_of_four_two_vanish_for_an_hour_and_the_rest_makes_hardly_a_step() -> None:
    """[G3, G2] When one is back training goes on, with the count of updates as it was."""
    crashes = {1: DropOut(2, 2), 2: DropOut(4, 2, _HOUR)}
    seen = run_world(plan(peers=4, steps=16, crashes=crashes), _Serves()).check_promises()
    ((back, who),) = seen.returned.items()
    assert who == [2]
    assert _moved(seen) == "m" * 4 + "." * (back - 3) + "m" * (15 - back)
    asked = [step for step, end in seen.world.step_ends.items() if end > _HOUR]
    assert min(asked) - 4 == 2, "two steps without an update, and then none for an hour"
    assert [record.updates for record in seen.records][-1] == 4 + 15 - back


def test_two_that_are_left_for_good_rest_for_good() -> None:
    """[G3] Nobody sends anything any more, and nobody is to blame."""
    seen = run_world(plan(peers=4, steps=30, crashes={1: DropOut(2, 2), 2: DropOut(4, 2)}), _Serves())
    assert _moved(seen) == "mmmm.."
    assert excused(seen.world)
    assert agreement(seen.world) == no_honest_ban(seen.world) == []


# Seven, of whom two may lie: four rest, and need five.
_SEVEN = {2: DropOut(2, 2), 3: DropOut(4, 2), 4: DropOut(6, 2, 300.0)}
_UNEVEN = Network(latency=0.3, slow={5: 1.5})  # delta is 1, and so is the time for a gradient at least


class _WakesOne(_Serves):
    """Says to one honest member that the step has begun, again and again while all rest."""

    def __init__(self, how: str) -> None:
        self._how = how

    def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
        if packet.slot.step == 7 and isinstance(packet.frame, View):
            one = peer_ids(1, 7)[6]
            slot = Slot(packet.slot.run, 8, Phase.COMMIT)
            frame = Busy(8) if self._how == "busy" else View(None, bytes(64))
            link.send_later(100.0, one, Packet(slot, frame))
        return True


@pytest.mark.long
@pytest.mark.parametrize("script", [_Serves(), _WakesOne("busy"), _WakesOne("junk")])
def test_members_that_end_their_rest_begin_within_delta_of_each_other(script: LiarScript) -> None:
    """[G3, Q4] Whoever is woken first, by a peer that comes back or by a liar, and however long gradients take."""
    made = plan(peers=7, steps=14, liars=(0, 1), crashes=_SEVEN, network=_UNEVEN)
    seen, timings = _starts(1, 7, lambda: run_world(made, script))
    assert list(seen.returned.values()) == [[4]]
    assert seen.records[-1].updated
    assert agreement(seen.world) == no_honest_ban(seen.world) == []
    assert not seen.slow_steps()
    for step in range(7, 14):
        honest = [timing for number, timing in timings[step].items() if number in (5, 6)]
        assert len(honest) == 2
        assert abs(honest[0].start - honest[1].start) <= min(timing.delta for timing in honest), step


@pytest.mark.long
def test_without_a_word_before_the_gradient_they_would_not() -> None:
    """[G3] So that the test above can fail."""

    def resume(self: Pacing, _now: float) -> None:
        self._last = self._resumed_at = None

    made = plan(peers=7, steps=12, liars=(0, 1), crashes=_SEVEN, network=_UNEVEN)
    with patch.object(Pacing, "resume", resume):
        _, timings = _starts(1, 7, lambda: run_world(made, _Serves()))
    apart = {abs(timings[step][5].start - timings[step][6].start) for step in range(8, 12)}
    assert max(apart) > 1.2


@pytest.mark.long
def test_a_member_that_dies_while_all_rest_is_absent_when_they_wake() -> None:
    """[G3, Q9] Nobody looks for it meanwhile; two others come back, and training goes on without it."""
    crashes = {2: DropOut(2, 2), 3: DropOut(4, 2, 300.0), 4: DropOut(6, 2, 300.0)}
    network = Network(latency=0.3, cuts=(Cut(frozenset({6}), 100.0, 1e9),))
    seen = run_world(plan(peers=7, steps=18, liars=(0, 1), crashes=crashes, network=network), _Serves())
    assert seen.named("absent") == {2: [2], 4: [3], 6: [4], 8: [6]}
    assert sorted(number for back in seen.returned.values() for number in back) == [3, 4]
    assert seen.records[-1].updated
    assert agreement(seen.world) == no_honest_ban(seen.world) == []


def test_of_two_that_rest_one_loses_power_and_the_run_restarts() -> None:
    """[G3, B5] One alone is no quorum; it notices when it is asked, and waits for the other."""
    crashes = {1: DropOut(2, 2), 2: DropOut(4, 2, 300.0), 3: DropOut(6, 0, 20.0)}
    made = plan(peers=4, steps=12, liars=(), crashes=crashes)
    seen = run_world(replace(made, byzantine=1, blackout={0: DropOut(99, 0)}))
    assert seen.named("absent") == {2: [1], 4: [2]}
    assert list(seen.returned.values()) == [[2]]
    assert seen.records[-1].incarnation == 1
    assert _moved(seen).endswith("mmm")


@pytest.mark.long
def test_a_liar_that_keeps_all_awake_gains_nothing() -> None:
    """[G3] It may begin every step at once: then the run pauses as before, step by step, and nobody is struck for it."""

    class Awake(_Serves):
        def hears(self, link: LiarLink, sender: PeerId, packet: Packet) -> bool:
            if isinstance(packet.frame, Value) and packet.slot.phase == Phase.ACCUSE:
                for peer in peer_ids(1, 7):
                    step = packet.slot.step + 1
                    link.send_unchanged(peer, Packet(Slot(packet.slot.run, step, Phase.COMMIT), Busy(step)))
            return True

    made = plan(peers=7, steps=24, liars=(0, 1), crashes=_SEVEN)
    seen = run_world(made, Awake())
    assert len(seen.records) == 24
    assert seen.named("struck", "slowed", "banned", "expelled") == {}
    assert agreement(seen.world) == []
