"""A member's side of coming back: who asks, who looks on, who knocks (SPEC B2, B3)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from troth.crypto import Context, Digest, PeerId, signed_bytes
from troth.protocol.core.rejoin import is_request
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import Frame, Knock, StateShown, StateWanted, SyncShown, SyncWanted
from troth.protocol.wire.messages import Knocking, Phase
from troth.protocol.wire.primitives import Primitives

MOST_AHEAD = 8  # steps for which a request may be signed: one, unless its owner's line takes longer than a step
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
        self.roster = Roster(())  # of the step that this member is in, or that comes next
        self.asking: dict[PeerId, Asking] = {}  # by who it was
        self.watchers: frozenset[PeerId] = frozenset()  # who looks on in this step
        self._states: dict[Digest, bytes] = {}  # for them: the model at the start of the last steps
        self._served: set[PeerId] = set()  # who got the model in this step
        self._knocks: dict[int, dict[PeerId, Knocking]] = defaultdict(dict)  # by step and who it was

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
                knock = Knocking(frame.member, sender, frame.signature)
                if step < place.step <= step + MOST_AHEAD and is_request(place, knock, self.roster, self._tools):
                    self._knocks[place.step][PeerId(frame.member)] = knock

    def _speaks_for(self, sender: PeerId, place: Context, frame: SyncWanted) -> bool:
        """Whether the old key signed that this one comes in its place."""
        if frame.member not in self.roster.may_ask or place.phase != Phase.KNOCK:
            return False
        if not (0 <= place.attempt < 1 << 16 and 0 <= place.incarnation < 1 << 32):
            return False
        signed = signed_bytes(place, PeerId(frame.member), Digest(sender))
        return self._tools.verify(PeerId(frame.member), signed, frame.signature)

    def knocks(self, step: int) -> list[Knocking]:
        return [knock for _, knock in sorted(self._knocks.get(step, {}).items())]

    def admits(self, peer: PeerId) -> bool:
        """Whether it looks on or has knocked: it may be a member sooner than this peer knows."""
        return peer in self.watchers or any(
            peer == knock.key for knocks in self._knocks.values() for knock in knocks.values()
        )

    def watch(self, peers: Collection[PeerId]) -> None:
        """Between two steps: these hear everything from here on."""
        self.asking.clear()
        self.watchers = frozenset(peers)

    def show(self, place: Context, shown: Mapping[PeerId, SyncShown], state: tuple[Digest, bytes] | None) -> None:
        """As soon as the last record is certified: these get the records that they lack, and may ask for the model."""
        if state is None:
            self._states.clear()
            return
        if state[0] not in self._states:  # in one that waits it may stay the same for long
            self._served.clear()
        self._states = {**self._states, state[0]: state[1]}
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
