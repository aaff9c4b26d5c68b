"""Lines about a model that is on its way: bytes, rate, time left, steps left, and nothing about what is quick."""

from troth.network.node.way_in import Arrival, duration
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
    assert [duration(seconds) for seconds in (0.4, 89, 95, 3600, 7200)] == ["0 s", "89 s", "2 min", "60 min", "2.0 h"]
