"""One announcement after another: begun, kept going, ended, proved to observers; and the memory of them within a step."""

from collections import defaultdict
from collections.abc import Iterable

from troth.crypto import Identity, PeerId, Slot
from troth.protocol.broadcast.announcement import Announcement, Decision, Timing
from troth.protocol.broadcast.link import Outlet, PacketLink
from troth.protocol.broadcast.observed import ObservedAnnouncement, StreamPosition
from troth.protocol.broadcast.serving import CatchUpServer
from troth.protocol.broadcast.timeouts import Pacing
from troth.protocol.core.channel import Blame, Equivocations, Said
from troth.protocol.wire.frames import Agreement, BlobSent, Certificate, Decided, Frame, Relayed, Value, View
from troth.protocol.wire.messages import Commit, Envelope, Malformed, Phase, said_as
from troth.protocol.wire.phases import follows
from troth.protocol.wire.primitives import Primitives

_MOST_RELAYED = 2  # values of one sender, and as many views (SPEC F2)


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
