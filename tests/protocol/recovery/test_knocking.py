"""A stranger before the door: it stops when there is nothing to come into any more (SPEC J3)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.core.test_door import OPEN
from tests.protocol.returning_members import IDENTITIES, PEERS, RUN
from troth.protocol.core.roster import Roster
from troth.protocol.recovery.requests import DoorClosedError, Knocking


def knock(door: Any, *, over: bool = False, known: bool = False) -> str:
    """Why a stranger stops at once, before it has sent anything."""
    stranger = IDENTITIES[-1]
    gone = (stranger.peer,) if known else ()
    roster = Roster(tuple(PEERS), banned=gone, door=door)
    ledger = SimpleNamespace(state=SimpleNamespace(roster=roster), over=over)
    channel = SimpleNamespace(listener=None)
    peer = SimpleNamespace(me=stranger.peer, run=RUN, identity=stranger)
    given: Any = (peer, None, ledger, channel, "", 1)
    waits: Iterator[Any] = Knocking(*given).run().__await__()
    with pytest.raises(DoorClosedError) as why:
        next(waits)
    return str(why.value)


def test_a_stranger_stops_where_there_is_nothing_to_come_into() -> None:
    """[J3, U4] A closed door, a key that was banned, a run that is over."""
    assert "nobody but its founders" in knock(Roster(()).door)
    assert "come with a new one" in knock(OPEN, known=True)
    assert "the run is over" in knock(OPEN, over=True)
