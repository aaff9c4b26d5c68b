"""A member's side of a restart (SPEC B5): it says where it waits, hears where others wait, and learns when all begin. The
quorum that decides is a state machine without a clock."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from troth.crypto import Digest, Identity, PeerId, Slot, signed_bytes, tagged_hash
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import next_incarnation
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import Peer, State
from troth.protocol.wire.frames import Busy, Ready, RestartCertificate, Waiting
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.primitives import Primitives

T = TypeVar("T")
_SAID = 4  # time for which a Waiting counts for records, in units of the least delta: it is sent twice in each
_WORD = 10  # time for which a Waiting counts for the restart quorum, in units of the least delta


class Restart(Generic[T]):
    """Exchanges `Waiting` frames for a peer in no step. `stand` sets its state; a peer that is no member, or lacks the model,
    only listens."""

    def __init__(
        self, peer: Peer[T], channel: BroadcastChannel, patience: float, allowed: Callable[[], int | None]
    ) -> None:
        self._peer = peer
        self._channel = channel
        self._absent = patience
        self._allowed = allowed  # number of members that the operator allows it to begin with, if any
        self._pause = channel.pacing.bounds.delta / 2  # between two `Waiting` frames
        self._where: dict[PeerId, tuple[Waiting, float]] = {}  # where others wait, and when they said so
        self._begun: dict[PeerId, RestartCertificate] = {}  # restart certificates by sender
        self._told: tuple[Waiting | RestartCertificate, ...] = ()
        self._told_at = -math.inf
        self._state: State[T] | None = None
        self._quorum: RestartQuorum | None = None

    def stand(self, state: State[T], *, waits: bool, unsure: Roster | None = None) -> None:
        """Wait in this state; `unsure` is the roster after a record that this peer may have signed, and discarded (SPEC B9)."""
        self._state, self._quorum = state, None
        if not waits or self._peer.me not in state.roster.members:
            return
        bounds, roster = self._channel.pacing.bounds, state.roster
        self._quorum = RestartQuorum(
            self._peer.identity,
            roster.members,
            tip_of(self._peer.run, state, state.model),
            next_incarnation(self._channel.signed_slots, state.incarnation),
            Patience(self._absent, _WORD * bounds.delta, bounds.slowest.until_left(roster.quorum)),
            self._peer.tools,
            Enough(roster.quorum, roster.restart_quorum, unsure),
            self._channel.signed_slots.begun,
        )
        self._quorum.tick(self._channel.now())
        for sender, (frame, when) in sorted(self._where.items()):
            self._quorum.hear(sender, frame, when)
        for sender, begun in sorted(self._begun.items()):
            self._quorum.hear(sender, begun, self._channel.now())

    @property
    def waits(self) -> bool:
        return self._quorum is not None

    @property
    def has_enough(self) -> bool:
        """Whether enough members wait for a restart, so that one may come."""
        return self._quorum is not None and self._quorum.deadline is not None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it begins without those who are missing, to show to people; None while too few are here."""
        due = self._quorum.deadline if self._quorum is not None else None
        return None if due is None else max(0.0, due - self._channel.now())

    @property
    def least(self) -> int:
        """Number of members with whom this peer begins, to show to people."""
        return self._quorum.least if self._quorum is not None else 0

    @property
    def missing(self) -> frozenset[PeerId]:
        """Members that do not wait here, to show to people."""
        return self._quorum.missing(self._channel.now()) if self._quorum is not None else frozenset()

    @property
    def busy(self) -> frozenset[PeerId]:
        """Members that say they are in a step, to show to people."""
        return self._quorum.busy(self._channel.now()) if self._quorum is not None else frozenset()

    def hear(self, sender: PeerId, frame: Waiting | Busy | RestartCertificate) -> None:
        if self._state is None or sender not in self._state.roster.may_ask:
            return
        if self._quorum is not None:
            self._quorum.hear(sender, frame, self._channel.now())
        match frame:
            case Waiting():
                news = sender not in self._where or self._where[sender][0] != frame
                self._where[sender] = (frame, self._channel.now())
                if news:
                    self._tell([sender])  # it may have missed where this member waits
            case RestartCertificate():
                self._begun[sender] = frame
            case Busy():
                self._where.pop(sender, None)

    def waiting_at(self, step: int) -> list[PeerId]:
        """Members that wait before this step, by their own word."""
        since = self._channel.now() - _SAID * self._channel.pacing.bounds.delta
        return sorted(peer for peer, (frame, when) in self._where.items() if frame.step == step and when >= since)

    def pause(self) -> float:
        """Time until which to listen; sends this member's `Waiting` again when it is due."""
        now, quorum = self._channel.now(), self._quorum
        if quorum is None:
            return now + self._pause
        if now >= self._told_at + self._pause:
            self._told_at = now
            self._tell_all()
        due = quorum.deadline
        return min(now + self._pause, due) if due is not None and due > now else now + self._pause

    def begins(self) -> int | None:
        """The incarnation that begins now, if one does; its certificate is recorded before anyone is told."""
        if self._quorum is None:
            return None
        if (allowed := self._allowed()) is not None:
            self._quorum.allow(allowed, self._channel.now())
        self._quorum.tick(self._channel.now())
        if self._quorum.begun is not None:
            self._channel.signed_slots.begins(self._quorum.begun)
        if self._quorum.told != self._told:
            self._told = self._quorum.told
            self._tell_all()
        return self._quorum.begun.incarnation if self._quorum.begun is not None else None

    def _tell_all(self) -> None:
        """Tell all members, and observers too, which would observe in vain."""
        if self._state is not None:
            self._tell(sorted(self._state.roster.may_ask))

    def _tell(self, to: Iterable[PeerId]) -> None:
        if self._quorum is not None and self._state is not None:
            slot = Slot(self._peer.run.id, self._state.step, Phase.RESTART)
            for frame in self._quorum.told:
                self._channel.outlet.send_each(slot, to, frame)


# The restart quorum (SPEC B5, B9): one member's side of a restart, as a state machine.
#
# Nobody is in a step, so nobody leads. Members wait until enough of them stand at the same tip, and sign that they are ready;
# enough signatures are a certificate, and every member that sees it begins, so that all do within one message delay. Frames and
# the time go in, frames come out; nothing here sends or reads a clock.


@dataclass(frozen=True)
class MemberTip:
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


def tip_of(run: Run, state: State[Any], model: Digest) -> MemberTip:
    """Standing in this state, with a model of this digest."""
    common = tagged_hash("troth/tip/1", state.randomness, state.earlier_randomness, model, *state.roster.members)
    return MemberTip(run.id, state.step, common)


class RestartQuorum:
    """`hear` takes frames of others, `tick` the time; `told` are the frames to send to all others as soon as they change."""

    def __init__(
        self,
        identity: Identity,
        members: Iterable[PeerId],
        tip: MemberTip,
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


def be_ready(tip: MemberTip, incarnation: int, identity: Identity, least: int) -> Ready:
    return Ready(least, identity.sign(_signed(tip, incarnation, identity.peer, least)))


def is_ready(tip: MemberTip, incarnation: int, peer: PeerId, ready: Ready, tools: Primitives) -> bool:
    return tools.verify(peer, _signed(tip, incarnation, peer, ready.least), ready.signature)


def proven(
    begun: RestartCertificate, tip: MemberTip, members: Iterable[PeerId], quorum: int, tools: Primitives
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


def _signed(tip: MemberTip, incarnation: int, peer: PeerId, least: int) -> bytes:
    slot = Slot(tip.run, tip.step, Phase.RESTART, incarnation=incarnation)
    return signed_bytes(slot, peer, tagged_hash("troth/ready/1", tip.digest, least.to_bytes(2, "big")))
