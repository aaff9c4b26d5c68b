"""A member's side of coming back: who asks, who looks on, who knocks (SPEC B2, B3)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from troth.crypto import Context, Digest, PeerId, signed_bytes
from troth.protocol.frames import Frame, Knock, StateShown, StateWanted, SyncShown, SyncWanted
from troth.protocol.messages import MOST_KNOCKS, Announced, Commit, Knocking, Phase, said_as
from troth.protocol.primitives import Primitives
from troth.protocol.roster import Roster

MOST_AHEAD = 16  # steps for which somebody may knock
_MOST_STATES = 16  # that are kept for onlookers: a slow line takes longer than a quick step
_STATES_BYTES = 1 << 26  # if they are small; two in any case


@dataclass(frozen=True)
class Asking:
    """Somebody wants to know what has happened."""

    key: PeerId  # that it has now
    since: int  # from which step on it needs records


class Gate:
    """Each seat is kept once, whatever its keys say."""

    def __init__(self, send: Callable[[PeerId, Context, Frame], None], tools: Primitives) -> None:
        self._send = send
        self._tools = tools
        self.may_knock: frozenset[PeerId] = frozenset()  # members, and who was one not long ago
        self.asking: dict[PeerId, Asking] = {}  # by who it was
        self.watchers: frozenset[PeerId] = frozenset()  # who looks on in this step
        self._states: dict[Digest, bytes] = {}  # for them: the model at the start of the last steps
        self._served: set[PeerId] = set()  # who got the model in this step
        self._knocks: dict[int, dict[PeerId, PeerId]] = defaultdict(dict)  # by step: under which key who knocks

    def hear(self, sender: PeerId, place: Context, frame: SyncWanted | StateWanted | Knock, step: int) -> None:
        """`step` is the one that this member is in."""
        match frame:
            case SyncWanted():
                if place.step == frame.since and self._speaks_for(sender, place, frame):
                    self.asking[PeerId(frame.member)] = Asking(sender, frame.since)
            case StateWanted():
                state = self._states.get(Digest(frame.digest))
                if sender in self.watchers - self._served and state is not None:
                    self._served.add(sender)
                    self._send(sender, place, StateShown(state))
            case Knock():
                if step < place.step <= step + MOST_AHEAD and self._speaks_for(sender, place, frame):
                    self._knocks[place.step][PeerId(frame.member)] = sender

    def _speaks_for(self, sender: PeerId, place: Context, frame: SyncWanted | Knock) -> bool:
        """Whether the old key signed that this one comes in its place."""
        if frame.member not in self.may_knock or place.phase != Phase.KNOCK:
            return False
        if not (0 <= place.attempt < 1 << 16 and 0 <= place.incarnation < 1 << 32):
            return False
        signed = signed_bytes(place, PeerId(frame.member), Digest(sender))
        return self._tools.verify(PeerId(frame.member), signed, frame.signature)

    def knocks(self, step: int) -> list[Knocking]:
        return [Knocking(member, key) for member, key in sorted(self._knocks.get(step, {}).items())]

    def admits(self, peer: PeerId) -> bool:
        """Whether it looks on or has knocked: it may be a member sooner than this peer knows."""
        return peer in self.watchers or any(peer in knocks.values() for knocks in self._knocks.values())

    def show(
        self,
        place: Context,
        shown: Mapping[PeerId, SyncShown],
        state: tuple[Digest, bytes],
    ) -> None:
        """Between two steps: these get the records that they lack, and hear everything from here on."""
        self.asking.clear()
        if state[0] not in self._states:  # in one that waits it may stay the same for long
            self._served.clear()
        self.watchers = frozenset(shown)
        self._states = {**self._states, state[0]: state[1]} if shown else {}
        most = max(2, min(_MOST_STATES, _STATES_BYTES // max(1, len(state[1]))))
        while len(self._states) > most:
            del self._states[next(iter(self._states))]
        for peer, frame in shown.items():
            self._send(peer, place, frame)

    def state(self, digest: Digest) -> bytes | None:
        """One that is kept for onlookers."""
        return self._states.get(digest)

    def forget(self, step: int) -> None:
        for old in [old for old in self._knocks if old < step]:
            del self._knocks[old]


def returning(commits: Mapping[PeerId, Announced], roster: Roster, step: int) -> tuple[Knocking, ...]:
    """Whom more than half of the members heard knocking, if it may come back (SPEC B3)."""
    heard = Counter(knock for said in commits.values() for knock in set(said_as(said, Commit).knocks))
    agreed = [knock for knock, count in heard.items() if count >= roster.quorum and roster.may_return(knock, step)]
    once = {knock.member: knock for knock in sorted(agreed, key=lambda knock: (knock.member, knock.key), reverse=True)}
    return tuple(once[member] for member in sorted(once))[:MOST_KNOCKS]
