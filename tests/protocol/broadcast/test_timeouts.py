"""[Q8] How long things may take follows what the members measure, within the run's bounds, whatever liars announce."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.broadcast.announcement.setting import SLOT
from tests.protocol.channel_internals import ended_announcement
from tests.protocol.scripted_world import LiarLink, LiarScript, WorldRun, peer_ids, plan, run_world
from tests.seeds import drawn
from troth.crypto import Identity, PeerId, Slot, derive
from troth.protocol.broadcast.announcement import Announcement, Timing, view_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.timeouts import LatencyEstimator, Pacing, Timeouts
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Noticed, Said
from troth.protocol.wire.frames import Certificate, Packet, Value, View
from troth.protocol.wire.messages import (
    MOST_MILLISECONDS,
    MOST_REJOINS,
    Commit,
    Malformed,
    Measured,
    Message,
    Phase,
    SignedRejoin,
    said_as,
)
from troth.protocol.wire.phases import decode, encode, seal
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos import world as stage_module
from troth.workshop.chaos.check_progress import timeouts as timeouts_checker
from troth.workshop.chaos.plan import Network
from troth.workshop.chaos.virtual_time import VirtualTime
from troth.workshop.chaos.world import BOUNDS
from troth.workshop.simulation.exchange import DropOut

NONE, MOST = Measured(0, 0, 0), Measured(*3 * (MOST_MILLISECONDS,))
QUICK, SLOW = Network(least=0.05, latency=0.05), Network(least=1.0, latency=0.99)
FLOOR = replace(BOUNDS, stretch=1.0)
TIGHT = Timeouts(delta=1.0, compute=0.2, bulk=0.2, stretch=4.0)

MEASURED = st.builds(Measured, *3 * (st.integers(0, 10_000),))
ANNOUNCED = st.one_of(st.none(), MEASURED, st.sampled_from([NONE, MOST]))


# The rule


@given(st.lists(MEASURED, min_size=1, max_size=9), st.data())
def test_a_minority_of_liars_moves_nothing_beyond_what_honest_members_measured(
    honest: list[Measured], data: st.DataObject
) -> None:
    """[Q8] Each time lies within twice what the honest announced, and within the bounds."""
    lies = data.draw(st.lists(ANNOUNCED, max_size=len(honest) - 1))
    bounds = Timeouts(delta=0.5, compute=2.0, bulk=1.0, stretch=8.0)
    agreed = bounds.after(data.draw(st.permutations([*honest, *lies])))
    for name, measured in (("delta", "delay"), ("compute", "compute"), ("bulk", "bulk")):
        said, least = [getattr(one, measured) / 1000 for one in honest], getattr(bounds, name)
        wanted = [min(max(2 * seconds, least), 8 * least) for seconds in said]
        assert min(wanted) <= getattr(agreed, name) <= max(wanted)


@given(st.lists(ANNOUNCED, max_size=9))
def test_bounds_hold_whatever_everybody_announces(took: list[Measured | None]) -> None:
    """[Q8] Also where liars are the majority of those who spoke: a member that keeps to the least is in time."""
    agreed, most = BOUNDS.after(took), BOUNDS.slowest
    for name in ("delta", "compute", "bulk"):
        assert getattr(BOUNDS, name) <= getattr(agreed, name) <= getattr(most, name)
    assert agreed.memory == BOUNDS.memory


def test_twice_the_lower_median() -> None:
    """[Q8] Of four the second smallest; a member that measured nothing counts as the slowest."""
    took = [None, Measured(900, 0, 700), Measured(600, 1500, 5000), Measured(100, 3000, 600)]
    agreed = Timeouts(stretch=4.0).after(took)
    assert (agreed.delta, agreed.compute, agreed.bulk) == (1.2, 3.0, 1.4)
    assert Timeouts(stretch=4.0).after([None, None, NONE]) == Timeouts(4.0, 4.0, 4.0)
    assert Timeouts(2.0, 3.0, 5.0, stretch=1.5).slowest == Timeouts(3.0, 4.5, 7.5)
    assert Timeouts(2.0, 3.0, 5.0).after([MOST, MOST]) == Timeouts(2.0, 3.0, 5.0)


def test_accuse_leaves_time_to_compute_every_audit_twice() -> None:
    """[D1] Else an auditor that has found a lie, and looks again, would be too late to say so. Jurors look once."""
    pacing = Pacing(Timeouts(delta=1.0, compute=5.0, bulk=2.0))
    view = AttemptView(frozenset(peer_ids(0, 3)), audits=3)

    def allowed(phase: Phase) -> float:
        return pacing.timing(SLOT._replace(phase=int(phase)), view, view.members, now=100.0).allowance

    assert allowed(Phase.ACCUSE) == 2 * 3 * 5.0
    assert allowed(Phase.VOTE) == 3 * 5.0 + pacing.timeouts.exchange
    assert allowed(Phase.COMMIT) == 5.0 + 1.0
    view = replace(view, audits=1)
    assert pacing.timeouts.until_left(2) > allowed(Phase.ACCUSE) + allowed(Phase.VOTE)
    slow = Timeouts(delta=1.0, compute=500.0, bulk=2.0)
    assert slow.until_left(2) > 3 * slow.compute + slow.exchange, "Accuse and Vote"


# Measuring


def test_the_longest_of_the_last_sixteen_steps_is_announced() -> None:
    """[Q8] And nothing before the first step has ended, in whole milliseconds, rounded up."""
    watch = LatencyEstimator()
    watch.delayed(5.0)
    assert watch.took() is None
    watch.next_step()
    assert watch.took() == Measured(5000, 0, 0)
    for _ in range(15):
        watch.carried(0.0101)
        watch.carried(0.002)
        watch.next_step()
    assert watch.took() == Measured(5000, 0, 11)
    watch.next_step()
    assert watch.took() == Measured(0, 0, 11)


def test_time_away_from_the_line_is_computing() -> None:
    """[Q8] The gradient just before a Commit too; several audits one after another count as one each."""
    watch = LatencyEstimator()
    watch.back_at_link(7.0, 1)  # it has not been there before
    watch.left_link(10.0)
    watch.back_at_link(11.5, 3)
    watch.next_step()
    assert watch.took() == Measured(0, 500, 0)
    watch.left_link(20.0)
    watch.back_at_link(20.7, 0)
    assert watch.took() == Measured(0, 700, 0)
    watch.left_link(0.0)
    watch.back_at_link(1e12, 1)
    assert watch.took() == Measured(0, MOST_MILLISECONDS, 0)


def _announcement(views: Mapping[int, float], certificates: Mapping[int, float]) -> Announcement:
    """One of five. All values are there at 1.0, when it signs its view; other frames come so much later."""
    identities = [Identity.from_secret(derive(0, "views", k)) for k in range(5)]
    everyone, tools = [identity.peer for identity in identities], Primitives()
    me = Announcement(SLOT, identities[0], everyone, Timing(0.0, 1.0, 1.0), tools)
    values = [seal(one, SLOT, Commit(None, bytes(32), bytes(32))) for one in identities]
    me.say(values[0], 0.0)
    for one, value in zip(identities[1:], values[1:], strict=True):
        me.hear(one.peer, Value(value), 1.0)
    seen = next(frame for frame in me.take() if isinstance(frame, View)).values
    assert seen is not None
    signed: dict[bytes, bytes] = {one.peer: one.sign(view_bytes(SLOT, seen)) for one in identities}
    later: list[tuple[float, PeerId, View | Certificate]]
    later = [(seconds, everyone[k], View(seen, signed[everyone[k]])) for k, seconds in views.items()]
    later += [(seconds, everyone[k], Certificate(seen, signed, {})) for k, seconds in certificates.items()]
    for seconds, sender, frame in sorted(later, key=lambda one: one[0]):
        me.hear(sender, frame, 1.0 + seconds)
    while me.decision is None and me.deadline is not None:
        me.tick(me.deadline)
    return me


def test_the_delay_is_that_of_more_than_half_of_the_certificates() -> None:
    """[Q8] Two others and one's own; the rest may take their time. Views are there when liars want them to be."""
    views = {1: 0.1, 2: 0.2, 3: 0.3, 4: 1.5}
    assert _announcement(views, {1: 1.6, 2: 1.7, 3: 3.3, 4: 1.8}).lag == pytest.approx(0.2)
    assert _announcement(views, {1: 1.6, 2: 1.7, 3: 3.3}).lag == pytest.approx(0.2)
    assert _announcement({}, {1: 0.4, 2: 0.9, 3: 1.0}).lag == pytest.approx(0.5), "the first of them decides"
    assert _announcement(views, {1: 1.6}).lag == 0.0, "nothing is known"


def test_on_the_slow_path_the_delay_is_that_of_more_than_half_of_the_views() -> None:
    """[Q8] If they never come, the whole wait counts: so Δ grows where a network has become too slow."""
    assert _announcement({1: 0.2, 2: 0.3, 3: 1.5}, {}).lag == pytest.approx(0.3)
    silent = _announcement({1: 0.2}, {})
    assert silent.ends is not None
    assert silent.lag == pytest.approx(silent.ends - 1.0)


# On networks


@contextmanager
def _bounds(bounds: Timeouts) -> Iterator[None]:
    with patch.object(stage_module, "BOUNDS", bounds):
        yield


def _timeouts_by_step(seen: WorldRun) -> list[Timeouts]:
    assert timeouts_checker(seen.world) == []
    return [timeouts for _, held in sorted(seen.world.timeouts.items()) for timeouts in held]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1 + k for k in drawn(1, many=3)])
@pytest.mark.parametrize("crashes", [{}, {4: DropOut(4, 3)}], ids=["all there", "one falls silent"])
def test_delta_grows_where_the_network_is_slower_than_the_least(crashes: dict[int, DropOut], seed: int) -> None:
    """[Q8] Packets take one to two of the least Δ: nobody else is absent or blamed, and no rounds begin without need.

    Without stretch the same network is too slow.
    """
    made = plan(seed=seed, liars=(), network=SLOW, crashes=crashes)
    with _bounds(TIGHT):
        seen = run_world(made).check_promises()
    gone = {4: [4]} if crashes else {}
    assert seen.named("absent", "struck", "slowed", "expelled") == gone
    assert seen.slow == {}  # a member that falls silent has broken off, and all see that (SPEC Q9)
    assert all(timeouts.delta > 1.99 for timeouts in _timeouts_by_step(seen))
    with _bounds(replace(TIGHT, stretch=1.0)):
        seen = run_world(made)
    assert seen.slow
    assert seen.named("absent", "struck", "slowed", "expelled") not in ({}, gone)


def test_compute_grows_where_gradients_take_longer_than_the_least() -> None:
    """[Q8] Gradients take 6 s, and with the least times they would have to be there after 4 s."""
    network = Network(least=0.4, slow=dict.fromkeys(range(5), 6.0))
    seen = run_world(plan(liars=(), network=network)).check_promises()
    assert seen.slow == {}
    assert {timeouts.compute for timeouts in _timeouts_by_step(seen)} == {4.0}
    with _bounds(FLOOR):
        assert run_world(plan(liars=(), network=network)).slow


def test_all_go_down_to_the_least_once_something_was_measured() -> None:
    """[Q8] Step 0 has nothing to announce, so that step 1 is as slow as allowed too; then a quick network shows."""
    seen = run_world(plan(liars=(), network=QUICK)).check_promises()
    assert _timeouts_by_step(seen) == [BOUNDS.slowest] * 2 + [FLOOR] * 6


class _Boasts(LiarScript):
    """Announces that everything took it so long."""

    def __init__(self, took: Measured | None) -> None:
        self._took = took

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        return msgspec.structs.replace(message, took=self._took) if isinstance(message, Commit) else message


@pytest.mark.long
@pytest.mark.parametrize("took", [NONE, MOST, None])
def test_liars_who_announce_nonsense_change_nothing(took: Measured | None) -> None:
    """[Q8] Two of six: in a quick network all stay at the least, in a slow one nobody is left out."""
    quick = run_world(plan(peers=6, liars=(0, 1), network=QUICK), _Boasts(took)).check_promises()
    assert _timeouts_by_step(quick) == [BOUNDS.slowest] * 2 + [FLOOR] * 6
    slow = run_world(plan(peers=6, liars=(0, 1), network=SLOW), _Boasts(took)).check_promises()
    assert slow.slow == {}
    assert all(timeouts.delta > 1.99 for timeouts in _timeouts_by_step(slow))


class _JustInTime(LiarScript):
    """Hands out such frames late, to all or to every other peer, not always the same ones, but in time."""

    def __init__(self, kind: type[Value | View | Certificate], every: int) -> None:
        self._kind, self._every = kind, every

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        slot = packet.slot
        if isinstance(packet.frame, self._kind) and (to[0] + slot.step + slot.phase) % self._every == 0:
            link.send_later(1.9, to, packet)
            return ()
        return (packet,)


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 2], ids=["to all", "to some"])
@pytest.mark.parametrize("kind", [Value, View, Certificate])
def test_liars_who_are_late_do_not_slow_the_others_down(kind: type[Value | View | Certificate], every: int) -> None:
    """[Q8] All may wait for them in every announcement; the agreed Δ stays at the least nevertheless."""
    seen = run_world(plan(peers=6, liars=(0, 1), steps=7, network=QUICK), _JustInTime(kind, every)).check_promises()
    assert seen.slow == {}
    waits = kind is Value or (kind is View and every == 1)  # else a certificate comes from elsewhere
    assert (seen.seconds[-1] > 5 * 1.9) == waits
    assert _timeouts_by_step(seen)[2:] == [FLOOR] * 5


@pytest.mark.long
@pytest.mark.parametrize("network", [QUICK, Network(least=0.8, latency=0.19)])
def test_a_returning_member_has_the_timeouts_that_the_others_agreed_on(network: Network) -> None:
    """[Q8, B2] An observer sees the same Commits; from its first step as a member on its timeouts are theirs."""
    held: dict[tuple[int, int], Timeouts] = {}
    number_of = {key: number for number, key in enumerate(peer_ids(1, 7))}

    def wrap(peer: PeerId, channel: Channel, _noticed: Noticed) -> Channel:
        return _Noting(channel, number_of[peer], held) if isinstance(channel, BroadcastChannel) else channel

    made = plan(peers=7, liars=(), crashes={2: DropOut(3, 2, 3.0)}, steps=14, network=network)
    seen = run_world(made, wrap=wrap).check_promises()
    ((back, _),) = seen.returned.items()
    mine = {step: timeouts for (number, step), timeouts in held.items() if number == 2 and step > back}
    assert len(mine) == 13 - back > 0
    assert mine == {step: held[0, step] for step in mine}
    assert all(timeouts != BOUNDS.slowest for timeouts in mine.values())


def test_a_member_that_speaks_again_counts_from_where_the_others_are_with_the_timeouts_to_come() -> None:
    """[Q8, B2] They knew up to delta earlier: the new one, since with the old one it would be too far ahead of them."""
    me = Identity.from_secret(derive(0, "onlooker"))
    channel = BroadcastChannel(me, VirtualTime(lambda *_: ()).link(me.peer), BOUNDS, Primitives(), observing=True)
    observed = ObservedAnnouncement(SLOT, [me.peer], 1, Timing(0.0, 1.0, 1.0), Primitives())
    ended_announcement(channel, observed)
    assert observed.deadline is not None
    observed.tick(last := observed.deadline)
    channel.pacing.next_timeouts = replace(FLOOR, delta=1.5)
    assert channel.pacing.timeouts == BOUNDS.slowest
    channel.speak()
    assert (channel.pacing.timeouts.delta, observed.ends, channel.latencies(0)) == (1.5, last - 1.5, None)


class _Noting(ForwardingChannel):
    """The timeouts of each step."""

    def __init__(self, channel: BroadcastChannel, number: int, held: dict[tuple[int, int], Timeouts]) -> None:
        super().__init__(channel)
        self._pacing, self._number, self._held = channel.pacing, number, held

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        said = await super().announce(slot, message, view)
        if slot.phase == Phase.COMMIT:
            self._held[self._number, slot.step] = self._pacing.timeouts
        return said


def test_timeouts_follow_from_the_commits_alone() -> None:
    """[Q8] A member that has a step's Commits, from whomever, knows the timeouts of the next."""
    seen = run_world(plan(liars=(), network=SLOW))
    commits = [[said_as(said, Commit).took for said in outcome.commits.values()] for outcome in seen.world.witness]
    assert _timeouts_by_step(seen) == [BOUNDS.slowest, *map(BOUNDS.after, commits[:-1])]
    assert commits[0] == [None] * 5
    assert all(one is not None for step in commits[1:] for one in step)
    for earlier, later in pairwise(commits[1:]):
        assert all(b.delay >= a.delay for a, b in zip(earlier, later, strict=True) if a and b)


# Bytes


@pytest.mark.parametrize(
    "took", [(-1, 0, 0), (0, 2**31, 0), (0, 0, 0.5), (0, 0), (0, 0, 0, 0), 7, [None] * 3, ("1", 0, 0)]
)
def test_a_commit_with_times_that_are_none_is_malformed(took: object) -> None:
    """[Q8, M3] Its sender has said nothing."""
    fine = (None, b"b" * 32, b"c" * 32, None, ())
    assert isinstance(decode(Phase.COMMIT, msgspec.msgpack.encode((*fine, (0, 0, 2**31 - 1)))), Commit)
    assert isinstance(decode(Phase.COMMIT, msgspec.msgpack.encode((*fine, took))), Malformed)


def test_the_longest_commit_is_not_too_long() -> None:
    """[Q8, M3]"""
    rejoins = (SignedRejoin(b"k" * 32, b"l" * 32, b"s" * 64, b"a" * 64),) * MOST_REJOINS
    longest = Commit(b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32, rejoins, MOST, 2.0**400, b"s" * 64)
    assert decode(Phase.COMMIT, encode(longest)) == longest
