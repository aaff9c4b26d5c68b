"""Where members are dialled: as the manifest says, as they said themselves, or looked up."""

import pytest

from troth.crypto import PeerId
from troth.network.neighbour import ExpectedConnections, Neighbours
from troth.network.node.network import member_addresses
from troth.protocol.core.roster import Away, Roster

FOUNDER, HIDDEN, NEWCOMER, SILENT, SUCCESSOR = (PeerId(bytes([k]) * 32) for k in range(5))
FOUNDERS = {FOUNDER: "founder:1", HIDDEN: ""}


@pytest.mark.parametrize("lookup", ["", "dht:"])
def test_members_that_gave_no_address_are_looked_up_where_the_transport_can(lookup: str) -> None:
    roster = Roster((FOUNDER, HIDDEN, NEWCOMER, SILENT), addresses=((NEWCOMER, "newcomer:1"), (SILENT, "")))
    assert member_addresses(roster, FOUNDERS, lookup) == {
        FOUNDER: "founder:1",
        HIDDEN: lookup,
        NEWCOMER: "newcomer:1",
        SILENT: lookup,
    }


def test_a_successor_is_where_the_key_before_it_was() -> None:
    """Also after several; and a key that is no member any more is not dialled for its address in the manifest."""
    roster = Roster((HIDDEN, SUCCESSOR), successors=((FOUNDER, SILENT), (SILENT, SUCCESSOR)))
    assert member_addresses(roster, FOUNDERS, "") == {HIDDEN: "", SUCCESSOR: "founder:1"}


def test_a_newcomer_that_left_keeps_what_it_said() -> None:
    """It may come back, under a successor key too; the mesh dials members only."""
    said = ((NEWCOMER, "newcomer:1"),)
    roster = Roster((FOUNDER,), away=(Away(3, NEWCOMER, 2),), addresses=said)
    assert member_addresses(roster, FOUNDERS, "dht:") == {FOUNDER: "founder:1", NEWCOMER: "newcomer:1"}
    under = Roster((FOUNDER,), away=(Away(9, SUCCESSOR, 8),), successors=((NEWCOMER, SUCCESSOR),), addresses=said)
    both = {NEWCOMER: "newcomer:1", SUCCESSOR: "newcomer:1"}
    assert member_addresses(under, FOUNDERS, "") == {FOUNDER: "founder:1", **both}


def test_a_newcomer_that_lost_its_seat_is_a_stranger() -> None:
    """[M4, J7] Names that come in, go and come anew as others would take all connections of a member in time."""
    roster = Roster((FOUNDER,), addresses=((NEWCOMER, "newcomer:1"),))
    addresses = member_addresses(roster, FOUNDERS, "dht:")
    assert addresses == {FOUNDER: "founder:1"}
    neighbours = Neighbours(HIDDEN, FOUNDERS)
    neighbours.expect(ExpectedConnections(frozenset(roster.members), addresses=addresses))
    assert not neighbours.knows(NEWCOMER)
    assert neighbours.knows(FOUNDER)
