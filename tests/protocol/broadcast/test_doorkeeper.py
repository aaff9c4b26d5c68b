"""A member's ear at the door: what strangers say costs next to nothing, however often they say it (SPEC J4, J5)."""

from dataclasses import replace

import pytest

from tests.protocol.core.test_door import KEYS, OPEN, RUN, TOOLS, roster_of, tickets_of, unsigned
from troth.crypto import Slot
from troth.protocol.broadcast.outside import doorkeeper
from troth.protocol.broadcast.outside.doorkeeper import Doorkeeper
from troth.protocol.core.door import best_tickets, has_work
from troth.protocol.core.records import Candidate
from troth.protocol.wire.frames import ProbeShown, TicketShown
from troth.protocol.wire.messages import Phase, Probe, Ticket

SLOT = Slot(RUN, 6, Phase.REJOIN)


def doorkeeper_at(step: int = 6) -> Doorkeeper:
    """One who stands at an open door with a candidate."""
    made = Doorkeeper(TOOLS)
    made.stand(RUN, replace(roster_of(), door=replace(OPEN, candidates=(Candidate(KEYS[7], "", step - 1, 0, 0),))))
    return made


def test_the_best_tickets_are_kept_and_others_cost_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """[J4] The list is made anew for tickets with work in them only, and not for one that is in it."""
    made, ranked = doorkeeper_at(), 0

    def counting(*given: object) -> list[Ticket]:
        nonlocal ranked
        ranked += 1
        return best_tickets(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(doorkeeper, "best_tickets", counting)
    good = [ticket for key in KEYS[:3] for ticket in tickets_of(key, 2)]
    for ticket in good:
        made.hear(KEYS[0], SLOT, TicketShown(ticket), 6)
    assert made.tickets == best_tickets(RUN, OPEN, good, (), TOOLS)
    before = ranked
    bad = [unsigned(KEYS[4], nonce) for nonce in range(100) if not has_work(RUN, OPEN, unsigned(KEYS[4], nonce))]
    for ticket in (*bad, *made.tickets * 50):
        made.hear(KEYS[4], SLOT, TicketShown(ticket), 6)
    assert ranked == before


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
