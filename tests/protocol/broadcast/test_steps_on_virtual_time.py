"""Whole steps on virtual time: honest peers agree whatever the delays, and go on without one that stops (SPEC Q1–Q9)."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest

from tests.protocol.broadcast.announcement.setting import SLOT
from tests.seeds import drawn
from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.protocol.broadcast.announcement import chain_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import AttemptView
from troth.protocol.core.records import encode_record
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.run import CannotGoOnError, Parameters, Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.step.step import run_step
from troth.protocol.wire.frames import Chained, Packet, Value
from troth.protocol.wire.messages import Commit, Envelope, Phase
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork
from troth.workshop.chaos.virtual_time import VirtualTime
from troth.workshop.simulation.exchange import DropOut, DroppingChannel
from troth.workshop.simulation.primitives import MemoPrimitives


class _PowerCutError(CannotGoOnError):
    pass


class _FailingLink:
    """The machine stops in the middle of sending, after so many packets."""

    def __init__(self, link: Any, most: int) -> None:
        self._link, self._left = link, most

    def now(self) -> float:
        return float(self._link.now())

    def send(self, to: PeerId, packet: Packet) -> None:
        if not self._left:
            raise _PowerCutError
        self._left -= 1
        self._link.send(to, packet)

    def gone(self) -> frozenset[PeerId]:
        return frozenset(self._link.gone())

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        heard: tuple[PeerId, Packet] | None = await self._link.receive(until)
        return heard


@dataclasses.dataclass
class _Steps:
    """Outcome of a few steps among honest peers."""

    peers: list[PeerId]
    outcomes: dict[PeerId, list[Outcome[Training]]]
    stopped: Mapping[PeerId, CannotGoOnError]
    sent: dict[PeerId, int]
    chains: int
    seconds: float
    trace: bytes

    def agreed(self) -> list[Outcome[Training]]:
        """The outcomes that all who went on saw; they saw the same."""
        seen = [outcomes for peer, outcomes in self.outcomes.items() if peer not in self.stopped]
        assert len({tuple(encode_record(outcome.record) for outcome in one) for one in seen}) == 1
        return seen[0]


class _RecordingNetwork:
    """Delays below `most`, drawn or steady; and everything that was sent, as a digest."""

    _PROBLEM: ClassVar[list[Problem]] = []

    def __init__(self, seed: int, most: float, steady: bool) -> None:
        self._draw, self._most, self._steady = Random(seed), most, steady
        self.trace = sha256()
        self.chains = 0
        self.sent: dict[PeerId, int] = {}

    def __call__(self, sender: PeerId, to: PeerId, packet: Packet, now: float) -> tuple[float]:
        delay = self._most if self._steady else self._draw.random() * self._most
        self.trace.update(sender + to + repr((tuple(packet.slot), now, delay)).encode())
        self.trace.update(msgspec.msgpack.encode(packet.frame))
        self.sent[sender] = self.sent.get(sender, 0) + 1
        self.chains += isinstance(packet.frame, Chained)
        return (delay,)

    @classmethod
    def problem(cls) -> Problem:
        if not cls._PROBLEM:
            cls._PROBLEM.append(Problem(make_task("quadratic:dimension=24"), lanes_for=5))
        return cls._PROBLEM[0]


def _play_steps(
    *,
    seed: int = 1,
    peers: int = 5,
    steps: int = 3,
    most: float = 0.999,
    steady: bool = False,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    crash: DropOut | None = None,
    packets: int | None = None,
) -> _Steps:
    """The real protocol; the last peer may crash, before a call of its channel or in the middle of sending."""
    net, tools, problem = _RecordingNetwork(seed, most, steady), MemoPrimitives(), _RecordingNetwork.problem()
    identities = [Identity.from_secret(derive(seed, "identity", k)) for k in range(peers)]
    run = Run(
        tuple(sorted(identity.peer for identity in identities)),
        b"announcing",
        Parameters(size=problem.size, tau=0.1, byzantine=1),
        derive(seed, "run"),
    )
    time: VirtualTime[None] = VirtualTime(net)
    outcomes: dict[PeerId, list[Outcome[Training]]] = {identity.peer: [] for identity in identities}

    async def member(number: int) -> None:
        identity = identities[number]
        link: Any = time.link(identity.peer)
        failing = number == peers - 1
        if failing and packets is not None:
            link = _FailingLink(link, packets)
        channel: Any = BroadcastChannel(identity, link, timeouts, tools)
        if failing and crash is not None:
            channel = DroppingChannel(channel, crash)
        work = TrainingWork(problem, OPTIMIZERS["sgd"](), SCHEDULES["constant"](0.1, steps), tools)
        peer = Peer(identity, run, work, channel, SeededEntropy(seed, number), tools)
        first = work.first(derive(seed, "model"))
        state = State.first(run, first, work.digest(first))
        for _ in range(steps):
            outcome = await run_step(peer, state)
            outcomes[identity.peer].append(outcome)
            state = outcome.state

    time.run({identity.peer: member(k) for k, identity in enumerate(identities)}, most_events=1_000_000)
    members = [identity.peer for identity in identities]
    return _Steps(members, outcomes, time.stopped, net.sent, net.chains, time.now, net.trace.digest())


@pytest.mark.parametrize("seed", range(4))
def test_honest_peers_agree_step_after_step_whatever_the_delays(seed: int) -> None:
    """[Q3, Q7] Same records, nobody absent, no rounds, though packets take up to Δ and overtake each other."""
    done = _play_steps(seed=seed)
    outcomes = done.agreed()
    assert len(outcomes) == 3
    assert not done.stopped
    assert not done.chains
    for outcome in outcomes:
        assert not outcome.record.absent + outcome.record.struck
        assert outcome.attempts == 1
        assert outcome.record.step == 0 or len(outcome.certificate) >= 3


def test_a_quiet_step_takes_twelve_message_delays() -> None:
    """[Q3, U2] Five announcements of two, parts, aggregates; nothing waits for a deadline, nor for the record's signatures."""
    done = _play_steps(steps=4, most=0.1, steady=True)
    assert not done.chains
    assert done.seconds == pytest.approx(4 * 12 * 0.1)


def test_equal_seeds_give_equal_traces() -> None:
    """[Q6] Every packet, with its time."""
    assert (
        _play_steps(seed=5, steps=2).trace == _play_steps(seed=5, steps=2).trace != _play_steps(seed=6, steps=2).trace
    )


def _others_go_on(done: _Steps) -> None:
    lost = done.peers[-1]
    outcomes = done.agreed()
    assert set(done.stopped) == {lost}
    assert len(outcomes) == 3
    assert {peer for outcome in outcomes for peer in outcome.record.absent} == {lost}
    assert not any(outcome.record.banned for outcome in outcomes)
    assert lost not in outcomes[-1].state.roster.members
    assert len(outcomes[-1].state.roster.members) == 4


@pytest.mark.parametrize("call", range(8))
def test_a_member_that_stops_between_phases_is_absent_and_not_banned(call: int) -> None:
    """[Q6, Q7] One of five crashes before each call of its channel in turn: the others finish, and agree."""
    _others_go_on(_play_steps(seed=call, crash=DropOut(step=1, call=call)))


@cache
def _quiet_seconds() -> float:
    return _play_steps(peers=8, steps=1, most=0.1, steady=True).seconds


@pytest.mark.parametrize("call", [0, 1, 2, 4, 5, 6])
def test_a_departure_costs_a_round_trip_and_no_timeout(call: int) -> None:
    """[Q9] One of eight stops before a call of its channel: no rounds, and at most another attempt beside a quiet step."""
    quiet = _quiet_seconds()
    done = _play_steps(peers=8, steps=2, most=0.1, steady=True, crash=DropOut(step=1, call=call))
    assert not done.chains
    assert len(done.agreed()) == 2
    assert done.seconds - quiet < 2 * quiet


@pytest.mark.long
@pytest.mark.parametrize("seed", drawn(8, many=16))
def test_a_member_that_stops_while_sending_is_absent_and_not_banned(seed: int) -> None:
    """[Q4–Q7] Some have its last frame and some have not: chains decide, the same for all."""
    undisturbed = _play_steps(seed=seed, steps=2)
    most = undisturbed.sent[undisturbed.peers[-1]]
    _others_go_on(_play_steps(seed=seed, packets=Random(seed).randrange(most)))


@pytest.mark.parametrize(
    "timeouts", [Timeouts(bulk=8.0), Timeouts(compute=8.0), Timeouts(delta=2.0, compute=0.5, bulk=0.5)]
)
def test_a_crash_before_the_record_is_signed_makes_nobody_late(timeouts: Timeouts) -> None:
    """[Q1] The others wait for its signature as long as they may, and their next values are still in time."""
    _others_go_on(_play_steps(timeouts=timeouts, most=0.999 * timeouts.delta, crash=DropOut(step=1, call=7)))


_FIRST_SLOT, _SECOND_SLOT = (
    SLOT._replace(run=Digest(bytes(32)), step=step, phase=int(Phase.COMMIT)) for step in (0, 1)
)


@pytest.mark.parametrize("moment", [0.3, 2.0, 4.0, 5.5, 6.5, 7.1, 8.15, 9.0, 12.0])
def test_a_late_chain_of_the_announcement_before_divides_nobody(moment: float) -> None:
    """[Q3, Q4] All decided the first quietly; then one of them hears that its rounds have begun, amid the second.

    One liar gave its second value to that one alone, the other reveals another value in the rounds of the rest.
    """
    identities = [Identity.from_secret(derive(0, "late chain", k)) for k in range(5)]
    one, two, _, giver, helper = identities
    everyone = frozenset(identity.peer for identity in identities)
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.1,))
    tools = Primitives()

    def message(number: int) -> Commit:
        return Commit(None, bytes([number]) * 32, bytes(32))

    async def first(identity: Identity, number: int) -> BroadcastChannel:
        channel = BroadcastChannel(identity, time.link(identity.peer), Timeouts(), tools)
        await channel.announce(_FIRST_SLOT, message(number), AttemptView(everyone))
        return channel

    async def honest(identity: Identity, number: int) -> Any:
        channel = await first(identity, number)
        said = await channel.announce(_SECOND_SLOT, message(number), AttemptView(everyone))
        return {peer: one.envelope.payload for peer, one in said.items()}, set(channel.equivocations(1))

    async def until(identity: Identity, when: float) -> None:
        link = time.link(identity.peer)
        while link.now() < when:
            await link.receive(when)

    async def give() -> None:
        await first(giver, 3)
        link = time.link(giver.peer)
        link.send(one.peer, Packet(_SECOND_SLOT, Value(seal(giver, _SECOND_SLOT, message(90)))))
        await until(giver, moment)
        late = seal(helper, _FIRST_SLOT, message(92))
        mine = giver.sign(chain_bytes(_FIRST_SLOT, helper.peer, blob_digest(late.payload)))
        link.send(one.peer, Packet(_FIRST_SLOT, Chained(helper.peer, late, {giver.peer: mine})))
        await until(giver, 60.0)

    async def help_it() -> None:
        await first(helper, 4)
        link = time.link(helper.peer)
        for honest_one in identities[:3]:
            link.send(honest_one.peer, Packet(_SECOND_SLOT, Value(seal(helper, _SECOND_SLOT, message(4)))))
        other: Envelope = seal(giver, _SECOND_SLOT, message(91))
        mine = helper.sign(chain_bytes(_SECOND_SLOT, giver.peer, blob_digest(other.payload)))
        for when in range(30):
            await until(helper, float(when))
            link.send(two.peer, Packet(_SECOND_SLOT, Chained(giver.peer, other, {helper.peer: mine})))
        await until(helper, 60.0)

    members: dict[PeerId, Any] = {identity.peer: honest(identity, k) for k, identity in enumerate(identities[:3])}
    time.run({**members, giver.peer: give(), helper.peer: help_it()}, most_events=100_000)
    results = [time.results[identity.peer] for identity in identities[:3]]
    assert results[0] == results[1] == results[2]
