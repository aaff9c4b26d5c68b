"""Behaviours of liars on the wire, and the draws that decide when each is shown."""

from collections.abc import Callable
from dataclasses import dataclass, field

from troth.crypto import Stream

# In the order in which worlds are drawn: a seed means the same world whatever these are called.
WIRE_BEHAVIOURS = {
    "awake": "call all to the next step as soon as one is over",
    "corrupt-parts": "send parts that are not those committed to",
    "equivocate": "say one thing to some and another to others",
    "false-incomplete": "claim that values are missing",
    "false-rejoin": "claim that a member that is gone asks to rejoin, under a key of one's own",
    "false-record": "sign something else in place of the last record",
    "cut-link": "send nothing at all to one peer, always the same",
    "flood": "send large frames for what has not begun yet, in kinds that look small",
    "forged-certificate": "say two things, and show each side that everyone agrees with it, which nobody signed",
    "garbage": "send frames with wrong signatures",
    "hide-certificates": "keep certificates to oneself",
    "hide-views": "hand the view to some only",
    "hoard-signatures": "hand signatures of the record, and sometimes what one commits to, to one honest peer only",
    "impersonate": "send frames that claim to be of somebody else",
    "just-in-time": "let everything arrive just before it is due",
    "late": "let everything arrive late",
    "late-certificate": "keep a certificate for the last round and one peer, and say something else to all meanwhile",
    "malformed": "sign what is no message, the same to all",
    "mislead": "tell observers something else than what was decided",
    "mute": "say nothing in some announcements",
    "non-finite": "announce numbers that are none, and send blobs of them",
    "oversized": "sign a message that is too long, or send a blob that is",
    "refuse-blobs": "hand out no aggregate and show no part",
    "replay": "send old packets again",
    "replay-elsewhere": "send frames of earlier steps again as if they belonged to this one, or to another run",
    "selective": "say it to some only",
    "two-views": "sign different views for different peers",
    "unsigned-record": "commit without a signature under the last record",
    "withhold-parts": "send no part to some owners",
    "wrong-paths": "send parts with a wrong, empty or too long path",
}


@dataclass
class LieDraws:
    """Draws, for each packet and each chosen behaviour, whether a liar shows it; counts how often it did."""

    behaviours: frozenset[str]
    intensity: float  # how often it lies where it could
    start: int  # first step in which it lies
    draw: Stream
    free: Callable[[], bool]  # false while it waits for something, and behaves
    step: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def has(self, behaviour: str) -> bool:
        """Whether the behaviour was chosen, whatever the step."""
        return behaviour in self.behaviours

    def would(self, behaviour: str) -> bool:
        return self.has(behaviour) and self.step >= self.start and self.free()

    def does(self, behaviour: str, chance: float = 0.5) -> bool:
        if not self.would(behaviour) or float(self.draw.uniform(1)[0]) >= chance * self.intensity:
            return False
        self.count(behaviour)
        return True

    def count(self, behaviour: str) -> None:
        self.counts[behaviour] = self.counts.get(behaviour, 0) + 1
