"""A world for one announcement: honest members, liars with a plan, a network within its bounds; all of it from one seed.

Honest members are `Announcement`s. Frames among them take less than Δ and may overtake each other; liars see every frame the
moment it is sent, and what they send arrives when they like. Signatures are tagged hashes over a secret, so that a run takes
about a millisecond; liars may sign one message in many ways, as with Ed25519. Frames travel as bytes and are decoded strictly.

In a `FeudWorld` some pairs are apart, and the channel's own code passes on what does not come by itself.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import combinations, count
from random import Random
from typing import Self, cast

import msgspec

from troth.crypto import Digest, Identity, PeerId, Slot, blob_digest, signed_bytes
from troth.protocol.broadcast.announcement import (
    Announcement,
    Decision,
    Seen,
    Timing,
    chain_bytes,
    rounds,
    values_digest,
    view_bytes,
    with_chain,
)
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Entry
from troth.protocol.core.roster import Roster
from troth.protocol.step.link_disputes import LinkDisputes
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Packet, Relayed, Value, View
from troth.protocol.wire.messages import MOST_MEMBERS, Accuse, Announced, Envelope
from troth.protocol.wire.primitives import Primitives

PLACE = Slot(Digest(bytes(32)), step=3, phase=1)
ELSEWHERE = Slot(Digest(bytes(32)), step=2, phase=1)
DELTA = 1.0
INSTANT = 1e-6  # before or after a deadline
_DECODER = msgspec.msgpack.Decoder(Frame)
_ENCODER = msgspec.msgpack.Encoder()


class Key:
    """A stand-in for `Identity`: 32 bytes of nonce, then a hash over the secret."""

    def __init__(self, number: int) -> None:
        self.secret = sha256(b"secret %d" % number).digest()
        self.peer = PeerId(sha256(self.secret).digest())

    def sign(self, message: bytes, nonce: bytes = bytes(32)) -> bytes:
        return nonce + sha256(self.secret + nonce + message).digest()


KEYS = [Key(number) for number in range(9)]
_BY_PEER = {key.peer: key for key in KEYS}


class CheapPrimitives(Primitives):
    """Verifies what `Key` signs."""

    def __init__(self) -> None:
        self._digests: dict[bytes, Digest] = {}

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        key = _BY_PEER.get(peer)
        return key is not None and len(signature) == 64 and key.sign(message, signature[:32]) == signature

    def digest(self, blob: bytes | memoryview) -> Digest:
        blob = bytes(blob)
        known = self._digests.get(blob)
        if known is None:
            known = self._digests[blob] = blob_digest(blob)
        return known


def sealed(key: Key, payload: bytes, slot: Slot = PLACE, nonce: bytes = bytes(32)) -> Envelope:
    return Envelope(payload, key.sign(signed_bytes(slot, key.peer, blob_digest(payload)), nonce))


@dataclass
class Member:
    """An honest member, and what it has done so far."""

    key: Key
    core: Announcement
    timing: Timing
    says_at: float
    envelope: Envelope
    sent: list[tuple[float, Frame]] = field(default_factory=list)
    decided_at: float | None = None
    was_slow: bool = False
    timer: float | None = None
    sees_gone: set[PeerId] = field(default_factory=set)  # whose connections are closed, here
    stopped: bool = False  # it lost power
    left_to_send: int | None = None  # packets, until it does

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    def round_end(self, number: int) -> float:
        return self.core._round_end(number)


class World:
    """One run. `broken` says which promise was broken, if any."""

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
        self._departs = Random(f"departures {seed}") if departures else None
        self.draw = draw = Random(seed)
        self.seed = seed
        n = members if members is not None else draw.randint(3, 9)
        most = (n + 1) // 2 - 1
        drawn = most if draw.random() < 0.8 else draw.randint(0, most)
        if self._departs is not None:
            drawn = self._departs.randint(0, most)
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
        self.longest = 0.0  # that a frame between honest members took
        self.crash: str | None = None
        self.all_see = True
        self.adversary = self._adversary()

    def _adversary(self) -> "Adversary":
        return Adversary(self)

    def _member(self, key: Key, kind: type[Announcement]) -> Member:
        draw = self.draw
        start = draw.choice([0.0, DELTA, draw.random() * DELTA])
        timing = Timing(start, self.allowance, DELTA)
        core = self._core(key, kind, timing)
        says_at = start + self.allowance * draw.choice([0.0, 1.0, draw.random()])
        return Member(key, core, timing, says_at, sealed(key, b"said by " + key.peer[:4]))

    def _core(self, key: Key, kind: type[Announcement], timing: Timing) -> Announcement:
        numbers = len(self.liars), self.quorum
        return kind(PLACE, cast(Identity, key), self.everyone, timing, self.tools, frozenset(), *numbers)

    # Departures

    def _crashes(self, most: int) -> int:
        """How many honest members lose power; with the liars no minority beyond what the rounds are for."""
        return 0 if self._departs is None or most < 1 else self._departs.randint(0, most)

    def _plan_departures(self, draw: Random) -> None:
        for member in self.crashing:
            if draw.random() < 0.5:
                member.left_to_send = draw.randrange(3 * len(self.everyone))
            else:
                moments = [0.0, member.says_at, draw.uniform(0, member.timing.views_due + 4 * DELTA)]
                self.at(draw.choice(moments), partial(self._stop, member))
        for liar in self.liars:
            self._plan_breaks(draw, liar)

    def _plan_breaks(self, draw: Random, liar: Key) -> None:
        """It breaks off towards all, some or one, at one moment or many; and may be back."""
        towards = draw.choice(["nobody", "all", "all", "some", "one"])
        one, due = draw.choice(self.honest), self.honest[0].timing.values_due
        together = draw.choice([0.0, draw.uniform(0, due), due - INSTANT])
        for member in self.honest:
            chosen = {"nobody": False, "all": True, "some": draw.random() < 0.5, "one": member is one}[towards]
            if chosen:
                when = together if draw.random() < 0.7 else draw.uniform(0, member.timing.views_due)
                self.at(when, partial(self._notice, member, liar.peer, gone=True))
                if draw.random() < 0.3:
                    self.at(when + draw.random() * 3, partial(self._notice, member, liar.peer, gone=False))

    def _stop(self, member: Member) -> None:
        """All others see it within Δ; or some do not, since a machine without power closes nothing. It may be back, and then has
        nothing to say here."""
        if member.stopped:
            return
        member.stopped = True
        draw = cast(Random, self._departs)
        sees, back = draw.random() < 0.7, draw.random() < 0.2
        self.all_see &= sees and not back
        for other in (*self.honest, *self.crashing):
            if other is not member and (sees or draw.random() < 0.5):
                seen = self.now + self._delay((member.peer, other.peer))
                self.at(seen, partial(self._notice, other, member.peer, gone=True))
                if back:
                    self.at(seen + draw.random() * 2, partial(self._notice, other, member.peer, gone=False))

    def _notice(self, member: Member, who: PeerId, *, gone: bool) -> None:
        if member.stopped:
            return
        (member.sees_gone.add if gone else member.sees_gone.discard)(who)
        self._look_round(member)
        member.core.tick(self.now)
        self._after(member)

    def _look_round(self, member: Member) -> None:
        if member.core.decision is None:
            member.core.broken_off(member.sees_gone)

    # Events

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Ties are drawn: what happens at one moment may happen in any order."""
        heapq.heappush(self.events, (max(when, self.now), self.draw.randrange(1 << 30), next(self._order), do))

    def run(self) -> Self:
        for member in (*self.honest, *self.crashing):
            self.at(member.says_at, partial(self._says, member))
            self._rearm(member)
        self.adversary.plan()
        if self._departs is not None:
            self._plan_departures(self._departs)
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

    def _says(self, member: Member) -> None:
        if member.stopped:
            return
        self._look_round(member)
        member.core.say(member.envelope, self.now)
        self._after(member)

    def deliver(self, to: Member, sender: PeerId, frame: Frame) -> None:
        decoded = self._decoded(frame)
        if decoded is None or to.stopped:
            return
        self._look_round(to)
        to.core.hear(sender, decoded, self.now)
        self._after(to)

    def _decoded(self, frame: Frame) -> Frame | None:
        """As the other end reads it; what is not a frame does not arrive."""
        known = self._wire.get(id(frame))
        if known is None:
            try:
                decoded: Frame | None = _DECODER.decode(_ENCODER.encode(frame))
            except msgspec.ValidationError:
                decoded = None
            known = self._wire[id(frame)] = (frame, decoded)
        return known[1]

    def _tick(self, member: Member, timer: float) -> None:
        if member.timer == timer and not member.stopped:
            member.timer = None
            self._look_round(member)
            member.core.tick(self.now)
            self._after(member)

    def _hand_out(self, member: Member) -> None:
        for frame in member.core.take():
            self._note(member, frame)
            for other in self._in_any_order(member):
                if member.left_to_send is not None:
                    member.left_to_send -= 1
                    if member.left_to_send < 0:
                        self._stop(member)
                        return
                self._send(member, other, frame)
            self.adversary.sees(member, frame)

    def _in_any_order(self, sender: Member) -> list[Member]:
        others = [other for other in (*self.honest, *self.crashing) if other is not sender]
        if sender.left_to_send is not None:
            cast(Random, self._departs).shuffle(others)  # who gets the last of it
        return others

    def _note(self, member: Member, frame: Frame) -> None:
        member.sent.append((self.now, frame))
        if self._decoded(frame) is None:
            self.undecodable += 1

    def _after(self, member: Member) -> None:
        core = member.core
        self._hand_out(member)
        if core.decision is not None and member.decided_at is None:
            member.decided_at = self.now
        if core._slow_since is not None and not member.was_slow:
            member.was_slow = True
            self.adversary.sees_slow(member)
        self._rearm(member)

    def _rearm(self, member: Member) -> None:
        deadline = member.core.deadline
        if deadline is not None and deadline != member.timer:
            member.timer = deadline
            self.at(deadline, lambda: self._tick(member, deadline))

    def _send(self, member: Member, to: Member, frame: Frame) -> None:
        link = (member.peer, to.peer)
        arrives = self.now + self._delay(link)
        if self.fifo:  # no later than Δ still: the one before was sent earlier
            arrives = self._last[link] = max(arrives, self._last.get(link, 0.0) + 1e-9)
        self.longest = max(self.longest, arrives - self.now)
        self.at(arrives, lambda: self.deliver(to, member.peer, frame))

    def _delay(self, link: tuple[PeerId, PeerId]) -> float:
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

    # Promises

    def promises(self) -> list[Callable[[], str | None]]:
        return [
            self._termination,
            self._agreement,
            self._validity,
            self._proof,
            self._ends,
            self._bounds,
            self._quiet,
        ]

    def broken(self) -> str | None:
        """The first promise that was not kept, with what happened."""
        if self.crash is not None:
            return f"crash: {self.crash}"
        for promise in self.promises():
            why = promise()
            if why is not None:
                return f"{promise.__name__[1:]}: {why}"
        return None

    def decisions(self) -> list[Decision]:
        return [cast(Decision, member.core.decision) for member in self.honest]

    def _termination(self) -> str | None:
        for member in self.honest:
            last = member.timing.views_due + 2 * DELTA * self.rounds + DELTA
            if member.decided_at is None or member.decided_at > last:
                return f"decided at {member.decided_at}, not by {last}"
        return None

    def _agreement(self) -> str | None:
        """Payloads: a liar can sign one payload in two ways. Of three values, any two prove the lie."""
        seen = {
            (tuple(sorted((peer, said.payload) for peer, said in one.said.items())), tuple(sorted(one.equivocations)))
            for one in self.decisions()
        }
        return None if len(seen) == 1 else f"{len(seen)} different decisions"

    def _validity(self) -> str | None:
        for decision in self.decisions():
            for member in self.honest:
                if decision.said.get(member.peer) != member.envelope:
                    return "an honest member's value is missing"
        return None

    def _proof(self) -> str | None:
        liars = {key.peer for key in self.liars}
        for decision in self.decisions():
            if not decision.equivocations.keys() <= liars or decision.equivocations.keys() & decision.said.keys():
                return "twice names whom it must not"
            for peer, pair in decision.equivocations.items():
                if pair[0].payload == pair[1].payload or not all(self._signed(peer, one) for one in pair):
                    return "two values that prove nothing"
            if not all(self._signed(peer, one) for peer, one in decision.said.items()):
                return "a value that nobody said"
        return None

    def _signed(self, peer: PeerId, one: Envelope) -> bool:
        return self.tools.verify(peer, signed_bytes(PLACE, peer, blob_digest(one.payload)), one.signature)

    def _ends(self) -> str | None:
        ends = [member.core.ends for member in self.honest]
        if None in ends:
            return "no end"
        times = [end for end in ends if end is not None]
        return None if max(times) - min(times) <= DELTA + 1e-9 else f"ends {max(times) - min(times):.3f} apart"

    def _bounds(self) -> str | None:
        n = len(self.everyone)
        for member in self.honest:
            if len(member.sent) > 2 * n + 4:
                return f"{len(member.sent)} frames sent"
            for _, frame in member.sent:
                if isinstance(frame, Chained | Certificate) and len(frame.chain) > n:
                    return f"a chain of {len(frame.chain)} signatures forwarded"
            held = [*member.core._direct.values(), *member.core._accepted.values()]
            if len(member.core._views) > n or len(held) > 2 * n or any(len(values) > 2 for values in held):
                return "memory"
        return "a frame that others cannot read" if self.undecodable else None

    def _quiet(self) -> str | None:
        """Without liars no rounds begin, and it takes two message delays after the last value."""
        if self.liars or any(member.sent for member in self.crashing) or not self.all_see:
            return None
        if any(isinstance(frame, Chained) for member in self.honest for _, frame in member.sent):
            return "a chain"
        last = max(member.says_at for member in self.honest)
        if self.crashing:  # they never said a word, and all know by then
            last = max(last, *(member.says_at for member in self.crashing)) + DELTA
        slowest = max(cast(float, member.decided_at) for member in self.honest)
        return None if slowest < last + 2 * DELTA else f"took {slowest - last:.3f} after the last value"


_THEMES = ("hidden", "hidden", "second", "split", "early", "chaos", "chaos")


class Adversary:
    """All liars as one: it draws a theme, and details within it."""

    def __init__(self, world: World) -> None:
        self.world, self.draw = world, world.draw
        self.liars = world.liars
        self.theme = self.draw.choice(_THEMES)
        self.views: dict[Seen, dict[bytes, bytes]] = {}  # what was seen → signer → signature
        self.chains: dict[tuple[bytes, bytes], dict[bytes, bytes]] = {}  # item → signer → signature, all that were seen
        self.replies: dict[PeerId, set[bytes]] = {}
        self.values = {
            key.peer: [sealed(key, b"lie %d" % k, nonce=self._nonce()) for k in range(3)] for key in self.liars
        }
        self.view_mode = {key.peer: self._view_mode() for key in self.liars}
        self.one = self.draw.choice(world.honest)  # on whom everything is tried
        self.restraint = self.draw.random()
        self.leaver, self.reveals = self._leaver()

    def _leaver(self) -> tuple[Key | None, bool]:
        """Sometimes all is about one that says nothing: the others keep their views, or its value, for later."""
        departs = self.world._departs
        if departs is None or len(self.liars) < 2 or departs.random() < 0.5:
            return None, True
        common = departs.choice(["none", "one", "incomplete", "split", "nothing"])
        self.view_mode = dict.fromkeys(self.view_mode, common)
        return departs.choice(self.liars), departs.random() < 0.5

    def _nonce(self) -> bytes:
        return bytes(32) if self.draw.random() < 0.8 else self.draw.randbytes(32)

    def _view_mode(self) -> str:
        if self.theme == "hidden":
            return self.draw.choice(["none", "one", "last", "none"])
        return self.draw.choice(["all", "all", "none", "one", "some", "last", "incomplete", "split", "garbage"])

    def _send(self, when: float, liar: Key, to: Member, frame: Frame) -> None:
        self.world.at(when, lambda: self.world.deliver(to, liar.peer, frame))

    def _some(self) -> list[Member]:
        chosen = [member for member in self.world.honest if self.draw.random() < 0.5]
        return chosen or [self.draw.choice(self.world.honest)]

    # Before it begins

    def plan(self) -> None:
        for liar in self.liars:
            self._plan_values(liar)
            self._plan_early_chains(liar)
        if self.liars and self.draw.random() < 0.3:
            self._plan_replays()
        departs = self.world._departs
        if departs is not None and self.liars:
            for member in self.world.honest:
                if departs.random() < 0.5:
                    when = departs.uniform(0, member.timing.views_due + 2 * DELTA)
                    self.world.at(when, partial(self._name_honest, departs, member))

    def _name_honest(self, draw: Random, member: Member) -> None:
        """As gone, to it or to somebody else: in views, and in certificates of those that liars and honest members signed."""
        world, liar = self.world, draw.choice(self.liars)
        honest = [other.peer for other in (*world.honest, *world.crashing)]
        number = draw.choice([1, 1, len(honest), len(honest), draw.randint(1, len(honest))])
        gone = tuple(sorted(draw.sample(honest, number)))
        digests = {key.peer: blob_digest(self.values[key.peer][0].payload) for key in self.liars}
        digests |= {m.peer: blob_digest(m.envelope.payload) for m in (*world.honest, *world.crashing)}
        seen: Seen = (values_digest({peer: digests[peer] for peer in digests if peer not in gone}), gone)
        views = self.views.setdefault(seen, {})
        views.update({key.peer: key.sign(view_bytes(PLACE, *seen)) for key in self.liars})
        to = draw.choice([member, member, draw.choice(world.honest)])
        world.deliver(to, liar.peer, View(seen[0], views[liar.peer], gone))
        if draw.random() < 0.7:
            world.deliver(to, liar.peer, self._certificate(seen, self._chain(b"", cast(bytes, seen[0]), 1)))

    def _plan_values(self, liar: Key) -> None:
        draw, (v, w, x) = self.draw, self.values[liar.peer]
        mode = draw.choice(["fair", "silent", "some", "split", "double", "last", "triple", "resigned"])
        if self.theme in ("hidden", "early") and draw.random() < 0.8:
            mode = draw.choice(["fair", "fair", "last", "resigned"])
        if self.theme == "second" and draw.random() < 0.7:
            mode = draw.choice(["fair", "some", "one", "silent"])
        if self.leaver is not None:
            mode = "silent" if liar is self.leaver else "fair"
        for member in self.world.honest:
            due = member.timing.values_due
            early = draw.uniform(0, due - INSTANT)
            moment = draw.choice([early, early, due - INSTANT, due, due + INSTANT])
            match mode:
                case "fair":
                    chosen = [(v, early)]
                case "silent":
                    chosen = []
                case "one":
                    chosen = [(v, early)] if member is self.one else []
                case "some":
                    chosen = [(v, moment)] if draw.random() < 0.5 else []
                case "split":
                    chosen = [(draw.choice([v, w]), moment)]
                case "double":
                    chosen = [(v, early)] + ([(w, moment)] if draw.random() < 0.5 else [])
                case "last":
                    chosen = [(v, draw.choice([due - INSTANT, due, due + INSTANT]))]
                case "resigned":
                    chosen = [(sealed(liar, v.payload, nonce=self._nonce()), early)]
                case _:
                    chosen = [(one, draw.uniform(0, due)) for one in draw.sample([v, w, x], draw.randint(1, 3))]
            for envelope, when in chosen:
                self._send(when, liar, member, Value(envelope))

    def _plan_early_chains(self, liar: Key) -> None:
        draw = self.draw
        if draw.random() > {"early": 0.9, "hidden": 0.3}.get(self.theme, 0.4) or self.leaver is not None:
            return
        for member in self._some() if draw.random() < 0.7 else [self.one]:
            timing = member.timing
            due = timing.views_due - DELTA
            early = [0.0, draw.uniform(0, timing.values_due), timing.values_due, due - INSTANT]
            late = [due, due + INSTANT, draw.uniform(due, timing.views_due), timing.views_due - INSTANT]
            self.world.at(draw.choice([*early, *late]), partial(self._release_early, member, liar))

    def _release_early(self, member: Member, liar: Key) -> None:
        """As if its rounds had begun: with anybody's value that is there by now."""
        said = [(key.peer, envelope) for key in self.liars for envelope in self.values[key.peer]]
        said += [(other.peer, other.envelope) for other in self.world.honest if other.says_at < self.world.now]
        originator, envelope = self.draw.choice(said)
        chain = self._chain(originator, blob_digest(envelope.payload), 1)
        self.world.deliver(member, liar.peer, Chained(originator, envelope, chain))

    def _plan_replays(self) -> None:
        """What honest members signed elsewhere, and what nobody signed."""
        draw = self.draw
        victim = draw.choice(self.world.honest)
        liar = draw.choice(self.liars)
        old = sealed(victim.key, b"said elsewhere", ELSEWHERE)
        digest = blob_digest(old.payload)
        chain: dict[bytes, bytes] = {k.peer: k.sign(chain_bytes(PLACE, victim.peer, digest)) for k in self.liars}
        views: dict[bytes, bytes] = {
            peer: _BY_PEER[peer].sign(view_bytes(ELSEWHERE, digest)) for peer in self.world.everyone
        }
        frames: list[Frame] = [
            Chained(victim.peer, old, chain),
            Chained(victim.peer, Envelope(b"never said", draw.randbytes(64)), chain),
            Value(old),
            View(digest, victim.key.sign(view_bytes(ELSEWHERE, digest))),
            Certificate(digest, views, chain),
        ]
        for member in self.world.honest:
            for frame in frames:
                if draw.random() < 0.4:
                    self._send(draw.uniform(0, member.timing.views_due + 4), liar, member, frame)

    # While it goes on

    def sees(self, member: Member, frame: Frame) -> None:
        if not self.liars:
            return
        match frame:
            case View(values, signature, gone) if values is not None:
                seen = (values, gone)
                first = seen not in self.views
                self.views.setdefault(seen, {})[member.peer] = signature
                if first:
                    self._answer_view(seen)
                if self._complete(seen):
                    self._certificate_in_hand(seen)
            case Certificate():
                self.chains.setdefault((b"", frame.values), {}).update(frame.chain)
                self.views.setdefault((frame.values, frame.gone), {}).update(frame.views)
            case Chained():
                item = (frame.originator, blob_digest(frame.envelope.payload))
                self.chains.setdefault(item, {}).update(frame.chain)
            case _:
                pass
        if self.theme == "chaos" and self.draw.random() < 0.15:
            self._meddle(frame)

    def _answer_view(self, seen: Seen) -> None:
        draw, world = self.draw, self.world
        values = seen[0]
        for liar in self.liars:
            view = View(values, liar.sign(view_bytes(PLACE, *seen)), seen[1])
            self.views[seen][liar.peer] = view.signature
            nothing = View(None, liar.sign(view_bytes(PLACE, None)))
            for member in world.honest:
                due = member.timing.views_due
                soon, last = (
                    draw.uniform(world.now, max(world.now, due)),
                    draw.choice([due - INSTANT, due - INSTANT, due]),
                )
                match self.view_mode[liar.peer]:
                    case "all":
                        self._send(world.now, liar, member, view)
                    case "one" if member is self.one:
                        self._send(draw.choice([soon, last, due - DELTA - INSTANT]), liar, member, view)
                    case "some" if draw.random() < 0.5:
                        self._send(draw.choice([soon, last]), liar, member, view)
                    case "last":
                        self._send(last, liar, member, view)
                    case "nothing":
                        self._send(world.now, liar, member, nothing)
                    case "incomplete":
                        self._send(soon, liar, member, nothing if draw.random() < 0.5 else view)
                    case "split":
                        other = View(bytes(32), liar.sign(view_bytes(PLACE, bytes(32))))
                        self._send(soon, liar, member, draw.choice([view, nothing, other]))
                    case "garbage":
                        self._send(world.now, liar, member, View(values, draw.randbytes(64)))
                    case _:
                        pass

    def _complete(self, seen: Seen) -> bool:
        return self.views[seen].keys() >= set(self.world.everyone) - set(seen[1])

    def _certificate_in_hand(self, seen: Seen) -> None:
        """Everyone's views, before any honest member has them all: to one of them, on the quiet path."""
        if self.draw.random() < 0.3:
            target = self.one
            moments = [target.timing.views_due - INSTANT, target.timing.views_due - DELTA, self.world.now]
            when = self.draw.choice(moments)
            liar = self.draw.choice(self.liars)
            self.world.at(when, lambda: self.world.deliver(target, liar.peer, self._certificate(seen, {})))

    def _certificate(self, seen: Seen, chain: Mapping[bytes, bytes]) -> Certificate:
        views = {peer: signature for peer, signature in self.views[seen].items() if peer not in seen[1]}
        return Certificate(cast(bytes, seen[0]), views, dict(chain), seen[1])

    def sees_slow(self, member: Member) -> None:
        """Its rounds are known now: prepare what arrives in their last moments."""
        if not self.liars:
            return
        draw, rounds = self.draw, self.world.rounds
        for liar in self.liars:
            if self.theme in ("hidden", "second", "chaos", "split") and draw.random() < 0.8:
                self._release_value(member, liar)
        if self.views and (member is self.one or draw.random() < 0.2):
            number = rounds if draw.random() < 0.5 else draw.randint(1, rounds)
            when = self._moment(member, number)
            self.world.at(when, lambda: self._release_certificate(member, number))

    def _moment(self, member: Member, number: int) -> float:
        end = member.round_end(number)
        return self.draw.choice([end - INSTANT, end - INSTANT, end, end - 2 * DELTA * self.draw.random()])

    def _release_value(self, member: Member, liar: Key) -> None:
        """A value, mostly a second one: to all in the first round, or to one in the last moment of another."""
        draw, rounds = self.draw, self.world.rounds
        envelope = self.values[liar.peer][1 if draw.random() < 0.7 else draw.randint(0, 2)]
        if self.leaver is not None:
            if liar is not self.leaver or not self.reveals:
                return
            envelope = self.values[liar.peer][0]
        openly = self.theme == "hidden" and draw.random() < 0.8
        number = 1 if openly else rounds if draw.random() < 0.4 else draw.randint(1, rounds)
        if not openly and member is not self.one and draw.random() < 0.8:
            return
        when = self.world.now + INSTANT if openly else self._moment(member, number)
        sender = draw.choice(self.liars)

        def release() -> None:
            chain = self._chain(liar.peer, blob_digest(envelope.payload), number)
            self.world.deliver(member, sender.peer, Chained(liar.peer, envelope, chain))

        self.world.at(when, release)

    def _release_certificate(self, member: Member, number: int) -> None:
        draw = self.draw
        seen = draw.choice(sorted(self.views, key=repr))
        chain = self._chain(b"", cast(bytes, seen[0]), number)
        certificate = self._certificate(seen, chain)
        if not self._complete(seen) or draw.random() < 0.1:  # forge what is missing
            views: dict[bytes, bytes] = {
                peer: self.views[seen].get(peer, draw.randbytes(64))
                for peer in self.world.everyone
                if peer not in seen[1]
            }
            if draw.random() < 0.2:
                views.popitem()
            certificate = Certificate(certificate.values, views, chain, seen[1])
        self.world.deliver(member, draw.choice(self.liars).peer, certificate)

    def _chain(self, originator: bytes, digest: bytes, number: int) -> dict[bytes, bytes]:
        """Liars' signatures, or all that were seen, or as few as would do in round `number`, or fewer; sometimes padded."""
        draw = self.draw
        liars: dict[bytes, bytes] = {key.peer: key.sign(chain_bytes(PLACE, originator, digest)) for key in self.liars}
        seen = {**self.chains.get((originator, digest), {}), **liars}
        match draw.choice(["liars", "liars", "all", "enough", "few", "without"]):
            case "liars":
                chain: dict[bytes, bytes] = liars
            case "all":
                chain = seen
            case "enough":
                chain = dict([item for item in seen.items() if item[0] != originator][:number])
            case "few":
                chain = dict([item for item in seen.items() if item[0] != originator][: number - 1])
            case _:
                chain = {peer: signature for peer, signature in liars.items() if peer != originator}
        padding = draw.random()
        if padding < 0.05:
            chain = {**{peer: draw.randbytes(64) for peer in self.world.everyone}, **chain}
        elif padding < 0.06:
            junk = {sha256(b"%d" % k).digest(): bytes(64) for k in range(MOST_MEMBERS - len(chain))}
            chain = {**junk, **chain}
        return chain

    def _meddle(self, frame: Frame) -> None:
        """Pass on what was seen: late, to some, with one's own signatures added."""
        draw, world = self.draw, self.world
        liar = draw.choice(self.liars)
        passed: Frame = frame
        if isinstance(frame, Chained):
            item = (frame.originator, blob_digest(frame.envelope.payload))
            passed = Chained(frame.originator, frame.envelope, {**frame.chain, **self._chain(*item, 2)})
        elif isinstance(frame, Certificate):
            passed = with_chain(frame, {**frame.chain, **self._chain(b"", frame.values, 2)})
        for member in self._some():
            slow = member.core._slow_since
            when = world.now + draw.random() * 3
            if slow is not None and draw.random() < 0.5:
                when = self._moment(member, draw.randint(1, world.rounds))
            self._send(when, liar, member, passed)


# Pairs that are apart (SPEC F1–F3)

_STEP = 5  # in which everyone says whom it did not hear; all feuds are older
Pairs = frozenset[frozenset[PeerId]]


@dataclass
class _Wire:
    """A member's line: what its channel sends goes into the world."""

    world: "FeudWorld"
    member: Member

    def now(self) -> float:
        return self.world.now

    def send(self, to: PeerId, packet: Packet) -> None:
        self.world.carry(self.member, to, cast(Frame, packet.frame))

    def gone(self) -> frozenset[PeerId]:
        return frozenset(self.member.sees_gone)

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        raise NotImplementedError("frames are delivered by hand")


class FeudWorld(World):
    """Every liar is apart from some honest members, fewer than half, to whom it mostly sends nothing. Where nobody lies, lines
    between honest members are cut instead, but for those of one of them. Real channels pass on."""

    def __init__(
        self,
        seed: int,
        kind: type[Announcement] = Announcement,
        *,
        members: int | None = None,
        liars: int | None = None,
        departures: bool = False,
    ) -> None:
        self._feuds = Random(f"feuds {seed}")
        self.relayed: dict[PeerId, int] = {}  # how many frames each has passed on
        super().__init__(seed, kind, members=members, liars=liars, departures=departures)
        self._channels = {member.peer: self._channel(member) for member in self.honest}
        self._by_peer = {member.peer: member for member in self.honest}

    @cached_property
    def pairs(self) -> Pairs:
        draw, liars = self._feuds, [key.peer for key in self.liars]
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
        return frozenset(pair for pair in sorted(self.pairs, key=sorted) if self._feuds.random() < 0.7)

    @cached_property
    def disputed_links(self) -> dict[PeerId, frozenset[PeerId]]:
        return {
            peer: frozenset(o for pair in self.pairs if peer in pair for o in pair - {peer}) for peer in self.everyone
        }

    def _adversary(self) -> "Adversary":
        return FeudAdversary(self)

    def _member(self, key: Key, kind: type[Announcement]) -> Member:
        member = super()._member(key, kind)
        member.timing = replace(member.timing, relayed=bool(self.pairs))
        disputed_links = self.disputed_links[key.peer]
        numbers = len(self.liars), self.quorum
        member.core = kind(
            PLACE, cast(Identity, key), self.everyone, member.timing, self.tools, disputed_links, *numbers
        )
        return member

    def _crashes(self, most: int) -> int:
        return 0  # who is blamed for a power cut is another matter

    def _channel(self, member: Member) -> AgreedChannel:
        channel = AgreedChannel(cast(Identity, member.key), _Wire(self, member), Timeouts(DELTA), self.tools)
        channel.enter(Entry(frozenset(self.everyone), disputed_links=self.disputed_links))
        channel._members = self.everyone
        channel._run(PLACE, member.core)
        return channel

    # Frames

    def _hand_out(self, member: Member) -> None:
        self._channels[member.peer]._flush(PLACE, member.core)

    def carry(self, member: Member, to: PeerId, frame: Frame) -> None:
        if isinstance(frame, Relayed):
            self.relayed[member.peer] = self.relayed.get(member.peer, 0) + 1
        elif not member.sent or member.sent[-1][1] is not frame:  # once for all who get it
            self._note(member, frame)
            self.adversary.sees(member, frame)
        if to in self._by_peer:
            self._send(member, self._by_peer[to], frame)

    def _send(self, member: Member, to: Member, frame: Frame) -> None:
        if frozenset({member.peer, to.peer}) not in self.pairs:
            super()._send(member, to, frame)

    def deliver(self, to: Member, sender: PeerId, frame: Frame) -> None:
        if isinstance(frame, Value | View) and frozenset({sender, to.peer}) in self.shunned:
            return
        decoded = self._decoded(frame)
        if decoded is not None:
            self._channels[to.peer]._dispatch(sender, Packet(PLACE, decoded))
            self._after(to)

    # Promises

    def promises(self) -> list[Callable[[], str | None]]:
        return [*super().promises(), self._passed_on]

    def _passed_on(self) -> str | None:
        most = 4 * 2 * len(self.pairs)  # two values and two views of each for the other
        return None if max(self.relayed.values(), default=0) <= most else f"{self.relayed} frames passed on"

    def _ends(self) -> str | None:
        """A certificate takes one more delay between two whose line is cut."""
        ends = [end for member in self.honest if (end := member.core.ends) is not None]
        allowed = DELTA if self.liars else 2 * DELTA
        if len(ends) < len(self.honest):
            return "no end"
        return None if max(ends) - min(ends) <= allowed + 1e-9 else f"ends {max(ends) - min(ends):.3f} apart"

    def _quiet(self) -> str | None:
        """Without liars no rounds begin, whoever is apart: a value, a view and a certificate, with one more on its way."""
        if self.liars:
            return None
        if any(isinstance(frame, Chained) for member in self.honest for _, frame in member.sent):
            return "a chain"
        last = max(member.says_at for member in self.honest)
        slowest = max(cast(float, member.decided_at) for member in self.honest)
        return None if slowest < last + 4 * DELTA else f"took {slowest - last:.3f} after the last value"

    def served(self) -> str | None:
        """What any honest member has by its T1, those have who are apart from the sender, unless others keep them waiting too."""
        for member in self.honest:
            in_time = member.core._in_time
            unheard = self.disputed_links[member.peer] - in_time
            if set(self.everyone) - in_time <= self.disputed_links[member.peer] and member.core._viewed:
                for other in self.honest:
                    if (unheard - self.disputed_links[other.peer]) & other.core._in_time:
                        return "a value that somebody had in time was not passed on, or too late"
        return None

    # What comes of it in Accuse

    @property
    def was_slow(self) -> bool:
        """Whether it took all rounds, though nobody was double, and those who spoke were enough to go on without the rest."""
        decision = self.decisions()[0]
        enough = len(decision.said) >= self.quorum and not decision.equivocations
        return enough and self.honest[0].core._certificate is None

    def link_disputes(
        self, *, named: str = "nobody", left: PeerId | None = None, doubting: bool = True
    ) -> LinkDisputes:
        """The honest say whom they did not hear; liars name whom they like, and doubt the honest. One of them may be out of the
        step by then, and whoever was silent is."""
        roster = self.roster
        accuses = {
            member.peer: Accuse((), bytes(32), tuple(member.core.blame.unheard), tuple(member.core.blame.incomplete))
            for member in self.honest
        }
        honest = tuple(member.peer for member in self.honest)
        for key in self.liars:
            unheard = {"nobody": (), "itself": (key.peer,), "foes": tuple(self.disputed_links[key.peer])}[named]
            accuses[key.peer] = Accuse((), bytes(32), unheard, honest if doubting else ())
        there = set(self.decisions()[0].said) - {left}
        heard = {
            peer: Announced(peer, said, Envelope(b"", bytes(64))) for peer, said in accuses.items() if peer in there
        }
        link_disputes = LinkDisputes(roster, _STEP)
        link_disputes.hear(heard, there)
        return link_disputes

    @property
    def roster(self) -> Roster:
        return Roster(
            self.everyone,
            byzantine=len(self.liars),
            link_disputes=tuple((0, min(pair), max(pair)) for pair in sorted(self.pairs, key=sorted)),
        )

    def standing(self) -> str | None:
        """No honest member is struck or expelled, and none is set apart from another; unless it is the lines."""
        honest = {member.peer for member in self.honest} if self.liars else set()
        for left in (None, *(key.peer for key in self.liars)):
            link_disputes = self.link_disputes(left=left)
            if link_disputes.slowed & honest:
                return "an honest member is struck" + (", by one who then left" if left else "")
            if any(set(pair) <= honest for pair in link_disputes.new):
                return "two honest members are set apart"
            if honest & set(self.roster.expelled(_STEP, link_disputes.slowed, link_disputes.new)):
                return "an honest member is expelled"
        return None

    def costs(self) -> str | None:
        """Whoever forces all rounds pays with a strike or with a pair that was not apart before."""
        liars = {key.peer for key in self.liars}
        for named in ("nobody", "itself", "foes"):
            link_disputes = self.link_disputes(named=named, doubting=False)
            if self.was_slow and not link_disputes.new and not link_disputes.slowed & liars:
                return f"all rounds, and it costs nobody anything; liars name {named}"
        return None


class FeudAdversary(Adversary):
    """Also sends what does not count, to be passed on in place of the truth, and has friends pass on to whom it likes."""

    world: FeudWorld

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
                self._send(0.0, liar, member, Value(Envelope(b"nonsense %d" % number, bytes(64))))
                self._send(0.0, liar, member, View(bytes(32), bytes(64)))

    def _plan_wrong_views(self, liar: Key) -> None:
        """Two of them to some, so that the right one, which others pass on, comes third."""
        for member in self._some():
            for values in (None, bytes(32)):
                self._send(0.0, liar, member, View(values, liar.sign(view_bytes(PLACE, values))))

    def _plan_relay(self, liar: Key, member: Member) -> None:
        due = member.timing.relayed_values_due
        when = self.draw.choice([self.draw.uniform(0, due), due - INSTANT, due])
        value = Value(
            self.draw.choice(self.values[liar.peer][:2] if self.draw.random() < 0.1 else self.values[liar.peer][:1])
        )
        self._send(when, self.draw.choice(self.liars), member, Relayed(liar.peer, value))

    def _answer_view(self, seen: Seen) -> None:
        super()._answer_view(seen)
        draw = self.draw
        for liar in self.liars:
            view = View(seen[0], liar.sign(view_bytes(PLACE, *seen)), seen[1])
            for member in self.world.honest:
                if liar.peer in self.world.disputed_links[member.peer] and draw.random() < 0.2:
                    due = member.timing.views_due
                    when = draw.choice([draw.uniform(self.world.now, max(self.world.now, due)), due - INSTANT, due])
                    self._send(when, draw.choice(self.liars), member, Relayed(liar.peer, view))
