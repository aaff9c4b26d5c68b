"""A member in no step among others (SPEC B5): it says where it waits, hears where they do, and knows when all begin."""

import math
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from troth.crypto import Digest, PeerId, Slot, tagged_hash
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.restart_quorum import Enough, Patience, RestartQuorum, Tip
from troth.protocol.wire.frames import Busy, RestartCertificate, Waiting
from troth.protocol.wire.messages import Phase

T = TypeVar("T")
_SAID = 4  # times the least delta since somebody said that it waits: it says so twice in each
_WORD = 10  # times the least delta that somebody is taken to be where it said


def tip_of(run: Run, state: State[T], model: Digest) -> Tip:
    """Where somebody stands who is in no step, with a model of this digest."""
    common = tagged_hash("troth/tip/1", state.randomness, state.earlier_randomness, model, *state.roster.members)
    return Tip(run.id, state.step, common)


class Restart(Generic[T]):
    """`stand` says where this peer is; who is no member, or lacks the model, only listens."""

    def __init__(
        self, peer: Peer[T], channel: AgreedChannel, patience: float, allowed: Callable[[], int | None]
    ) -> None:
        self._peer = peer
        self._channel = channel
        self._absent = patience
        self._allowed = allowed  # with how many its people let it begin, if they do
        self._pause = channel.bounds.delta / 2  # between two times that it says where it is
        self._where: dict[PeerId, tuple[Waiting, float]] = {}  # others wait, and when they said so
        self._begun: dict[PeerId, RestartCertificate] = {}  # what others began with
        self._told: tuple[Waiting | RestartCertificate, ...] = ()
        self._told_at = -math.inf
        self._state: State[T] | None = None
        self._quorum: RestartQuorum | None = None

    def stand(self, state: State[T], *, waits: bool, unsure: Roster | None = None) -> None:
        """`unsure`: the roster after a record that this peer may have signed, and threw away."""
        self._state, self._quorum = state, None
        if not waits or self._peer.me not in state.roster.members:
            return
        bounds, roster = self._channel.bounds, state.roster
        self._quorum = RestartQuorum(
            self._peer.identity,
            roster.members,
            tip_of(self._peer.run, state, self._peer.work.digest(state.training)),
            self._channel.next_incarnation(state.incarnation),
            Patience(self._absent, _WORD * bounds.delta, bounds.slowest.until_left(roster.quorum)),
            self._peer.tools,
            Enough(roster.quorum, roster.restart_quorum, unsure),
            self._channel.begun,
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
        """So that something may come of waiting."""
        return self._quorum is not None and self._quorum.deadline is not None

    @property
    def least(self) -> int:
        """For people: with how many it begins."""
        return self._quorum.least if self._quorum is not None else 0

    @property
    def missing(self) -> frozenset[PeerId]:
        """For people: who is not here."""
        return self._quorum.missing(self._channel.now()) if self._quorum is not None else frozenset()

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
                    self._tell([sender])  # it may have missed where this member is
            case RestartCertificate():
                self._begun[sender] = frame
            case Busy():
                self._where.pop(sender, None)

    def waiting_at(self, step: int) -> list[PeerId]:
        """Who waits there, by its own word."""
        since = self._channel.now() - _SAID * self._channel.bounds.delta
        return sorted(peer for peer, (frame, when) in self._where.items() if frame.step == step and when >= since)

    def pause(self) -> float:
        """Until when to listen; also says now and then where this member is."""
        now, quorum = self._channel.now(), self._quorum
        if quorum is None:
            return now + self._pause
        if now >= self._told_at + self._pause:
            self._told_at = now
            self._tell_all()
        due = quorum.deadline
        return min(now + self._pause, due) if due is not None and due > now else now + self._pause

    def begins(self) -> int | None:
        """The incarnation that begins now, if one does; written down before anybody is told."""
        if self._quorum is None:
            return None
        if (allowed := self._allowed()) is not None:
            self._quorum.allow(allowed, self._channel.now())
        self._quorum.tick(self._channel.now())
        if self._quorum.begun is not None:
            self._channel.begins(self._quorum.begun)
        if self._quorum.told != self._told:
            self._told = self._quorum.told
            self._tell_all()
        return self._quorum.begun.incarnation if self._quorum.begun is not None else None

    def _tell_all(self) -> None:
        """Onlookers too: they would look on in vain."""
        if self._state is not None:
            self._tell(sorted(self._state.roster.may_ask))

    def _tell(self, to: Iterable[PeerId]) -> None:
        if self._quorum is not None and self._state is not None:
            slot = Slot(self._peer.run.id, self._state.step, Phase.RESTART)
            for frame in self._quorum.told:
                self._channel.send_each(slot, to, frame)
