"""A run on a network that hurts: real protocol code, virtual time, liars on the wire; and what happened in it."""

from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from troth.attacks import Plot, make_attack
from troth.attacks.wire import LateChannel, LyingLine
from troth.crypto import Identity, PeerId, Seed, derive, stream
from troth.protocol.agreed import AgreedChannel, Pace
from troth.protocol.channel import Channel
from troth.protocol.records import StepRecord
from troth.protocol.roster import Roster
from troth.protocol.run import Parameters, Run
from troth.protocol.state import CannotGoOnError, Outcome, Peer, State
from troth.protocol.step import run_step
from troth.simulation.drop_outs import DropOut, DroppingChannel
from troth.simulation.faults import Deliver, Network, deliveries
from troth.simulation.memo import MemoPrimitives
from troth.simulation.protocol_run import SeededEntropy
from troth.simulation.virtual import VirtualTime, Watch
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

# D coordinates

_TASK, _TAU, _RATE = "quadratic:dimension=24", 0.1, 0.1
_MOST_EVENTS = 3_000_000
FORGED = -10.0  # what liars multiply their gradients by


@dataclass(frozen=True)
class Plan:
    """Everything that determines a world, drawn from its seed."""

    seed: int
    peers: int
    steps: int
    liars: Mapping[int, frozenset[str]]  # what each of them does on the wire
    forge_from: Mapping[int, int]  # who sends wrong gradients, and from which step on
    attacks: Mapping[int, str]  # how they behave in the protocol
    zeal: Mapping[int, tuple[float, int]]  # how often they lie on the wire, and from which step on
    crashes: Mapping[int, DropOut]
    network: Network

    def __str__(self) -> str:
        lies = "; ".join(f"{number}: {', '.join(sorted(c)) or 'nothing'}" for number, c in sorted(self.liars.items()))
        return (
            f"{self.peers} peers, {self.steps} steps, liars on the wire {{{lies or 'none'}}}, in the protocol "
            f"{dict(self.attacks) or 'none'}, wrong gradients from step {dict(self.forge_from) or 'never'}, "
            f"crashes {dict(self.crashes) or 'none'}, {self.network}"
        )


@dataclass
class World:
    """What happened."""

    plan: Plan
    run: Run
    numbers: Mapping[PeerId, int]
    honest: list[PeerId]
    work: TrainingWork  # to recompute what was right
    outcomes: dict[PeerId, list[Outcome[Training]]] = field(default_factory=dict)  # of honest peers, by step
    stopped: Mapping[PeerId, CannotGoOnError] = field(default_factory=dict)
    forged: set[tuple[bytes, int]] = field(default_factory=set)  # who sent a wrong gradient in which step
    lies: Counter[str] = field(default_factory=Counter)
    packets: int = 0
    seconds: float = 0.0

    @cached_property
    def witness(self) -> list[Outcome[Training]]:
        """Everything that an honest peer saw who saw the most."""
        return max(self.outcomes.values(), key=len)

    @cached_property
    def records(self) -> list[StepRecord]:
        return [outcome.record for outcome in self.witness]

    @property
    def majority_lost(self) -> bool:
        """Whether too few honest members were left for the step after the last."""
        step = len(self.records)
        roster = self.witness[-1].state.roster if step else Roster.founding(self.run)
        crashed = {number for number, drop_out in self.plan.crashes.items() if drop_out.step <= step}
        staying = [peer for peer in roster.members if peer in self.honest and self.numbers[peer] not in crashed]
        return len(staying) < roster.majority


class _LyingWork(TrainingWork):
    """Turns its gradients round from some step on."""

    def lie_from(self, me: PeerId, step: int, forged: set[tuple[bytes, int]]) -> "_LyingWork":
        self._me, self._from, self._forged = me, step, forged
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        honest_D = await super().gradient(training, seed, step)
        if step < self._from:
            return honest_D
        self._forged.add((self._me, step))
        return honest_D * FORGED


def play(plan: Plan, watch: Watch | None = None) -> World:
    """Run a plan to its end."""
    tools = MemoPrimitives()
    problem = Problem(make_task(_TASK), lanes_for=plan.peers)
    identities = [Identity.from_secret(derive(plan.seed, "identity", number)) for number in range(plan.peers)]
    numbers = {identity.peer: number for number, identity in enumerate(identities)}
    liars = set(plan.liars) | set(plan.forge_from)
    run = Run(
        tuple(sorted(numbers)),
        b"chaos",
        Parameters(size=problem.size, tau=_TAU, byzantine=len(liars)),
        derive(plan.seed, "run"),
    )
    optimizer, rates = OPTIMIZERS["sgd"](), SCHEDULES["constant"](_RATE, plan.steps)
    honest_work = TrainingWork(problem, optimizer, rates, tools)
    honest = sorted(peer for peer, number in numbers.items() if number not in liars)
    world = World(plan, run, numbers, honest, honest_work)
    time: VirtualTime[None] = VirtualTime(_deliveries(plan, numbers), watch)
    lines: list[LyingLine] = []
    colluders = frozenset(peer for peer, number in numbers.items() if number in liars)
    board: dict[Any, Any] = {}

    def life(identity: Identity, number: int) -> Coroutine[Any, Any, None]:
        line: Any = time.line(identity.peer, *plan.network.clocks.get(number, (0.0, 0.0)))
        work = honest_work
        if number in plan.liars:
            line = LyingLine(line, identity, plan.liars[number], *plan.zeal[number], stream(plan.seed, "liar", number))
            lines.append(line)
        if number in plan.forge_from:
            lying = _LyingWork(problem, optimizer, rates, tools)
            work = lying.lie_from(identity.peer, plan.forge_from[number], world.forged)
        channel: Channel = AgreedChannel(identity, line, Pace(), tools)
        if number in plan.attacks:
            attack, start = make_attack(plan.attacks[number]), plan.zeal[number][1]
            plot = Plot(attack, colluders, run, lambda step: step >= start, board)
            channel = attack.conduct(LateChannel(identity, line, Pace(), tools), identity.peer, plot)
        if number in plan.crashes:
            channel = DroppingChannel(channel, plan.crashes[number])
        peer = Peer(identity, run, work, channel, SeededEntropy(plan.seed, number), tools)
        return _live(peer, State.first(run, work.first(derive(plan.seed, "model"))), world)

    coroutines = {identity.peer: life(identity, number) for number, identity in enumerate(identities)}
    world.outcomes = {peer: [] for peer in world.honest}
    time.run(coroutines, most_events=_MOST_EVENTS)
    world.stopped, world.packets, world.seconds = time.stopped, time.packets, time.now
    for line in lines:
        world.lies.update(line.lies)
    return world


async def _live(peer: Peer[Training], state: State[Training], world: World) -> None:
    for _ in range(world.plan.steps):
        outcome = await run_step(peer, state)
        state = outcome.state
        if peer.me in world.outcomes:
            world.outcomes[peer.me].append(outcome)
        if peer.me not in state.roster.members:
            return


def _deliveries(plan: Plan, numbers: Mapping[PeerId, int]) -> Deliver:
    """Between honest peers as the network is; liars' packets come when they like."""
    when = {"late": (0.0, 4.0), "just-in-time": (0.9, 1.0)}
    late = {
        number: when[conduct] for number, conducts in plan.liars.items() for conduct in sorted(conducts & when.keys())
    }
    return deliveries(plan.network, plan.seed, numbers, late)
