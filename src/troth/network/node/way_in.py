"""A peer's way into a run, told to people: a stranger follows it, gets a place on probation, and the seat (SPEC J3–J8); whoever
lacks the model fetches it, and catches up (SPEC J1, J2)."""

import time
from collections.abc import Callable, Iterable, Mapping

from troth.crypto import PeerId
from troth.events.phrases import duration
from troth.network.disk.lock import check_room, least_room
from troth.network.node.options import NodeOptions
from troth.protocol.core.records import Returned
from troth.protocol.core.roster import MOST_AWAY, MOST_WAIT
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.recovery.download import Fetched
from troth.protocol.recovery.models import StepsLeft
from troth.training import Problem, Task, check_pure
from troth.training.work import Training

_SOON = 4  # steps in which a peer that comes back is a member, if nothing speaks against it
_TOLD = 4  # times in a probation
_QUICK_S = 2.0  # nothing is said about what takes less
_EVERY_S = 5.0  # between two lines about a download


def check_machine(task: Task, problem: Problem, first: Training, options: NodeOptions) -> None:
    """Check, before a stranger asks anybody for anything, what would keep it out later: a task that does not repeat itself here,
    and too little room on the disk. Raises an OperatorError."""
    check_pure(task, problem)
    check_room(options.folder, least_room(first, options.keep_checkpoints))


class WayIn:
    """What a peer that is no founder tells about itself, when it has changed."""

    def __init__(self, run: Run, seat: PeerId, note: Callable[[str], None]) -> None:
        self.stranger = seat not in run.founders
        self._seat = seat
        self._probation = run.parameters.probation
        self._note = note
        self._told = ""

    def begins(self) -> bool:
        """Tell that it is on its way; it has no seat yet."""
        steps = f"{self._probation} steps of audited work"
        self._tell(f"following the run from its founders on, to ask for a place on probation ({steps})")
        return False

    def stepped(self, state: State[Training], me: PeerId) -> None:
        """Tell how far it has come, after a step."""
        if not self.stranger:
            if (why := why_outside(state, self._seat, me)) is not None:
                self._note(why)
            return
        mine = next((candidate for candidate in state.roster.door.candidates if candidate.key == me), None)
        if me in state.roster.members:
            self._tell("a member")
        elif mine is not None:
            done, missed = mine.worked, f", {mine.missed} missed" if mine.missed else ""
            if done >= self._probation:
                self._tell(
                    "probation is over: waits for a seat, as others came before (at most one seat in eight is new)"
                )
            elif done % max(1, self._probation // _TOLD) == 0:
                self._tell(f"on probation: {done} of {self._probation} steps{missed}")

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._note(text)


def why_outside(state: State[Training], seat: PeerId, me: PeerId) -> str | None:
    """Why a founder only observes, for people; None if it is a member, or soon will be (SPEC B8)."""
    roster, holder = state.roster, seat
    for old, new in roster.successors:
        holder = new if old == holder else holder
    if me in roster.members:
        return None
    observes = "this peer observes, and will have the model at the end, but"
    if holder not in (seat, me):
        return (
            f"{observes} it cannot be a member again: its seat has passed to the key {holder.hex()[:8]}…, which is in an earlier "
            "folder of it that was lost, too (successor.key). Stop it, put that folder back, and join again with it"
        )
    gone = next((gone for gone in roster.away if gone.peer == holder), None)
    if gone is None:
        return None  # the others have not noticed yet
    if state.scales.updates - gone.updates > MOST_AWAY and not roster.paused:
        return f"{observes} it cannot be a member again: it was away for more than {MOST_AWAY} updates"
    returned = Returned(holder, me)
    steps = (step for step in range(state.step, state.step + MOST_WAIT) if roster.may_return(returned, step))
    first = next(steps, state.step)
    if first <= state.step + _SOON:
        return None
    return f"this peer may be a member again after step {first}: it came back before, and each time the wait doubles"


class Arrival:
    """Says lines about one download after another; nothing about short ones."""

    def __init__(
        self,
        note: Callable[[str], None],
        lives: Callable[[], None] = lambda: None,  # called whenever something has come
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note = note
        self._lives = lives
        self._clock = clock
        self._doing: type[Fetched | StepsLeft] | None = None
        self._began = 0.0  # of what is being done
        self._had = 0  # bytes that were here then
        self._told = 0.0
        self._last = 0.0

    def __call__(self, how_far: Fetched | StepsLeft) -> None:
        """Take note of a chunk, or of an update that is made again."""
        now, fetched = self._clock(), how_far if isinstance(how_far, Fetched) else None
        self._lives()
        if type(how_far) is not self._doing or now > self._last + 12 * _EVERY_S:
            self._doing, self._began, self._told = type(how_far), now, now - _EVERY_S + _QUICK_S
            self._had = 0 if fetched is None else fetched.here
        self._last = now
        over = fetched is not None and fetched.here >= fetched.of
        if self._told >= self._began if over else now >= self._told + _EVERY_S:
            self._told = now
            self._note(_steps(how_far) if isinstance(how_far, StepsLeft) else self._fetched(how_far, now))
        if over:
            self._doing = None

    def _fetched(self, how_far: Fetched, now: float) -> str:
        seconds = max(1e-9, now - self._began)
        rate = max(1.0, (how_far.here - self._had) / seconds)
        if how_far.here >= how_far.of:
            return f"the model is here: {_mb(how_far.of)} in {duration(seconds)}"
        members = f"{how_far.donors} member{'' if how_far.donors == 1 else 's'}"
        left = duration((how_far.of - how_far.here) / rate)
        return (
            f"downloading the model: {_mb(how_far.here)} of {_mb(how_far.of)}, {rate / 1e6:.1f} MB/s from {members}, "
            f"{left} left"
        )


def _mb(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 10_000_000 else f"{count / 1e6:.1f} MB"


def _steps(left: StepsLeft) -> str:
    return f"catching up: {left.count} step{'' if left.count == 1 else 's'} left, as far as this peer knows"


_STEPS = 2  # without a connection: one may have been lost this moment


class Unreached:
    """Tells whose ports to open, once for each pair, where a member takes part that this peer has no connection with: nobody else
    may notice."""

    def __init__(self, me: PeerId, listen: str, note: Callable[[str], None]) -> None:
        self._me = me
        self._listen = listen
        self._note = note
        self._steps: dict[PeerId, int] = {}  # in which it took part, for each that is not connected

    def stepped(
        self, took_part: Iterable[PeerId], troubles: Mapping[PeerId, str], name_of: Callable[[PeerId], str]
    ) -> None:
        """Take in who took part in a step, and why others are not connected after it."""
        self._steps = {peer: steps for peer, steps in self._steps.items() if peer in troubles}
        for peer in sorted(troubles.keys() & set(took_part) - {self._me}):
            self._steps[peer] = self._steps.get(peer, 0) + 1
            if self._steps[peer] == _STEPS:
                name = name_of(peer)
                self._note(
                    f"no connection with {name}, who takes part ({troubles[peer]}), nor does {name} reach this peer: the others "
                    f"pass on what the two say, which is slower. Open the port here ({self._listen}) to {name}, or "
                    f"{name}'s to this peer; one of them is enough"
                )
