"""One stranger on its way in: outside, on probation, a member, away (SPEC J3–J7, B3).

Outside it knows the public records, and has no model. With a slot it gets the state and observes every step by the members' own
code, as a peer that comes back does; everything it says is signed by its key and judged by members.
"""

from dataclasses import replace

from troth.crypto import Slot
from troth.protocol.core.door import probe_bytes
from troth.protocol.core.parts import commit_parts
from troth.protocol.core.records import Returned
from troth.protocol.core.rejoin import signed_request
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.recovery.knocking import Tickets
from troth.protocol.step.ahead import own_seed
from troth.protocol.step.context import StepContext
from troth.protocol.step.step import run_step
from troth.protocol.wire.messages import Phase, Probe, SignedRejoin
from troth.simulation.lockstep.door.specs import Doing
from troth.simulation.lockstep.pool import PooledWork
from troth.simulation.lockstep.reliable import ObserverChannel
from troth.training.work import Training


class Stranger:
    """A newcomer; what it does in a step is decided by its kind."""

    def __init__(self, number: int, knocks: int, peer: Peer[Training]) -> None:
        self.number = number
        self.knocks = knocks  # the step before which it comes to the door
        self.me = peer.me
        self.peer = peer  # as a member; a liar's channel is wrapped
        self.tickets = Tickets(peer.run.id, peer.identity, "")
        self.state: State[Training] | None = None  # since it has a slot
        self.doing = Doing.WORK  # in this step
        self.since: int | None = None  # first step as a member, or as one again
        self.out = False  # for good: banned, expelled, or broken off

    def held(self) -> State[Training]:
        assert self.state is not None
        return self.state

    @property
    def observer(self) -> Peer[Training]:
        """The same, as long as it only listens: what it computes goes into no aggregate."""
        assert isinstance(self.peer.work, PooledWork)
        silent = ObserverChannel(self.peer.tools)
        return replace(self.peer, work=self.peer.work.for_candidate(), channel=silent, observing=True)

    def is_outside(self, step: int) -> bool:
        """Whether it stands before the door, and has no slot."""
        return step >= self.knocks and self.state is None and not self.out

    @property
    def is_member(self) -> bool:
        return self.state is not None and self.me in self.state.roster.members

    @property
    def is_candidate(self) -> bool:
        return self.state is not None and self.me in self.state.roster.door.keys

    def sit_down(self, state: State[Training]) -> None:
        """Take the slot, with the state as members hold it; audit records come from observing (SPEC B4)."""
        fits = not state.content or self.peer.work.digest(state.training) == state.model
        assert fits, "the state does not fit its record"
        self.state = replace(state, audit_records={})

    def look(self, state: State[Training]) -> None:
        """Look where it stands after a step: with a slot or a seat, away, outside again, or out for good."""
        before, roster = self.is_member, state.roster
        self.out = self.me in {*roster.banned, *roster.ever_expelled}
        self.state = state if self.me in roster.may_ask and not self.out else None
        if not self.is_member:
            self.since = None
        elif not before:
            self.since = state.step

    async def observe(self) -> Outcome[Training]:
        """Hear a step, and say nothing in it."""
        return await run_step(self.observer, self.held())

    async def probe(self) -> Probe:
        """Commit to a gradient of this step, as a candidate does (SPEC J5)."""
        peer, state = self.observer, self.held()
        context = StepContext.at(peer, state)
        slot = context.slot(Phase.COMMIT)
        gradient_D = await peer.work.gradient(state.training, own_seed(context), state.step)
        root = commit_parts(gradient_D, context.roles.bounds, peer.tools).root
        return Probe(self.me, root, peer.identity.sign(probe_bytes(slot, self.me, root, peer.tools)))

    def request(self) -> SignedRejoin | None:
        """Ask for its seat again, as soon as it may come back (SPEC B3, B8)."""
        state, identity = self.held(), self.peer.identity
        roster, step = state.roster, state.step
        since = roster.absent_since(self.me)
        if since is None or not roster.may_return(Returned(self.me, self.me), step):
            return None
        slot = Slot(self.peer.run.id, step, Phase.REJOIN, incarnation=state.incarnation)
        return signed_request(slot, identity, identity, since)
