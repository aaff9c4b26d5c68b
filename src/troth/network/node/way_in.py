"""A stranger's way into a run, told to people: following it, a place on probation, and the seat (SPEC J3–J8)."""

from collections.abc import Callable

from troth.crypto import PeerId
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.training.work import Training

_TOLD = 4  # times in a probation


class WayIn:
    """What a peer that is no founder tells about itself, when it has changed."""

    def __init__(self, run: Run, seat: PeerId, note: Callable[[str], None]) -> None:
        self.stranger = seat not in run.founders
        self._probation = run.parameters.probation
        self._note = note
        self._told = ""

    def begins(self) -> bool:
        """Tell that it is on its way; it has no seat yet."""
        steps = f"{self._probation} steps of audited work"
        self._tell(f"no founder of this run: follows it, and asks for a place on probation ({steps})")
        return False

    def stepped(self, state: State[Training], me: PeerId) -> None:
        """Tell how far it has come, after a step."""
        if not self.stranger:
            return
        mine = next((candidate for candidate in state.roster.door.candidates if candidate.key == me), None)
        if me in state.roster.members:
            self._tell("a member")
        elif mine is not None:
            done = 0 if mine.first is None else state.step - mine.first
            if done % max(1, self._probation // _TOLD) == 0:
                self._tell(f"on probation: {done} of {self._probation} steps")

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._note(text)
