"""World: the record of everything that happened when a plan was played, for checkers to look at; and Stage, where it happened."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import NoneType
from typing import Any

import msgspec
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, derive
from troth.protocol.broadcast.link import PacketLink, SignedSlots
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel, Noticed
from troth.protocol.core.records import RecordKeys, StepRecord, decode_record, encode_record
from troth.protocol.core.roles import Coins, SeededEntropy, gradient_seed
from troth.protocol.core.roster import Roster, moves_with
from troth.protocol.core.run import CannotGoOnError, Parameters, Run
from troth.protocol.core.state import Outcome, State
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.wire.frames import CertifiedRecord, Packet, encode_in_pieces
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork
from troth.workshop.attacks.codes import leaning
from troth.workshop.chaos.plan import HONEST, Deliver, Plan, deliveries
from troth.workshop.chaos.virtual_time import VirtualLink, VirtualTime, Watch
from troth.workshop.simulation.primitives import MemoPrimitives

BOUNDS = Timeouts(stretch=4.0, memory=1 << 22)
FORGED = -10.0  # factor by which liars multiply their gradients


def forged(honest_D: Tensor, seed: Seed, plan: Plan) -> Tensor:
    """What a liar sends in place of this gradient: it turned around, rounded towards zero, or with one number that is huge."""
    if plan.leans:
        return leaning(honest_D, honest_D < 0)
    if not (spike := plan.spikes):
        return honest_D * FORGED
    sent_D = honest_D.clone()
    sent_D[int.from_bytes(seed[:4]) % len(sent_D)] = spike
    return sent_D


@dataclass
class World:
    """Everything that happened. Peers are named by their numbers, except where a key is given. Honest peers report to it."""

    plan: Plan
    run: Run
    numbers: Mapping[PeerId, int]  # of every key, successor keys included
    work: TrainingWork  # to recompute right gradients
    time: VirtualTime[None]
    outcomes: dict[int, dict[int, Outcome[Training]]] = field(default_factory=dict)  # of honest peers, by step
    # Every record that an honest peer ever wrote, by step and incarnation, and who wrote it.
    written: dict[tuple[int, int], dict[bytes, set[int]]] = field(default_factory=dict)
    stopped: Mapping[int, CannotGoOnError] = field(default_factory=dict)
    forged: set[tuple[bytes, int]] = field(default_factory=set)  # sender and step of every wrong gradient
    lies_of: dict[PeerId, Mapping[str, int]] = field(default_factory=dict)  # on the wire, by the liar's first key
    power_back: dict[int, float] = field(default_factory=dict)  # when power came back, for peers that had lost it
    left_step: dict[int, float] = field(default_factory=dict)  # when a peer knew that the others went on or stopped
    said: dict[tuple[PeerId, Slot], set[Digest]] = field(default_factory=dict)  # by honest peers with a power cut
    most_held: int = 0  # bytes from others that a channel held at any time
    # Every record that an honest peer ever held certified, by step and incarnation.
    histories: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    _gradients: dict[tuple[int, PeerId], Tensor] = field(default_factory=dict)
    step_ends: dict[int, float] = field(default_factory=dict)  # when the first peer had ended a step
    timeouts: dict[int, set[Timeouts]] = field(default_factory=dict)  # by step, of survivors: more than one is a bug
    incarnations: dict[int, int] = field(default_factory=dict)  # the last incarnation that made each step
    began: dict[int, float] = field(default_factory=dict)  # when the first peer entered each incarnation but the first
    _certified: defaultdict[int, set[bytes]] = field(
        default_factory=lambda: defaultdict(set)
    )  # records that each could prove
    _stopped_at: float | None = None  # when a peer first knew that the run had stopped

    def name(self, peer: bytes) -> str:
        """The peer's number, or "a stranger" for a key that no peer of this world has."""
        return str(self.numbers.get(PeerId(peer), "a stranger"))

    @property
    def lies(self) -> Counter[str]:
        """Lies on the wire, by behaviour."""
        return sum(map(Counter, self.lies_of.values()), Counter[str]())

    @cached_property
    def honest(self) -> frozenset[PeerId]:
        lying = self.plan.lying | {number for number, (_, how) in self.plan.strangers.items() if how != HONEST}
        return frozenset(peer for peer, number in self.numbers.items() if number not in lying)

    @cached_property
    def steady(self) -> frozenset[int]:
        """Honest peers that neither network nor power fails."""
        return frozenset(range(self.plan.peers)) - self.plan.lying - self.plan.shaky

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Peers there in the end: the steady ones, and after a blackout those whose power came back."""
        return self.steady | frozenset(self.plan.blackout)

    @cached_property
    def witness(self) -> list[Outcome[Training]]:
        """All outcomes of the survivor that saw the most steps, in order."""
        best = max((self.outcomes[number] for number in sorted(self.survivors)), key=len)
        return [best[step] for step in sorted(best)]

    @cached_property
    def records(self) -> list[StepRecord]:
        return [outcome.record for outcome in self.witness]

    @property
    def held(self) -> dict[int, dict[int, Outcome[Training]]]:
        """What each honest peer holds of every step, in the end. A stranger may have watched a step whose record nobody could
        prove, and that a restart made again: it goes on from there, as members do who were in both (SPEC B6)."""
        made = {outcome.record.step: outcome.record.incarnation for outcome in self.witness}

        def replaced(number: int, step: int, outcomes: dict[int, Outcome[Training]]) -> bool:
            mine, after = outcomes[step].record.incarnation, outcomes.get(step + 1)
            goes_on = after is not None and after.record.incarnation == mine
            return number in self.plan.strangers and mine < made.get(step, 0) and not goes_on

        return {
            number: {step: one for step, one in outcomes.items() if not replaced(number, step, outcomes)}
            for number, outcomes in self.outcomes.items()
        }

    def right_gradient(self, outcome: Outcome[Training], peer: PeerId) -> Tensor:
        """Gradient that the peer should have contributed to this step; computed once for all checkers."""
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
        gone = crashed | self.plan.network.unreached | self.plan.leaves.keys()
        steady = {peer for peer in self.honest if self.numbers[peer] not in gone}
        certifies = last is None or len(steady & set(last.record.members)) >= last.quorum
        return len(steady & set(roster.members)) < roster.quorum or not certifies

    @property
    def rests(self) -> bool:
        """Whether too few are left for an update, those who can still come back included (SPEC G3)."""
        if not self.records:
            return False
        roster = self.witness[-1].state.roster
        plan = self.plan
        for_good = {number for number, cut in plan.crashes.items() if cut.down is None} | plan.lying | plan.turncoats
        for_good |= {number for number, leave in plan.leaves.items() if leave.down is None}
        back = [
            gone for gone in roster.away if self.numbers.get(gone.peer) not in for_good | self.plan.network.loss.keys()
        ]
        count = len(roster.members) + len(back)
        return roster.paused and not moves_with(roster, count, self.run.parameters.validators)

    # What honest peers report, each under its number

    def step_ended(self, number: int, outcome: Outcome[Training], timeouts: Timeouts) -> None:
        record = outcome.record
        step = record.step
        self._discard_unproven(number, step)
        self.outcomes[number][step] = outcome
        self.written.setdefault((step, record.incarnation), {}).setdefault(encode_record(record), set()).add(number)
        if record.incarnation > self.incarnations.get(step, -1):  # earlier incarnations of the step were thrown away
            self.incarnations[step], self.step_ends[step] = record.incarnation, self.time.now
            self.timeouts.pop(step, None)
        latest = record.incarnation == self.incarnations[step]
        if number in self.survivors and not outcome.observed and latest:
            self.timeouts.setdefault(step, set()).add(timeouts)

    def certified(self, number: int, made: Sequence[CertifiedRecord]) -> None:
        """A peer holds these records with a quorum's signatures."""
        self._certified[number].update(link.record for link in made)
        for link in made:
            record = decode_record(link.record)
            self.histories.setdefault((record.step, record.incarnation), set()).add(link.record)

    def incarnation_began(self, incarnation: int) -> None:
        self.began.setdefault(incarnation, self.time.now)

    def went_on(self, number: int) -> None:
        """A peer knows that the others went on without it, or that the run has stopped."""
        self.left_step[number] = self.time.now
        self._stopped_at = self.time.now if self._stopped_at is None else self._stopped_at

    def confirmed(self) -> int | None:
        """Number of peers to restart with, once people have talked to each other and agreed on the honest ones."""
        if self._stopped_at is None or self.time.now < self._stopped_at + self.plan.confirmed:
            return None
        return self.plan.peers - len(self.plan.lying)

    # What the protocol lets them lose

    def finish(self) -> None:
        """Complete the world when time is over."""
        for number in self.outcomes:
            self._discard_made_again(number)
        self.stopped = {self.numbers[peer]: why for peer, why in self.time.stopped.items()}

    def _discard_unproven(self, number: int, step: int) -> None:
        """Drop what this peer held and could not prove, when it goes on elsewhere than right after it (SPEC U2)."""
        held = self.outcomes[number]
        if held and max(held) != step - 1:
            for old, outcome in list(held.items()):
                if old >= step or encode_record(outcome.record) not in self._certified[number]:
                    del held[old]

    def _discard_made_again(self, number: int) -> None:
        """Drop steps that the others had to make again, because this peer came too late to show them (SPEC B5, B6)."""
        held, founding = self.outcomes[number], Roster.founding(self.run)
        rosters = {step + 1: outcome.state.roster for step, outcome in held.items()}
        for step, outcome in list(held.items()):
            made_again = outcome.record.incarnation < self.incarnations[step]
            if made_again and self._may_be_lost(outcome.record, rosters.get(step, founding)):
                del held[step]

    def _may_be_lost(self, record: StepRecord, roster: Roster) -> bool:
        """Whether the peers that could prove it were too few to hold up the rest, and still without power then."""
        raw, quorum = encode_record(record), max(len(record.members) // 2, roster.liars) + 1
        proving = [number for number, certified in self._certified.items() if raw in certified]
        later = [when for incarnation, when in self.began.items() if incarnation > record.incarnation]
        dark = {
            number
            for number in self.plan.blackout
            if self.power_back.get(number, math.inf) > min(later, default=math.inf)
        }
        return dark.issuperset(proving) and len(proving) < quorum - roster.liars


Wrap = Callable[[PeerId, Channel, Noticed], Channel]
Alter = Callable[[Tensor, Training, Seed, int], Awaitable[Tensor]]

_RATE = 0.1
_TICKET_BITS = 4
_NAMES = 12  # of a stranger that comes under many: more than members answer in a step
_LATENESS = {"late": (0.0, 4.0), "just-in-time": (0.9, 1.0)}  # deltas that packets of such liars take


class Stage:
    """Everything that the peers of a world share: run, keys, network, virtual time and the model they train.

    `wrap` may put something around every peer's channel, to listen.
    """

    def __init__(self, plan: Plan, watch: Watch | None, wrap: Wrap | None) -> None:
        self.plan = plan
        self.bounds = BOUNDS
        self.tools = MemoPrimitives()
        self._problem = Problem(make_task(plan.task), lanes_for=plan.peers)
        self._wrap = wrap
        count = plan.peers + len(plan.strangers)
        self.identities = [Identity.from_secret(derive(plan.seed, "identity", k)) for k in range(count)]
        self.successors = {
            number: Identity.from_secret(derive(plan.seed, "incarnation", number))
            for number, cut in plan.crashes.items()
            if not cut.journal
        }
        self.successors |= {number: Identity.from_secret(derive(plan.seed, "again", number)) for number in plan.leaves}
        self.names = {  # under which one machine knocks
            number: [Identity.from_secret(derive(plan.seed, "name", number, k)) for k in range(_NAMES)]
            for number, (_, how) in plan.strangers.items()
            if how == "flood"
        }
        keys = {identity.peer: number for number, identity in enumerate(self.identities)}
        keys |= {name.peer: number for number, names in self.names.items() for name in names}
        numbers = {**keys, **{identity.peer: number for number, identity in self.successors.items()}}
        parameters = Parameters(
            size=self._problem.size,
            tau=plan.tau,
            byzantine=plan.promised,
            tau_auto=plan.tau_auto,
            content_every=plan.content_every,
            probation=plan.probation,
            ticket_bits=_TICKET_BITS,
            rekey_every=plan.rekey_every or Parameters.rekey_every,
            code=plan.code,
            local_steps=plan.local_steps,
        )
        founders = sorted(identity.peer for identity in self.identities[: plan.peers])
        self.run = Run(tuple(founders), b"chaos", parameters, derive(plan.seed, "run"))
        self.time: VirtualTime[None] = VirtualTime(_deliveries(plan, numbers), watch)
        self.world = World(plan, self.run, numbers, self.work(), self.time)
        self._links = [self.time.link(identity.peer, *self._clock(k)) for k, identity in enumerate(self.identities)]
        self.board: dict[Any, Any] = {}  # shared by all liars

    def work(self, alter: Alter | None = None) -> TrainingWork:
        rates = SCHEDULES["constant"](_RATE, self.plan.steps)
        training = self._problem, OPTIMIZERS["sgd"](), rates, self.tools
        kind = TrainingWork if alter is None else partial(AlteredWork, alter=alter)
        return kind(*training, local_steps=self.plan.local_steps)

    def record_keys(self, number: int, lost: int = 0) -> RecordKeys | None:
        """Record keys of a peer that has lost all it had so many times."""
        made = itertools.count()
        draw = partial(derive, self.plan.seed, "record key", number, lost)
        return RecordKeys(make=lambda: Identity.from_secret(draw(next(made)))) if self.plan.rekey_every else None

    def first_state(self) -> State[Training]:
        work = self.world.work
        training = work.first(derive(self.plan.seed, "model"))
        return State.first(self.run, training, work.digest(training))

    def _clock(self, number: int) -> tuple[float, float]:
        """How far ahead, and how much faster: liars know the time."""
        return (0.0, 0.0) if number in self.plan.lying else self.plan.network.clocks.get(number, (0.0, 0.0))

    def link(self, number: int, key: Identity | None = None) -> VirtualLink:
        """A peer's end of the network, also under a later key; packets for all of its keys come to the same machine."""
        home = self.identities[number]
        if key is None or key is home:
            return self._links[number]
        return self.time.link(key.peer, *self._clock(number), home=home.peer)

    def ports(self, number: int) -> PeerBuilder[Training]:
        """What an honest peer is made of that nothing fails."""
        return PeerBuilder(
            run=self.run,
            work=self.work(),
            tools=self.tools,
            bounds=self.bounds,
            link=partial(self.link, number),
            slots=SignedSlots(),
            entropy=FreshCoins(self.plan.seed, number),
            record_keys=self.record_keys(number),
            outside=lambda opened, key: self.wrapped(key.peer, opened, opened),
        )

    def wrapped(self, peer: PeerId, channel: Channel, noticed: Noticed) -> Channel:
        return channel if self._wrap is None else self._wrap(peer, channel, noticed)


class AlteredWork(TrainingWork):
    """A peer's gradients, late or with something done to them."""

    def __init__(self, *training: Any, alter: Alter, **options: Any) -> None:
        super().__init__(*training, **options)
        self._alter = alter

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        return await self._alter(await super().gradient(training, seed, step), training, seed, step)


class FreshCoins(SeededEntropy):
    """Tosses other coins whenever a step is made again, as real entropy does: else equivocations would go unnoticed."""

    def __init__(self, seed: int, number: int) -> None:
        super().__init__(seed, number)
        self._drawn: Counter[tuple[int, int]] = Counter()

    def coins(self, step: int, attempt: int) -> Coins:
        self._drawn[step, attempt] += 1
        return super().coins(step, attempt + 1000 * (self._drawn[step, attempt] - 1))


def _deliveries(plan: Plan, numbers: Mapping[PeerId, int]) -> Deliver:
    """Packets of honest peers take what the network takes; those of late liars come when they like."""
    late = {
        number: _LATENESS[behaviour]
        for number, behaviours in plan.liars.items()
        for behaviour in sorted(behaviours & _LATENESS.keys())
    }
    return deliveries(plan.network, plan.seed, numbers, late)


# Bytes from others that a channel holds, measured on the objects themselves and not by the channel's own account.

_BETWEEN = 1 << 17  # bytes that may come in between two measurements
_PLAIN = (str, int, float, NoneType)  # hold nothing
_OURS = "troth.protocol."
# Attributes of a channel that hold nothing from others.
_NOT_HELD = frozenset({"_identity", "signed_slots", "_link", "_tools", "_states", "bounds"})


def held_bytes(channel: object) -> int:
    """Bytes of all messages, frames and blobs reachable from the channel; each message counts once, with its encoded length."""
    total, seen, left = 0, set[int](), [channel]
    while left:  # a stack, since a world does this millions of times: generators in each other took twice as long
        value: Any = left.pop()
        if isinstance(value, bytes):
            total += len(value)
            continue
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, msgspec.Struct):
            total += len(msgspec.msgpack.encode(value))
        elif isinstance(value, list | tuple | set | frozenset):
            left.extend(value)
        elif isinstance(value, Mapping):
            left.extend(value.keys())
            left.extend(value.values())
        elif type(value).__module__.startswith(_OURS):
            left.extend(item for name, item in getattr(value, "__dict__", {}).items() if name not in _NOT_HELD)
    return total


class MeasuredLink:
    """A link that has its peer's memory measured whenever enough has come in, amid a step as well."""

    def __init__(self, link: PacketLink, measure: Callable[[], int]) -> None:
        self._link = link
        self._measure = measure
        self._received, self._between = 0, _BETWEEN
        self.now, self.send, self.gone = link.now, link.send, link.gone

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        # The more is held, the longer a measurement takes, and the less a little more matters.
        if self._received >= self._between:
            self._received, self._between = 0, max(_BETWEEN, self._measure() // 8)
        heard = await self._link.receive(until)
        if heard is not None:
            self._received += sum(map(len, encode_in_pieces(heard[1])))
        return heard
