"""What became of strangers, read off the records: who knocked, got a slot, was admitted, lost it, was banned."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from troth.crypto import PeerId
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.simulation.lockstep.door.party import Party

# T steps of a probation


@dataclass
class Course:
    """One stranger's way; steps as records count them."""

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
            stranger.me: Course(stranger.number, party.spec, stranger.knocks)
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

    def _events(self, key: PeerId, course: Course, record: StepRecord, before: Roster) -> Iterator[str]:
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
