"""Behaviours of liars on the wire, the draws that decide when each is shown, and lies about announcements."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from troth.crypto import Identity, PeerId, Slot, Stream, blob_digest
from troth.protocol.broadcast.announcement import Announcement, chain_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.wire.frames import Certificate, Chained, Frame, Packet, Value, View
from troth.protocol.wire.messages import Clip, Commit, Malformed, Message, Phase, Report
from troth.protocol.wire.phases import decode, encode, seal
from troth.workshop.attacks.lies import (
    announcing,
    another,
    false_rejoin,
    false_signature,
    forged_certificate,
    malformed,
    not_finite,
    oversized,
    pick,
    signed_view,
    values_digest,
)

# In the order in which worlds are drawn: a seed means the same world whatever these are called.
WIRE_BEHAVIOURS = {
    "awake": "call all to the next step as soon as one is over",
    "corrupt-parts": "send parts that are not those committed to",
    "equivocate": "say one thing to some and another to others",
    "false-incomplete": "claim that values are missing",
    "false-rejoin": "claim that a member that is gone asks to rejoin, under a key of one's own",
    "false-record": "sign something else in place of the last record",
    "cut-link": "send nothing at all to one peer, always the same",
    "flood": "send large frames for what has not begun yet, in kinds that look small",
    "forged-certificate": "say two things, and show each side that everyone agrees with it, which nobody signed",
    "garbage": "send frames with wrong signatures",
    "hide-certificates": "keep certificates to oneself",
    "hide-views": "hand the view to some only",
    "hoard-signatures": "hand signatures of the record, and sometimes what one commits to, to one honest peer only",
    "impersonate": "send frames that claim to be of somebody else",
    "just-in-time": "let everything arrive just before it is due",
    "late": "let everything arrive late",
    "late-certificate": "keep a certificate for the last round and one peer, and say something else to all meanwhile",
    "malformed": "sign what is no message, the same to all",
    "mislead": "tell observers something else than what was decided",
    "mute": "say nothing in some announcements",
    "non-finite": "announce numbers that are none, and send blobs of them",
    "oversized": "sign a message that is too long, or send a blob that is",
    "refuse-blobs": "hand out no aggregate and show no part",
    "replay": "send old packets again",
    "replay-elsewhere": "send frames of earlier steps again as if they belonged to this one, or to another run",
    "selective": "say it to some only",
    "two-views": "sign different views for different peers",
    "unsigned-record": "commit without a signature under the last record",
    "withhold-parts": "send no part to some owners",
    "wrong-paths": "send parts with a wrong, empty or too long path",
}


@dataclass
class LieDraws:
    """Draws, for each packet and each chosen behaviour, whether a liar shows it; counts how often it did."""

    behaviours: frozenset[str]
    intensity: float  # how often it lies where it could
    start: int  # first step in which it lies
    draw: Stream
    free: Callable[[], bool]  # false while it waits for something, and behaves
    step: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def has(self, behaviour: str) -> bool:
        """Whether the behaviour was chosen, whatever the step."""
        return behaviour in self.behaviours

    def would(self, behaviour: str) -> bool:
        return self.has(behaviour) and self.step >= self.start and self.free()

    def does(self, behaviour: str, chance: float = 0.5) -> bool:
        if not self.would(behaviour) or float(self.draw.uniform(1)[0]) >= chance * self.intensity:
            return False
        self.count(behaviour)
        return True

    def count(self, behaviour: str) -> None:
        self.counts[behaviour] = self.counts.get(behaviour, 0) + 1


# Lies about announcements: values, views and certificates that a liar sends in place of the true ones.


@dataclass
class Acquaintance:
    """Knowledge of the others that a liar has from its link."""

    met: dict[PeerId, int] = field(default_factory=dict)  # peers it sent something to, with the last step
    heard: dict[Slot, dict[PeerId, Value]] = field(default_factory=dict)  # values of this step and later ones
    observers: set[PeerId] = field(default_factory=set)  # peers that asked what has happened, and are no members

    def forget(self, step: int) -> None:
        self.heard = {slot: said for slot, said in self.heard.items() if slot.step >= step}


@dataclass
class LyingAnnouncer:
    """Bends a liar's values, views and certificates; what it says instead in a step is decided once."""

    identity: Identity
    draws: LieDraws
    draw: Stream
    known: Acquaintance
    fellows: Mapping[PeerId, Identity]

    def __post_init__(self) -> None:
        self._me = self.identity.peer
        self.last_round = LastRound(self.identity, self.fellows, self.draw)
        self._instead: dict[Slot, Value | None] = {}  # told to everyone in place of the truth, in this step
        self._others: dict[bytes, Value] = {}  # second messages, by the first one's signature
        # Value told to each peer, where it forges a certificate for both sides.
        self._two_sides: dict[Slot, dict[PeerId, Value] | None] = {}
        self._hoarded: dict[Slot, bool] = {}  # announcements of this step whose Commit it keeps back

    def begin(self, step: int) -> None:
        """Forget what belongs to earlier steps."""
        self._instead.clear()
        self._others.clear()
        self._two_sides.clear()
        self._hoarded.clear()
        self.last_round.forget(step)

    def value(self, to: PeerId, slot: Slot, value: Value) -> Iterator[Frame]:
        if self.draws.does("mute", 0.2) or self.draws.does("selective"):
            return
        if slot.phase == Phase.COMMIT and self._keeps_commit(slot) and self._hoards(to):
            return
        if slot not in self._two_sides:
            self._two_sides[slot] = {} if self.draws.does("forged-certificate", 0.2) else None
        sides = self._two_sides[slot]
        if sides is not None:
            sides[to] = pick(self.draw, (value, self._other(slot, value)))
            yield sides[to]
            return
        if slot not in self._instead:
            payload = self._false_payload(slot, value.envelope.payload)
            self._instead[slot] = None if payload is None else announcing(self.identity, slot, payload)
        if self.draws.does("equivocate"):
            yield self._other(slot, value)
        else:
            yield self._instead[slot] or value

    def _hoards(self, to: PeerId) -> bool:
        """Whether the receiver gets no signature: only one honest peer, the same for all liars, is to hold a quorum's."""
        honest = sorted(self.known.met.keys() - self.fellows.keys())
        return self.draws.would("hoard-signatures") and bool(honest) and to not in self.fellows and to != honest[0]

    def _keeps_commit(self, slot: Slot) -> bool:
        """Whether it keeps its Commit back: signatures of the last record travel in it."""
        if slot not in self._hoarded:
            self._hoarded[slot] = self.draws.does("hoard-signatures")
        return self._hoarded[slot]

    def _false_payload(self, slot: Slot, payload: bytes) -> bytes | None:
        """A payload that breaks a rule, decided once for an announcement: told to some only, it would be a mere equivocation."""
        phase = Phase(slot.phase)
        if self.draws.does("malformed", 0.2):
            return malformed(phase, payload, self.draw)
        if self.draws.does("oversized", 0.05):
            return oversized(phase, payload)
        message = _decoded(phase, payload) if phase in (Phase.COMMIT, Phase.CLIP, Phase.REPORT) else None
        if isinstance(message, Clip | Report) and self.draws.does("non-finite", 0.3):
            return encode(not_finite(message, self.draw))
        gone = sorted(peer for peer, step in self.known.met.items() if step < self.draws.step - 1)
        if isinstance(message, Commit) and gone and self.draws.does("false-rejoin"):
            return encode(false_rejoin(message, pick(self.draw, gone), self.draw))
        if isinstance(message, Commit) and self.draws.does("unsigned-record"):
            return encode(msgspec.structs.replace(message, signature=None))
        if isinstance(message, Commit) and self.draws.does("false-record"):
            return encode(false_signature(message, self.identity, slot))
        return None

    def _other(self, slot: Slot, value: Value) -> Value:
        """Another message for the same slot, as validly signed as the first."""
        key = bytes(value.envelope.signature)
        if key not in self._others:
            message = _decoded(Phase(slot.phase), value.envelope.payload)
            self._others[key] = value if message is None else Value(seal(self.identity, slot, another(message)))
        return self._others[key]

    def view(self, to: PeerId, slot: Slot, view: View) -> Iterator[Frame]:
        if self.draws.does("hide-views"):
            return
        if self.last_round.hides(slot, view, lambda: self.draws.has("late-certificate")):
            self.draws.count("late-certificate")
            return  # from the beginning and always: it needs all liars, and they do not last
        false, said, sides = self._instead.get(slot), self.known.heard.get(slot, {}), self._two_sides.get(slot)
        if sides and to in sides:
            yield from forged_certificate(self.identity, slot, {**said, self._me: sides[to]})
        elif self.draws.does("false-incomplete", 0.2):
            yield signed_view(self.identity, slot, None)
        elif self.draws.does("two-views", 0.7):
            yield signed_view(self.identity, slot, pick(self.draw, (None, self.draw.words(4).tobytes())))
        elif false is not None and view.values is not None:  # else the lie would never be certified
            yield signed_view(self.identity, slot, values_digest({**said, self._me: false}))
        else:
            yield view

    def kept_back(self, slot: Slot, frame: Certificate | Chained) -> Iterator[Frame]:
        if self.draws.does("hide-certificates") or self.last_round.keeps(slot, frame):
            return
        false = self._instead.get(slot)
        mine = isinstance(frame, Chained) and frame.originator == self._me
        if false is None or not mine:  # else its own code passes on the truth that it told nobody
            yield frame


def _decoded(phase: Phase, payload: bytes) -> Message | None:
    """None where the liar's attack on the protocol has already made something of it that is no message."""
    message = decode(phase, payload)
    return None if isinstance(message, Malformed) else message


# Split decisions: a certificate that only liars hold, handed to one honest peer in the last round (SPEC Q3, Q5).
#
# The liar's view goes to nobody, so nobody else can certify, and the rounds begin. To all others it then says something else,
# in a chain that its fellows signed: peers that decide by chains hear two values, and the peer with the certificate hears one.
# A certificate with the signatures of all liars is one signature short in the last round.

# Delays before the end of the last round, and up to so many more: any earlier, it would be handed on in time.
_EARLY = (1.0, 0.6)
_PATIENCE = 40  # deltas until the rounds begin, and for all of them


@dataclass
class _Split:
    """State of the lie in one announcement."""

    since: float
    said: dict[PeerId, Value] = field(default_factory=dict)  # by every member
    receivers: set[PeerId] = field(default_factory=set)  # of the liar's value
    views: dict[PeerId, View] = field(default_factory=dict)  # of others
    mine: View | None = None
    hides: bool | None = None  # whether the liar tries it here; None: not yet decided
    decided: bool = False  # whether the liar's own code has decided
    began: dict[PeerId, float] = field(default_factory=dict)  # peers whose rounds began, and when that was heard
    over: bool = False

    @property
    def rounds(self) -> int:
        return (len(self.receivers) + 2) // 2


class LastRound:
    """Keeps a liar's view and certificate back, until the last round."""

    def __init__(self, identity: Identity, fellows: Mapping[PeerId, Identity], draw: Stream) -> None:
        self._me = identity.peer
        self._fellows = {**fellows, identity.peer: identity}
        self._draw = draw
        self.delta: Callable[[], float] = lambda: 1.0  # longest delay between honest peers, as agreed
        self._splits: dict[Slot, _Split] = {}
        self._later: list[tuple[float, Slot, PeerId | None]] = []  # time, slot and receiver; None: still to choose

    def forget(self, step: int) -> None:
        self._splits = {slot: split for slot, split in self._splits.items() if slot.step >= step - 1}

    def _split(self, slot: Slot, now: float) -> _Split:
        return self._splits.setdefault(slot, _Split(now))

    # Frames that the liar's own code would send

    def tells(self, to: PeerId, slot: Slot, value: Value, now: float) -> None:
        split = self._split(slot, now)
        split.receivers.add(to)
        split.said[self._me] = value

    def hides(self, slot: Slot, view: View, does: Callable[[], bool]) -> bool:
        """Whether it hides its view from everyone: decided once for an announcement, when all have spoken."""
        split = self._splits.get(slot)
        if split is None or view.values is None:
            return False
        if split.hides is None:
            split.hides, split.mine = does(), view
        return split.hides

    def keeps(self, slot: Slot, frame: Certificate | Chained) -> bool:
        split = self._splits.get(slot)
        if split is None or not split.hides or not isinstance(frame, Certificate):
            return False
        split.decided = True
        return True

    # Frames that it hears

    def hears(self, sender: PeerId, slot: Slot, frame: Value | View, now: float) -> None:
        split = self._split(slot, now)
        if isinstance(frame, Value):
            split.said.setdefault(sender, frame)
        else:
            split.views.setdefault(sender, frame)

    def began(self, sender: PeerId, slot: Slot, now: float) -> Iterator[tuple[PeerId, Frame]]:
        """A chain shows that its sender's rounds have begun. The first brings another value for all; the certificate follows
        when the rounds are nearly over."""
        split = self._splits.get(slot)
        if split is None or not split.hides or split.over:
            return
        if not split.began:
            split.over = self._certificate(slot, split) is None
            if not split.over:
                self._later.append((now + self.delta(), slot, None))
                second = self._second(slot, split)
                yield from ((to, second) for to in sorted(split.receivers - self._fellows.keys()))
        split.began.setdefault(sender, now)

    # Frames that it sends instead

    def waits(self, now: float) -> bool:
        """Whether a split is under way: the liar's own code has decided, and must not go on alone meanwhile."""
        return any(s.decided and not s.over and now < s.since + _PATIENCE * self.delta() for s in self._splits.values())

    @property
    def next_due(self) -> float:
        return min((when for when, _, _ in self._later), default=math.inf)

    def due(self, now: float) -> Iterator[tuple[PeerId, Packet]]:
        ready = [item for item in self._later if item[0] <= now]
        self._later = [item for item in self._later if item[0] > now]
        for _, slot, victim in ready:
            split = self._splits.get(slot)
            if split is not None and victim is None:
                self._choose(slot, split)
            elif split is not None and victim is not None:
                split.over = True
                certificate = self._certificate(slot, split)
                if certificate is not None:
                    yield victim, Packet(slot, certificate)

    def _choose(self, slot: Slot, split: _Split) -> None:
        """Choose the peer whose rounds began last: those of the others are over when they hear of the certificate.

        Rounds begin within one delay of each other, and the first chains are heard one later: they show how long a delay is.
        """
        honest = {peer: when for peer, when in split.began.items() if peer not in self._fellows}
        split.over = not honest
        if honest:
            victim, first = max(sorted(honest), key=lambda peer: honest[peer]), min(honest.values())
            early = (honest[victim] - first) * (_EARLY[0] + _EARLY[1] * float(self._draw.uniform(1)[0]))
            self._later.append((first + split.rounds * 2 * self.delta() - early, slot, victim))

    def _certificate(self, slot: Slot, split: _Split) -> Certificate | None:
        """Certificate of the views that honest peers have signed and the liars' own, with the signatures of all liars."""
        values = split.mine.values if split.mine is not None else None
        honest = split.receivers - self._fellows.keys()
        if values is None or any(peer not in split.views or split.views[peer].values != values for peer in honest):
            return None
        ours = sorted(self._fellows.keys() & {*split.receivers, self._me})
        views = {bytes(peer): bytes(split.views[peer].signature) for peer in sorted(honest)}
        views |= {bytes(peer): bytes(signed_view(self._fellows[peer], slot, values).signature) for peer in ours}
        signed = chain_bytes(slot, b"", values)
        return Certificate(values, views, {bytes(peer): bytes(self._fellows[peer].sign(signed)) for peer in ours})

    def _second(self, slot: Slot, split: _Split) -> Chained:
        """Chain of a second value that will be found to be a lie; a fellow's if there is one."""
        liar = min(split.said.keys() & self._fellows.keys() - {self._me}, default=self._me)
        message = decode(Phase(slot.phase), split.said[liar].envelope.payload)
        envelope = split.said[liar].envelope
        if not isinstance(message, Malformed):
            envelope = seal(self._fellows[liar], slot, another(message))
        signed = chain_bytes(slot, liar, blob_digest(envelope.payload))
        signers = [identity for peer, identity in self._fellows.items() if peer != liar]
        return Chained(liar, envelope, {bytes(who.peer): bytes(who.sign(signed)) for who in signers})


class LateChannel(BroadcastChannel):
    """Channel of liars that speak last: decides what to say only when it has heard the others."""

    async def announce_last(self, slot: Slot, choose: Callable[[Said], Message | None], view: AttemptView) -> Said:
        running = self._begin(slot, view)
        if not isinstance(running, Announcement):
            return await self._finish(slot, running)  # an observer says nothing
        now, delta = self.now(), self.pacing.timeouts.delta
        due = (running.deadline or now) - 2.1 * delta  # any later, it would come too late for some
        await self.wait(due, lambda: len(running.heard) >= len(self.position.members) - 1)
        opened = {peer: self._tools.open(slot, peer, envelope) for peer, envelope in running.heard.items()}
        message = choose({peer: said for peer, said in opened.items() if not isinstance(said, Malformed)})
        if message is not None:
            running.say(seal(self._identity, slot, message), self.now())
        return await self._finish(slot, running)
