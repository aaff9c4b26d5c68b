"""An announcement as somebody sees it who only looks on: what more than half of the members say was decided (SPEC B2)."""

from collections import Counter
from collections.abc import Iterable

from troth.crypto import Context, PeerId
from troth.protocol.announce import Blame, Decision, Timing, proves
from troth.protocol.frames import Agreement, Certificate, Decided
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
        self._told: dict[PeerId, Decided] = {}
        self._certified: float | None = None
        self._decided_at: float | None = None
        self.decision: Decision | None = None

    @property
    def deadline(self) -> float | None:
        return None if self.decision is not None else self._patience

    @property
    def ends(self) -> float | None:
        """A certificate reaches onlookers when it reaches members; without one, this is all there is to go by."""
        return self._decided_at if self._certified is None else self._certified

    def take(self) -> list[Agreement]:
        return []

    def tick(self, now: float) -> None:
        if self.decision is None and now >= self._patience:
            self._decide(Decision({}, {}), now)  # lost sight of it: the step cannot go on here

    def hear(self, sender: PeerId, frame: Agreement, now: float) -> None:
        self.tick(now)
        if isinstance(frame, Certificate) and self._certified is None and sender in self._members:
            self._certified = now if proves(self._context, self._members, frame, self._tools) else None
        if not isinstance(frame, Decided) or sender not in self._members or sender in self._told or self.decision:
            return
        self._told[sender] = frame
        kinds = Counter(self._kind(told) for told in self._told.values())
        if kinds[self._kind(frame)] >= self._quorum:
            said = {PeerId(peer): envelope for peer, envelope in frame.said.items()}
            self._decide(Decision(said, {PeerId(peer): pair for peer, pair in frame.twice.items()}), now)

    def _kind(self, told: Decided) -> _Kind:
        """By payloads: a liar can sign the same one differently for different peers."""
        said = ((peer, self._tools.digest(envelope.payload)) for peer, envelope in sorted(told.said.items()))
        return tuple(said), tuple(sorted(told.twice))

    def _decide(self, decision: Decision, now: float) -> None:
        self.decision, self._decided_at = decision, now
