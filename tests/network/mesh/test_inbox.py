"""From the network's thread to the protocol's: in order, in turns, bounded."""

import threading
import time

import pytest

from troth.crypto import PeerId
from troth.network.mesh import Inbox

A, B = PeerId(b"a" * 32), PeerId(b"b" * 32)


def test_order_within_a_sender_and_turns_between_them() -> None:
    """A peer that sends a thousand messages delays another's one by a single message."""
    inbox = Inbox(1 << 20)
    for k in range(1000):
        inbox.put(A, b"%d" % k)
    inbox.put(B, b"one")
    heard = [inbox.get(0.0) for _ in range(3)]
    assert heard == [(A, b"0"), (B, b"one"), (A, b"1")]


def test_room_is_each_senders_own_and_comes_back() -> None:
    inbox = Inbox(10_000)
    assert inbox.put(A, bytes(5000))
    assert not inbox.put(A, bytes(5000))
    assert not inbox.has_room(A)
    assert inbox.put(B, bytes(100)), "the other has room of its own"
    for _ in range(3):
        assert inbox.get(0.0) is not None
    assert inbox.has_room(A)


def test_the_known_go_first_and_strangers_do_not_wait_for_ever() -> None:
    """[M4] One message of a stranger after sixteen of others; strangers take turns among themselves."""
    inbox, strangers = Inbox(1 << 20), [PeerId(bytes([k]) * 32) for k in range(3)]
    for stranger in strangers:
        for _ in range(100):
            inbox.put(stranger, b"me", 1 << 16)
    for _ in range(32):
        inbox.put(A, b"a")
        inbox.put(B, b"b")
    heard = [sender for sender, _ in filter(None, (inbox.get(0.0) for _ in range(68)))]
    assert [k for k, sender in enumerate(heard) if sender in strangers] == [16, 33, 50, 67]
    assert [heard[k] for k in (16, 33, 50, 67)] == [*strangers, strangers[0]]
    assert {heard.count(A), heard.count(B)} == {32}


def test_the_order_of_a_senders_messages_stays_when_it_becomes_known() -> None:
    """[M4]"""
    inbox = Inbox(1 << 20)
    inbox.put(A, b"as a stranger", 1 << 16)
    inbox.put(B, b"first")
    inbox.put(A, b"as a member")
    assert [inbox.get(0.0) for _ in range(3)] == [(B, b"first"), (A, b"as a stranger"), (A, b"as a member")]


def test_dropped_messages_take_up_nothing() -> None:
    """[M4] A stranger that comes back begins anew."""
    inbox = Inbox(10_000)
    assert not inbox.put(A, bytes(1000), 1000)
    inbox.drop(A)
    inbox.drop(B)
    assert not inbox.holds(A)
    assert inbox.get(0.0) is None
    assert inbox.put(A, bytes(100), 1000)


def test_waiting_ends_with_a_message_the_deadline_or_a_failure() -> None:
    inbox = Inbox(10_000)
    assert inbox.get(time.monotonic() + 0.01) is None
    later = threading.Timer(0.01, inbox.put, (A, b"late"))
    later.start()
    assert inbox.get(time.monotonic() + 60.0) == (A, b"late")
    later.join()
    failing = threading.Timer(0.01, inbox.fail, (OSError("gone"),))
    failing.start()
    with pytest.raises(RuntimeError, match="the network stopped"):
        inbox.get(time.monotonic() + 60.0)
    failing.join()
