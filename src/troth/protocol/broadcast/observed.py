"""An announcement as an observer sees it: the decision that enough members state alike, or one proves (SPEC B2)."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.announcement import Decision, Seen, Timing, chain_bytes, proves, rounds, values_digest
from troth.protocol.core.channel import Blame
from troth.protocol.wire.frames import Agreement, Certificate, Decided
from troth.protocol.wire.primitives import Primitives

_MOST_CERTIFICATES = 4  # of one sender: its own, and those with signatures that it collected

_Kind = tuple[tuple[tuple[bytes, bytes], ...], tuple[bytes, ...]]  # senders with payload digests, and equivocators


class ObservedAnnouncement:
    """An observer's stand-in for `Announcement`: it says nothing, and counts the decisions that members state.

    One voice is enough with a certificate that `voices` members signed when they decided by it: one of them is honest, so all
    have decided so (SPEC Q3). The views alone would not do: liars can withhold theirs until the others have decided otherwise.
    """

    blame = Blame()

    def __init__(
        self,
        slot: Slot,
        members: Iterable[PeerId],
        voices: int,  # L + 1: as many are not all liars
        timing: Timing,
        tools: Primitives,
        quorum: int | None = None,  # least number of members that are not missing (SPEC Q9)
    ) -> None:
        self._slot = slot
        self._members = frozenset(members)
        self._voices = voices
        self._quorum = quorum
        self._tools = tools
        self._patience = timing.views_due + (2 * rounds(len(self._members), voices - 1) + 6) * timing.delta
        self._told: dict[PeerId, _Kind] = {}
        self._kinds: dict[_Kind, Decided] = {}  # one frame of each: it may be long, and everyone sends it
        self._shown: Counter[PeerId] = Counter()  # certificates by sender
        self._holders: dict[Seen, set[bytes]] = defaultdict(set)  # members that signed a certificate when they decided
        self._proven: set[Seen] = set()
        self._earlier = 0.0
        self._decided_at: float | None = None
        self.decision: Decision | None = None

    @property
    def deadline(self) -> float | None:
        return None if self.decision is not None else self._patience

    @property
    def ends(self) -> float | None:
        """Time of the decision here; members may have decided delta earlier."""
        return None if self._decided_at is None else self._decided_at - self._earlier

    def bring_forward(self, seconds: float) -> None:
        self._earlier = seconds

    def take(self) -> list[Agreement]:
        return []

    def tick(self, now: float) -> None:
        if self.decision is None and now >= self._patience:
            self._decide(Decision({}, {}), now)  # too little was heard: this peer cannot follow the step any more

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
        """View that a certificate of this decision would have."""
        if told.equivocations or not told.said.keys() <= self._members:
            return None
        values = values_digest({PeerId(peer): self._tools.digest(said.payload) for peer, said in told.said.items()})
        return values, tuple(sorted(self._members - told.said.keys()))

    def _signed(self, told: Decided) -> bool:
        """Whether every envelope is signed by its stated sender: else the ones taken in the end might not open."""
        pairs = [*told.said.items(), *((peer, each) for peer, two in told.equivocations.items() for each in two)]
        return all(self._tools.genuine(self._slot, PeerId(peer), envelope) for peer, envelope in pairs)

    def _kind(self, told: Decided) -> _Kind:
        """Decision by payloads, not signatures: a liar can sign one payload differently for different peers."""
        said = ((peer, self._tools.digest(envelope.payload)) for peer, envelope in sorted(told.said.items()))
        return tuple(said), tuple(sorted(told.equivocations))

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision, self._decided_at = decision, now
