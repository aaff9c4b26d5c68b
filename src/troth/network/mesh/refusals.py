"""Peers that do not fit, and why: they refuse us, or we them."""

from collections.abc import Callable

from troth.crypto import PeerId
from troth.errors import printable


class Refusals:
    """The last reason for each peer. People read one for each peer, whatever it says next: it may have written the text."""

    def __init__(self, note: Callable[[str], None], name_of: Callable[[PeerId], str]) -> None:
        self._note = note
        self._name_of = name_of
        self._reasons: dict[PeerId, str] = {}
        self._noted: set[PeerId] = set()

    def add(self, peer: PeerId, why: str) -> None:
        self._reasons[peer] = printable(why)
        if peer not in self._noted:
            self._noted.add(peer)
            self._note(f"{self._name_of(peer)}: {printable(why)}")

    def forget(self, peer: PeerId) -> None:
        """It fits now."""
        self._reasons.pop(peer, None)

    def reasons(self) -> dict[PeerId, str]:
        """May be called from any thread."""
        return dict(self._reasons)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._reasons
