"""A run with an open door, an attacker with many names, and honest strangers: who holds the seats in the end (SPEC J3–J7).

The rules are the protocol's own: `draw_roles`, `decide`, `Roster.after`. Gradients are abstract: a machine makes one in a step, the
attacker's so many as its `speed` says, and a name's gradient of a step is either worked or faked. Honest machines work for every seat and slot they hold. The attacker has a
share of all machines that are there, so its part grows as honest strangers arrive; it hashes with all of them besides, and plays as
many names as it has. A faked gradient that an honest member audits is a ban, as long as honest members are a quorum.

Tickets are drawn, not mined: the smallest of k hashes is distributed as 1 − (1 − U)^(1/k) of the whole range, so `drawn_race` needs
one random number for a name where `mined_race`, with the search that `troth join` makes, needs k hashes. A test holds both together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from troth.crypto import Digest, PeerId, derive
from troth.protocol.core.door import best_nonce, best_tickets, decide, misses_few, most_members, usual_slots
from troth.protocol.core.records import Judgement, StepRecord
from troth.protocol.core.roles import NO_PENDING_AUDITS, PendingAudits, Roles, draw_roles, first_randomness
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run, most_byzantine
from troth.protocol.wire.messages import NO_BASIS, ChargeKind, GuiltySide, Ticket
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation.stranger_specs import STRATEGIES, Due

FOUNDERS: Final = 16  # all of them honest
STEPS: Final = 2000
FETCH: Final = (
    4  # steps that an honest stranger needs for the state; the attacker has it after its first slot, and needs one
)
HASHES: Final = 1 << 14  # of one machine in a step: a sixth of a second of `Tickets.search` on a slow core

Spent = Mapping[PeerId, float]  # hashes that went into each name's ticket
Race = Callable[[Run, Roster, Spent, np.random.Generator], list[Ticket]]


@dataclass(frozen=True)
class Scene:
    """A run, and who comes to its door."""

    share: float  # α, the attacker's part of all machines
    names: int  # N, keys that the attacker has
    strategy: str = "works"
    probation: int = 128  # T
    validators: int = 1  # m
    slots: int | None = None  # None: as many as `troth new` gives such a run
    ticket_bits: int = Parameters.ticket_bits
    every: int = 64  # steps between two honest strangers
    edge: float | None = (
        None  # hashes of the attacker's machine for one of a laptop; None: it has α of the hash rate at the door
    )
    kept_away: bool = False  # tickets of honest strangers reach no member
    speed: float = 1.0  # gradients that the attacker's machine makes in a step
    hashes: int = HASHES
    steps: int = STEPS
    seed: int = 0

    @cached_property
    def run(self) -> Run:
        founders = tuple(sorted(self.keys("founder", FOUNDERS)))
        parameters = Parameters(
            size=1 << 20,
            tau=1.0,
            byzantine=most_byzantine(FOUNDERS, self.validators),
            validators=self.validators,
            probation=self.probation,
            slots=usual_slots(self.probation) if self.slots is None else self.slots,
            ticket_bits=self.ticket_bits,
        )
        return Run(founders, b"", parameters, derive(self.seed, "run"))

    def keys(self, purpose: str, count: int) -> list[PeerId]:
        return [PeerId(derive(self.seed, purpose, number)) for number in range(count)]

    def arrived(self, step: int) -> int:
        """Honest strangers that have come by then."""
        return step // self.every + 1

    def machines(self, step: int) -> float:
        """Gradients that the attacker can work in a step: with machines like all others, α of all that could be worked by those
        who are there."""
        return self.speed * self.share / (1 - self.share) * (FOUNDERS + self.arrived(step))

    @property
    def compute(self) -> float:
        """The attacker's share of all gradients that could be worked in a step."""
        mine = self.speed * self.share
        return mine / (mine + 1 - self.share)


# The race for slots


def drawn_race(run: Run, roster: Roster, spent: Spent, generator: np.random.Generator) -> list[Ticket]:
    """Best tickets of each name, as `best_tickets` would order them; the smallest hash of each is drawn from its distribution."""
    del run
    known = roster.known
    names = [key for key in spent if key not in known]
    hashes_N = np.array([spent[key] for key in names])
    smallest_N = -np.expm1(np.log1p(-generator.random(len(names))) / np.maximum(hashes_N, 1e-9))
    enough = [k for k in np.argsort(smallest_N) if smallest_N[k] < 2.0**-roster.door.ticket_bits]
    return [Ticket(names[k], 0, "", bytes(64)) for k in enough[: roster.door.slots]]


def mined_race(run: Run, roster: Roster, spent: Spent, generator: np.random.Generator) -> list[Ticket]:
    """The same with real tickets, searched as `troth join` does."""
    del generator
    seed = roster.door.seed
    found = [
        Ticket(key, best_nonce(run.id, seed, key, "", range(round(hashes)))[1], "", bytes(64))
        for key, hashes in spent.items()
        if round(hashes)
    ]
    return best_tickets(run.id, roster.door, found, roster.known, NamesThatSign())


class NamesThatSign(Primitives):
    """The names here are no keys: whatever is in their name counts as signed by them."""

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        return True


# The run


@dataclass
class Course:
    """What came of a run."""

    scene: Scene
    seats: list[int] = field(default_factory=list)  # of the attacker, after each step
    members: list[int] = field(default_factory=list)  # all seats
    joined: dict[PeerId, int] = field(default_factory=dict)  # honest strangers: steps from arrival to admission
    withstands: list[int] = field(default_factory=list)  # L, the most liars that the run reckons with
    banned: int = 0

    @property
    def shares(self) -> NDArray[np.float64]:
        return np.divide(self.seats, self.members, dtype=np.float64)

    @property
    def lost(self) -> int | None:
        """First step after which more seats are the attacker's than the run withstands (SPEC G1)."""
        pairs = zip(self.seats, self.withstands, strict=True)
        return next((step for step, (seats, liars) in enumerate(pairs) if seats > liars), None)

    @property
    def wait(self) -> float:
        """Median steps to join of those who came in the first half; infinite if half of them are still outside."""
        count = self.scene.arrived(self.scene.steps // 2)
        return median(self.joined.get(key, np.inf) for key in self.scene.keys("honest", count))


class World:
    """Plays a scene step by step."""

    def __init__(self, scene: Scene, race: Race = drawn_race) -> None:
        self.scene = scene
        self.course = Course(scene)
        self.roster = Roster.founding(scene.run)
        self._race = race
        self._names = scene.keys("attacker", scene.names)
        self._mine = frozenset(self._names)
        self._strangers = scene.keys("honest", scene.arrived(scene.steps))
        self._randomness, _ = first_randomness(scene.run)
        self._due = NO_PENDING_AUDITS
        self._faked: frozenset[PeerId] = frozenset()  # in the last step
        self._generator = np.random.default_rng(scene.seed)
        self._spent: dict[PeerId, float] = {}  # hashes of honest strangers since the last lottery
        self._power = 0.0  # those of the attacker

    def play(self) -> Course:
        for step in range(self.scene.steps):
            self._step(step)
        return self.course

    def _step(self, step: int) -> None:
        scene, roster = self.scene, self.roster
        roles = draw_roles(scene.run, roster, self._randomness, self._due)
        committed = STRATEGIES[scene.strategy](self._owed(roles), round(scene.machines(step)))
        self._hash(step)
        probed = sorted(self._honest_probes(step) | ((committed.worked | committed.faked) & roster.door.keys))
        guilty = self._found(roles)
        entrance = decide(
            roster.door,
            step,
            probed,
            self._tickets() if roster.door.is_lottery(step) else [],
            most=min(
                most_members(scene.run.parameters) - len(roster.members),
                roster.door.most_admitted(len(roster.members)),
            ),
            out=guilty,
            lenient=False,
        )
        record = StepRecord(
            step=step,
            members=roster.members,
            contributors=tuple(sorted(roles.owners)),
            roots=tuple(NO_BASIS for _ in roles.owners),
            parts=len(roles.owners),
            seed_randomness=NO_BASIS,
            randomness=derive(scene.seed, "draw", step),
            state_before=NO_BASIS,
            state_after=NO_BASIS,
            updated=True,
            updates=step + 1,
            tau=1.0,
            spread=1.0,
            length=1.0,
            norm=1.0,
            factor=1.0,
            judgements=tuple(_conviction(key, step - 1) for key in sorted(guilty)),
            candidates=entrance.candidates,
            probed=tuple((key, NO_BASIS) for key in probed),
            admitted=entrance.admitted,
        )
        self.roster, self._due = roster.after(record), PendingAudits.after(record)
        self._randomness, self._faked = Digest(record.randomness), committed.faked
        self._note(record)

    def _owed(self, roles: Roles) -> Due:
        candidates = [candidate for candidate in self.roster.door.candidates if candidate.key in self._mine]
        return Due(
            seats=len(self._mine.intersection(self.roster.members)),
            contributors=[peer for peer in roles.owners if peer in self._mine],
            begun=[PeerId(candidate.key) for candidate in candidates if candidate.worked],
            fresh=[PeerId(candidate.key) for candidate in candidates if not candidate.worked],
            spare=[PeerId(candidate.key) for candidate in candidates if candidate.worked and misses_few(candidate, 1)],
        )

    def _honest_probes(self, step: int) -> set[PeerId]:
        """Honest candidates that have the state work in every step."""
        honest = (candidate for candidate in self.roster.door.candidates if candidate.key not in self._mine)
        return {PeerId(candidate.key) for candidate in honest if step - candidate.seated >= FETCH}

    def _hash(self, step: int) -> None:
        """Everyone outside hashes; the attacker with all its machines."""
        scene, known = self.scene, self.roster.known
        waiting = [key for key in self._strangers[: scene.arrived(step)] if key not in known]
        for key in [] if scene.kept_away else waiting:
            self._spent[key] = self._spent.get(key, 0.0) + scene.hashes
        rate = scene.share / (1 - scene.share) * max(1, len(waiting))
        self._power += scene.hashes * (rate if scene.edge is None else scene.edge * scene.machines(step))

    def _tickets(self) -> list[Ticket]:
        """The best ones that came; the attacker has spread its hashes over its names."""
        known = self.roster.known
        free = [key for key in self._names if key not in known]
        spent = {**self._spent, **dict.fromkeys(free, self._power / max(1, len(free)))}
        self._spent, self._power = {}, 0.0
        return self._race(self.scene.run, self.roster, spent, self._generator)

    def _found(self, roles: Roles) -> set[PeerId]:
        """Names whose fake of the last step an honest member audits, if honest members can convict anybody."""
        honest = len(self.roster.members) - len(self._mine.intersection(self.roster.members))
        if honest < self.roster.quorum:
            return set()
        drawn = {audit.target for who, audits in roles.audits.items() if who not in self._mine for audit in audits}
        return drawn & self._faked

    def _note(self, record: StepRecord) -> None:
        course, seats = self.course, len(self._mine.intersection(self.roster.members))
        course.seats.append(seats)
        course.members.append(len(self.roster.members))
        course.banned += len(record.banned)
        for newcomer in record.admitted:
            if newcomer.key not in self._mine:
                key = PeerId(newcomer.key)
                course.joined[key] = record.step - self.scene.every * self._strangers.index(key)
        course.withstands.append(self.roster.liars)


def _conviction(key: PeerId, step: int) -> Judgement:
    return Judgement(None, key, ChargeKind.GRADIENT, max(0, step), None, 0, GuiltySide.ACCUSED)


def without_door(scene: Scene) -> Course:
    """The run of those who give a seat to every name that asks, and check nobody."""
    arrived = [scene.arrived(step) for step in range(scene.steps)]
    everyone = [FOUNDERS + count + scene.names for count in arrived]
    return Course(scene, [scene.names] * scene.steps, everyone, withstands=[0] * scene.steps)
