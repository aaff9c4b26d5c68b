"""One announcement by hand: each frame is carried where and when the test says (SPEC Q1–Q6, Q9)."""

from hashlib import sha256
from typing import Any, cast

import msgspec
import pytest

from tests.protocol.broadcast.announcement.setting import DELTA, EARLIER_SLOT, KEYS, SLOT, CheapPrimitives, Key, sealed
from troth.crypto import Identity, blob_digest
from troth.protocol.broadcast.announcement import Announcement, Timing, chain_bytes, view_bytes
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Value, View
from troth.protocol.wire.messages import MOST_MEMBERS


class _ByHand:
    """A few members by hand: each frame is carried where and when the test says."""

    def __init__(self, *starts: float, liars: int) -> None:
        self.tools = CheapPrimitives()
        keys = KEYS[: len(starts) + liars]
        self.honest, self.liars = keys[: len(starts)], keys[len(starts) :]
        self.everyone = [key.peer for key in keys]
        self.cores = [
            Announcement(SLOT, cast(Identity, key), self.everyone, Timing(start, 0.0, DELTA), self.tools)
            for key, start in zip(self.honest, starts, strict=True)
        ]

    def say(self, number: int, now: float) -> list[Frame]:
        self.cores[number].say(sealed(self.honest[number], b"honest %d" % number), now)
        return self.cores[number].take()

    def carry(self, frames: list[Frame], sender: int, to: int, now: float) -> None:
        for frame in frames:
            self.cores[to].hear(self.honest[sender].peer, frame, now)

    def tick(self, number: int, now: float) -> list[Frame]:
        self.cores[number].tick(now)
        return self.cores[number].take()

    def lie(self, liar: Key, to: int, frame: Frame, now: float) -> None:
        self.cores[to].hear(liar.peer, frame, now)


def test_values_count_until_they_are_due_and_two_make_a_view_incomplete() -> None:
    """[Q1, Q2] Due after 2Δ here: a moment earlier it counts, at that moment no longer; two values are not one."""
    for moment, second, complete in ((2 * DELTA - 1e-9, False, True), (2 * DELTA, False, False), (1.0, True, False)):
        hand = _ByHand(0.0, 0.0, liars=1)
        said = [hand.say(0, 0.0), hand.say(1, 0.0)]
        hand.carry(said[1], 1, 0, 0.5)
        liar = hand.liars[0]
        if second:
            hand.lie(liar, 0, Value(sealed(liar, b"one")), 0.4)
            hand.lie(liar, 0, Value(sealed(liar, b"two")), 0.5 - 1e-9)
        hand.lie(liar, 0, Value(sealed(liar, b"one")), moment)
        views = [frame for frame in (*hand.cores[0].take(), *hand.tick(0, 2 * DELTA)) if isinstance(frame, View)]
        assert [view.values is not None for view in views] == [complete] or second


def test_signatures_for_another_slot_count_for_nothing() -> None:
    """[Q1–Q5] Values, views and chains are bound to their slot."""
    hand = _ByHand(0.0, 0.0, liars=1)
    victim, liar = hand.honest[1], hand.liars[0]
    old = sealed(victim, b"elsewhere", EARLIER_SLOT)
    digest = blob_digest(old.payload)
    views = {key.peer: key.sign(view_bytes(EARLIER_SLOT, digest)) for key in (*hand.honest, liar)}
    hand.cores[0].hear(victim.peer, Value(old), 0.1)
    hand.cores[0].hear(victim.peer, View(digest, views[victim.peer]), 0.1)
    hand.cores[0].hear(liar.peer, Certificate(digest, cast(Any, views), {}), 0.1)
    assert hand.cores[0].deadline == 2 * DELTA  # nothing has happened yet
    hand.tick(0, 2 * DELTA)
    hand.tick(0, 4 * DELTA)
    chain: dict[bytes, bytes] = {liar.peer: liar.sign(chain_bytes(SLOT, victim.peer, digest))}
    hand.cores[0].hear(liar.peer, Chained(victim.peer, old, chain), 4.5)
    hand.tick(0, 99.0)
    decision = hand.cores[0].decision
    assert decision is not None
    assert victim.peer not in decision.said


def test_chains_of_a_faster_member_count_though_own_rounds_have_not_begun() -> None:
    """[Q4, Q5] The first goes slow Δ before the other does; what it then passes on must not be lost."""
    hand = _ByHand(0.0, DELTA, liars=1)
    liar = hand.liars[0]
    first = hand.say(0, 0.0)
    hand.lie(liar, 0, Value(sealed(liar, b"to one only")), 0.5)
    hand.carry(first, 0, 1, 0.5)
    second = hand.say(1, 1.0)
    hand.carry(second, 1, 0, 1.5)
    slow = hand.cores[0].take() + hand.tick(0, 4.0)
    hand.carry(slow, 0, 1, 4.5)  # within Δ; the other's rounds begin at 5
    joined = hand.cores[1].take() + hand.tick(1, 5.0)
    hand.carry(joined, 1, 0, 5.5)
    for number in (0, 1):
        hand.tick(number, 20.0)
    one, other = (core.decision for core in hand.cores)
    assert one is not None
    assert other is not None
    assert {*one.said} == {*other.said}


def test_signatures_that_do_not_count_are_not_passed_on() -> None:
    """[Q5] Else a chain padded to the most that a frame may hold could be accepted but not forwarded: nobody could read it."""
    hand = _ByHand(0.0, 0.0, 0.0, liars=2)
    originator, signer = hand.liars
    hand.say(0, 0.0)
    hand.tick(0, 2 * DELTA)
    hand.tick(0, 4 * DELTA)
    envelope = sealed(originator, b"padded")
    item = chain_bytes(SLOT, originator.peer, blob_digest(envelope.payload))
    junk: dict[bytes, bytes] = {sha256(b"%d" % k).digest(): bytes(64) for k in range(MOST_MEMBERS - 1)}
    hand.lie(signer, 0, Chained(originator.peer, envelope, {**junk, signer.peer: signer.sign(item)}), 4.5)
    (forwarded,) = (frame for frame in hand.cores[0].take() if isinstance(frame, Chained))
    assert forwarded.chain.keys() == {signer.peer, hand.honest[0].peer}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(forwarded), type=Frame) == forwarded


def test_two_signatures_of_one_value_are_no_lie() -> None:
    """[Q6] The payload counts: a member that signs it twice has said one thing."""
    hand = _ByHand(0.0, 0.0, liars=1)
    liar = hand.liars[0]
    said = [hand.say(0, 0.0), hand.say(1, 0.0)]
    for to in (0, 1):
        hand.lie(liar, to, Value(sealed(liar, b"the same", nonce=bytes([to]) * 32)), 0.1)
    for to in (0, 1):
        hand.carry(said[1 - to], 1 - to, to, 0.2)
    slow = [hand.cores[k].take() + hand.tick(k, 4.0) for k in (0, 1)]
    for to in (0, 1):
        hand.carry(slow[1 - to], 1 - to, to, 4.5)
        hand.tick(to, 20.0)
    for core in hand.cores:
        assert core.decision is not None
        assert not core.decision.equivocations
        assert core.decision.said[liar.peer].payload == b"the same"


def test_departed_members_are_written_in_one_way() -> None:
    """[Q9, M3] Else one set could be signed in several ways; and an incomplete view names nobody."""
    one, other = sorted(key.peer for key in KEYS[:2])
    right: list[Frame] = [
        View(bytes(32), bytes(64), (one, other), (one, other)),
        Certificate(bytes(32), {}, {}, (one, other), (one, other)),
    ]
    for frame in right:
        raw = msgspec.msgpack.encode(frame)
        assert msgspec.msgpack.decode(raw, type=Frame) == frame
        fields = msgspec.msgpack.decode(raw)
        for named in ((other, one), (one, one), (one[:-1],), (one,) * (MOST_MEMBERS + 1)):
            for wrong in ([*fields[:-2], named, ()], [*fields[:-1], named]):
                with pytest.raises(msgspec.ValidationError):
                    msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=Frame)
    for gone, broken_off in (((one,), ()), ((), (one,))):
        with pytest.raises(ValueError, match="names nobody"):
            View(None, bytes(64), gone, broken_off)


def test_members_that_break_off_after_they_spoke_are_not_waited_for() -> None:
    """[Q9] Their values count, and equal second views of all others decide at once; while one of those still reaches them,
    they are waited for, and fewer than a quorum decide nothing without them."""
    for broken, quorum, unsure, decides in ((1, 3, 0, True), (2, 3, 0, True), (2, 4, 0, False), (1, 3, 1, False)):
        keys = sorted(KEYS[:5], key=lambda key: key.peer)
        everyone = [key.peer for key in keys]
        timing = Timing(0.0, 0.0, DELTA)
        cores = [
            Announcement(SLOT, cast(Identity, key), everyone, timing, CheapPrimitives(), quorum=quorum) for key in keys
        ]
        for core, key in zip(cores, keys, strict=True):
            core.say(sealed(key, b"value"), 0.0)
        sent = [core.take() for core in cores]
        staying, leaving = cores[:-broken], everyone[-broken:]
        for number, core in enumerate(staying):
            for sender, frames in zip(everyone, sent, strict=True):
                if sender != everyone[number]:
                    core.hear(sender, frames[0], 0.1)
        for number, core in enumerate(staying):
            core.broken_off(leaving if number >= unsure else [])
            core.tick(0.2)
        rounds = 0
        while any(told := [core.take() for core in staying]) and rounds < 4:
            rounds += 1
            for number, core in enumerate(staying):
                for other, said in enumerate(told):
                    for frame in said if other != number else ():
                        core.hear(everyone[other], frame, 0.3)
        assert [core.decision is not None for core in staying] == [decides] * len(staying)
        for core in staying:
            assert core.decision is None or core.decision.said.keys() == set(everyone)


def _announcement_with_departures(
    members: int, *, heard: int, gone: int, liars: int = 0, now: float = 0.5
) -> Announcement:
    """The announcement at the first of so many members, who has heard so many, itself included; the last have broken off."""
    keys, tools = KEYS[:members], CheapPrimitives()
    quorum = max(members // 2 + 1, liars + 1)
    everyone, timing = [key.peer for key in keys], Timing(0.0, 0.0, DELTA)
    core = Announcement(SLOT, cast(Identity, keys[0]), everyone, timing, tools, frozenset(), liars, quorum)
    core.broken_off(everyone[members - gone :] if gone else [])
    core.say(sealed(keys[0], b"first"), now)
    for key in keys[1:heard]:
        core.hear(key.peer, Value(sealed(key, b"another")), now)
    return core


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"members": 8, "heard": 7, "gone": 1}, 1),  # before anything is due
        ({"members": 8, "heard": 6, "gone": 1}, None),  # one may still speak
        ({"members": 8, "heard": 6, "gone": 1, "now": 2 * DELTA}, None),  # by then nothing counts any more
        ({"members": 8, "heard": 5, "gone": 3}, 3),
        ({"members": 8, "heard": 4, "gone": 4}, None),  # the other half may say the same
        ({"members": 8, "heard": 5, "gone": 3, "liars": 5}, None),  # all of these may be liars
    ],
)
def test_departed_members_are_named_where_a_quorum_is_left(given: dict[str, Any], named: int | None) -> None:
    """[Q9] At once; of a network cut in two neither half goes on by itself, nor do liars alone."""
    core = _announcement_with_departures(**given)
    views = [frame for frame in core.take() if isinstance(frame, View)]
    assert [len(view.gone) for view in views if view.values is not None] == ([] if named is None else [named])


def test_a_member_certified_as_gone_is_left_behind() -> None:
    """[Q9] It decides nothing by itself; and liars alone, or views that do not fit, leave nobody behind."""
    everyone = [key.peer for key in KEYS[:5]]
    me, others = KEYS[0], KEYS[1:5]
    signed = view_bytes(SLOT, bytes(32), (me.peer,))
    views: dict[bytes, bytes] = {key.peer: key.sign(signed) for key in others}
    few: dict[bytes, bytes] = {key.peer: views[key.peer] for key in others[:3]}
    gone = tuple(sorted((me.peer, others[3].peer)))
    two: dict[bytes, bytes] = {key.peer: key.sign(view_bytes(SLOT, bytes(32), gone)) for key in others[:3]}
    for given, left in ((views, True), (few, False), (two, False)):
        core = Announcement(
            SLOT, cast(Identity, me), everyone, Timing(0.0, 0.0, DELTA), CheapPrimitives(), frozenset(), 3, 4
        )
        core.say(sealed(me, b"here"), 0.1)
        core.hear(others[0].peer, Certificate(bytes(32), given, {}, gone if given is two else (me.peer,)), 0.5)
        assert (core.decision is not None) == left
        assert core.decision is None or not core.decision.said
