"""An announcement as somebody sees it who only looks on: what more than half of the members say was decided (SPEC B2)."""

from collections import Counter
from collections.abc import Iterable

from troth.crypto import Context, PeerId, signed_bytes
from troth.protocol.announce import Blame, Decision, Timing
from troth.protocol.frames import Agreement, Decided
from troth.protocol.primitives import Primitives

_Kind = tuple[tuple[tuple[bytes, bytes], ...], tuple[bytes, ...]]  # who said what, and who said two things


class Sighting:
    """In place of an `Announcement`. Nothing is said; what members say they decided is counted."""

    blame = Blame()

    def __init__(
        self, context: Context, members: Iterable[PeerId], quorum: int, timing: Timing, tools: Primitives
    ) -> None:
        self._context = context
        self._members = frozenset(members)
        self._quorum = quorum
        self._tools = tools
        rounds = (len(self._members) + 1) // 2
        self._patience = timing.views_due + (2 * rounds + 6) * timing.delta
        self._told: dict[PeerId, _Kind] = {}  # digests only: what was said may be long, and everyone sends it
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
        if not isinstance(frame, Decided) or sender not in self._members or sender in self._told or self.decision:
            return
        if not self._signed(frame):
            return
        kind = self._told[sender] = self._kind(frame)
        if Counter(self._told.values())[kind] >= self._quorum:
            said = {PeerId(peer): envelope for peer, envelope in frame.said.items()}
            self._decide(Decision(said, {PeerId(peer): pair for peer, pair in frame.twice.items()}), now)

    def _signed(self, told: Decided) -> bool:
        """Everything in it by whom it is said to be: else the envelopes that are taken in the end might not open."""
        pairs = [*told.said.items(), *((peer, each) for peer, two in told.twice.items() for each in two)]
        return all(
            self._tools.verify(
                PeerId(peer),
                signed_bytes(self._context, PeerId(peer), self._tools.digest(envelope.payload)),
                envelope.signature,
            )
            for peer, envelope in pairs
        )

    def _kind(self, told: Decided) -> _Kind:
        """By payloads: a liar can sign the same one differently for different peers."""
        said = ((peer, self._tools.digest(envelope.payload)) for peer, envelope in sorted(told.said.items()))
        return tuple(said), tuple(sorted(told.twice))

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision, self._decided_at = decision, now
