"""A member's ear at the door: tickets of strangers, and commitments of candidates (SPEC J4, J5). Bounded, whoever knocks."""

from collections import defaultdict

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.door import best_tickets, is_ticket
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import HistoryWanted, Knock, ProbeShown, TicketShown, TipWanted
from troth.protocol.wire.messages import Probe, Ticket

_MOST_ASKING = 8  # strangers that are answered in a step


class Doorkeeper:
    """Keeps the best tickets for the next draw, and one commitment of each candidate for this step and the next."""

    def __init__(self) -> None:
        self._run = Digest(bytes(32))
        self._roster = Roster(())
        self._tickets: list[Ticket] = []
        self.histories: dict[PeerId, HistoryWanted] = {}  # asked for, by strangers
        self.tips: dict[PeerId, TipWanted] = {}
        self._probes: dict[int, dict[PeerId, Probe]] = defaultdict(dict)  # by step and candidate

    def stand(self, run: Digest, roster: Roster) -> None:
        """Stand at the door of the step that this roster begins: tickets for another draw are worth nothing there."""
        self._run, self._roster = run, roster
        self._tickets = best_tickets(run, roster.door, self._tickets, roster.known)

    def hear(self, sender: PeerId, slot: Slot, frame: Knock, step: int) -> None:
        """Take a frame; `step` is the one that this member is in."""
        if not self._roster.door.probation:
            return
        match frame:
            case HistoryWanted():
                if sender in self.histories or len(self.histories) < _MOST_ASKING:
                    self.histories[sender] = frame
            case TipWanted():
                if sender in self.tips or len(self.tips) < _MOST_ASKING:
                    self.tips[sender] = frame
            case TicketShown(ticket=ticket):
                # Strangers may repeat themselves, and make up tickets, as often as they like: both cost next to nothing.
                door, heard = self._roster.door, [*self._tickets, ticket]
                if ticket not in self._tickets and is_ticket(self._run, door, ticket):
                    self._tickets = best_tickets(self._run, door, heard, self._roster.known)
            case ProbeShown(probe=probe):
                if step <= slot.step <= step + 1 and sender == probe.key and sender in self._roster.door.keys:
                    self._probes[slot.step].setdefault(sender, probe)

    @property
    def tickets(self) -> list[Ticket]:
        return self._tickets

    def probes(self, step: int) -> list[Probe]:
        return list(self._probes.get(step, {}).values())

    def forget(self, step: int) -> None:
        for old in [old for old in self._probes if old < step]:
            del self._probes[old]
