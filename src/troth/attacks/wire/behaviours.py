"""Behaviours of liars on the wire, and the draws that decide when each is shown."""

from collections.abc import Callable

from troth.crypto import Stream

WIRE_BEHAVIOURS = {
    "equivocate": "say one thing to some and another to others",
    "selective": "say it to some only",
    "mute": "say nothing in some announcements",
    "hide-views": "hand the view to some only",
    "false-incomplete": "claim that values are missing",
    "two-views": "sign different views for different peers",
    "hide-certificates": "keep certificates to oneself",
    "late-certificate": "keep a certificate for the last round and one peer, and say something else to all meanwhile",
    "forged-certificate": "say two things, and show each side that everyone agrees with it, which nobody signed",
    "withhold-parts": "send no part to some owners",
    "corrupt-parts": "send parts that are not those committed to",
    "wrong-paths": "send parts with a wrong, empty or too long path",
    "refuse-blobs": "hand out no aggregate and show no part",
    "unsigned-record": "commit without a signature under the last record",
    "false-record": "sign something else in place of the last record",
    "false-knock": "claim that a member that is gone asks to rejoin, under a key of one's own",
    "mislead": "tell observers something else than what was decided",
    "replay": "send old packets again",
    "replay-elsewhere": "send frames of earlier steps again as if they belonged to this one, or to another run",
    "garbage": "send frames with wrong signatures",
    "impersonate": "send frames that claim to be of somebody else",
    "malformed": "sign what is no message, the same to all",
    "oversized": "sign a message that is too long, or send a blob that is",
    "non-finite": "announce numbers that are none, and send blobs of them",
    "feud": "send nothing at all to one peer, always the same",
    "late": "let everything arrive late",
    "just-in-time": "let everything arrive just before it is due",
    "hoard-signatures": "hand signatures of the record, and sometimes what one commits to, to one honest peer only",
    "flood": "send large frames for what has not begun yet, in kinds that look small",
}


class LieDraws:
    """Draws, for each packet and each chosen behaviour, whether a liar shows it; counts how often it did."""

    def __init__(
        self, behaviours: frozenset[str], intensity: float, start: int, draw: Stream, free: Callable[[], bool]
    ) -> None:
        self._behaviours = behaviours
        self._intensity = intensity  # how often it lies where it could
        self._start = start  # first step in which it lies
        self._draw = draw
        self._free = free  # false while it waits for something, and behaves
        self.step = 0
        self.counts: dict[str, int] = {}

    def has(self, behaviour: str) -> bool:
        """Whether the behaviour was chosen, whatever the step."""
        return behaviour in self._behaviours

    def would(self, behaviour: str) -> bool:
        return self.has(behaviour) and self.step >= self._start and self._free()

    def does(self, behaviour: str, chance: float = 0.5) -> bool:
        if not self.would(behaviour) or float(self._draw.uniform(1)[0]) >= chance * self._intensity:
            return False
        self.count(behaviour)
        return True

    def count(self, behaviour: str) -> None:
        self.counts[behaviour] = self.counts.get(behaviour, 0) + 1
