"""A run on a network that hurts: real protocol code, virtual time, liars on the wire; and what happened in it."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

from torch import Tensor

from troth.attacks import Collusion, make_attack
from troth.attacks.wire.link import LateChannel, LyingLink
from troth.crypto import Digest, Identity, PeerId, Seed, Slot, blob_digest, derive, stream
from troth.protocol.broadcast.channel import AgreedChannel, PacketLink
from troth.protocol.broadcast.signed_slots import SignedSlotsInMemory
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel
from troth.protocol.core.coins import Coins, SeededEntropy
from troth.protocol.core.errors import CannotGoOnError, LeftOutError, StalledError
from troth.protocol.core.records import StepRecord, decode_record, encode_record
from troth.protocol.core.roles import gradient_seed
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.recovery.member import Member
from troth.protocol.step.step import run_step
from troth.protocol.wire.frames import CertifiedRecord, Packet, RestartCertificate, Value
from troth.simulation.chaos.faults import Deliver, Network, deliveries
from troth.simulation.chaos.memory_probe import MeasuredLink, held_bytes
from troth.simulation.chaos.virtual_time import VirtualLink, VirtualTime, Watch
from troth.simulation.lockstep.drop_outs import DropOut, DroppingChannel, PowerCutError
from troth.simulation.lockstep.memo import MemoPrimitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

Wrap = Callable[[PeerId, Channel], Channel]

# D coordinates

TASKS = (  # that a world may train; the first unless its plan says otherwise
    "quadratic:dimension=24",
    "quadratic:dimension=48",
    "factors:dimension=24",
    "factors:dimension=48",
    "quadratic:dimension=24,noise=0.00001",
)
TAU, _RATE = 0.1, 0.1
_TRIES = 4  # of somebody who comes back and finds nobody in a step
_MOST_EVENTS = 3_000_000
BOUNDS = Timeouts(stretch=4.0, room=1 << 22)
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
    intensity: Mapping[int, tuple[float, int]]  # how often they lie on the wire, and from which step on
    crashes: Mapping[int, DropOut]
    network: Network
    blackout: Mapping[int, DropOut] = field(default_factory=dict)  # when it goes for all honest peers, in one step
    confirmed: float = (
        60.0  # seconds after which people say that those who are honest are enough to begin anew (SPEC B5)
    )
    byzantine: int | None = None  # b, which the run promises to withstand; None: as many as lie
    task: str = TASKS[0]
    tau: float = TAU
    tau_auto: float | None = None
    waits: bool = False  # liars behave until somebody is gone
    liars_return: bool = False  # whoever of them was left out comes back

    @property
    def lying(self) -> frozenset[int]:
        return frozenset(self.liars) | frozenset(self.forge_from)

    @property
    def shaky(self) -> frozenset[int]:
        """Honest peers whom power or network fails."""
        return (frozenset(self.crashes) | frozenset(self.blackout) | self.network.unreached) - self.lying

    @property
    def promised(self) -> int:
        return len(self.lying) if self.byzantine is None else self.byzantine

    @property
    def within(self) -> bool:
        """Within the full guarantee: of all members no more are faulty, lying or gone at any time, than was promised."""
        return len(self.lying | self.shaky) <= self.promised

    @property
    def fair(self) -> bool:
        """Whether the honest who stay outnumber the liars, and nobody who comes back finds a run without it."""
        bad, shaky = len(self.lying), len(self.shaky - self.blackout.keys())
        back = self.network.unreached or any(drop_out.down is not None for drop_out in self.crashes.values())
        if back and 2 * (bad + shaky) >= self.peers:
            return False
        return not bad + shaky or self.peers - bad - shaky >= bad + 2

    def __str__(self) -> str:
        lies = "; ".join(f"{number}: {', '.join(sorted(c)) or 'nothing'}" for number, c in sorted(self.liars.items()))
        return (
            f"{self.peers} peers, {self.steps} steps, liars on the wire {{{lies or 'none'}}}, in the protocol "
            f"{dict(self.attacks) or 'none'}, wrong gradients from step {dict(self.forge_from) or 'never'}, "
            f"crashes {dict(self.crashes) or 'none'}, blackout {dict(self.blackout) or 'none'}, {self.network}"
            f"{self._unusual}"
        )

    @property
    def _unusual(self) -> str:
        told = {
            f"b = {self.promised}": self.byzantine is not None,
            self.task: self.task != TASKS[0],
            f"tau {self.tau:g}": self.tau != TAU,
            f"tau auto {self.tau_auto}": self.tau_auto is not None,
            "liars wait until somebody is gone": self.waits,
            "liars come back": self.liars_return,
            "beyond the full guarantee": not self.within,
        }
        return "".join(f", {what}" for what, said in told.items() if said)


@dataclass
class World:
    """What happened."""

    plan: Plan
    run: Run
    numbers: Mapping[PeerId, int]  # of every key, later ones of the same peer included
    work: TrainingWork  # to recompute what was right
    outcomes: dict[int, dict[int, Outcome[Training]]] = field(
        default_factory=dict
    )  # of honest peers, by number and step
    stopped: Mapping[int, CannotGoOnError] = field(default_factory=dict)
    forged: set[tuple[bytes, int]] = field(default_factory=set)  # who sent a wrong gradient in which step
    lies: Counter[str] = field(default_factory=Counter)
    power_back: dict[int, float] = field(default_factory=dict)  # when, for those who had lost it
    left_step: dict[int, float] = field(
        default_factory=dict
    )  # when somebody knew that the others had gone on, or stopped
    said: dict[tuple[PeerId, Slot], set[Digest]] = field(default_factory=dict)  # by honest peers whom power fails
    most_held: int = 0  # bytes of others that a channel held at any time
    histories: dict[tuple[int, int], set[bytes]] = field(
        default_factory=dict
    )  # by step and incarnation: records that honest peers ever held
    packets: int = 0
    lost: int = 0
    doubled: int = 0
    seconds: float = 0.0
    _gradients: dict[tuple[int, PeerId], Tensor] = field(default_factory=dict)
    step_ends: dict[int, float] = field(default_factory=dict)  # when the first peer had ended a step
    timeouts: dict[int, set[Timeouts]] = field(default_factory=dict)  # by step, of survivors: two would be too many
    incarnations: dict[int, int] = field(default_factory=dict)  # in which each step was made last
    began: dict[int, float] = field(
        default_factory=dict
    )  # when each incarnation but the first did, for the first of them

    def name(self, peer: bytes) -> str:
        """Its number; a key that nobody here has is a stranger's."""
        return str(self.numbers.get(PeerId(peer), "a stranger"))

    @cached_property
    def honest(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, number in self.numbers.items() if number not in self.plan.lying)

    @cached_property
    def steady(self) -> frozenset[int]:
        """Honest peers whom neither network nor power fails."""
        return frozenset(range(self.plan.peers)) - self.plan.lying - self.plan.shaky

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Who is there in the end: the steady ones, and after a blackout those for whom the power came back."""
        return self.steady | frozenset(self.plan.blackout)

    @cached_property
    def witness(self) -> list[Outcome[Training]]:
        """Everything that the one saw who saw the most."""
        best = max((self.outcomes[number] for number in sorted(self.survivors)), key=len)
        return [best[step] for step in sorted(best)]

    @cached_property
    def records(self) -> list[StepRecord]:
        return [outcome.record for outcome in self.witness]

    def right_gradient(self, outcome: Outcome[Training], peer: PeerId) -> Tensor:
        """What the peer should have contributed to this step; more than one checker asks."""
        step = outcome.record.step
        if (step, peer) not in self._gradients:
            seed = gradient_seed(Digest(outcome.record.seed_randomness), peer)
            self._gradients[step, peer] = self.work.gradient_now(outcome.state.audit_records[step].training, seed)
        return self._gradients[step, peer]

    @property
    def majority_lost(self) -> bool:
        """Whether too few steady members were left for the step after the last, or to certify its record (SPEC U2)."""
        step = len(self.records)
        roster = self.witness[-1].state.roster if step else Roster.founding(self.run)
        last = self.witness[-1].state.last if step else None
        crashed = {number for number, drop_out in self.plan.crashes.items() if drop_out.step <= step}
        gone = crashed | self.plan.network.unreached
        steady = {peer for peer in self.honest if self.numbers[peer] not in gone}
        certifies = last is None or len(steady & set(last.record.members)) >= last.quorum
        return len(steady & set(roster.members)) < roster.quorum or not certifies


W = TypeVar("W", bound=TrainingWork)


class _FreshCoins(SeededEntropy):
    """Others whenever a step is made again, as real ones are: else nobody would notice what was signed twice."""

    def __init__(self, seed: int, number: int) -> None:
        super().__init__(seed, number)
        self._drawn: Counter[tuple[int, int]] = Counter()

    def coins(self, step: int, attempt: int) -> Coins:
        self._drawn[step, attempt] += 1
        return super().coins(step, attempt + 1000 * (self._drawn[step, attempt] - 1))


class NotedSignedSlots(SignedSlotsInMemory):
    """Takes down when the run begins anew."""

    def __init__(self, note: Callable[[int], object]) -> None:
        super().__init__()
        self._note = note

    def begins(self, begun: RestartCertificate) -> None:
        super().begins(begun)
        self._note(begun.incarnation)


class _NotedLink:
    """Takes down what was signed for which place, before and after a power cut."""

    def __init__(self, link: PacketLink, me: PeerId, said: dict[tuple[PeerId, Slot], set[Digest]]) -> None:
        self._me = me
        self._said = said
        self._link = link
        self.now, self.receive, self.gone = link.now, link.receive, link.gone

    def send(self, to: PeerId, packet: Packet) -> None:
        self._link.send(to, packet)
        if isinstance(packet.frame, Value):
            self._said.setdefault((self._me, packet.slot), set()).add(blob_digest(packet.frame.envelope.payload))


class _SlowWork(TrainingWork):
    """Takes its time for gradients."""

    def takes(self, seconds: float, link: VirtualLink) -> "_SlowWork":
        self._seconds, self._link = seconds, link
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        if self._seconds:
            await self._link.work(self._seconds)
        return await super().gradient(training, seed, step)


class _LyingWork(TrainingWork):
    """Turns its gradients round from some step on."""

    def lie_from(self, me: PeerId, step: int, forged: set[tuple[bytes, int]]) -> "_LyingWork":
        self._me, self._from, self._forged = me, step, forged
        self.free: Callable[[], bool] = lambda: True
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        honest_D = await super().gradient(training, seed, step)
        if step < self._from or not self.free():
            return honest_D
        self._forged.add((self._me, step))
        return honest_D * FORGED


def play(plan: Plan, watch: Watch | None = None, wrap: Wrap | None = None) -> World:
    """Run a plan to its end; `wrap` may put something around every peer's channel, to listen."""
    return _Stage(plan, watch, wrap).play()


class _Stage:
    """Everything that the peers of a world are made of."""

    def __init__(self, plan: Plan, watch: Watch | None, wrap: Wrap | None) -> None:
        self.plan = plan
        self.wrap = wrap
        self.tools = MemoPrimitives()
        self.problem = Problem(make_task(plan.task), lanes_for=plan.peers)
        self.identities = [Identity.from_secret(derive(plan.seed, "identity", k)) for k in range(plan.peers)]
        self.successors = {
            number: Identity.from_secret(derive(plan.seed, "incarnation", number))
            for number, cut in plan.crashes.items()
            if not cut.journal
        }
        keys = {identity.peer: number for number, identity in enumerate(self.identities)}
        numbers = {**keys, **{identity.peer: number for number, identity in self.successors.items()}}
        parameters = Parameters(size=self.problem.size, tau=plan.tau, byzantine=plan.promised, tau_auto=plan.tau_auto)
        self.run = Run(tuple(sorted(keys)), b"chaos", parameters, derive(plan.seed, "run"))
        self.world = World(plan, self.run, numbers, self.work(TrainingWork))
        self.time: VirtualTime[None] = VirtualTime(_deliveries(plan, numbers), watch)
        self.links: list[LyingLink] = []
        self.board: dict[Any, Any] = {}
        self.channels: dict[int, AgreedChannel] = {}  # of honest peers, the last of each
        self.stopped_at: float | None = None  # when somebody first knew that the run had stopped
        self.certified: dict[int, set[bytes]] = {}  # records that honest peers could prove

    def work(self, kind: Callable[..., W]) -> W:
        rates = SCHEDULES["constant"](_RATE, self.plan.steps)
        return kind(self.problem, OPTIMIZERS["sgd"](), rates, self.tools)

    def play(self) -> World:
        world, plan = self.world, self.plan
        lives: dict[PeerId, Coroutine[Any, Any, None]] = {}
        for number, identity in enumerate(self.identities):
            if number in plan.lying:
                lives[identity.peer] = self.liar(number, identity)
            else:
                world.outcomes[number] = {}
                lives[identity.peer] = self.honest(number, identity)
        until = [identity.peer for number, identity in enumerate(self.identities) if number in world.survivors]
        self.time.run(lives, most_events=_MOST_EVENTS, until=until)
        for number in world.outcomes:
            self._discard_made_again(number)
        world.stopped = {world.numbers[peer]: why for peer, why in self.time.stopped.items()}
        world.packets, world.lost, world.doubled = self.time.packets, self.time.lost, self.time.doubled
        world.seconds = self.time.now
        for link in self.links:
            world.lies.update(link.lies)
        return world

    # Honest peers

    async def honest(self, number: int, identity: Identity) -> None:
        plan, clock, journal = (
            self.plan,
            self.plan.network.clocks.get(number, (0.0, 0.0)),
            NotedSignedSlots(self._began),
        )
        cut = plan.crashes.get(number, plan.blackout.get(number))
        link = self.time.link(identity.peer, *clock)

        def channel(who: Identity, *, observing: bool = True) -> AgreedChannel:
            mine: PacketLink = link if who is identity else self.time.link(who.peer, *clock, home=identity.peer)
            if cut:
                mine = _NotedLink(mine, who.peer, self.world.said)
            mine = MeasuredLink(mine, look)
            self.channels[number] = AgreedChannel(who, mine, BOUNDS, self.tools, journal, observing=observing)
            return self.channels[number]

        def look() -> int:
            held = held_bytes(self.channels[number])
            self.world.most_held = max(self.world.most_held, held)
            return held

        def opened(who: Identity) -> AgreedChannel:
            return cast(AgreedChannel, self._wrapped(who.peer, channel(who)))

        entropy = _FreshCoins(plan.seed, number)
        certified = self.certified.setdefault(number, set())

        def make_member(
            state: State[Training],
            outer: Channel,
            certified: Sequence[CertifiedRecord] = (),
            past: Sequence[State[Training]] = (),
        ) -> Member[Training]:
            work = self.work(_SlowWork).takes(plan.network.slow.get(number, 0.0), link)
            peer = Peer(identity, self.run, work, self._wrapped(identity.peer, outer), entropy, self.tools)
            member = Member(peer, state, opened, certified=certified, past=past, restart_with=self.confirmed)
            member.write_down = prove
            return member

        def prove(made: Sequence[CertifiedRecord]) -> None:
            certified.update(link.record for link in made)
            for link in made:
                record = decode_record(link.record)
                self.world.histories.setdefault((record.step, record.incarnation), set()).add(link.record)

        def power_goes(seconds: float) -> None:
            link.break_in(seconds, PowerCutError("stopped amid a step"))

        inner = channel(identity, observing=False)
        first = State.first(self.run, self.world.work.first(derive(plan.seed, "model")))
        member, successor = (
            make_member(first, DroppingChannel(inner, cut, power_goes) if cut else inner),
            self.successors.get(number, identity),
        )

        async def powered(member: Member[Training]) -> tuple[Member[Training], AgreedChannel]:
            """When power is back: where it stood, if it has its journal, else at the beginning."""
            assert cut is not None
            assert cut.down is not None
            await link.off(cut.down)
            self.world.power_back[number] = self.time.now
            again = channel(identity, observing=False)
            again.next_timeouts = inner.next_timeouts  # it lasts as long as the state does
            return (
                make_member(member.state, again, member.certified, member.past)
                if cut.journal
                else make_member(first, again)
            ), again

        def goes_off_for_good() -> bool:
            return cut is None or cut.down is None

        try:
            await self._note(number, member.take_part(inner))
            return
        except PowerCutError:
            if goes_off_for_good():
                raise
            member, again = await powered(member)
            here = (member.state.incarnation, member.state.step)
            signed_nothing = (journal.last_incarnation, journal.last_step) < here
            if cut is not None and cut.journal and signed_nothing:  # simply go on
                with suppress(LeftOutError, StalledError):
                    await self._note(number, member.take_part(again))
                    return
        except (LeftOutError, StalledError):
            if number in self.world.steady and not plan.blackout:
                raise
        self.world.left_step[number] = self.time.now
        self.stopped_at = self.time.now if self.stopped_at is None else self.stopped_at
        for tries in range(_TRIES):
            try:  # as `troth join` does, which tries again until it is stopped
                await self._note(number, member.come_back(successor))
                return
            except (LeftOutError, StalledError):
                if tries == _TRIES - 1:
                    raise
            except PowerCutError:  # while this peer was in no step
                if goes_off_for_good():
                    raise
                member, _ = await powered(member)

    def confirmed(self) -> int | None:
        """People talk to each other after a while, and agree on beginning with those who are honest."""
        if self.stopped_at is None or self.time.now < self.stopped_at + self.plan.confirmed:
            return None
        return self.plan.peers - len(self.plan.lying)

    def _began(self, incarnation: int) -> None:
        self.world.began.setdefault(incarnation, self.time.now)

    async def _note(self, number: int, steps: AsyncIterator[Outcome[Training]]) -> None:
        async for outcome in steps:
            channel, world, record = self.channels[number], self.world, outcome.record
            step = record.step
            self._discard(number, step)
            world.outcomes[number][step] = outcome
            if record.incarnation > world.incarnations.get(step, -1):  # what was made before was thrown away
                world.incarnations[step], world.step_ends[step] = record.incarnation, self.time.now
                world.timeouts.pop(step, None)
            latest = record.incarnation == world.incarnations[step]
            if number in world.survivors and not outcome.observed and latest:
                world.timeouts.setdefault(step, set()).add(channel.timeouts)
            if step >= self.plan.steps - 1:
                return

    def _discard(self, number: int, step: int) -> None:
        """What this peer held and could not prove, when it goes on elsewhere than right after it (SPEC U2)."""
        held = self.world.outcomes[number]
        if held and max(held) != step - 1:
            for old, outcome in list(held.items()):
                if old >= step or encode_record(outcome.record) not in self.certified[number]:
                    del held[old]

    def _discard_made_again(self, number: int) -> None:
        """What the others made again, and had to: this peer, if it came back at all, came too late to show it (SPEC B5, B6)."""
        held, founding = self.world.outcomes[number], Roster.founding(self.run)
        rosters = {step + 1: outcome.state.roster for step, outcome in held.items()}
        for step, outcome in list(held.items()):
            made_again = outcome.record.incarnation < self.world.incarnations[step]
            if made_again and self._may_be_lost(outcome.record, rosters.get(step, founding)):
                del held[step]

    def _may_be_lost(self, record: StepRecord, roster: Roster) -> bool:
        """Whether those who could prove it were so few that the rest may begin without them, and still in the dark then."""
        world, raw, quorum = self.world, encode_record(record), max(len(record.members) // 2, roster.liars) + 1
        proving = [number for number, certified in self.certified.items() if raw in certified]
        later = [when for incarnation, when in world.began.items() if incarnation > record.incarnation]
        began = min(later, default=math.inf)
        dark = {number for number in self.plan.blackout if world.power_back.get(number, math.inf) > began}
        return dark.issuperset(proving) and len(proving) < quorum - roster.liars

    def _wrapped(self, peer: PeerId, channel: Channel) -> Channel:
        return channel if self.wrap is None else self.wrap(peer, channel)

    # Liars

    async def liar(self, number: int, identity: Identity) -> None:
        plan, link = self.plan, self.time.link(identity.peer)
        draw = stream(plan.seed, "liar", number)
        fellows = {self.identities[k].peer: self.identities[k] for k in plan.lying - {number}}
        behaviours = plan.liars.get(number, frozenset())
        lying_link = LyingLink(link, identity, behaviours, *plan.intensity[number], draw, fellows)
        self.links.append(lying_link)
        journal = SignedSlotsInMemory()
        inner = LateChannel(identity, lying_link, BOUNDS, self.tools, journal)
        lying_link.follow(inner)
        channel: Channel = inner

        def free() -> bool:
            """Whoever has just come back is audited (SPEC B4), and behaves."""
            back = any(peer == identity.peer and when == state.step - 1 for when, peer in state.roster.returns)
            return not back and (not plan.waits or len(state.roster.members) < plan.peers)

        lying_link.free = free
        collusion: Collusion | None = None
        if number in plan.attacks:
            attack, start = make_attack(plan.attacks[number]), plan.intensity[number][1]
            colluders = frozenset(self.identities[k].peer for k in plan.lying)
            collusion = Collusion(
                attack, colluders, self.run, lambda step: step >= start and free(), self.board, lambda: state
            )
            channel = attack.behaviour(inner, identity.peer, collusion)
        work = self.work(_LyingWork).lie_from(identity.peer, plan.forge_from.get(number, plan.steps), self.world.forged)
        work.free = free
        entropy = _FreshCoins(plan.seed, number)
        peer = Peer(identity, self.run, work, self._wrapped(identity.peer, channel), entropy, self.tools)
        state = State.first(self.run, work.first(derive(plan.seed, "model")))
        try:
            for _ in range(plan.steps):
                state = (await run_step(peer, state)).state
                if peer.me not in state.roster.members:
                    return
        except (LeftOutError, StalledError):
            if not (plan.blackout or plan.liars_return):
                raise

            def opened(who: Identity) -> AgreedChannel:
                if not plan.liars_return or collusion is None:
                    return AgreedChannel(who, lying_link, BOUNDS, self.tools, journal, observing=True)
                late = LateChannel(who, lying_link, BOUNDS, self.tools, journal, observing=True)
                return cast(AgreedChannel, collusion.attack.behaviour(late, who.peer, collusion))

            member = Member(peer, state, opened, plan.steps)
            while True:
                try:
                    async for outcome in member.come_back(identity):
                        state = outcome.state
                    return
                except (LeftOutError, StalledError):
                    if not plan.liars_return:
                        raise


def _deliveries(plan: Plan, numbers: Mapping[PeerId, int]) -> Deliver:
    """Between honest peers as the network is; liars' packets come when they like."""
    when = {"late": (0.0, 4.0), "just-in-time": (0.9, 1.0)}
    late = {
        number: when[behaviour]
        for number, behaviours in plan.liars.items()
        for behaviour in sorted(behaviours & when.keys())
    }
    return deliveries(plan.network, plan.seed, numbers, late)
