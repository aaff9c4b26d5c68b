"""A peer's position in the run, and one announcement after another: begun, kept going, ended, proved to observers."""

from collections import defaultdict
from collections.abc import Iterable

from troth.crypto import Identity, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement, Decision, Timing
from troth.protocol.broadcast.link import Outlet, PacketLink
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.serving import CatchUpServer
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.core.channel import AttemptView, Blame, Equivocations, Said
from troth.protocol.wire.frames import (
    Agreement,
    BlobSent,
    Certificate,
    Chained,
    Decided,
    Frame,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
)
from troth.protocol.wire.messages import ATTEMPTS_PER_MEMBER, Commit, Envelope, Malformed, Phase, said_as
from troth.protocol.wire.phases import follows, most_bytes
from troth.protocol.wire.primitives import Primitives

_BEHIND = 8  # steps that an observer may be behind
_MOST_RELAYED = 2  # values of one sender, and as many views (SPEC F2)


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
        return self._ahead * (8 + 4 * len(self.view.members))

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


class Announcer:
    """Runs announcements for a member or an observer. Frames and the time go in; it never waits."""

    def __init__(
        self,
        identity: Identity,
        position: StreamPosition,
        pacing: Pacing,
        link: PacketLink,
        outlet: Outlet,
        catch_up: CatchUpServer,
        tools: Primitives,
    ) -> None:
        self._identity = identity
        self._position = position
        self._pacing = pacing
        self._link = link
        self._outlet = outlet
        self._catch_up = catch_up
        self._tools = tools
        self._running: Announcement | ObservedAnnouncement | None = None
        self._ended: dict[
            Slot, Announcement
        ] = {}  # of this step, and those of the last one that are still to be proved
        self._to_prove: dict[Slot, tuple[frozenset[PeerId], int]] = {}  # to observers; and number of signatures needed
        self._relayed: dict[PeerId, set[Frame]] = defaultdict(set)  # in this announcement
        self._blame = Blame()
        self._silent: dict[int, set[PeerId]] = defaultdict(set)  # by step: members silent in an announcement (SPEC Q7)
        self._equivocations: dict[int, dict[PeerId, tuple[Slot, Envelope, Envelope]]] = defaultdict(dict)

    @property
    def unheard(self) -> frozenset[PeerId]:
        """Members that have not spoken yet in the running announcement, to show to people."""
        members, running = self._position.members, self._running
        heard = running.heard if isinstance(running, Announcement) and running.decision is None else members
        return frozenset(members) - frozenset(heard)

    # The running announcement

    def begin(self, slot: Slot) -> Announcement | ObservedAnnouncement:
        """Begin an announcement, as a member of it or as an observer."""
        timing, position = self._enter(slot), self._position
        members, quorum = position.members, position.quorum or None
        if position.observing:
            self._running = ObservedAnnouncement(slot, members, position.voices, timing, self._tools, quorum)
        else:
            disputed, liars = position.view.disputed_links.get(self._identity.peer, frozenset()), position.view.liars
            self._running = Announcement(slot, self._identity, members, timing, self._tools, disputed, liars, quorum)
        return self._running

    def _enter(self, slot: Slot) -> Timing:
        before, position = self._position.slot, self._position
        assert before is None or position.observing or follows(before, slot), f"{slot} does not follow {before}"
        if slot.phase == Phase.COMMIT:
            self._pacing.begin_step()
        self._relayed.clear()
        position.enter(slot, self._silent[slot.step])
        return self._pacing.timing(slot, position.view, position.members, self._link.now())

    def tick(self) -> None:
        if self._running is not None and self._position.slot is not None:
            self._look_round(self._running)
            self._running.tick(self._link.now())
            self._flush(self._position.slot, self._running)

    def proves(self, slot: Slot, frame: Frame) -> bool:
        """Whether this may prove a decision that this peer has made already."""
        return isinstance(frame, Certificate) and slot in self._ended

    def hear(self, sender: PeerId, slot: Slot, frame: Agreement) -> None:
        """Take a frame of the running announcement, or one that may prove an ended one: it is measured, too (SPEC Q8)."""
        running, proves = self._running, self.proves(slot, frame)
        if slot == self._position.slot:
            assert running is not None
            self._relay(sender, slot, frame)
            self._look_round(running, sender)
            running.hear(sender, frame, self._link.now())
            self._flush(slot, running)
            self.tick()  # it may have been the last frame of a peer that is gone
        else:
            self._ended[slot].hear(sender, frame, self._link.now())
        if proves:
            self._prove(slot)

    def _look_round(self, running: Announcement | ObservedAnnouncement, heard: PeerId | None = None) -> None:
        """Tell the announcement whose connections are closed; but not that of a peer whose frame is in hand: it may be the value
        or view that would be missed."""
        if isinstance(running, Announcement) and running.decision is None:
            running.broken_off(self._link.gone() - {heard})

    def _flush(self, slot: Slot, running: Announcement | ObservedAnnouncement) -> None:
        if frames := running.take():
            self.to_all(slot, frames)

    def to_all(self, slot: Slot, frames: Iterable[Frame]) -> None:
        """Send frames to all members; certificates and blobs to observers too."""
        if self._position.observing:
            return
        for frame in frames:
            observers = sorted(self._catch_up.observers) if isinstance(frame, Certificate | BlobSent) else ()
            self._outlet.send_each(slot, (*self._position.members, *observers), frame)

    def _relay(self, sender: PeerId, slot: Slot, frame: Frame) -> None:
        """Relay the sender's values and views, two of each, to members in a link dispute with it (SPEC F2)."""
        disputed, relayed = self._position.view.disputed_links.get(sender), self._relayed[sender]
        if not disputed or not isinstance(frame, Value | View) or not isinstance(self._running, Announcement):
            return
        enough = sum(type(old) is type(frame) for old in relayed) == _MOST_RELAYED
        if frame in relayed or enough or not self._running.is_of(sender, frame):
            return
        relayed.add(frame)
        self._outlet.send_each(slot, sorted(disputed & set(self._position.members)), Relayed(sender, frame))

    # Its end

    def finish(self, slot: Slot, running: Announcement | ObservedAnnouncement, decision: Decision) -> Said:
        self._tell(slot, decision)
        self._silent[slot.step] |= set(self._position.members) - decision.said.keys()
        self._equivocations[slot.step] |= {peer: (slot, *pair) for peer, pair in decision.equivocations.items()}
        self._pacing.ended(running)
        self._blame |= running.blame
        # Every signature in a decision was checked when its frame came.
        opened = {peer: self._tools.read(slot, peer, envelope) for peer, envelope in decision.said.items()}
        agreed = {peer: said for peer, said in sorted(opened.items()) if not isinstance(said, Malformed)}
        if slot.phase == Phase.COMMIT:
            self._pacing.measured(said_as(said, Commit).took for said in agreed.values())
        if isinstance(running, Announcement):
            self._ended[slot] = running
            self._to_prove[slot] = (self._catch_up.observers, self._position.voices)
            self._prove(slot)
        return agreed

    def _tell(self, slot: Slot, decision: Decision) -> None:
        """Tell observers the decision of an announcement."""
        observers = self._catch_up.observers
        if observers and decision.said:  # empty if the others went on without this peer
            said = {bytes(peer): envelope for peer, envelope in decision.said.items()}
            equivocations = {bytes(peer): pair for peer, pair in decision.equivocations.items()}
            self._outlet.send_each(slot, sorted(observers), Decided(said, equivocations))

    def _prove(self, slot: Slot) -> None:
        """Send the proof of a decision to observers, once, as soon as there is one: with it they need no other voice."""
        if slot not in self._to_prove:
            return
        observers, voices = self._to_prove[slot]
        if slot.step == self._position.view.step:
            observers |= self._catch_up.observers  # some may have come since
        if observers and (proof := self._ended[slot].proof(voices)) is not None:
            del self._to_prove[slot]
            self._outlet.send_each(slot, sorted(observers), proof)

    def equivocations(self, step: int) -> Equivocations:
        return dict(self._equivocations[step])

    def blame(self) -> Blame:
        blame, self._blame = self._blame, Blame()
        return blame

    def end_step(self, step: int) -> float:
        """Drop the memory of earlier steps, and return the longest delay that the announcements of this one measured.

        Observers need proof of the last announcement too, and signatures for it may still be on their way.
        """
        for by_step in (self._silent, self._equivocations):
            for old in [old for old in by_step if old < step]:
                del by_step[old]
        last = {slot: ended for slot, ended in self._ended.items() if slot.step == step}
        self._to_prove = {slot: due for slot, due in self._to_prove.items() if slot in last and due[0]}
        self._ended = {slot: last[slot] for slot in self._to_prove}
        return max((ended.lag for ended in last.values()), default=0.0)
