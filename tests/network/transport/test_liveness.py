"""Peers that are gone or trickle: decided from counts and a clock that is passed in."""

from troth.network.transport.base import SLOWEST_BYTES_PER_SECOND, TransportLimits
from troth.network.transport.connection import Fault, Liveness
from troth.network.transport.framing import PING

LIMITS = TransportLimits(most_control_bytes=1000, most_bulk_bytes=1000, most_queued_bytes=5000, idle_s=16.0, ping_s=4.0)


def ticked(liveness: Liveness, until: float, *, assembling: bool = False, bytes_each: int = 0) -> Fault | None:
    """The first fault while the clock goes on, tick by tick, and so many bytes arrive at each."""
    now = 0.0
    while now < until:
        now += liveness.tick_every_s
        if bytes_each:
            liveness.heard(bytes_each, now)
        liveness.tick(now)
        if (fault := liveness.check(now, assembling=assembling)) is not None:
            return fault
    return None


def test_a_silent_peer_is_gone_after_the_time_for_it() -> None:
    assert ticked(Liveness(LIMITS, 0.0), 14.0) is None
    assert ticked(Liveness(LIMITS, 0.0), 16.0) == Fault("not heard for 16 s", misbehaved=False)


def test_a_message_that_trickles_is_misbehaviour_and_one_that_moves_is_not() -> None:
    each = int(SLOWEST_BYTES_PER_SECOND * Liveness(LIMITS, 0.0).tick_every_s)
    assert ticked(Liveness(LIMITS, 0.0), 100.0, assembling=True, bytes_each=each) is None
    fault = ticked(Liveness(LIMITS, 0.0), 100.0, assembling=True, bytes_each=each - 1)
    assert fault is not None
    assert fault.misbehaved
    assert "let a message trickle" in fault.why
    assert ticked(Liveness(LIMITS, 0.0), 100.0, bytes_each=1) is None, "no message is under way"


def test_pings_show_that_a_peer_lives_but_not_that_its_message_moves() -> None:
    liveness, now, fault = Liveness(LIMITS, 0.0), 0.0, None
    while fault is None:
        now += liveness.tick_every_s
        liveness.heard(len(PING), now)
        liveness.pinged()
        liveness.tick(now)
        fault = liveness.check(now, assembling=True)
    assert (now, fault.misbehaved) == (16.0, True)
    assert not liveness.too_many_pings
    for _ in range(200):
        liveness.pinged()
    assert liveness.too_many_pings


def test_time_that_we_did_not_listen_counts_for_nobody() -> None:
    """The process stood still for an hour; then the other side has the rest of its time."""
    liveness = Liveness(LIMITS, 0.0)
    late = 3600.0
    liveness.tick(late)
    assert liveness.check(late, assembling=True) is None
    liveness.read_again(late)
    assert liveness.check(late + 15.9, assembling=False) is None
    assert liveness.check(late + 16.0, assembling=False) is not None
