"""A member's ear at the door: tickets of strangers, and commitments of candidates (SPEC J4, J5). Bounded, whoever knocks."""

from collections import defaultdict

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.outside.few import FewOfMany
from troth.protocol.core.door import best_tickets, has_work
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import HistoryWanted, Knock, ProbeShown, TicketShown, TipWanted
from troth.protocol.wire.messages import Probe, Ticket
from troth.protocol.wire.primitives import Primitives

_MOST_ASKING = 8  # strangers that are answered in a step


class Doorkeeper:
    """Keeps the best tickets for the next draw, and one commitment of each candidate for this step and the next."""

    def __init__(self, tools: Primitives, secret: bytes = b"") -> None:
        self._tools = tools
        self._run = Digest(bytes(32))
        self._roster = Roster(())
        self._tickets: list[Ticket] = []
        self.histories = FewOfMany[HistoryWanted](_MOST_ASKING, secret)  # asked for, by strangers
        self.tips = FewOfMany[TipWanted](_MOST_ASKING, secret)
        self._probes: dict[int, dict[PeerId, Probe]] = defaultdict(dict)  # by step and candidate

    def stand(self, run: Digest, roster: Roster) -> None:
        """Stand at the door of the step that this roster begins: tickets for another draw are worth nothing there."""
        self._run, self._roster = run, roster
        self._tickets = best_tickets(run, roster.door, self._tickets, roster.known, self._tools)

    def hear(self, sender: PeerId, slot: Slot, frame: Knock, step: int) -> None:
        """Take a frame; `step` is the one that this member is in."""
        if not self._roster.door.probation:
            return
        match frame:
            case HistoryWanted():
                self.histories.put(sender, frame)
            case TipWanted():
                self.tips.put(sender, frame)
            case TicketShown(ticket=ticket):
                # Strangers may repeat themselves, and make up tickets, as often as they like: both cost next to nothing.
                door, heard = self._roster.door, [*self._tickets, ticket]
                if ticket not in self._tickets and has_work(self._run, door, ticket):
                    self._tickets = best_tickets(self._run, door, heard, self._roster.known, self._tools)
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
