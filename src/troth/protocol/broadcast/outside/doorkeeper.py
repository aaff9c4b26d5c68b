"""A member's ear at the door: tickets of strangers, and commitments of candidates (SPEC J4, J5). Bounded, whoever knocks."""

from collections import defaultdict
from operator import itemgetter

from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.outside.few import FewOfMany
from troth.protocol.core.door import best_tickets, has_work, ticket_hash
from troth.protocol.core.roster import Roster
from troth.protocol.wire.frames import HistoryWanted, Knock, ProbeShown, TicketShown, TipWanted
from troth.protocol.wire.messages import Probe, Ticket
from troth.protocol.wire.primitives import Primitives

_MOST_ASKING = 8  # strangers that are answered in a step
_MOST_REFUSED = 1024  # that are remembered


class Doorkeeper:
    """Keeps the best tickets for the next draw, and one commitment of each candidate for this step and the next."""

    def __init__(self, tools: Primitives, secret: bytes = b"") -> None:
        self._tools = tools
        self._run = Digest(bytes(32))
        self._roster = Roster(())
        self._tickets: list[
            tuple[int, Ticket]
        ] = []  # by their hashes, the smallest first; their signatures were checked
        self._refused: set[PeerId] = (
            set()
        )  # senders of tickets with work in them that their keys did not sign, for this draw
        self.histories = FewOfMany[HistoryWanted](_MOST_ASKING, secret)  # asked for, by strangers
        self.tips = FewOfMany[TipWanted](_MOST_ASKING, secret)
        self._probes: dict[int, dict[PeerId, Probe]] = defaultdict(dict)  # by step and candidate

    def stand(self, run: Digest, roster: Roster) -> None:
        """Stand at the door of the step that this roster begins: tickets for another draw are worth nothing there."""
        if (run, roster.door.seed) != (self._run, self._roster.door.seed):
            self._tickets = []
            self._refused.clear()
        known = roster.known
        self._tickets = [one for one in self._tickets if one[1].key not in known]
        self._run, self._roster = run, roster

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
                if slot.run == self._run and sender not in self._refused:
                    self._hear_ticket(sender, ticket)
            case ProbeShown(probe=probe):
                if step <= slot.step <= step + 1 and sender == probe.key and sender in self._roster.door.keys:
                    self._probes[slot.step].setdefault(sender, probe)

    def _hear_ticket(self, sender: PeerId, ticket: Ticket) -> None:
        """Keep a ticket if it is among the best. Strangers may repeat themselves, and make tickets up, as often as they like: a
        hash shows the work, another one the rank; a signature is looked at only if the ticket would be kept, and a sender has
        one wrong one in each draw [M4]."""
        run, door = self._run, self._roster.door
        if not has_work(run, door, ticket):
            return
        rank = ticket_hash(run, door.seed, ticket)
        others = [one for one in self._tickets if one[1].key != ticket.key]
        mine = [one for one in self._tickets if one[1].key == ticket.key]
        beaten = mine or others[door.slots - 1 :]  # one of these goes if it is kept
        if beaten and rank >= beaten[0][0]:
            return
        if best_tickets(run, door, [ticket], self._roster.known, self._tools):
            self._tickets = sorted([*others, (rank, ticket)], key=itemgetter(0))[: door.slots]
        elif len(self._refused) < _MOST_REFUSED:
            self._refused.add(sender)

    @property
    def tickets(self) -> list[Ticket]:
        return [ticket for _, ticket in self._tickets]

    def probes(self, step: int) -> list[Probe]:
        return list(self._probes.get(step, {}).values())

    def forget(self, step: int) -> None:
        for old in [old for old in self._probes if old < step]:
            del self._probes[old]
