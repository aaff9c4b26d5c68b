"""An announcement as somebody sees it who only looks on: what more than half of the members say was decided (SPEC B2)."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from troth.crypto import PeerId, Slot, signed_bytes
from troth.protocol.broadcast.announcement import Decision, Seen, Timing, chain_bytes, proves, rounds, values_digest
from troth.protocol.core.channel import Blame
from troth.protocol.wire.frames import Agreement, Certificate, Decided
from troth.protocol.wire.primitives import Primitives

_MOST_CERTIFICATES = 4  # of one sender: its own, and with what it collected

_Kind = tuple[tuple[tuple[bytes, bytes], ...], tuple[bytes, ...]]  # who said what, and who said two things


class ObservedAnnouncement:
    """In place of an `Announcement`. Nothing is said; what members say they decided is counted.

    One voice is enough with a certificate that as many have signed as hold it: one of them is honest and has decided by it, so
    all have (SPEC Q3). The views alone would not do: liars can keep theirs back until the others have decided otherwise.
    """

    blame = Blame()

    def __init__(
        self,
        slot: Slot,
        members: Iterable[PeerId],
        voices: int,  # so many are not all liars
        timing: Timing,
        tools: Primitives,
        quorum: int | None = None,  # that has to be left if others break off (SPEC Q9)
    ) -> None:
        self._slot = slot
        self._members = frozenset(members)
        self._voices = voices
        self._quorum = quorum
        self._tools = tools
        self._patience = timing.views_due + (2 * rounds(len(self._members), voices - 1) + 6) * timing.delta
        self._told: dict[PeerId, _Kind] = {}
        self._kinds: dict[_Kind, Decided] = {}  # one of each: it may be long, and everyone sends it
        self._shown: Counter[PeerId] = Counter()  # certificates
        self._holders: dict[Seen, set[bytes]] = defaultdict(set)  # who has signed that it holds one
        self._proven: set[Seen] = set()
        self._earlier = 0.0
        self._decided_at: float | None = None
        self.decision: Decision | None = None

    @property
    def deadline(self) -> float | None:
        return None if self.decision is not None else self._patience

    @property
    def ends(self) -> float | None:
        """When it was known here; members may have known it delta earlier."""
        return None if self._decided_at is None else self._decided_at - self._earlier

    def bring_forward(self, seconds: float) -> None:
        self._earlier = seconds

    def take(self) -> list[Agreement]:
        return []

    def tick(self, now: float) -> None:
        if self.decision is None and now >= self._patience:
            self._decide(Decision({}, {}), now)  # lost sight of it: the step cannot go on here

    def hear(self, sender: PeerId, frame: Agreement, now: float) -> None:
        self.tick(now)
        if sender not in self._members or self.decision is not None:
            return
        match frame:
            case Decided() if sender not in self._told and self._signed(frame):
                kind = self._told[sender] = self._kind(frame)
                self._kinds.setdefault(kind, frame)
            case Certificate():
                self._hear_certificate(sender, frame)
        self._settle(now)

    def _settle(self, now: float) -> None:
        voices = Counter(self._told.values())
        for kind, told in self._kinds.items():
            if voices[kind] >= self._voices or (self._proven and self._seen(told) in self._proven):
                said = {PeerId(peer): envelope for peer, envelope in told.said.items()}
                self._decide(Decision(said, {PeerId(peer): pair for peer, pair in told.equivocations.items()}), now)
                return

    def _hear_certificate(self, sender: PeerId, certificate: Certificate) -> None:
        self._shown[sender] += 1
        if self._shown[sender] > _MOST_CERTIFICATES:
            return
        seen, signed = (certificate.values, certificate.gone), chain_bytes(self._slot, b"", certificate.values)
        holders = self._holders[seen]
        holders |= {
            peer
            for peer, signature in certificate.chain.items()
            if peer in self._members - holders and self._tools.verify(PeerId(peer), signed, signature)
        }
        enough = len(holders) >= self._voices and seen not in self._proven
        if enough and proves(self._slot, self._members, certificate, self._tools, self._quorum):
            self._proven.add(seen)

    def _seen(self, told: Decided) -> Seen | None:
        """What a certificate would have to be of, if it ended by one."""
        if told.equivocations or not told.said.keys() <= self._members:
            return None
        values = values_digest({PeerId(peer): self._tools.digest(said.payload) for peer, said in told.said.items()})
        return values, tuple(sorted(self._members - told.said.keys()))

    def _signed(self, told: Decided) -> bool:
        """Everything in it by whom it is said to be: else the envelopes that are taken in the end might not open."""
        pairs = [*told.said.items(), *((peer, each) for peer, two in told.equivocations.items() for each in two)]
        return all(
            self._tools.verify(
                PeerId(peer),
                signed_bytes(self._slot, PeerId(peer), self._tools.digest(envelope.payload)),
                envelope.signature,
            )
            for peer, envelope in pairs
        )

    def _kind(self, told: Decided) -> _Kind:
        """By payloads: a liar can sign the same one differently for different peers."""
        said = ((peer, self._tools.digest(envelope.payload)) for peer, envelope in sorted(told.said.items()))
        return tuple(said), tuple(sorted(told.equivocations))

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision, self._decided_at = decision, now
