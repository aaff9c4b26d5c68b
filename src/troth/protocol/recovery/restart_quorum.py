"""The restart quorum (SPEC B5, B9): one member's side of a restart, as a state machine.

Nobody is in a step, so nobody leads. Members wait until enough of them stand at the same tip, and sign that they are ready;
enough signatures are a certificate, and every member that sees it begins, so that all do within one message delay. Frames and
the time go in, frames come out; nothing here sends or reads a clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.frames import Busy, Ready, RestartCertificate, Waiting
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.primitives import Primitives


@dataclass(frozen=True)
class Tip:
    """Standing of a member in no step."""

    run: Digest
    step: int  # the next one
    digest: Digest  # of the common state before that step


@dataclass(frozen=True)
class Patience:
    """Waiting times, in seconds."""

    absent: float  # for missing members, once enough are here
    word: float  # for which a member's word counts
    busy: float  # for members that say they are in a step, beyond `absent`


@dataclass(frozen=True)
class Enough:
    """Number of members that have to wait."""

    quorum: int  # in any case
    alone: int  # without the operator's word (`Roster.restart_quorum`)
    unsure: Roster | None = None  # after a record that this member signed and cannot prove: others may go on from it


def tip_of(run: Run, state: State[Any], model: Digest) -> Tip:
    """Standing in this state, with a model of this digest."""
    common = tagged_hash("troth/tip/1", state.randomness, state.earlier_randomness, model, *state.roster.members)
    return Tip(run.id, state.step, common)


class RestartQuorum:
    """`hear` takes frames of others, `tick` the time; `told` are the frames to send to all others as soon as they change."""

    def __init__(
        self,
        identity: Identity,
        members: Iterable[PeerId],
        tip: Tip,
        incarnation: int,
        patience: Patience,
        tools: Primitives,
        enough: Enough,
        before: RestartCertificate | None = None,  # of the last restart, which came to nothing
    ) -> None:
        self._identity = identity
        self._me = identity.peer
        self._members = frozenset(members)
        self._enough = enough
        self._least = enough.alone  # number of members with whom this member begins
        self._by_hand = False  # the operator has set that number
        self._tip = tip
        self._patience = patience
        self._tools = tools
        self._heard: dict[PeerId, tuple[Waiting, float]] = {}
        self._busy: dict[PeerId, float] = {}  # members that said they are in a step, and when last
        self._enough_since: float | None = None
        self._before = before if before is not None and self._is_here(before) else None
        self._refused: RestartCertificate | None = None  # with fewer members than this one asks for
        self._mine = Waiting(tip.step, tip.digest, incarnation, None)
        self.begun: RestartCertificate | None = None  # from here on this member is in a step again

    def allow(self, number: int, now: float) -> None:
        """Take the operator's word that `number` members are enough: at least a quorum, at most the restart quorum."""
        least = min(self._enough.alone, max(self._enough.quorum, number))
        if self._by_hand and least == self._least:
            return
        self._least, self._by_hand = least, True
        if self._refused is not None:
            self._late(self._refused, now)
        self.tick(now)

    def hear(self, sender: PeerId, frame: Waiting | Busy | RestartCertificate, now: float) -> None:
        """Take a frame of a member; a certificate counts from any of them."""
        if sender not in self._members:
            return
        if isinstance(frame, Busy):
            self._busy[sender] = now
        elif not self._is_here(frame):
            return
        elif isinstance(frame, RestartCertificate):
            self._late(frame, now)
        elif sender != self._me and self._is_genuine(sender, frame):
            self._heard[sender] = (frame, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        if self.begun is not None:
            return
        here = self._here(now)
        if not self._suffice(here):
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        if self._do(here, now):
            self._be_ready()
        ready = agreed(self._ready(here))
        if bytes(self._me) in ready and self._do(ready.keys(), now):
            self._begin(self._mine.incarnation, ready)

    @property
    def told(self) -> tuple[Waiting | RestartCertificate, ...]:
        """Frames for all others: this member's own, and the certificate that explains an incarnation later than the next, for
        members that were not there then."""
        now = self._mine if self.begun is None else self.begun
        return (now,) if self._before is None else (now, self._before)

    @property
    def deadline(self) -> float | None:
        """Time at which `tick` may have something to do, if nothing is heard before."""
        return None if self._enough_since is None else self._enough_since + self._patience.absent

    def missing(self, now: float) -> frozenset[PeerId]:
        """Members that do not wait here, to show to people."""
        return self._members - self._here(now)

    def busy(self, now: float) -> frozenset[PeerId]:
        """Members that say they are in a step, to show to people."""
        return frozenset(peer for peer, last in self._busy.items() if last >= now - self._patience.word)

    @property
    def least(self) -> int:
        """Number of members with whom this member begins, to show to people."""
        return self._least

    def _is_here(self, frame: Waiting | RestartCertificate) -> bool:
        return (frame.step, frame.tip) == (self._tip.step, self._tip.digest)

    def _here(self, now: float) -> frozenset[PeerId]:
        """Members that wait for the same restart as this one."""
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
        return is_ready(self._tip, frame.incarnation, sender, frame.ready, self._tools)

    def _ready(self, here: frozenset[PeerId]) -> dict[bytes, Ready]:
        """Signatures of those members that are ready."""
        said = {peer: self._heard[peer][0].ready for peer in here - {self._me}} | {self._me: self._mine.ready}
        return {bytes(peer): ready for peer, ready in said.items() if ready is not None}

    def _do(self, who: Collection[bytes], now: float) -> bool:
        """Whether to begin with these members: at once if they are all, else after a while."""
        if not self._suffice(who) or self._enough_since is None:
            return False
        waited = now >= self._enough_since + self._patience.absent and not self._somebody_is_busy(now)
        return waited or len(who) == len(self._members)

    def _suffice(self, who: Collection[bytes]) -> bool:
        """Whether these are as many as this member asks for; and, if it signed a record that others may have certified without
        it, so many of the members after that record that the rest cannot go on from it (SPEC B9)."""
        unsure = self._enough.unsure
        if len(who) < self._least:
            return False
        return self._by_hand or unsure is None or len({*who} & {*unsure.members}) >= unsure.restart_quorum

    def _somebody_is_busy(self, now: float) -> bool:
        """Whether a member is in a step: it will be here soon, or the run goes on. Liars may say so too, but not for ever."""
        assert self._enough_since is not None
        ends = self._enough_since + self._patience.absent + self._patience.busy
        return now < ends and bool(self.busy(now))

    def _late(self, begun: RestartCertificate, now: float) -> None:
        """Take another's certificate: begin with it or, if a quorum has left that incarnation again, go on to the next one."""
        left = {
            peer
            for peer, (frame, when) in self._heard.items()
            if frame.incarnation > begun.incarnation and when >= now - self._patience.word
        }
        if len(left) < self._enough.quorum:
            self._begin(begun.incarnation, begun.ready)
        elif begun.incarnation >= self._mine.incarnation and self.begun is None and self._right(begun) is not None:
            self._before = begun
            self._mine = Waiting(self._tip.step, self._tip.digest, begun.incarnation + 1, None)
        if self.begun is None:
            self._refused = begun

    def _be_ready(self) -> None:
        if self._mine.ready is None or self._mine.ready.least != self._least:
            ready = be_ready(self._tip, self._mine.incarnation, self._identity, self._least)
            self._mine = Waiting(self._tip.step, self._tip.digest, self._mine.incarnation, ready)

    def _begin(self, incarnation: int, ready: Mapping[bytes, Ready]) -> None:
        """Begin, with the certificate that proves it to all others; never in an incarnation in which this member may have signed
        something."""
        if self.begun is None and incarnation >= self._mine.incarnation:
            self.begun = self._right(RestartCertificate(self._tip.step, self._tip.digest, incarnation, dict(ready)))

    def _right(self, begun: RestartCertificate) -> RestartCertificate | None:
        """The certificate's right and agreeing signatures, if they are enough for this member: with fewer only members begin
        whose operators said so."""
        proved = proven(begun, self._tip, self._members, self._enough.quorum, self._tools)
        return proved if proved is not None and self._suffice(proved.ready.keys()) else None


def be_ready(tip: Tip, incarnation: int, identity: Identity, least: int) -> Ready:
    return Ready(least, identity.sign(_signed(tip, incarnation, identity.peer, least)))


def is_ready(tip: Tip, incarnation: int, peer: PeerId, ready: Ready, tools: Primitives) -> bool:
    return tools.verify(peer, _signed(tip, incarnation, peer, ready.least), ready.signature)


def proven(
    begun: RestartCertificate, tip: Tip, members: Iterable[PeerId], quorum: int, tools: Primitives
) -> RestartCertificate | None:
    """The certificate with its right signatures, if a quorum of members agreed to begin with so many: one is honest."""
    if (begun.step, begun.tip) != (tip.step, tip.digest):
        return None
    known = frozenset(members)
    right = {
        peer: ready
        for peer, ready in sorted(begun.ready.items())
        if peer in known and is_ready(tip, begun.incarnation, PeerId(peer), ready, tools)
    }
    ready = agreed(right)
    return RestartCertificate(begun.step, begun.tip, begun.incarnation, ready) if len(ready) >= quorum else None


def agreed(ready: Mapping[bytes, Ready]) -> dict[bytes, Ready]:
    """Largest set of ready members that is no smaller than any of them asks for (SPEC B5)."""
    for most in range(len(ready), 0, -1):
        content = {peer: one for peer, one in sorted(ready.items()) if one.least <= most}
        if len(content) >= most:
            return content
    return {}


def _signed(tip: Tip, incarnation: int, peer: PeerId, least: int) -> bytes:
    slot = Slot(tip.run, tip.step, Phase.RESTART, incarnation=incarnation)
    return signed_bytes(slot, peer, tagged_hash("troth/ready/1", tip.digest, least.to_bytes(2, "big")))
