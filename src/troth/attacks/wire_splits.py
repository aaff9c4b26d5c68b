"""A lie about agreement itself: a certificate that only liars hold, handed to one honest peer in the last round (SPEC Q3, Q5).

The liar's view goes to nobody, so nobody else can certify, and the others complain. To all of them it then says something else,
in a chain that its fellows signed: whoever decides by chains hears two values, and whoever has the certificate hears one. A
certificate with the signatures of all liars is one signature short in the last round.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from troth.attacks.wire_lies import another
from troth.crypto import Context, Identity, PeerId, Stream, blob_digest
from troth.protocol.announce import chain_bytes
from troth.protocol.frames import Certificate, Chained, Frame, Packet, Value
from troth.protocol.messages import Malformed, Phase, Vote, decode, seal

_DELTA = 1.0  # how long a frame between honest peers takes at most
_ROUND = 2 * _DELTA
_EARLY = (
    1.0,
    0.6,
)  # before the last round ends, in delays, and up to so much more: earlier, it would be handed on in time
_PATIENCE = 40 * _DELTA  # for the complaints, and all rounds


@dataclass
class _Split:
    """One announcement."""

    value: Value  # what was said first
    since: float
    told: set[PeerId] = field(default_factory=set)
    heard: Mapping[PeerId, Value] = field(default_factory=dict)  # of others
    hides: bool | None = None  # whether it is tried here; None: not yet decided
    certificate: Certificate | None = None
    complaints: dict[PeerId, float] = field(default_factory=dict)  # who, and when it was heard
    over: bool = False

    @property
    def rounds(self) -> int:
        return (len(self.told) + 2) // 2


class LastRound:
    """What one liar keeps back, and until when."""

    def __init__(self, identity: Identity, fellows: Mapping[PeerId, Identity], draw: Stream) -> None:
        self._identity = identity
        self._fellows = {**fellows, identity.peer: identity}
        self._draw = draw
        self._splits: dict[Context, _Split] = {}
        self._later: list[tuple[float, Context, PeerId | None]] = []  # when, where, to whom; None: choose somebody

    def forget(self, step: int) -> None:
        self._splits = {place: split for place, split in self._splits.items() if place.step >= step - 1}

    # What the liar's own code would send

    def tells(self, to: PeerId, place: Context, value: Value, now: float) -> None:
        self._splits.setdefault(place, _Split(value, now)).told.add(to)

    def hides(self, place: Context, does: Callable[[], bool]) -> bool:
        """Its view, from everyone: decided once for an announcement."""
        split = self._splits.get(place)
        if split is None:
            return False
        if split.hides is None:
            split.hides = does()
        return split.hides

    def keeps(self, place: Context, frame: Certificate | Chained, heard: Mapping[PeerId, Value]) -> bool:
        split = self._splits.get(place)
        if split is None or not split.hides or not isinstance(frame, Certificate):
            return False
        split.certificate, split.heard = frame, heard
        return True

    # What it sends instead

    def complained(self, sender: PeerId, place: Context, now: float) -> Iterator[tuple[PeerId, Frame]]:
        """With the first complaint the rounds begin: something else to all, and the certificate when they are nearly over."""
        split = self._splits.get(place)
        if split is None or split.certificate is None:
            return
        if not split.complaints:
            self._later.append((now + _DELTA, place, None))
            second = self._second(place, split)
            yield from ((to, second) for to in sorted(split.told - self._fellows.keys()))
        split.complaints.setdefault(sender, now)

    def waits(self, now: float) -> bool:
        """Whether it is under way: the liar's own code has decided, and must not go on alone meanwhile."""
        kept = [split for split in self._splits.values() if split.certificate is not None and not split.over]
        return any(now < split.since + _PATIENCE for split in kept)

    @property
    def next_due(self) -> float:
        return min((when for when, _, _ in self._later), default=math.inf)

    def due(self, now: float) -> Iterator[tuple[PeerId, Packet]]:
        ready = [item for item in self._later if item[0] <= now]
        self._later = [item for item in self._later if item[0] > now]
        for _, place, victim in ready:
            split = self._splits.get(place)
            if split is None or split.certificate is None:
                continue
            if victim is None:
                self._choose(place, split)
            else:
                split.over = True
                yield victim, Packet(place, self._endorsed(place, split))

    def _choose(self, place: Context, split: _Split) -> None:
        """Whose rounds began last, and so late that those of the others are over when they hear of it.

        Rounds begin within one delay of each other, and complaints are heard one later: they show how long a delay is.
        """
        honest = {peer: when for peer, when in split.complaints.items() if peer not in self._fellows}
        split.over = not honest
        if honest:
            victim, first = max(sorted(honest), key=lambda peer: honest[peer]), min(honest.values())
            early = (honest[victim] - first) * (_EARLY[0] + _EARLY[1] * float(self._draw.uniform(1)[0]))
            self._later.append((first + split.rounds * _ROUND - early, place, victim))

    def _second(self, place: Context, split: _Split) -> Chained:
        """What will be found to be a lie; a fellow's if there is one."""
        liar = min(split.heard.keys() & self._fellows.keys(), default=self._identity.peer)
        message = decode(Phase(place.phase), split.heard.get(liar, split.value).envelope.payload)
        said = message if not isinstance(message, Malformed) else Vote(())
        second = seal(self._fellows[liar], place, another(said))
        signed = chain_bytes(place, liar, blob_digest(second.payload))
        return Chained(liar, second, {bytes(p): bytes(w.sign(signed)) for p, w in self._fellows.items() if p != liar})

    def _endorsed(self, place: Context, split: _Split) -> Certificate:
        assert split.certificate is not None
        values, members = split.certificate.values, {*split.told, self._identity.peer}
        signed, signers = chain_bytes(place, b"", values), sorted(self._fellows.keys() & members)
        chain = {bytes(peer): bytes(self._fellows[peer].sign(signed)) for peer in signers}
        return Certificate(values, split.certificate.views, chain)
