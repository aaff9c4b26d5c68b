"""Stage: everything that the peers of a world share: run, keys, network, virtual time and the model they train."""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from troth.crypto import Identity, PeerId, Seed, derive
from troth.protocol.broadcast.signed_slots import SignedSlots
from troth.protocol.core.channel import Channel, Noticed
from troth.protocol.core.coins import Coins, SeededEntropy
from troth.protocol.core.record_keys import RecordKeys
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import State
from troth.protocol.recovery.builder import PeerBuilder
from troth.simulation.chaos.faults import Deliver, deliveries
from troth.simulation.chaos.plan import Plan
from troth.simulation.chaos.recorder import Recorder
from troth.simulation.chaos.virtual_time import VirtualTime, Watch
from troth.simulation.chaos.world import BOUNDS, World
from troth.simulation.lockstep.memo import MemoPrimitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

Wrap = Callable[[PeerId, Channel, Noticed], Channel]
Alter = Callable[[Tensor, Training, Seed, int], Awaitable[Tensor]]

_RATE = 0.1
_TICKET_BITS = 4
_NAMES = 12  # of a stranger that comes under many: more than members answer in a step
_LATENESS = {"late": (0.0, 4.0), "just-in-time": (0.9, 1.0)}  # deltas that packets of such liars take


class Stage:
    """Builds what all peers of a plan share. `wrap` may put something around every peer's channel, to listen."""

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
        )
        founders = sorted(identity.peer for identity in self.identities[: plan.peers])
        self.run = Run(tuple(founders), b"chaos", parameters, derive(plan.seed, "run"))
        self.world = World(plan, self.run, numbers, self.work())
        self.time: VirtualTime[None] = VirtualTime(_deliveries(plan, numbers), watch)
        self.recorder = Recorder(self.world, self.time)
        self.board: dict[Any, Any] = {}  # shared by all liars

    def work(self, alter: Alter | None = None) -> TrainingWork:
        rates = SCHEDULES["constant"](_RATE, self.plan.steps)
        training = self._problem, OPTIMIZERS["sgd"](), rates, self.tools
        return TrainingWork(*training) if alter is None else AlteredWork(*training, alter=alter)

    def record_keys(self, number: int, lost: int = 0) -> RecordKeys | None:
        """Record keys of a peer that has lost all it had so many times."""
        made = itertools.count()
        draw = partial(derive, self.plan.seed, "record key", number, lost)
        return RecordKeys(make=lambda: Identity.from_secret(draw(next(made)))) if self.plan.rekey_every else None

    def first_state(self) -> State[Training]:
        work = self.world.work
        training = work.first(derive(self.plan.seed, "model"))
        return State.first(self.run, training, work.digest(training))

    def ports(self, number: int) -> PeerBuilder[Training]:
        """What an honest peer is made of that nothing fails."""
        identity = self.identities[number]
        own = self.time.link(identity.peer)
        return PeerBuilder(
            run=self.run,
            work=self.work(),
            tools=self.tools,
            bounds=self.bounds,
            link=lambda key: own if key is identity else self.time.link(key.peer, home=identity.peer),
            slots=SignedSlots(),
            entropy=FreshCoins(self.plan.seed, number),
            record_keys=self.record_keys(number),
            outside=lambda opened, key: self.wrapped(key.peer, opened, opened),
        )

    def wrapped(self, peer: PeerId, channel: Channel, noticed: Noticed) -> Channel:
        return channel if self._wrap is None else self._wrap(peer, channel, noticed)


class AlteredWork(TrainingWork):
    """A peer's gradients, late or with something done to them."""

    def __init__(self, *training: Any, alter: Alter) -> None:
        super().__init__(*training)
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
