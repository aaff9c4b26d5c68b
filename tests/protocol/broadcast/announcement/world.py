"""A world for one announcement: honest members, liars with a plan, a network within its bounds; all of it from one seed.

Honest members are `Announcement`s. Frames among them take less than Δ and may overtake each other; liars see every frame the
moment it is sent, and their own arrive when they like. Frames travel as bytes and are decoded strictly.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Self, cast

import msgspec

from tests.protocol.broadcast.announcement.adversary import Adversary
from tests.protocol.broadcast.announcement.setting import DELTA, INSTANT, KEYS, SLOT, CheapPrimitives, Key, sealed
from troth.crypto import Identity, PeerId
from troth.protocol.broadcast.announcement import Announcement, Decision, Timing, rounds
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.messages import Envelope

_DECODER = msgspec.msgpack.Decoder(Frame)
_ENCODER = msgspec.msgpack.Encoder()


@dataclass
class HonestMember:
    """An honest member, and what it has done so far. Everything that the world must know of the core's insides is here."""

    key: Key
    core: Announcement
    timing: Timing
    says_at: float
    envelope: Envelope
    sent: list[tuple[float, Frame]] = field(default_factory=list)
    decided_at: float | None = None
    was_slow: bool = False
    timer: float | None = None
    disputed_links: frozenset[PeerId] = frozenset()
    sees_gone: set[PeerId] = field(default_factory=set)  # peers whose connections to this one are closed
    stopped: bool = False  # it lost power
    left_to_send: int | None = None  # packets, until it does

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    def round_end(self, number: int) -> float:
        return self.core._round_end(number)

    @property
    def in_rounds(self) -> bool:
        """Whether its rounds have begun."""
        return self.core._slow_since is not None

    @property
    def heard_in_time(self) -> frozenset[PeerId]:
        return frozenset(self.core._in_time)

    @property
    def has_viewed(self) -> bool:
        return self.core._viewed_at is not None

    @property
    def holds_certificate(self) -> bool:
        return self.core._certificate is not None

    def holds_too_much(self, members: int) -> bool:
        """Whether it remembers more than two values, one view and two second views of each member (or of each relay)."""
        values = [*map(len, self.core._direct.values()), *map(len, self.core._accepted.values())]
        second_views = Counter(peer for signed in self.core._second_views._signatures.values() for peer in signed)
        if max(second_views.values(), default=0) > 2 * (members if self.disputed_links else 1):
            return True
        return len(self.core._views) > members or len(values) > 2 * members or any(count > 2 for count in values)


class AnnouncementWorld:
    """One run of one announcement."""

    def __init__(
        self,
        seed: int,
        kind: type[Announcement] = Announcement,
        *,
        members: int | None = None,
        liars: int | None = None,
        fifo: bool | None = None,
        departures: bool = False,
    ) -> None:
        self.departures = Departures(self, seed) if departures else None
        self.draw = draw = Random(seed)
        self.seed = seed
        n = members if members is not None else draw.randint(3, 9)
        most = (n + 1) // 2 - 1
        drawn = most if draw.random() < 0.8 else draw.randint(0, most)
        if self.departures is not None:
            drawn = self.departures.draw.randint(0, most)
        f = drawn if liars is None else liars
        self.quorum = max(n // 2 + 1, f + 1)
        self.tools = CheapPrimitives()
        keys = draw.sample(KEYS, n)
        self.liars, honest = keys[:f], keys[f:]
        self.everyone = tuple(sorted(key.peer for key in keys))
        self.rounds = rounds(n, f)
        self.allowance = draw.choice([0.0, 0.3, 2.0])
        self.fifo = draw.random() < 0.5 if fifo is None else fifo
        self.delays = draw.choice(["fast", "slow", "any", "extreme", "links"])
        self._links: dict[tuple[PeerId, PeerId], float] = {}
        self._last: dict[tuple[PeerId, PeerId], float] = {}
        truthful = [self._member(key, kind) for key in honest]
        crashes = self._crashes(most - f)
        self.crashing, self.honest = truthful[:crashes], truthful[crashes:]
        self.events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = count()
        self._wire: dict[int, tuple[Frame, Frame | None]] = {}
        self.now = 0.0
        self.undecodable = 0
        self.longest = 0.0  # delay of a frame between honest members
        self.crash: str | None = None
        self.adversary = self._adversary()

    def _adversary(self) -> Adversary:
        return Adversary(self)

    def _member(self, key: Key, kind: type[Announcement]) -> HonestMember:
        draw = self.draw
        start = draw.choice([0.0, DELTA, draw.random() * DELTA])
        timing = Timing(start, self.allowance, DELTA)
        core = self._core(key, kind, timing)
        says_at = start + self.allowance * draw.choice([0.0, 1.0, draw.random()])
        return HonestMember(key, core, timing, says_at, sealed(key, b"said by " + key.peer[:4]))

    def _core(self, key: Key, kind: type[Announcement], timing: Timing) -> Announcement:
        numbers = len(self.liars), self.quorum
        return kind(SLOT, cast(Identity, key), self.everyone, timing, self.tools, frozenset(), *numbers)

    def _crashes(self, most: int) -> int:
        """Number of honest members that lose power; with the liars no more than the rounds are for."""
        return 0 if self.departures is None or most < 1 else self.departures.draw.randint(0, most)

    def decisions(self) -> list[Decision]:
        return [cast(Decision, member.core.decision) for member in self.honest]

    # Events

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Plan an event. Ties are drawn: events of one moment may happen in any order."""
        heapq.heappush(self.events, (max(when, self.now), self.draw.randrange(1 << 30), next(self._order), do))

    def run(self) -> Self:
        for member in (*self.honest, *self.crashing):
            self.at(member.says_at, partial(self._says, member))
            self._rearm(member)
        self.adversary.plan()
        if self.departures is not None:
            self.departures.plan()
        handled = 0
        while self.events:
            handled += 1
            assert handled < 100_000, "this does not end"
            self.now, _, _, do = heapq.heappop(self.events)
            try:
                do()
            except Exception as error:
                self.crash = f"{type(error).__name__}: {error}"
                return self
        return self

    def _says(self, member: HonestMember) -> None:
        if member.stopped:
            return
        self._show_departures(member)
        member.core.say(member.envelope, self.now)
        self._after(member)

    def deliver(self, to: HonestMember, sender: PeerId, frame: Frame) -> None:
        decoded = self._decoded(frame)
        if decoded is None or to.stopped:
            return
        self._show_departures(to)
        to.core.hear(sender, decoded, self.now)
        self._after(to)

    def notice(self, member: HonestMember, *who: PeerId, gone: bool) -> None:
        """Show a member that connections were closed, or are open again."""
        if member.stopped:
            return
        (member.sees_gone.update if gone else member.sees_gone.difference_update)(who)
        self._show_departures(member)
        member.core.tick(self.now)
        self._after(member)

    def _show_departures(self, member: HonestMember) -> None:
        if member.core.decision is None:
            member.core.broken_off(member.sees_gone)

    def _tick(self, member: HonestMember, timer: float) -> None:
        if member.timer == timer and not member.stopped:
            member.timer = None
            self._show_departures(member)
            member.core.tick(self.now)
            self._after(member)

    def _after(self, member: HonestMember) -> None:
        self._hand_out(member)
        if member.core.decision is not None and member.decided_at is None:
            member.decided_at = self.now
        if member.in_rounds and not member.was_slow:
            member.was_slow = True
            self.adversary.sees_slow(member)
        self._rearm(member)

    def _rearm(self, member: HonestMember) -> None:
        deadline = member.core.deadline
        if deadline is not None and deadline != member.timer:
            member.timer = deadline
            self.at(deadline, lambda: self._tick(member, deadline))

    # Frames

    def _decoded(self, frame: Frame) -> Frame | None:
        """The frame as the other end reads it; bytes that are no frame do not arrive."""
        known = self._wire.get(id(frame))
        if known is None:
            try:
                decoded: Frame | None = _DECODER.decode(_ENCODER.encode(frame))
            except msgspec.ValidationError:
                decoded = None
            known = self._wire[id(frame)] = (frame, decoded)
        return known[1]

    def _hand_out(self, member: HonestMember) -> None:
        for frame in member.core.take():
            self._note(member, frame)
            for other in self._in_any_order(member):
                if member.left_to_send is not None:
                    member.left_to_send -= 1
                    if member.left_to_send < 0:
                        cast(Departures, self.departures).stop(member)
                        return
                self._send(member, other, frame)
            self.adversary.sees(member, frame)

    def _in_any_order(self, sender: HonestMember) -> list[HonestMember]:
        others = [other for other in (*self.honest, *self.crashing) if other is not sender]
        if sender.left_to_send is not None:
            cast(Departures, self.departures).draw.shuffle(others)  # some get its last frame, some do not
        return others

    def _note(self, member: HonestMember, frame: Frame) -> None:
        member.sent.append((self.now, frame))
        if self._decoded(frame) is None:
            self.undecodable += 1

    def _send(self, member: HonestMember, to: HonestMember, frame: Frame) -> None:
        link = (member.peer, to.peer)
        arrives = self.now + self.delay(link)
        if self.fifo:  # no later than Δ still: the one before was sent earlier
            arrives = self._last[link] = max(arrives, self._last.get(link, 0.0) + 1e-9)
        self.longest = max(self.longest, arrives - self.now)
        self.at(arrives, lambda: self.deliver(to, member.peer, frame))

    def delay(self, link: tuple[PeerId, PeerId]) -> float:
        fast, slow = 1e-4, DELTA * (1 - 1e-4)
        match self.delays:
            case "fast":
                return fast
            case "slow":
                return slow
            case "any":
                return fast + self.draw.random() * (slow - fast)
            case "extreme":
                return fast if self.draw.random() < 0.5 else slow
            case _:
                return self._links.setdefault(link, fast if self.draw.random() < 0.5 else slow)


class Departures:
    """Power cuts of honest members and connections that liars close, drawn from a generator of their own (SPEC Q9)."""

    def __init__(self, world: AnnouncementWorld, seed: int) -> None:
        self._world = world
        self.draw = Random(f"departures {seed}")
        self.seen_by_all = True  # whether everybody saw every power cut, and nobody came back
        self.seen_at = 0.0  # the last moment at which somebody saw one

    def plan(self) -> None:
        draw, world = self.draw, self._world
        for member in world.crashing:
            if draw.random() < 0.5:
                member.left_to_send = draw.randrange(3 * len(world.everyone))
            else:
                moments = [0.0, member.says_at, draw.uniform(0, member.timing.views_due + 4 * DELTA)]
                world.at(draw.choice(moments), partial(self.stop, member))
        for liar in world.liars if not world.adversary.second_views.breakers else ():
            self._plan_closed_connections(liar)

    def _plan_closed_connections(self, liar: Key) -> None:
        """Plan that a liar closes its connections to all, some or one, at one moment or many; and may be back."""
        draw, world = self.draw, self._world
        towards = draw.choice(["nobody", "all", "all", "some", "one"])
        one, due = draw.choice(world.honest), world.honest[0].timing.values_due
        together = draw.choice([0.0, draw.uniform(0, due), due - INSTANT])
        for member in world.honest:
            chosen = {"nobody": False, "all": True, "some": draw.random() < 0.5, "one": member is one}[towards]
            if chosen:
                when = together if draw.random() < 0.7 else draw.uniform(0, member.timing.views_due)
                world.at(when, partial(world.notice, member, liar.peer, gone=True))
                if draw.random() < 0.3:
                    world.at(when + draw.random() * 3, partial(world.notice, member, liar.peer, gone=False))

    def stop(self, member: HonestMember) -> None:
        """Cut its power. All others see it within Δ; or some do not, since a machine without power closes nothing. It may be
        back, and then has nothing to say here."""
        if member.stopped:
            return
        member.stopped = True
        draw, world = self.draw, self._world
        sees, back = draw.random() < 0.7, draw.random() < 0.2
        self.seen_by_all &= sees and not back
        for other in (*world.honest, *world.crashing):
            if other is not member and (sees or draw.random() < 0.5):
                seen = world.now + world.delay((member.peer, other.peer))
                self.seen_at = max(self.seen_at, seen)
                world.at(seen, partial(world.notice, other, member.peer, gone=True))
                if back:
                    world.at(seen + draw.random() * 2, partial(world.notice, other, member.peer, gone=False))
