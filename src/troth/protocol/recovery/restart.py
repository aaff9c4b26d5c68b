"""A member's side of a restart (SPEC B5): it says where it waits, hears where others wait, and learns when all begin."""

import math
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.signed_slots import next_incarnation
from troth.protocol.core.roster import Roster
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.restart_quorum import Enough, Patience, RestartQuorum, tip_of
from troth.protocol.wire.frames import Busy, RestartCertificate, Waiting
from troth.protocol.wire.messages import Phase

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
        self._quorum.tick(self._channel.listener.now())
        for sender, (frame, when) in sorted(self._where.items()):
            self._quorum.hear(sender, frame, when)
        for sender, begun in sorted(self._begun.items()):
            self._quorum.hear(sender, begun, self._channel.listener.now())

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
        return None if due is None else max(0.0, due - self._channel.listener.now())

    @property
    def least(self) -> int:
        """Number of members with whom this peer begins, to show to people."""
        return self._quorum.least if self._quorum is not None else 0

    @property
    def missing(self) -> frozenset[PeerId]:
        """Members that do not wait here, to show to people."""
        return self._quorum.missing(self._channel.listener.now()) if self._quorum is not None else frozenset()

    @property
    def busy(self) -> frozenset[PeerId]:
        """Members that say they are in a step, to show to people."""
        return self._quorum.busy(self._channel.listener.now()) if self._quorum is not None else frozenset()

    def hear(self, sender: PeerId, frame: Waiting | Busy | RestartCertificate) -> None:
        if self._state is None or sender not in self._state.roster.may_ask:
            return
        if self._quorum is not None:
            self._quorum.hear(sender, frame, self._channel.listener.now())
        match frame:
            case Waiting():
                news = sender not in self._where or self._where[sender][0] != frame
                self._where[sender] = (frame, self._channel.listener.now())
                if news:
                    self._tell([sender])  # it may have missed where this member waits
            case RestartCertificate():
                self._begun[sender] = frame
            case Busy():
                self._where.pop(sender, None)

    def waiting_at(self, step: int) -> list[PeerId]:
        """Members that wait before this step, by their own word."""
        since = self._channel.listener.now() - _SAID * self._channel.pacing.bounds.delta
        return sorted(peer for peer, (frame, when) in self._where.items() if frame.step == step and when >= since)

    def pause(self) -> float:
        """Time until which to listen; sends this member's `Waiting` again when it is due."""
        now, quorum = self._channel.listener.now(), self._quorum
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
            self._quorum.allow(allowed, self._channel.listener.now())
        self._quorum.tick(self._channel.listener.now())
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
