"""Looking ahead in worlds on virtual time: the same records, shorter steps, and nobody made late by gradients begun in vain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from torch import Tensor

from troth.crypto import Identity, PeerId, Seed, derive
from troth.network.node.ahead import GradientsAhead, GradientTimes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel
from troth.protocol.core.records import StepRecord, encode_record
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import Peer, State
from troth.protocol.step.step import run_step
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork
from troth.workshop.chaos.virtual_time import VirtualLink, VirtualTime
from troth.workshop.simulation.exchange import DropOut, DroppingChannel

PEERS, STEPS, LATENCY = 7, 7, 0.01
LIAR = PEERS - 1
BOUNDS = Timeouts(delta=0.1, compute=1.0, bulk=0.1, stretch=8.0)
REVEAL = 4  # the call of its channel in which a liar falls silent: everyone holds the aggregates by then
ACCUSE = 6


class WhenAsked(TrainingWork):
    """Takes its time for gradients and audits, one after the other."""

    def at(self, link: VirtualLink, seconds: float, allowed_s: Callable[[], float]) -> "WhenAsked":
        self.link, self.seconds, self.allowed_s = link, seconds, allowed_s
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        return await self.recompute(training, seed)

    async def recompute(self, training: Training, seed: Seed) -> Tensor:
        await self.link.work(self.seconds)
        return self.gradient_now(training, seed)


class Ahead(WhenAsked):
    """Begins what is expected, on one processor that leaves nothing off: the worst of all hardware."""

    looks_ahead = True

    def at(self, link: VirtualLink, seconds: float, allowed_s: Callable[[], float]) -> "Ahead":
        super().at(link, seconds, allowed_s)
        self.times = GradientTimes()
        self.free_at = 0.0
        self.begun: list[tuple[Training, Seed, float]] = []  # with the time at which it ends
        self.in_vain = self.hits = 0
        return self

    def expect(self, gradients: Sequence[tuple[Training, Seed]]) -> None:
        wanted = gradients if self.times.afford(self.allowed_s()) else ()
        kept = [one for one in self.begun if any(one[0] is training and one[1] == seed for training, seed in wanted)]
        self.in_vain += len(self.begun) - len(kept)
        self.begun = kept
        for training, seed in wanted:
            if not any(one[0] is training and one[1] == seed for one in kept):
                self.begun.append((training, seed, self._end()))

    def took_ahead(self) -> float:
        return self.times.of_two

    async def recompute(self, training: Training, seed: Seed) -> Tensor:
        found = next((one for one in self.begun if one[0] is training and one[1] == seed), None)
        if found is not None:
            self.begun.remove(found)
            self.hits += 1
        ends = self._end() if found is None else found[2]
        await self.link.work(max(0.0, ends - self.link.now()))
        self.times.add(self.seconds)
        return self.gradient_now(training, seed)

    def _end(self) -> float:
        self.free_at = max(self.free_at, self.link.now()) + self.seconds
        return self.free_at


class LeavesOff(Ahead):
    """Leaves a gradient off as soon as nobody wants it."""

    def expect(self, gradients: Sequence[tuple[Training, Seed]]) -> None:
        still = [
            one for one in self.begun if any(one[0] is training and one[1] == seed for training, seed in gradients)
        ]
        if self.begun and not still:
            self.free_at = min(self.free_at, self.link.now())
        super().expect(gradients)


class CarelessTimes(GradientTimes):
    """Begins whatever it likes, and announces only how long it waited."""

    of_two = 0.0

    def afford(self, allowed_s: float) -> bool:
        return True


class Careless(Ahead):
    """What looking ahead would be without its rule."""

    def at(self, link: VirtualLink, seconds: float, allowed_s: Callable[[], float]) -> "Careless":
        super().at(link, seconds, allowed_s)
        self.times = CarelessTimes()
        return self


@dataclass
class Played:
    records: dict[int, list[StepRecord]]  # by peer
    works: list[WhenAsked]
    seconds: float = 0.0
    late: set[int] = field(default_factory=set)  # honest peers that the others went on without

    def hits(self, number: int) -> int:
        """Gradients of this peer that were computed ahead, and asked for."""
        work = self.works[number]
        return work.hits if isinstance(work, Ahead) else 0

    @property
    def ends(self) -> list[bytes]:
        """Everything that the records of an honest peer say."""
        return [encode_record(record) for record in self.records[0]]


@cache
def problem() -> Problem:
    return Problem(make_task("quadratic:dimension=24"))


def play(
    kind: type[WhenAsked],
    *,
    slow: float = 0.4,
    silent_in: int | None = None,
    step: int = 4,
    around: Callable[[WhenAsked], Any] = lambda work: work,
    problems: Callable[[], Problem] = problem,
) -> Played:
    """Seven peers with gradients of 0.4 s, but for number 1, which takes as long as `slow`. The liar falls silent in a step."""
    time: VirtualTime[None] = VirtualTime(lambda *_: (LATENCY,))
    identities = sorted((Identity.from_secret(derive(0, "ahead", k)) for k in range(PEERS)), key=lambda one: one.peer)
    keys = tuple(identity.peer for identity in identities)
    run = Run(keys, b"ahead", Parameters(size=problem().size, tau=0.1, byzantine=1), derive(0, "run"))
    played = Played({}, [])

    async def member(number: int) -> None:
        identity, link = identities[number], time.link(keys[number])
        noticed = BroadcastChannel(identity, link, BOUNDS, Primitives())
        channel: Channel = noticed
        if number == LIAR and silent_in is not None:
            channel = DroppingChannel(noticed, DropOut(step=step, call=silent_in))
        tools, rates = Primitives(), SCHEDULES["constant"](0.1, STEPS)
        work = kind(problems(), OPTIMIZERS["sgd"](), rates, tools)
        work.at(link, slow if number == 1 else 0.4, lambda: noticed.pacing.next_timeouts.compute)
        played.works.append(work)
        peer = Peer(identity, run, around(work), channel, SeededEntropy(0, number), tools, noticed)
        first = work.first(derive(0, "model"))
        state = State.first(run, first, work.digest(first))
        for _ in range(STEPS):
            outcome = await run_step(peer, state)
            played.records.setdefault(number, []).append(outcome.record)
            state = outcome.state

    time.run({keys[k]: member(k) for k in range(PEERS)}, most_events=1_000_000, until=_honest(keys))
    played.seconds = time.now
    numbers = {key: number for number, key in enumerate(keys)}
    gone = {numbers[PeerId(peer)] for record in played.records[0] for peer in (*record.absent, *record.expelled)}
    played.late = gone - {LIAR}
    return played


def _honest(keys: Sequence[PeerId]) -> list[PeerId]:
    return [key for number, key in enumerate(keys) if number not in (1, LIAR)]


@pytest.mark.long
@pytest.mark.parametrize("silent_in", [None, REVEAL, ACCUSE])
def test_records_are_the_same_with_and_without(silent_in: int | None) -> None:
    """[R2, U1] In a quiet run, and where an attempt fails after gradients were begun."""
    plain, ahead = play(WhenAsked, silent_in=silent_in), play(Ahead, silent_in=silent_in)
    assert ahead.ends == plain.ends
    assert len(ahead.ends) == STEPS
    assert all(ahead.hits(number) for number in range(PEERS)), "it was computed ahead"
    assert ahead.seconds < plain.seconds


def test_a_step_takes_a_gradient_and_six_message_delays() -> None:
    """[Q3, R2] Commit, parts, Clip, aggregates; Reveal, Report and Accuse pass beside the gradient, and so do audits. When asked
    for, gradient, six more delays and the audit come one after the other."""
    gradients, quiet = 0.4 * STEPS, 6 * LATENCY
    assert play(LeavesOff).seconds == pytest.approx(gradients + STEPS * quiet + quiet)
    assert play(WhenAsked).seconds == pytest.approx(gradients + STEPS * 2 * quiet + 0.4 * (STEPS - 1))


@pytest.mark.long
def test_records_are_the_same_with_real_threads() -> None:
    """[R2, U1] Each peer has a problem of its own, as in a process of its own."""
    begun: list[GradientsAhead] = []

    def in_thread(work: WhenAsked) -> GradientsAhead:
        begun.append(GradientsAhead(work, lambda: 1e9))
        return begun[-1]

    def fresh() -> Problem:
        return Problem(make_task("quadratic:dimension=24"))

    threaded = play(WhenAsked, around=in_thread, problems=fresh, silent_in=REVEAL)
    assert threaded.ends == play(WhenAsked, silent_in=REVEAL).ends
    for ahead in begun:
        ahead.close()


@pytest.mark.long
@pytest.mark.parametrize("silent_in", [REVEAL, ACCUSE])
@pytest.mark.parametrize("slow", [0.7, 0.99, 1.5])
def test_a_liar_that_makes_all_begin_in_vain_makes_nobody_late(silent_in: int, slow: float) -> None:
    """[Q8, N2] Others allow 1.6 s for a gradient. One honest member can afford two within that; one begins nothing that it might
    have to wait for; and one takes nearly all of it for the one that counts. All are in time."""
    careful = play(Ahead, slow=slow, silent_in=silent_in)
    assert careful.late == set()
    assert any(work.in_vain for work in careful.works if isinstance(work, Ahead))
    assert (careful.hits(1) > 2) == (slow < 0.8), "in the first steps others allow the most"


@pytest.mark.long
def test_without_that_rule_a_liar_makes_an_honest_member_late() -> None:
    """[Q8, N2] It is left out for having computed something in vain; one that computes when asked is not."""
    assert play(Careless, slow=0.99, silent_in=REVEAL).late == {1}
    assert play(WhenAsked, slow=0.99, silent_in=REVEAL).late == set()
