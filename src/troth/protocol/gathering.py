"""Beginning anew after more than half have stopped (SPEC B5): one member's part, as a state machine.

Nobody is in a step, so nobody leads the way. Members wait until enough of them stand at the same place, and sign that they are
ready; more than half of such signatures make everyone begin who sees them, so that all do within one message delay. Frames and
the time go in, frames come out; nothing here sends or reads a clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from troth.crypto import Context, Digest, Identity, PeerId, Signature, signed_bytes
from troth.protocol.frames import Begun, Busy, Waiting
from troth.protocol.messages import Phase
from troth.protocol.primitives import Primitives


@dataclass(frozen=True)
class Tip:
    """Where a run stands when nobody is in a step."""

    run: Digest
    step: int  # that comes next
    digest: Digest  # of everything in common up to there


@dataclass(frozen=True)
class Patience:
    """In seconds."""

    absent: float  # for members who are not here, once a majority is; ten times that if those are fewer than `enough`
    word: float  # for how long somebody is taken to be where it said
    busy: float  # for members who say that they are in a step, beyond that


class Gathering:
    """`hear` takes what others say, `tick` the time; `told` is what to tell all others, at once when it changes."""

    def __init__(
        self,
        identity: Identity,
        members: Iterable[PeerId],
        tip: Tip,
        incarnation: int,
        patience: Patience,
        tools: Primitives,
        before: Begun | None = None,  # the last time that it began, which came to nothing
        enough: int = 0,  # to be stronger than all liars there may be
    ) -> None:
        self._identity = identity
        self._me = identity.peer
        self._members = frozenset(members)
        self._majority = len(self._members) // 2 + 1
        self._enough = max(self._majority, enough)
        self._tip = tip
        self._patience = patience
        self._tools = tools
        self._heard: dict[PeerId, tuple[Waiting, float]] = {}
        self._busy: dict[PeerId, float] = {}  # who said that it is in a step, and when last
        self._majority_since: float | None = None
        self._before = before if before is not None and self._is_here(before) else None
        self._mine = Waiting(tip.step, tip.digest, incarnation, None)
        self.begun: Begun | None = None  # from here on this member is in a step again

    def hear(self, sender: PeerId, frame: Waiting | Busy | Begun, now: float) -> None:
        """What a member says; that others are ready counts, whoever brings the proof."""
        if sender not in self._members:
            return
        if isinstance(frame, Busy):
            self._busy[sender] = now
        elif not self._is_here(frame):
            return
        elif isinstance(frame, Begun):
            self._late(frame, now)
        elif sender != self._me and self._is_genuine(sender, frame):
            self._heard[sender] = (frame, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        if self.begun is not None:
            return
        here = self._here(now)
        if len(here) < self._majority:
            self._majority_since = None
        elif self._majority_since is None:
            self._majority_since = now
        if self._do(here, now):
            self._be_ready()
        ready = self._ready(here)
        if self._do(ready.keys(), now):
            self._begin(self._mine.incarnation, ready)

    @property
    def told(self) -> tuple[Waiting | Begun, ...]:
        """With the proof for an incarnation later than the next, for those who were not there then."""
        now = self._mine if self.begun is None else self.begun
        return (now,) if self._before is None else (now, self._before)

    @property
    def deadline(self) -> float | None:
        """When `tick` may have something to do, if nothing is heard before."""
        return None if self._majority_since is None else self._majority_since + self._patience.absent

    def missing(self, now: float) -> frozenset[PeerId]:
        """For people: who is not here."""
        return self._members - self._here(now)

    def _is_here(self, frame: Waiting | Begun) -> bool:
        return (frame.step, frame.tip) == (self._tip.step, self._tip.digest)

    def _here(self, now: float) -> frozenset[PeerId]:
        """Who waits for the same as this member."""
        since = now - self._patience.word
        others = {
            peer
            for peer, (frame, when) in self._heard.items()
            if frame.incarnation == self._mine.incarnation and when >= since
        }
        return frozenset({self._me, *others})

    def _is_genuine(self, sender: PeerId, frame: Waiting) -> bool:
        if frame.ready is None or (sender in self._heard and self._heard[sender][0] == frame):
            return True
        return bool(self._right(frame.incarnation, {sender: frame.ready}))

    def _ready(self, here: frozenset[PeerId]) -> dict[bytes, bytes]:
        """Of those, who signed that it is ready."""
        said = {peer: self._heard[peer][0].ready for peer in here - {self._me}} | {self._me: self._mine.ready}
        return {bytes(peer): ready for peer, ready in said.items() if ready is not None}

    def _do(self, who: Collection[bytes], now: float) -> bool:
        """Whether these are enough to begin with: all, or after a while as many as outnumber all liars that there may be, or
        after a long while more than half."""
        if len(who) == len(self._members):
            return True
        if self._majority_since is None or self._somebody_is_busy(now):
            return False
        waited = now - self._majority_since
        few = len(who) >= self._majority and waited >= 10 * self._patience.absent
        return few or (len(who) >= self._enough and waited >= self._patience.absent)

    def _somebody_is_busy(self, now: float) -> bool:
        """It will be here soon, or the run goes on; liars may say so too, but all of them together not for ever."""
        assert self._majority_since is not None
        ends = self._majority_since + self._patience.absent + self._patience.busy
        return now < ends and any(last >= now - self._patience.word for last in self._busy.values())

    def _late(self, begun: Begun, now: float) -> None:
        """An incarnation that more members have left again than can be liars is over: then the next one counts."""
        left = {
            peer
            for peer, (frame, when) in self._heard.items()
            if frame.incarnation > begun.incarnation and when >= now - self._patience.word
        }
        if len(left) < self._majority:
            self._begin(begun.incarnation, begun.ready)
        elif begun.incarnation >= self._mine.incarnation and self.begun is None and self._is_proved(begun):
            self._before = begun
            self._mine = Waiting(self._tip.step, self._tip.digest, begun.incarnation + 1, None)

    def _be_ready(self) -> None:
        if self._mine.ready is None:
            incarnation = self._mine.incarnation
            signature = self._identity.sign(self._signed(incarnation, self._me))
            self._mine = Waiting(self._tip.step, self._tip.digest, incarnation, signature)

    def _begin(self, incarnation: int, ready: Mapping[bytes, bytes]) -> None:
        """With what proves it to all others. Never again under an incarnation in which this member may have signed something."""
        if self.begun is not None or incarnation < self._mine.incarnation or len(ready) < self._majority:
            return
        begun = Begun(self._tip.step, self._tip.digest, incarnation, self._right(incarnation, ready))
        if self._is_proved(begun):
            self.begun = begun

    def _is_proved(self, begun: Begun) -> bool:
        return len(self._right(begun.incarnation, begun.ready)) >= self._majority

    def _right(self, incarnation: int, ready: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The members' signatures that fit."""
        return {
            peer: signature
            for peer, signature in sorted(ready.items())
            if peer in self._members
            and self._tools.verify(PeerId(peer), self._signed(incarnation, PeerId(peer)), Signature(signature))
        }

    def _signed(self, incarnation: int, peer: PeerId) -> bytes:
        place = Context(self._tip.run, self._tip.step, Phase.BEGIN, incarnation=incarnation)
        return signed_bytes(place, peer, self._tip.digest)
