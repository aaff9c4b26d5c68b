"""A peer's position in the run; and an announcement as an observer sees it: the decision that enough members state alike, or one
proves (SPEC B2)."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from troth.crypto import PeerId, Slot
from troth.protocol.broadcast.announcement import Decision, Seen, Timing, chain_bytes, proves, rounds, values_digest
from troth.protocol.core.channel import AttemptView, Blame
from troth.protocol.wire.frames import (
    Agreement,
    BlobSent,
    Certificate,
    Chained,
    Decided,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
)
from troth.protocol.wire.messages import ATTEMPTS_PER_MEMBER, Phase
from troth.protocol.wire.phases import most_bytes
from troth.protocol.wire.primitives import Primitives

_BEHIND = 8  # steps that an observer may be behind
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


class StreamPosition:
    """A peer's position in the run: attempt, slot of its announcement, and which frames of others concern it there."""

    def __init__(self, *, observing: bool) -> None:
        self.observing = observing  # hears everything and says nothing (SPEC B2)
        self.view = AttemptView(frozenset())
        self.slot: Slot | None = None  # of the running or last announcement
        self.members: tuple[PeerId, ...] = ()  # in that announcement
        self.quorum = 0  # of the members at the start of the step: at least more than half
        self.left: set[PeerId] = set()  # members that left this step, and wait for a restart
        self.ahead: set[PeerId] = set()  # members that an observer cannot follow any more
        self.busy: dict[PeerId, int] = {}  # members that began a step after a rest, and which (SPEC G3)
        self._began_with = 0  # number of members at the start of the step
        self._observe_from: int | None = None  # first step of which a peer that comes back needs every decision

    def enter(self, slot: Slot, silent: set[PeerId]) -> None:
        """Begin an announcement, without members that were silent in an earlier one of this step (SPEC Q7)."""
        view = self.view
        self.slot, self.members = slot, tuple(sorted(view.members - silent))
        if slot.phase == Phase.COMMIT:
            self._began_with = len(view.members)
            self.quorum = max(len(view.members) // 2 + 1, view.liars + 1, view.quorum)
            self.left.clear()
            self.ahead.clear()
            self.busy.clear()

    def observe_from(self, step: int) -> None:
        self._observe_from = step

    @property
    def voices(self) -> int:
        """Least number of members that are not all liars."""
        return self.view.liars + 1 if self.view.quorum else self.quorum

    @property
    def most_early(self) -> int:
        """Upper limit of early frames of one sender."""
        return (_BEHIND if self.observing else 1) * (8 + 4 * len(self.view.members))

    # Frames that may come

    def expects(self, sender: PeerId) -> bool:
        """Whether the sender is a member, or will be. Strangers may only ask for records and to rejoin: keys cost nothing."""
        view = self.view
        return not view.members or sender in view.members or sender in view.admitted

    def takes(self, slot: Slot) -> bool:
        """Whether the slot is of this step or the next, for an observer of the next few: else a liar could fill memory with
        frames for invented slots."""
        if self.slot is None:
            first = self._observe_from or 0
            return self.observing or slot.step <= first + 1  # a peer that comes back does not know its first step yet
        now = self.slot
        same = slot.run == now.run and slot.incarnation == now.incarnation
        most, last = ATTEMPTS_PER_MEMBER * max(self._began_with, len(self.view.members)), now.step + self._ahead
        return same and now.step <= slot.step <= last and 0 <= slot.attempt < most

    def note_ahead(self, sender: PeerId, slot: Slot) -> None:
        """Note a member that is further ahead than an observer may be behind: with enough of them it has lost the step."""
        now = self.slot
        if not self.observing or now is None or sender not in self.view.members:
            return
        if (slot.run, slot.incarnation) == (now.run, now.incarnation) and slot.step > now.step + self._ahead:
            self.ahead.add(sender)

    @property
    def _ahead(self) -> int:
        return _BEHIND if self.observing else 1

    def needs(self, packet: Packet) -> bool:
        """Whether this peer will ever look at the frame: others take up no memory."""
        slot, frame = packet.slot, packet.frame
        said = frame.frame if type(frame) is Relayed else frame  # exact types: this runs for every packet
        if type(said) is Value or type(said) is Chained:
            # A payload too long for its phase is too long for every honest peer alike, so it counts as never said.
            return len(said.envelope.payload) <= most_bytes(slot.phase) and not self._only_observed(slot)
        if type(said) is View:
            return not self._only_observed(slot)
        if type(said) is PartSent or type(said) is PartShown:
            return not self._is_abandoned(slot)
        if type(said) is Decided:
            return self.observing  # members decide for themselves
        return type(said) is BlobSent or type(said) is Certificate

    def is_ahead(self, slot: Slot) -> bool:
        """Whether this peer has yet to get there."""
        return _order(slot) > self._newest

    def first_needed(self, slot: Slot) -> int:
        """First step whose frames an observer keeps: while its first step is unknown, each sender's last two steps."""
        return slot.step - 1 if self._observe_from is None else self._observe_from

    def _is_abandoned(self, slot: Slot) -> bool:
        """Whether the slot is of an aborted attempt: its parts are sent again, if a member still needs them."""
        return self.slot is not None and _order(slot)[:2] < self._newest[:2]

    def _only_observed(self, slot: Slot) -> bool:
        """Whether this peer only observes the step: of its announcements it needs the decisions, and no more."""
        return self.observing and self.slot is not None and slot.step == self.slot.step

    @property
    def _newest(self) -> tuple[int, int, int]:
        return _order(self.slot) if self.slot is not None else (-1, 0, 0)


def _order(slot: Slot) -> tuple[int, int, int]:
    return slot.step, slot.attempt, slot.phase
