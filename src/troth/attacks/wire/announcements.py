"""Lies about announcements: values, views and certificates that a liar sends in place of the true ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from troth.attacks.wire.behaviours import LieDraws
from troth.attacks.wire.lies import (
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
from troth.attacks.wire.splits import LastRound
from troth.crypto import Identity, PeerId, Slot, Stream
from troth.protocol.wire.frames import Certificate, Chained, Frame, Value, View
from troth.protocol.wire.messages import Clip, Commit, Malformed, Message, Phase, Report
from troth.protocol.wire.phases import decode, encode, seal


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
