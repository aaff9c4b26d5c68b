"""Members that take part, and that this peer has no connection with: nobody else may notice."""

from collections.abc import Callable, Iterable, Mapping

from troth.crypto import PeerId

_STEPS = 2  # without a connection: one may have been lost this moment


class Unreached:
    """Tells whose ports to open, once for each pair."""

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
