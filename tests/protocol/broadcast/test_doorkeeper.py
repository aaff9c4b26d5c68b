"""A member's ear at the door: what strangers say costs next to nothing, however often they say it (SPEC J4, J5)."""

from dataclasses import replace

from msgspec.structs import replace as replaced

from tests.protocol.core.test_door import KEYS, OPEN, RUN, TOOLS, roster_of, tickets_of, unsigned
from troth.crypto import Digest, PeerId, Slot
from troth.protocol.broadcast.serving import Doorkeeper
from troth.protocol.core.door import best_tickets, has_work, ticket_hash
from troth.protocol.core.records import Candidate
from troth.protocol.wire.frames import ProbeShown, TicketShown
from troth.protocol.wire.messages import Phase, Probe
from troth.protocol.wire.primitives import Primitives

SLOT = Slot(RUN, 6, Phase.REJOIN)


def doorkeeper_at(step: int = 6, tools: Primitives = TOOLS) -> Doorkeeper:
    """One who stands at an open door with a candidate."""
    made = Doorkeeper(tools)
    made.stand(RUN, replace(roster_of(), door=replace(OPEN, candidates=(Candidate(KEYS[7], "", step - 1, 0, 0),))))
    return made


class _Counting(Primitives):
    """Counts the signatures that are looked at."""

    looked = 0

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        self.looked += 1
        return super().verify(peer, message, signature)


def test_the_best_tickets_are_kept_and_each_signature_is_looked_at_once() -> None:
    """[J4, M4] The same as of all that were heard. A ticket without work in it, or that is kept already, or is not among the
    best, costs hashes and no signature, however often it is shown."""
    tools = _Counting()
    made = doorkeeper_at(tools=tools)
    good = [ticket for key in KEYS[:5] for ticket in tickets_of(key, 2)]
    for ticket in good:
        made.hear(KEYS[0], SLOT, TicketShown(ticket), 6)
    assert made.tickets == best_tickets(RUN, OPEN, good, (), TOOLS)
    before = tools.looked
    assert before <= len(good)
    bad = [unsigned(KEYS[4], nonce) for nonce in range(100) if not has_work(RUN, OPEN, unsigned(KEYS[4], nonce))]
    for ticket in (*bad, *good * 50):
        made.hear(KEYS[4], SLOT, TicketShown(ticket), 6)
    made.stand(RUN, replace(roster_of(), door=OPEN))  # the next step, of the same draw
    assert tools.looked == before
    assert made.tickets == best_tickets(RUN, OPEN, good, (), TOOLS)


def test_a_better_ticket_of_the_same_key_takes_its_place() -> None:
    """[J4] A stranger goes on searching; it has one ticket in the draw."""
    made = doorkeeper_at()
    worse, better = sorted(tickets_of(KEYS[0], 2), key=lambda one: -ticket_hash(RUN, OPEN.seed, one))
    for ticket in (worse, better, worse):
        made.hear(KEYS[0], SLOT, TicketShown(ticket), 6)
    assert made.tickets == [better]


def test_a_sender_has_one_wrong_signature_in_a_draw() -> None:
    """[M4] The work is done for somebody else's key, and shown with a new signature each time; others are heard all the same."""
    tools = _Counting()
    made, (right,) = doorkeeper_at(tools=tools), tickets_of(KEYS[0], 1)
    for number in range(50):
        made.hear(KEYS[1], SLOT, TicketShown(replaced(right, signature=bytes([number]) * 64)), 6)
    assert (tools.looked, made.tickets) == (1, [])
    made.hear(KEYS[0], SLOT, TicketShown(right), 6)
    assert made.tickets == [right]
    draw = replace(OPEN, seed=Digest(b"t" * 32))
    made.stand(RUN, replace(roster_of(), door=draw))
    assert made.tickets == []
    (next_one,) = tickets_of(KEYS[1], 1, draw)
    made.hear(KEYS[1], SLOT, TicketShown(next_one), 6)
    assert made.tickets == [next_one]


def test_a_ticket_of_another_run_costs_nothing() -> None:
    """[M4]"""
    made, (right,) = doorkeeper_at(), tickets_of(KEYS[0], 1)
    made.hear(KEYS[0], SLOT._replace(run=Digest(b"o" * 32)), TicketShown(right), 6)
    assert made.tickets == []


def test_of_a_candidate_one_commitment_for_this_step_or_the_next_is_kept() -> None:
    """[J5] Its own, under its own key."""
    made, candidate = doorkeeper_at(), KEYS[7]
    for step in range(20):
        for number in range(5):
            probe = Probe(candidate, bytes([number]) * 32, bytes(64))
            made.hear(candidate, SLOT._replace(step=step), ProbeShown(probe), 6)
            made.hear(KEYS[1], SLOT._replace(step=step), ProbeShown(probe), 6)
            made.hear(KEYS[1], SLOT._replace(step=step), ProbeShown(Probe(KEYS[1], probe.root, bytes(64))), 6)
    assert [(step, [probe.root[0] for probe in made.probes(step)]) for step in range(20) if made.probes(step)] == [
        (6, [0]),
        (7, [0]),
    ]
    made.forget(7)
    assert made.probes(6) == []
