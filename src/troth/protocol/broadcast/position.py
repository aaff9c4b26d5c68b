"""A peer's position in the run, and which frames of others concern it there."""

from troth.crypto import PeerId, Slot
from troth.protocol.core.channel import AttemptView
from troth.protocol.wire.frames import (
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

_BEHIND = 8  # steps that an observer may be behind


class Position:
    """Attempt that a peer is in, slot of its announcement, and rules for frames that may still come."""

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
