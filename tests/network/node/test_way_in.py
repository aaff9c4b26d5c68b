"""Lines about a model that is on its way: bytes, rate, time left, steps left, and nothing about what is quick."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.network.manifest.plans import KEYS, PLAN
from troth.crypto import PeerId
from troth.events.phrases import duration
from troth.network.node.way_in import Arrival, why_outside
from troth.protocol.core.roster import Away, Roster
from troth.protocol.recovery.download import Fetched
from troth.protocol.recovery.models import StepsLeft


class _Told:
    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self.lived = 0
        self.arrival = Arrival(self.said.append, self._lives, lambda: self.now)

    def _lives(self) -> None:
        self.lived += 1

    def download(self, seconds: float, total: int = 200, here: int = 0, donors: int = 3) -> None:
        """Megabyte by megabyte, in equal times."""
        for megabyte in range(here + 1, total + 1):
            self.now += seconds / (total - here)
            self.arrival(Fetched(megabyte * 1_000_000, total * 1_000_000, donors))


def test_nothing_is_said_about_a_quick_download() -> None:
    told = _Told()
    told.download(1.9)
    told.download(1.9)
    assert told.said == []
    assert told.lived == 400


def test_a_download_is_told_every_few_seconds_and_at_its_end() -> None:
    told = _Told()
    told.download(20.0)
    assert told.said[0] == "downloading the model: 22 MB of 200 MB, 10.0 MB/s from 3 members, 18 s left"
    assert 3 <= len(told.said) <= 6
    assert told.said[-1] == "the model is here: 200 MB in 20 s"


def test_what_was_here_before_is_not_counted_as_quick() -> None:
    """A download that goes on after a crash: the rate is that of what comes."""
    told = _Told()
    told.download(20.0, here=100, donors=1)
    assert told.said[0].endswith("5.0 MB/s from 1 member, 18 s left")


def test_steps_left_are_told_where_they_take_a_while() -> None:
    told = _Told()
    for count in range(12, 0, -1):
        told.arrival(StepsLeft(count))
        told.now += 1.5
    assert told.said[0] == "catching up: 10 steps left, as far as this peer knows"
    assert 2 <= len(told.said) <= 5
    quick = _Told()
    for count in range(12, 0, -1):
        quick.arrival(StepsLeft(count))
        quick.now += 0.1
    assert quick.said == []


def test_times_are_short() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 120, 3600, 7200)] == ["0 s", "89 s", "2 min", "60 min", "2 h"]


SEAT, FIRST, SECOND = KEYS[0], PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)


def away_as(peer: PeerId, step: int = 90, updates: int = 90, returns: int = 0) -> Any:
    """The state before step 100, in a run of which this peer fell out."""
    away = Away(step, peer, updates)
    founding = Roster.founding(PLAN.run)
    roster = replace(
        founding,
        members=founding.members[1:],
        away=(away,),
        updates=100,
        successors=() if peer == SEAT else ((SEAT, peer),),
        returns=tuple((50 + k, peer) for k in range(returns)),
    )
    return SimpleNamespace(step=100, roster=roster, scales=SimpleNamespace(updates=100))


def test_a_founder_that_only_observes_is_told_why() -> None:
    """[B8]"""
    assert why_outside(away_as(SEAT), SEAT, SEAT) is None, "it is back within a few steps"
    assert why_outside(away_as(SEAT), SEAT, FIRST) is None, "under a successor key, as its folder was lost"
    twice = why_outside(away_as(FIRST), SEAT, SECOND)
    assert twice is not None
    assert "its seat has passed to the key 01010101…, which is in an earlier folder of it that was lost, too" in twice
    assert why_outside(away_as(FIRST), SEAT, FIRST) is None, "that folder was put back"
    late = why_outside(away_as(SEAT, updates=-401), SEAT, SEAT)
    assert late is not None
    assert late.endswith("it cannot be a member again: it was away for more than 500 updates")
    waits = why_outside(away_as(SEAT, returns=5), SEAT, SEAT)
    assert (
        waits == "this peer may be a member again after step 122: it came back before, and each time the wait doubles"
    )
