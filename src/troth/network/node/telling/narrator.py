"""Events as lines for people: news at once, the state of the run now and then, and a pause once a minute."""

import threading
import time
from collections.abc import Callable

from troth.events import words
from troth.events.kinds import Stepped
from troth.network.node.telling.progress import Progress

_SOON_S = 10.0  # after which the same is said again before the first step: else it seems to hang …
_FIRST_S = 120.0  # … for so long at most
_AGAIN_S = 60.0  # after which something that has not changed is said again


class Narrator:
    """Says lines through `say`; may be called from any thread."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        every_s: float = 2.0,  # between two lines about the state of the run; 0: one for each step
        traffic: bool = False,
        lively: bool = False,  # what has not changed is said again soon, before the first step
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._every_s = every_s
        self._traffic = traffic
        self._clock = clock
        self._lively_until = clock() + _FIRST_S if lively else float("-inf")
        self._metrics = ""
        self._progress = Progress((), 0.0)
        self._last_line = float("-inf")
        self._paused_at: float | None = None  # when the pause was last told, while there is one
        self._noted: dict[str, float] = {}  # recent notes
        self._lock = threading.RLock()

    def note(self, text: str) -> bool:
        """A line at once; one that was just said, again after a minute, or sooner at first. Whether it was said."""
        with self._lock:
            now = self._clock()
            again_s = _SOON_S if now < self._lively_until else _AGAIN_S
            self._noted = {old: when for old, when in self._noted.items() if now < when + again_s}
            if text in self._noted:
                return False
            self._noted[text] = now
            self._say(text)
            return True

    def stepped(self, event: Stepped) -> None:
        """The news of a step, and a line about it if it is time for one."""
        with self._lock:
            self._lively_until = float("-inf")
            for sentence in words.sentences(event):
                self._say(sentence)
            self._progress.stepped(event)
            self._metrics = words.metrics_in_words(event.metrics) or self._metrics
            if not event.closing and not self._pause(event) and self._is_due(event):
                self._last_line = self._clock()
                left = words.time_left(self._progress.left_s(event.of - event.updates))
                traffic = f"  {words.traffic(event)}" if self._traffic else ""
                self._say(words.line(event, self._metrics) + left + traffic)

    def _is_due(self, event: Stepped) -> bool:
        return self._clock() >= self._last_line + self._every_s or event.updates == event.of

    def _pause(self, event: Stepped) -> bool:
        """Say once, and then every minute, that the model does not move; and once that it moves again."""
        now, why = self._clock(), words.pause(event)
        if why is None:
            if self._paused_at is not None:
                self._paused_at = None
                self._say(f"{words.when(event)}: the model moves again")
            return False
        if self._paused_at is None or now >= self._paused_at + _AGAIN_S:
            self._paused_at = self._noted[why] = now  # a peer that rests has no steps, and notes the same
            self._say(why)
        return True
