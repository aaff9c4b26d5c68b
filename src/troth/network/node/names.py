"""Names of peers for people: a founder's name, also under the successor key with which it came back."""

from collections.abc import Callable, Iterable

from troth.crypto import PeerId


class Names:
    """A founder goes by its name under all of its keys; a stranger by the beginning of its key. Callable from any thread."""

    def __init__(self, name_of: Callable[[PeerId], str]) -> None:
        """`name_of` knows the founders (`Manifest.name_of`)."""
        self._name_of = name_of
        self._earlier: dict[PeerId, PeerId] = {}  # by successor key, the founder's key

    def learn(self, successors: Iterable[tuple[PeerId, PeerId]]) -> None:
        """Take in who came back under which key (`Roster.successors`, oldest first)."""
        for old, new in successors:
            self._earlier[new] = self._earlier.get(old, old)

    def __call__(self, peer: PeerId) -> str:
        return self._name_of(self._earlier.get(peer, peer))
