"""Liars that serve a member that comes back, each in its own way (SPEC B2)."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import pytest

from tests.protocol.recovery.certified_records import MemberBehind, signed_again
from tests.protocol.returning_members import IDENTITIES, LOST, RUN, rejoin_slot
from tests.protocol.scripted_world import LiarLink, LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import Digest, PeerId, Slot, blob_digest
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import decode_record, encode_record, record_bytes_to_sign
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.state import Peer, State
from troth.protocol.recovery.ledger import ForkedError, Known, Ledger
from troth.protocol.recovery.models import Downloads, Models
from troth.protocol.wire.frames import (
    CertifiedRecord,
    ChunkShown,
    ChunkWanted,
    Decided,
    Frame,
    Packet,
    StateIndex,
    StateWanted,
    SyncShown,
    Value,
)
from troth.protocol.wire.messages import Envelope, Malformed
from troth.protocol.wire.primitives import Primitives
from troth.workshop.chaos.plan import Cut, Network
from troth.workshop.chaos.virtual_time import VirtualTime
from troth.workshop.simulation.exchange import DropOut


class _Serving(LiarScript):
    """Answers members that come back, in its own way."""

    serves = True

    def __init__(self, name: str = "") -> None:
        self._name = name

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return [Packet(packet.slot, frame) for frame in self._frames(link, packet.slot, packet.frame)]

    def _frames(self, link: LiarLink, slot: Slot, frame: Frame) -> list[Frame]:
        match self._name, frame:
            case "wrong signatures", SyncShown(certified):
                return [
                    SyncShown(
                        (
                            *certified[:-1],
                            CertifiedRecord(certified[-1].record, dict.fromkeys(certified[-1].signatures, bytes(64))),
                        )
                    )
                ]
            case "a fork of its own", SyncShown(certified):
                raw = encode_record(msgspec.structs.replace(decode_record(certified[-1].record), state_after=bytes(32)))
                signed = link.identity.sign(record_bytes_to_sign(slot.run, slot.step - 1, link.me, blob_digest(raw)))
                return [SyncShown((*certified[:-1], CertifiedRecord(raw, {link.me: signed})))]
            case "a gap", SyncShown(certified):
                return [SyncShown(certified[1:])]
            case "the past", SyncShown(certified):
                return [SyncShown(certified[:-1])] * 3
            case "garbage", SyncShown(_):
                return [SyncShown((CertifiedRecord(b"garbage", {}),)), StateIndex(bytes(32), b"garbage")]
            case "garbage", StateIndex(digest, index):
                return [StateIndex(digest, b"garbage"), StateIndex(digest, index[:-4] + bytes(4))]
            case "wrong chunks", ChunkShown(digest, number, blob):
                return [ChunkShown(digest, number, memoryview(bytes(len(blob))))]
            case "no chunks", ChunkShown(_):
                return []
            case "later", ChunkShown(digest, number):
                return [ChunkShown(digest, number, memoryview(b""))]
            case "another end", Decided(said, equivocations):
                return [Decided({peer: said[peer] for peer in sorted(said)[1:]}, equivocations), Decided({}, {})]
            case "nothing", SyncShown(_) | StateIndex(_) | ChunkShown(_) | Decided(_):
                return []
            case _:
                return [frame]


@cache
def _come_back_served_by(name: str) -> WorldRun:
    """One of five loses power, and one of those who answer it lies."""
    return run_world(plan(crashes={LOST: DropOut(2, 4, 5.0)}, steps=9), _Serving(name)).check_promises()


_LIES = [
    "wrong signatures",
    "a fork of its own",
    "a gap",
    "the past",
    "garbage",
    "wrong chunks",
    "no chunks",
    "later",
    "another end",
    "nothing",
]


@pytest.mark.long
@pytest.mark.parametrize("name", _LIES)
def test_a_returning_member_is_not_deceived_whatever_a_liar_tells_it(name: str) -> None:
    """[B2] It is a member again as soon as among honest peers, and holds what they hold."""
    seen = _come_back_served_by(name)
    assert seen.returned == _come_back_served_by("").returned == {min(seen.returned): [LOST]}
    assert max(seen.world.outcomes[LOST]) >= seen.world.plan.steps - 2


@pytest.mark.long
def test_liars_cannot_keep_somebody_out_with_signatures_that_do_not_fit() -> None:
    """[B2] Else it loses sight in the step in which it is let in, three times, and has to stay away for a thousand steps."""

    class Unsigned(_Serving):
        def _frames(self, link: LiarLink, slot: Slot, frame: Frame) -> list[Frame]:
            if isinstance(frame, Decided):
                return [
                    Decided({k: Envelope(e.payload, bytes(64)) for k, e in frame.said.items()}, frame.equivocations)
                ]
            return [frame]

    seen = run_world(
        plan(peers=7, liars=(0, 1), crashes={LOST: DropOut(2, 4, 5.0)}, steps=12), Unsigned()
    ).check_promises()
    assert list(seen.returned.values()) == [[LOST]]


class _Bytes:
    """A state that is nothing but bytes, in one chunk."""

    def collect(self, index: bytes, digest: Digest) -> "_OneChunk | Malformed":
        return _OneChunk(digest) if index == b"index" else Malformed("no index")


class _OneChunk:
    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self.missing, self._state = {0}, b""

    def length(self, _number: int) -> int:
        return len(b"state")

    def put(self, number: int, chunk: memoryview) -> bool:
        if blob_digest(chunk) != self._digest:
            return False
        self.missing, self._state = set(), bytes(chunk)
        return True

    def state(self) -> bytes:
        return self._state


def _fetch_from(liar_sends: Sequence[float]) -> float:
    """Time until the state is here, if one of two who are asked for it has it, and the other sends something else then."""
    mine, liar, honest = IDENTITIES[:3]
    time: VirtualTime[float] = VirtualTime(lambda *_: (0.1,))

    async def asks() -> float:
        tools, link = Primitives(), time.link(mine.peer)
        channel = BroadcastChannel(mine, link, Timeouts(), tools, observing=True)
        peer: Peer[bytes] = Peer(mine, RUN, cast(Any, _Bytes()), channel, SeededEntropy(0, 0), tools)
        ledger = Ledger(peer, Known(State.first(RUN, b"")), lambda _certified: None, lambda _record: None)
        models = Models(peer, ledger, channel, Downloads(), lambda _sender, _frame: None)
        assert await models.reach([liar.peer, honest.peer], blob_digest(b"state"), ()) == b"state"
        return link.now()

    async def lies() -> float:
        link = time.link(liar.peer)
        for when in liar_sends:
            while link.now() < when:
                await link.receive(when)
            link.send(mine.peer, Packet(rejoin_slot(3), SyncShown(())))
        return link.now()

    async def answers() -> float:
        link = time.link(honest.peer)
        while link.now() < 1000.0:
            heard = await link.receive(1000.0)
            if heard is not None and isinstance(heard[1].frame, StateWanted):
                link.send(heard[0], Packet(rejoin_slot(3), StateIndex(blob_digest(b"state"), b"index")))
            if heard is not None and isinstance(heard[1].frame, ChunkWanted):
                link.send(heard[0], Packet(rejoin_slot(3), ChunkShown(blob_digest(b"state"), 0, memoryview(b"state"))))
        return link.now()

    members = {mine.peer: asks(), liar.peer: lies(), honest.peer: answers()}
    time.run(members, most_events=10_000, until=[mine.peer])
    return time.results[mine.peer]


def test_a_returning_member_waits_for_nobody_who_does_not_hand_out_the_state() -> None:
    """[B2] A step may be shorter than the time after which one gives somebody up, and then there is another state to ask for.

    The one asked first could keep it out for ever; all the more if every frame it sends starts that time anew.
    """
    assert _fetch_from([]) < 1.0
    assert _fetch_from([float(second) for second in range(900)]) < 1.0


@pytest.mark.long
def test_a_returning_member_asks_again_whatever_keeps_coming() -> None:
    """[B2] Its question was lost while its link was cut; a liar sends it empty answers all the time."""
    victim = peer_ids(1, 5)[LOST]

    class Floods(LiarScript):
        def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
            if isinstance(packet.frame, Value):
                link.send_unchanged(victim, Packet(rejoin_slot(packet.slot.step, packet.slot.run), SyncShown(())))
            return (packet,)

    cut = Network(latency=0.3, cuts=(Cut(frozenset({LOST}), 8.0, 30.0),))
    for lies in (LiarScript(), Floods()):
        seen = run_world(plan(steps=24, network=cut), lies).check_promises()
        assert list(seen.returned.values()) == [[LOST]]


def test_a_forged_record_behind_a_right_one_stops_nobody() -> None:
    """[B2, J8] A quorum signed the first record, which continues what the peer knows: that a later one leads nowhere is one
    liar's doing, and no fork. Else any member could keep out every stranger, and everyone who lost its disk."""
    behind = MemberBehind()
    forged = signed_again(behind.shown[1], list(behind.who.values())[:1], randomness=bytes(32))
    assert behind.shows(behind.shown[0], forged) is None
    assert behind.shows(*behind.shown[:2]) is not None
    fork = signed_again(behind.shown[0], behind.who.values(), seed_randomness=bytes(32))
    with pytest.raises(ForkedError):
        behind.shows(fork, forged)
