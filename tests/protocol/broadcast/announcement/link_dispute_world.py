"""A world for one announcement in which some pairs have a link dispute, and the channel's own code relays (SPEC F1–F3)."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from random import Random
from typing import cast

from tests.protocol.broadcast.announcement.adversary import Adversary
from tests.protocol.broadcast.announcement.second_view_lies import Signed
from tests.protocol.broadcast.announcement.setting import DELTA, INSTANT, SLOT, Key
from tests.protocol.broadcast.announcement.world import AnnouncementWorld, HonestMember
from tests.protocol.channel_internals import enter_attempt, hear_packet, run_announcement, send_frames_of
from troth.crypto import Identity, PeerId
from troth.protocol.broadcast.announcement import Announcement, view_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Packet, Relayed, Value, View
from troth.protocol.wire.messages import Envelope

Pairs = frozenset[frozenset[PeerId]]


@dataclass
class _WorldLink:
    """A member's link: packets of its channel go into the world."""

    world: "LinkDisputeWorld"
    member: HonestMember

    def now(self) -> float:
        return self.world.now

    def send(self, to: PeerId, packet: Packet) -> None:
        self.world.carry(self.member, to, cast(Frame, packet.frame))

    def gone(self) -> frozenset[PeerId]:
        return frozenset(self.member.sees_gone)

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        raise NotImplementedError("frames are delivered by hand")


class _RelayingChannel:
    """A member's real channel around the announcement under test."""

    def __init__(self, world: "LinkDisputeWorld", member: HonestMember) -> None:
        self._core = member.core
        link = _WorldLink(world, member)
        self._channel = BroadcastChannel(cast(Identity, member.key), link, Timeouts(DELTA), world.tools)
        enter_attempt(self._channel, frozenset(world.everyone), disputed_links=world.disputed_links)
        run_announcement(self._channel, SLOT, member.core, world.everyone)

    def hear(self, sender: PeerId, frame: Frame) -> None:
        hear_packet(self._channel, sender, Packet(SLOT, frame))

    def send_all(self) -> None:
        """Send the frames that the announcement has ready."""
        send_frames_of(self._channel, SLOT, self._core)


class LinkDisputeWorld(AnnouncementWorld):
    """Every liar has a dispute with some honest members, fewer than half, to whom it mostly sends nothing. Where nobody lies,
    links between honest members are cut instead, but for those of one of them. Real channels relay."""

    def __init__(
        self,
        seed: int,
        kind: type[Announcement] = Announcement,
        *,
        members: int | None = None,
        liars: int | None = None,
        departures: bool = False,
    ) -> None:
        self._disputes = Random(f"feuds {seed}")
        self.relayed: dict[PeerId, int] = {}  # frames that each has relayed
        super().__init__(seed, kind, members=members, liars=liars, departures=departures)
        self._channels = {member.peer: _RelayingChannel(self, member) for member in self.honest}
        self._by_peer = {member.peer: member for member in self.honest}

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs that have a link dispute."""
        draw, liars = self._disputes, [key.peer for key in self.liars]
        honest = [peer for peer in self.everyone if peer not in liars]
        if not liars:
            _, *others = draw.sample(honest, len(honest))
            return frozenset(frozenset(pair) for pair in combinations(others, 2) if draw.random() < 0.5)
        most = (len(self.everyone) - 1) // 2
        return frozenset(
            frozenset({liar, victim})
            for liar in liars
            for victim in draw.sample(honest, draw.randint(0, min(most, len(honest))))
        )

    @cached_property
    def shunned(self) -> Pairs:
        """The pairs between which a liar sends neither values nor views."""
        return frozenset(pair for pair in sorted(self.pairs, key=sorted) if self._disputes.random() < 0.7)

    @cached_property
    def disputed_links(self) -> dict[PeerId, frozenset[PeerId]]:
        return {
            peer: frozenset(o for pair in self.pairs if peer in pair for o in pair - {peer}) for peer in self.everyone
        }

    def _adversary(self) -> Adversary:
        return LinkDisputeAdversary(self)

    def _member(self, key: Key, kind: type[Announcement]) -> HonestMember:
        member = super()._member(key, kind)
        member.timing = replace(member.timing, relayed=bool(self.pairs))
        disputed_links = member.disputed_links = self.disputed_links[key.peer]
        numbers = len(self.liars), self.quorum
        member.core = kind(
            SLOT, cast(Identity, key), self.everyone, member.timing, self.tools, disputed_links, *numbers
        )
        return member

    def _crashes(self, most: int) -> int:
        return 0  # blame for a power cut is another matter

    # Frames

    def _hand_out(self, member: HonestMember) -> None:
        self._channels[member.peer].send_all()

    def carry(self, member: HonestMember, to: PeerId, frame: Frame) -> None:
        if isinstance(frame, Relayed):
            self.relayed[member.peer] = self.relayed.get(member.peer, 0) + 1
        elif not member.sent or member.sent[-1][1] is not frame:  # once for all who get it
            self._note(member, frame)
            self.adversary.sees(member, frame)
        if to in self._by_peer:
            self._send(member, self._by_peer[to], frame)

    def _send(self, member: HonestMember, to: HonestMember, frame: Frame) -> None:
        if frozenset({member.peer, to.peer}) not in self.pairs:
            super()._send(member, to, frame)

    def deliver(self, to: HonestMember, sender: PeerId, frame: Frame) -> None:
        if isinstance(frame, Value | View) and frozenset({sender, to.peer}) in self.shunned:
            return
        decoded = self._decoded(frame)
        if decoded is not None:
            self._channels[to.peer].hear(sender, decoded)
            self._after(to)


class LinkDisputeAdversary(Adversary):
    """Also sends frames that do not count, to be relayed in place of the truth, and has friends relay to whom it likes."""

    world: LinkDisputeWorld

    def plan(self) -> None:
        super().plan()
        for liar in self.liars:
            if self.draw.random() < 0.3:
                self._plan_nonsense(liar)
            if self.draw.random() < 0.3:
                self._plan_wrong_views(liar)
            for member in self.world.honest:
                if liar.peer in self.world.disputed_links[member.peer] and self.draw.random() < 0.4:
                    self._plan_relay(liar, member)

    def _plan_nonsense(self, liar: Key) -> None:
        for member in self.world.honest:
            for number in range(2):
                self.send(0.0, liar, member, Value(Envelope(b"nonsense %d" % number, bytes(64))))
                self.send(0.0, liar, member, View(bytes(32), bytes(64)))

    def _plan_wrong_views(self, liar: Key) -> None:
        """Send two wrong views to some, so that the right one, which others relay, comes third."""
        for member in self.some():
            for values in (None, bytes(32)):
                self.send(0.0, liar, member, View(values, liar.sign(view_bytes(SLOT, values))))

    def _plan_relay(self, liar: Key, member: HonestMember) -> None:
        due = member.timing.relayed_values_due
        when = self.draw.choice([self.draw.uniform(0, due), due - INSTANT, due])
        value = Value(
            self.draw.choice(self.values[liar.peer][:2] if self.draw.random() < 0.1 else self.values[liar.peer][:1])
        )
        self.send(when, self.draw.choice(self.liars), member, Relayed(liar.peer, value))

    def _answer_view(self, signed: Signed) -> None:
        super()._answer_view(signed)
        draw = self.draw
        for liar in self.liars:
            view = View(signed[0], liar.sign(view_bytes(SLOT, *signed)), signed[1])
            for member in self.world.honest:
                if liar.peer in self.world.disputed_links[member.peer] and draw.random() < 0.2:
                    due = member.timing.views_due
                    when = draw.choice([draw.uniform(self.world.now, max(self.world.now, due)), due - INSTANT, due])
                    self.send(when, draw.choice(self.liars), member, Relayed(liar.peer, view))
