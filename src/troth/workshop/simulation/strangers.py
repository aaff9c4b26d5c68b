"""Strangers of a simulated run: their search for tickets, what each of them does in a step, and what became of them.

The world is a reliable one: strangers are told the truth about the past, and what they show reaches every member. Whether it
counts is decided by members, each for itself, by the protocol's own code.
"""

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from troth.crypto import Digest, Identity, PeerId, Seed, Slot, derive, stream
from troth.protocol.broadcast.serving import Doorkeeper
from troth.protocol.core.channel import NothingNoticed
from troth.protocol.core.door import Door, misses_few, probe_bytes
from troth.protocol.core.records import Returned, StepRecord
from troth.protocol.core.roles import draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import Outcome, Peer, State, signed_request
from troth.protocol.recovery.requests import Tickets
from troth.protocol.step.attempt import StepContext, own_seed
from troth.protocol.step.step import committed_parts, run_step
from troth.protocol.wire.frames import ProbeShown, TicketShown
from troth.protocol.wire.messages import Phase, Probe, SignedRejoin, Ticket
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, finite_or_zero
from troth.workshop.attacks import AttackSchedule, Coalition
from troth.workshop.simulation.exchange import ReliableChannel
from troth.workshop.simulation.gradients import AskGradient, GradientPool, PooledWork
from troth.workshop.simulation.stranger_specs import (
    STRATEGIES,
    Committed,
    Copies,
    Doing,
    Due,
    Names,
    Old,
    Strangers,
    Zeros,
)

# B liars, H honest peers, D coordinates, T steps of a probation

TICKET_BITS = 4  # work in a ticket: a simulated world asks for little
# Hashes of one machine in a step: everyone that waits for a draw has a ticket, but for one in four thousand.
HASHES = 1 << 7
_AT_ONCE = 16  # hashes that an attacker tries under one name before it goes on to the next


class SimulatedStranger:
    """A newcomer on its way in: outside, on probation, a member, away (SPEC J3–J7, B3). What it does is decided by its kind.

    Outside it knows the public records, and has no model. With a slot it gets the state and observes every step by the members'
    own code, as a peer that comes back does; everything it says is signed by its key and judged by members.
    """

    def __init__(self, number: int, kind: Strangers, knocks: int, peer: Peer[Training]) -> None:
        self.number = number
        self.kind = kind
        self.knocks = knocks  # the step before which it comes to the door
        self.me = peer.me
        self.peer = peer  # as a member; a liar's channel is wrapped
        self.tickets = Tickets(peer.run.id, peer.identity, "")
        self.state: State[Training] | None = None  # since it has a slot
        self.doing = Doing.WORK  # in this step
        self.since: int | None = None  # first step as a member, or as one again
        self.out = False  # for good: banned, expelled, or disconnected

    def held(self) -> State[Training]:
        assert self.state is not None
        return self.state

    @property
    def observer(self) -> Peer[Training]:
        """The same, as long as it only listens: what it computes goes into no aggregate."""
        assert isinstance(self.peer.work, PooledWork)
        silent = ReliableChannel(None, self.peer.tools)
        return replace(self.peer, work=self.peer.work.for_candidate(), channel=silent, observing=True)

    def attacks(self, _step: int) -> bool:
        return self.doing is Doing.ATTACK

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
        root = committed_parts(context, gradient_D).root
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


class Party:
    """All strangers of one spec."""

    def __init__(self, spec: str, kind: Strangers, first: int, seed: int) -> None:
        self.spec = spec
        self.kind = kind
        self.numbers = tuple(range(first, first + kind.count))  # after the founders
        self.identities = [Identity.from_secret(derive(seed, "stranger", number)) for number in self.numbers]
        self.strangers: list[SimulatedStranger] = []  # once the run is there
        self._hashes = 0.0  # that an attacker has not spent yet
        self._next = 0  # name to try next

    def outside(self, step: int) -> list[SimulatedStranger]:
        return [stranger for stranger in self.strangers if stranger.is_outside(step)]

    def search(self, door: Door, step: int, others: int) -> Iterator[tuple[SimulatedStranger, Ticket]]:
        """Tickets to show: the best that each stranger outside has found so far. `others`: how many search besides this party."""
        for stranger, hashes in self._dealt(self.outside(step), others):
            found = stranger.tickets.search(door, hashes)
            if found is not None:
                yield stranger, found

    def _dealt(self, outside: Sequence[SimulatedStranger], others: int) -> Iterable[tuple[SimulatedStranger, int]]:
        """Hashes that are tried under each name: everyone has a machine of its own, but an attacker with many names has its share
        of all hashing, and tries one name after another."""
        if not isinstance(self.kind, Names):
            return [(stranger, HASHES) for stranger in outside]
        if not outside:
            return []
        share = self.kind.hash_share
        self._hashes += share / (1 - share) * HASHES * max(1, others)
        turns = int(self._hashes // _AT_ONCE)
        self._hashes -= turns * _AT_ONCE
        dealt = [(outside[(self._next + turn) % len(outside)], _AT_ONCE) for turn in range(turns)]
        self._next = (self._next + turns) % len(outside)
        return dealt

    def decide(self, state: State[Training]) -> None:
        """Decide what each of them does in the step that begins at this state."""
        if isinstance(self.kind, Names):
            self._share_machines(self.kind, state)
            return
        for stranger in self.strangers:
            since = stranger.since
            stranger.doing = self.kind.doing(None if since is None else state.step - since, state.step)

    def _share_machines(self, kind: Names, state: State[Training]) -> None:
        """Spend the machines of an attacker with many names on the gradients that its strategy wants to work."""
        mine = {stranger.me: stranger for stranger in self.strangers if stranger.state is not None}
        run = self.strangers[0].peer.run
        roles = draw_roles(run, state.roster, state.randomness, state.pending_audits)
        candidates = [candidate for candidate in state.roster.door.candidates if candidate.key in mine]
        due = Due(
            seats=len(mine.keys() & set(state.roster.members)),
            contributors=[peer for peer in roles.owners if peer in mine],
            begun=[PeerId(candidate.key) for candidate in candidates if candidate.worked],
            fresh=[PeerId(candidate.key) for candidate in candidates if not candidate.worked],
            spare=[PeerId(candidate.key) for candidate in candidates if candidate.worked and misses_few(candidate, 1)],
        )
        chosen = STRATEGIES[kind.strategy](due, kind.machines)
        for peer, stranger in mine.items():
            stranger.doing = _doing(peer, chosen, is_candidate=peer in state.roster.door.keys)


def make_parties(specs: Iterable[tuple[str, Strangers]], first: int, seed: int) -> list[Party]:
    parties: list[Party] = []
    for spec, kind in specs:
        parties.append(Party(spec, kind, first, seed))
        first += kind.count
    return parties


def _doing(peer: PeerId, chosen: Committed, *, is_candidate: bool) -> Doing:
    if peer in chosen.faked:
        return Doing.FAKE
    return Doing.STAY_AWAY if is_candidate and peer not in chosen.worked else Doing.WORK


@dataclass
class DoorCourse:
    """One stranger's way, read off the records; steps as these count them."""

    peer: int
    strangers: str  # the spec that brought it
    knocked: int
    seated: list[int] = field(default_factory=list)
    worked: int = 0  # gradients that it committed to on probation
    missed: int = 0  # steps of its probation in which it did not, since it began
    lost: list[int] = field(default_factory=list)  # its slot, without a ban
    admitted: int | None = None
    left: list[int] = field(default_factory=list)  # its seat, without a ban
    returned: list[int] = field(default_factory=list)
    banned: int | None = None
    member: bool = False  # in the end


class Chronicle:
    """Courses of all strangers of a run."""

    def __init__(self, run: Run, parties: Sequence[Party]) -> None:
        self._probation = run.parameters.probation
        self._slots = run.parameters.slots
        self._parties = tuple(parties)
        self._courses = {
            stranger.me: DoorCourse(stranger.number, party.spec, stranger.knocks)
            for party in parties
            for stranger in party.strangers
        }

    def note(self, record: StepRecord, before: Roster, after: Roster) -> tuple[str, ...]:
        """Read a step's record, and tell what happened at the door in it."""
        events = [] if record.closing else list(self._knocks(record.step))
        for key in sorted(self._courses.keys() & {*_concerned(record), *before.door.keys}):
            events += self._events(key, self._courses[key], record, before)
        for key, course in self._courses.items():
            course.member = key in after.members
        return tuple(events)

    def probation(self, record: StepRecord) -> tuple[tuple[int, int], ...]:
        """Candidates, and how many steps they have worked."""
        worked = [(self._courses.get(PeerId(c.key)), c.worked) for c in record.candidates]
        return tuple((course.peer, steps) for course, steps in worked if course is not None)

    def _knocks(self, step: int) -> Iterator[str]:
        for party in self._parties:
            come = [stranger.number for stranger in party.strangers if stranger.knocks == step]
            if come:
                who = f"peer{come[0]} knocks" if len(come) == 1 else f"peer{come[0]} to peer{come[-1]} knock"
                yield f"{who} at the door ({party.spec})"

    def _events(self, key: PeerId, course: DoorCourse, record: StepRecord, before: Roster) -> Iterator[str]:
        step, peer, T = record.step, course.peer, self._probation
        worked = {candidate.key: candidate.worked for candidate in record.candidates}
        course.worked += key in dict(record.probed)
        if key in record.banned:
            course.banned = step  # reported with all bans
        elif record.closing:
            pass  # nobody goes in or out any more
        elif key in {newcomer.key for newcomer in record.admitted}:
            course.admitted = step
            yield f"peer{peer} has worked through its probation, and is a member"
        elif key in {back.key for back in record.returned}:
            course.returned.append(step)
            yield f"peer{peer} is back, and a member again"
        elif key in worked and key not in before.door.keys:
            course.seated.append(step)
            yield f"peer{peer} has a slot: {T} steps on probation"
        elif key in before.door.keys and key not in worked:
            course.lost.append(step)
            had_begun = any(one.key == key and one.worked for one in before.door.candidates)
            how = "missed too many steps" if had_begun else "did not begin"
            yield f"peer{peer} {how} on probation, and loses its slot"
        elif key not in dict(record.probed):
            course.missed += worked.get(key, 0) > 0
        elif worked.get(key) == T // 2:
            yield f"peer{peer} is on probation: {T // 2} of {T} steps"
        elif worked.get(key) == T:
            yield f"peer{peer} has worked for {T} steps, and waits for a seat"
        if key in record.leaving - set(record.banned):
            course.left.append(step)  # reported with all who are absent

    def summary(self) -> dict[str, Any]:
        """What the run's summary says: each spec in sum, and every stranger by itself that came alone or ever had a slot."""
        sums = []
        for party in self._parties:
            courses = [self._courses[stranger.me] for stranger in party.strangers]
            sums.append(
                {
                    "strangers": party.spec,
                    "names": len(courses),
                    "seated": sum(bool(course.seated) for course in courses),
                    "admitted": sum(course.admitted is not None for course in courses),
                    "banned": sum(course.banned is not None for course in courses),
                    "members": sum(course.member for course in courses),
                }
            )
        crowds = {party.spec for party in self._parties if len(party.strangers) > self._slots}
        told = [asdict(course) for course in self._courses.values() if course.seated or course.strangers not in crowds]
        return {"probation": self._probation, "slots": self._slots, "came": sums, "strangers": told}


def _concerned(record: StepRecord) -> Iterator[PeerId]:
    """Keys to which something happened."""
    yield from record.banned
    yield from record.leaving
    yield from (PeerId(candidate.key) for candidate in record.candidates)
    yield from (PeerId(newcomer.key) for newcomer in record.admitted)
    yield from (PeerId(returned.key) for returned in record.returned)


class Ear(NothingNoticed):
    """`Noticed` of one member, by the protocol's own doorkeeper: tickets and commitments of strangers, and requests of newcomers
    that want to come back."""

    def __init__(self, tools: Primitives) -> None:
        self._doorkeeper = Doorkeeper(tools)
        self._step = 0
        self._rejoins: dict[PeerId, SignedRejoin] = {}  # for this step, one of each absent peer

    def stand(self, run: Digest, roster: Roster, step: int) -> None:
        """Stand at the door in this step."""
        self._step = step
        self._rejoins.clear()
        self._doorkeeper.stand(run, roster)
        self._doorkeeper.forget(step)

    def hear(self, sender: PeerId, slot: Slot, shown: TicketShown | ProbeShown) -> None:
        self._doorkeeper.hear(sender, slot, shown, self._step)

    def hear_request(self, request: SignedRejoin) -> None:
        self._rejoins.setdefault(PeerId(request.member), request)

    def tickets(self) -> Iterable[Ticket]:
        return self._doorkeeper.tickets

    def probes(self, step: int) -> Iterable[Probe]:
        return self._doorkeeper.probes(step)

    def rejoins(self, step: int) -> Iterable[SignedRejoin]:
        return list(self._rejoins.values()) if step == self._step else ()


class OpenGradientPool(GradientPool):
    """The pool of a run with an open door: strangers' gradients are computed with everyone else's in one call, or made up, old,
    copied, forged. What a stranger saves itself is not computed."""

    def __init__(self, *pool: Any, parties: Sequence[Party], liars: frozenset[PeerId], seed: Seed) -> None:
        super().__init__(*pool)
        self._liars = liars
        self._seed = seed
        self._strangers = {stranger.me: stranger for party in parties for stranger in party.strangers}
        self._coalitions = [
            (party, Coalition([party.kind.lie()], AttackSchedule(), party.numbers, derive(seed, "party", number)))
            for number, party in enumerate(parties)
            if party.kind.lies
        ]
        for _, coalition in self._coalitions:
            coalition.layout = self._problem.layout
        self._old: dict[PeerId, Tensor] = {}  # the only gradient that somebody computed

    def answer(self, asks: Mapping[PeerId, Any]) -> dict[PeerId, Tensor]:
        faking = [peer for peer in asks if peer in self._strangers and self._strangers[peer].doing is Doing.FAKE]
        computing = {peer: ask for peer, ask in asks.items() if peer not in faking or self._begins(peer)}
        rows = super().answer(computing) if computing else {}
        step = next(iter(asks.values())).step
        honest = [peer for peer in rows if peer not in self._liars and not asks[peer].probing]
        made_up = {peer: self._faked(peer, asks[peer], rows, honest) for peer in faking}
        forged = self._forged_by_parties(step, asks, rows, honest)
        changed = [peer for peer in (*made_up, *forged) if not asks[peer].probing]
        self.attackers |= {self._strangers[peer].number for peer in changed}
        answers = {**rows, **made_up, **forged}
        return {peer: answers[peer] for peer in asks}

    def _begins(self, peer: PeerId) -> bool:
        return isinstance(self._strangers[peer].kind, Old) and peer not in self._old

    def _faked(self, peer: PeerId, ask: AskGradient, rows: Mapping[PeerId, Tensor], honest: Sequence[PeerId]) -> Tensor:
        kind, like_D = self._strangers[peer].kind, ask.training.parameters_D
        if isinstance(kind, Zeros):
            return torch.zeros_like(like_D)
        if isinstance(kind, Old):
            return self._old.setdefault(peer, rows[peer] if peer in rows else torch.zeros_like(like_D))
        if isinstance(kind, Copies) and honest:
            return rows[honest[0]].clone()
        return torch.from_numpy(stream(self._seed, "noise", peer, ask.step).normal(len(like_D))).to(like_D)

    def _forged_by_parties(
        self, step: int, asks: Mapping[PeerId, AskGradient], rows: Mapping[PeerId, Tensor], honest: Sequence[PeerId]
    ) -> dict[PeerId, Tensor]:
        """Rows of the members that attack, party by party, knowing those of honest members."""
        forged: dict[PeerId, Tensor] = {}
        for party, coalition in self._coalitions:
            liars = [s for s in party.strangers if s.me in rows and s.doing is Doing.ATTACK]
            if liars and honest:
                own_BD = torch.stack([self._own(step, coalition, s.number, asks[s.me], rows[s.me]) for s in liars])
                honest_HD = torch.stack([rows[peer] for peer in honest])
                sent_BD = coalition.gradients(step, own_BD, honest_HD, [stranger.number for stranger in liars])
                forged |= {stranger.me: row_D for stranger, row_D in zip(liars, sent_BD, strict=True)}
        return forged

    def _own(self, step: int, coalition: Coalition, number: int, ask: AskGradient, row_D: Tensor) -> Tensor:
        """The liar's own gradient: the computed one, unless its attack poisons the batch."""
        batch = self._problem.batch(ask.seed)
        poisoned = coalition.batch(step, self._problem.task, batch, number)
        if poisoned is batch:
            return row_D
        if ask.walk is not None:
            return self._walked(ask.walk, step, coalition, number)[1]
        return finite_or_zero(self._problem.gradients(ask.training.parameters_D, [poisoned])[1][0])


class Company:
    """All strangers of a run from step to step, and the members' ears at its door."""

    def __init__(self, run: Run, parties: Sequence[Party], ears: Mapping[PeerId, Ear]) -> None:
        self.parties = tuple(parties)
        self.chronicle = Chronicle(run, parties)
        self._run = run
        self._ears = ears  # of founders and strangers; those of members hear
        self._listening: list[Ear] = []
        self._known: State[Training] | None = None  # at the start of the step before: its record is certified

    @property
    def strangers(self) -> Iterator[SimulatedStranger]:
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

    def _ask_back(self, stranger: SimulatedStranger) -> None:
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

    async def _step(self, stranger: SimulatedStranger) -> Outcome[Training]:
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
