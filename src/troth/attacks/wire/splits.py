"""Split decisions: a certificate that only liars hold, handed to one honest peer in the last round (SPEC Q3, Q5).

The liar's view goes to nobody, so nobody else can certify, and the rounds begin. To all others it then says something else,
in a chain that its fellows signed: peers that decide by chains hear two values, and the peer with the certificate hears one.
A certificate with the signatures of all liars is one signature short in the last round.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from troth.attacks.wire.lies import another, signed_view
from troth.crypto import Identity, PeerId, Slot, Stream, blob_digest
from troth.protocol.broadcast.agreement import chain_bytes
from troth.protocol.wire.frames import Certificate, Chained, Frame, Packet, Value, View
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.phases import decode, seal

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
