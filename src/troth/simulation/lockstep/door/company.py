"""All strangers of a run, and the members' ears at its door.

The world is a reliable one: strangers are told the truth about the past, and what they show reaches every member. Whether it
counts is decided by members, each for itself, by the protocol's own code.
"""

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from troth.crypto import PeerId, Slot
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.wire.frames import ProbeShown, TicketShown
from troth.protocol.wire.messages import Phase
from troth.simulation.lockstep.door.chronicle import Chronicle
from troth.simulation.lockstep.door.ears import Ear
from troth.simulation.lockstep.door.hand_ins import HandIns
from troth.simulation.lockstep.door.party import Party
from troth.simulation.lockstep.door.specs import Doing
from troth.simulation.lockstep.door.stranger import Stranger
from troth.training.work import Training


class Company:
    """Strangers from step to step: what they hand in, and what becomes of them."""

    def __init__(self, run: Run, parties: Sequence[Party], ears: Mapping[PeerId, Ear], hand_ins: HandIns) -> None:
        self.parties = tuple(parties)
        self.hand_ins = hand_ins
        self.chronicle = Chronicle(run, parties)
        self._run = run
        self._ears = ears  # of founders and strangers; those of members hear
        self._listening: list[Ear] = []
        self._known: State[Training] | None = None  # at the start of the step before: its record is certified

    @property
    def strangers(self) -> Iterator[Stranger]:
        return (stranger for party in self.parties for stranger in party.strangers)

    @property
    def attacks(self) -> bool:
        """Whether a member that came in by the door lies in this step."""
        return any(stranger.is_member and stranger.doing in (Doing.ATTACK, Doing.FAKE) for stranger in self.strangers)

    def begin_step(self, state: State[Training], states: Mapping[PeerId, State[Training]]) -> None:
        """Between two steps: members stand at the door; strangers look at the certified records, take their slots, search for
        tickets, ask for their seats again, and decide what to do. A record is certified by the next step's Commits, so strangers
        know all but the last one."""
        known, self._known = self._known or state, state
        self._listening = []
        for member in state.roster.members:
            ear = self._ears[member]
            ear.stand(self._run.id, states[member].roster, state.step)
            self._listening.append(ear)
        seated = known.roster.door.keys & state.roster.door.keys
        for stranger in self.strangers:
            if stranger.me in seated and stranger.is_outside(state.step):
                stranger.sit_down(state)
            elif stranger.state is not None and not stranger.is_member and not stranger.is_candidate:
                self._ask_back(stranger)
        self._knock(known, state.step)
        for party in self.parties:
            party.decide(state)

    def _knock(self, known: State[Training], step: int) -> None:
        waiting = {party: len(party.outside(step)) for party in self.parties}
        for party in self.parties:
            others = sum(waiting.values()) - waiting[party]
            for stranger, ticket in party.search(known.roster.door, step, others):
                slot = Slot(self._run.id, step, Phase.REJOIN)
                for ear in self._listening:
                    ear.hear(stranger.me, slot, TicketShown(ticket))

    def _ask_back(self, stranger: Stranger) -> None:
        request = stranger.request()
        if request is not None:
            for ear in self._listening:
                ear.hear_request(request)

    def members(self) -> dict[PeerId, Peer[Training]]:
        """Newcomers that are members, as they take part in this step: one that leaves only listens."""
        return {
            stranger.me: stranger.observer if stranger.doing is Doing.STAY_AWAY else stranger.peer
            for stranger in self.strangers
            if stranger.is_member
        }

    def observing(self) -> dict[PeerId, Coroutine[Any, Any, Outcome[Training]]]:
        """Steps of those who have no seat: candidates, and newcomers that are away."""
        present = [stranger for stranger in self.strangers if stranger.state is not None and not stranger.is_member]
        return {stranger.me: self._step(stranger) for stranger in present}

    async def _step(self, stranger: Stranger) -> Outcome[Training]:
        state = stranger.held()
        if stranger.is_candidate and stranger.doing is not Doing.STAY_AWAY:
            probe = await stranger.probe()
            slot = Slot(self._run.id, state.step, Phase.COMMIT, incarnation=state.incarnation)
            for ear in self._listening:
                ear.hear(stranger.me, slot, ProbeShown(probe))
        return await stranger.observe()

    def end_step(self, outcomes: Mapping[PeerId, Outcome[Training]]) -> None:
        """Let everyone look where it stands. A peer without an outcome could not go on."""
        for stranger in self.strangers:
            if stranger.me in outcomes:
                stranger.look(outcomes[stranger.me].state)
            elif stranger.state is not None:
                stranger.state, stranger.out = None, True
