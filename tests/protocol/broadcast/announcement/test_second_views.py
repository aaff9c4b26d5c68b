"""Second views, case by case: members that broke off and are alive, frames in hand, and the bytes that are signed (SPEC Q9)."""

from hashlib import sha256
from itertools import combinations
from typing import cast

from tests.protocol.broadcast.announcement.setting import DELTA, KEYS, SLOT, CheapPrimitives, Key, sealed
from tests.protocol.channel_internals import begin_announcement, enter_attempt, hear_packet
from troth.crypto import Identity, PeerId
from troth.protocol.broadcast.announcement import Announcement, Timing, view_bytes
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.wire.frames import Certificate, Packet, Value, View, decode_packet, encode_packet

_MEMBERS = sorted(KEYS[:5], key=lambda key: key.peer)
_PEERS = [key.peer for key in _MEMBERS]
_LIAR = _MEMBERS[0]


def _spoken(me: Key, payload_of_liar: bytes) -> Announcement:
    """The announcement of a member that has heard all values, and this one of the liar."""
    core = Announcement(SLOT, cast(Identity, me), _PEERS, Timing(0.0, 0.0, DELTA), CheapPrimitives(), liars=1, quorum=3)
    core.say(sealed(me, b"value"), 0.0)
    for key in _MEMBERS:
        if key is not me:
            core.hear(key.peer, Value(sealed(key, payload_of_liar if key is _LIAR else b"value")), 0.1)
    return core


def _second_certificate(broken_off: Key, payload_of_liar: bytes = b"value") -> Certificate:
    """Equal second views of all but this member, which saw this value of the liar."""
    views: dict[bytes, bytes] = {}
    for key in _MEMBERS:
        if key is not broken_off:
            core = _spoken(key, payload_of_liar)
            core.broken_off([broken_off.peer])
            core.tick(0.2)
            (view,) = (frame for frame in core.take() if isinstance(frame, View) and frame.broken_off)
            views[key.peer] = view.signature
    return Certificate(cast(bytes, view.values), views, {}, view.gone, view.broken_off)


def test_a_member_that_broke_off_and_saw_the_same_decides_with_the_others() -> None:
    """[Q9] Its connections were closed for a moment; it needs no way back."""
    me = _MEMBERS[4]
    core = _spoken(me, b"value")
    core.hear(_PEERS[1], _second_certificate(me), 0.5)
    assert core.decision is not None
    assert core.decision.said.keys() == set(_PEERS)
    assert any(isinstance(frame, Certificate) and me.peer in frame.chain for frame in core.take())


def test_a_member_that_broke_off_and_saw_something_else_is_left_behind() -> None:
    """[Q9, B2] A liar told it another value: the others have decided, and it must not decide otherwise."""
    me = _MEMBERS[4]
    core = _spoken(me, b"another value")
    core.hear(_PEERS[1], _second_certificate(me), 0.5)
    assert core.decision is not None
    assert core.decision.said == {}


def test_a_certificate_of_second_views_needs_all_others_and_only_them() -> None:
    """[Q9] Neither one signature less, nor one of the member that broke off, nor too few, nor a member in both lists."""
    me, gone = _MEMBERS[2], _MEMBERS[4]
    right = _second_certificate(gone)
    signed = view_bytes(SLOT, right.values, right.gone, right.broken_off)
    one_less = dict(list(right.views.items())[1:])
    one_more = dict(sorted({**right.views, gone.peer: gone.sign(signed)}.items()))
    few, listed = tuple(_PEERS[2:]), view_bytes(SLOT, right.values, (), _PEERS[2:])
    both = view_bytes(SLOT, right.values, (gone.peer,), (gone.peer,))
    wrong = [
        Certificate(right.values, one_less, {}, (), right.broken_off),
        Certificate(right.values, one_more, {}, (), right.broken_off),
        Certificate(right.values, {key.peer: key.sign(listed) for key in _MEMBERS[:2]}, {}, (), few),
        Certificate(right.values, right.views, {}),
        Certificate(right.values, right.views, {}, right.broken_off),
        Certificate(right.values, {key.peer: key.sign(both) for key in _MEMBERS[:4]}, {}, (gone.peer,), (gone.peer,)),
    ]
    for certificate, decides in [*((one, False) for one in wrong), (right, True)]:
        core = _spoken(me, b"value")
        core.hear(_PEERS[1], certificate, 0.5)
        assert (core.decision is not None) == decides


def test_a_second_view_of_more_members_than_there_are_harms_nobody() -> None:
    """[M3] As many keys as a frame may hold; anybody can make them up."""
    keys = tuple(sorted(sha256(b"%d" % number).digest() for number in range(1024)))
    core = _spoken(_MEMBERS[1], b"value")
    packet = decode_packet(encode_packet(Packet(SLOT, View(bytes(32), bytes(64), (), keys))), 1 << 22)
    assert isinstance(packet, Packet)
    assert isinstance(packet.frame, View)
    core.hear(_LIAR.peer, packet.frame, 0.3)
    certificate = Certificate(bytes(32), {}, {}, (), keys)
    core.hear(_LIAR.peer, certificate, 0.3)
    assert core.decision is None


def test_no_two_views_have_the_same_bytes() -> None:
    """[Q9, M1] Whoever is named, and in whichever list."""
    lists = [
        (gone, broken_off)
        for size in range(5)
        for gone in combinations(_PEERS, size)
        for more in range(5 - size)
        for broken_off in combinations([peer for peer in _PEERS if peer not in gone], more)
    ]
    assert len({view_bytes(SLOT, bytes(32), *named) for named in lists}) == len(lists)


class _Link:
    """A link on which nothing arrives by itself."""

    def __init__(self) -> None:
        self.closed: frozenset[PeerId] = frozenset()
        self.sent: list[Packet] = []

    def now(self) -> float:
        return 0.2

    def send(self, to: PeerId, packet: Packet) -> None:
        self.sent.append(packet)

    def gone(self) -> frozenset[PeerId]:
        return self.closed

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        raise NotImplementedError("frames are delivered by hand")


def test_the_last_frame_of_a_member_that_is_gone_counts() -> None:
    """[Q9] Its value is in hand when its connection is seen closed. Others have it too: to list it would be a wrong view. And
    then nobody waits for its view."""
    me, gone = _MEMBERS[1], _MEMBERS[4]
    link = _Link()
    channel = BroadcastChannel(cast(Identity, me), link, Timeouts(DELTA), CheapPrimitives())
    enter_attempt(channel, frozenset(_PEERS), liars=1, quorum=3)
    running = begin_announcement(channel, SLOT)
    running.say(sealed(me, b"value"), 0.2)
    for key in [key for key in _MEMBERS if key is not me]:
        link.closed = frozenset({gone.peer} & {key.peer})  # as soon as the last frame is taken, and not before
        hear_packet(channel, key.peer, Packet(SLOT, Value(sealed(key, b"value"))))
    views = {packet.frame for packet in link.sent if isinstance(packet.frame, View)}
    assert {(view.gone, view.broken_off) for view in views} == {((), ()), ((), (gone.peer,))}
