"""The catch-up server: rejoin requests that are heard, and states that are shown (SPEC B2, B3)."""

from itertools import pairwise

import pytest

from tests.protocol.returning_members import IDENTITIES, IDENTITY_OF, PEERS, SUCCESSORS, rejoin_request, rejoin_slot
from troth.crypto import Digest, Identity, PeerId, Signature, Slot, derive, signed_bytes
from troth.protocol.broadcast.serving import MOST_AHEAD, CatchUpServer, Served
from troth.protocol.core.door import Door
from troth.protocol.core.roster import Away, Roster
from troth.protocol.core.state import request_bytes, signed_request
from troth.protocol.wire.frames import (
    ChunkShown,
    ChunkWanted,
    Frame,
    RejoinRequest,
    StateIndex,
    StateWanted,
    SyncShown,
    SyncWanted,
)
from troth.protocol.wire.messages import MOST_REJOINS
from troth.protocol.wire.primitives import Primitives

DIGEST = Digest(bytes(32))


def _server() -> tuple[CatchUpServer, list[tuple[PeerId, Frame]]]:
    """A server of a run whose members are all absent, and the frames that it sends."""
    sent: list[tuple[PeerId, Frame]] = []
    catch_up = CatchUpServer(lambda to, _, frame: sent.append((to, frame)), Primitives())
    catch_up.roster = Roster((), away=tuple(Away(3, peer) for peer in PEERS))
    return catch_up, sent


def _delegation(old: Identity, key: PeerId, slot: Slot) -> Signature:
    """Delegation of the old key: this one comes in its place."""
    return old.sign(signed_bytes(slot, old.peer, Digest(key)))


def _request_rejoin(
    catch_up: CatchUpServer, member: PeerId, key: PeerId, *, at: int = 6, signed: int | None = None, step: int = 5
) -> bool:
    """Whether a request was heard, by a member in this step."""
    request = rejoin_request(member, key, at=at if signed is None else signed)
    catch_up.hear(key, rejoin_slot(at), RejoinRequest(member, request.signature, request.accepted), step)
    return any((rejoin.member, rejoin.key) == (member, key) for rejoin in catch_up.rejoins(at))


def test_a_rejoin_request_is_heard_for_one_of_the_next_steps() -> None:
    """[B3] Under one's own key or a new one; members that are behind ask for later steps too."""
    for at, heard in ((4, False), (5, False), (6, True), (7, True), (5 + MOST_AHEAD, True), (6 + MOST_AHEAD, False)):
        assert _request_rejoin(_server()[0], PEERS[0], PEERS[0], at=at) is heard
        assert _request_rejoin(_server()[0], PEERS[0], SUCCESSORS[0], at=at) is heard


def test_requests_of_another_step_of_strangers_and_under_somebody_elses_key_are_not_heard() -> None:
    """[B3] A request for step 6 does not count for 7; a peer that was never a member, or is banned or expelled, is a stranger."""
    assert not _request_rejoin(_server()[0], PEERS[0], PEERS[0], at=7, signed=6)
    assert not _request_rejoin(_server()[0], SUCCESSORS[1], SUCCESSORS[1])
    catch_up, _ = _server()
    own = rejoin_request(PEERS[0], PEERS[0]).signature
    # Somebody else sends what the first one signed for itself,
    catch_up.hear(SUCCESSORS[0], rejoin_slot(6), RejoinRequest(PEERS[0], own, None), 5)
    right = rejoin_request(PEERS[0], SUCCESSORS[0])
    forged = IDENTITY_OF[SUCCESSORS[0]].sign(request_bytes(rejoin_slot(6), PEERS[0], SUCCESSORS[0], 3))
    # or signs it itself.
    catch_up.hear(SUCCESSORS[0], rejoin_slot(6), RejoinRequest(PEERS[0], forged, right.accepted), 5)
    assert catch_up.rejoins(6) == []
    assert not catch_up.admits(SUCCESSORS[0])


class _Counting(Primitives):
    """Counts the signatures that are looked at."""

    looked = 0

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        self.looked += 1
        return super().verify(peer, message, signature)


def test_a_request_that_is_repeated_costs_no_signature() -> None:
    """[M4] Nor does a stranger's for records: its connection has proved its key."""
    tools = _Counting()
    catch_up = CatchUpServer(lambda *_: None, tools)
    catch_up.roster = Roster((), away=tuple(Away(3, peer) for peer in PEERS), door=Door(probation=8, slots=2))
    request = rejoin_request(PEERS[0], PEERS[0], at=6)
    wanted = SyncWanted(3, PEERS[0], _delegation(IDENTITY_OF[PEERS[0]], PEERS[0], rejoin_slot(3)))
    for _ in range(20):
        catch_up.hear(PEERS[0], rejoin_slot(6), RejoinRequest(PEERS[0], request.signature, request.accepted), 5)
        catch_up.hear(PEERS[0], rejoin_slot(3), wanted, 5)
    assert tools.looked == 2
    stranger = SUCCESSORS[1]
    for _ in range(20):
        catch_up.hear(stranger, rejoin_slot(3), SyncWanted(3, stranger, bytes(64)), 5)
        catch_up.hear(stranger, rejoin_slot(3), SyncWanted(3, SUCCESSORS[2], bytes(64)), 5)
    assert tools.looked == 2
    assert [asker for asker, _ in catch_up.strangers.items()] == [stranger]


def test_rejoin_requests_are_forgotten_with_their_step() -> None:
    """[B3] Nothing grows."""
    catch_up, _ = _server()
    assert _request_rejoin(catch_up, PEERS[0], PEERS[0])
    assert catch_up.admits(PEERS[0])
    catch_up.forget(6)
    assert catch_up.admits(PEERS[0])
    catch_up.forget(7)
    assert not catch_up.admits(PEERS[0])


def test_only_members_that_asked_are_shown_the_state_of_this_step() -> None:
    """[B2] A peer that does not observe gets nothing, and nobody gets another state."""
    catch_up, sent = _server()
    for who, asks in ((IDENTITIES[0], True), (IDENTITIES[8], False)):
        wanted = SyncWanted(3, IDENTITIES[0].peer, _delegation(who, IDENTITIES[0].peer, rejoin_slot(3)))
        catch_up.hear(IDENTITIES[0].peer, rejoin_slot(3), wanted, 5)
        assert bool(catch_up.asking) == asks
        catch_up.asking.clear()
    catch_up.watch([IDENTITIES[0].peer])
    read: list[int] = []

    def chunk(number: int) -> memoryview:
        read.append(number)
        return memoryview(b"chunk")

    state = Served(lambda: bytes([len(read)]), chunk)
    catch_up.show(rejoin_slot(6), {IDENTITIES[0].peer: SyncShown(())}, {}, state=(DIGEST, state, 5))
    assert sent.pop() == (IDENTITIES[0].peer, SyncShown(()))
    for asker, digest in ((IDENTITIES[1].peer, DIGEST), (IDENTITIES[0].peer, b"1" * 32)):
        catch_up.hear(asker, rejoin_slot(6), StateWanted(digest), 5)
        catch_up.hear(asker, rejoin_slot(6), ChunkWanted(digest, 0), 5)
    assert (sent, read) == ([], [])
    catch_up.hear(IDENTITIES[0].peer, rejoin_slot(6), StateWanted(DIGEST), 5)
    catch_up.hear(IDENTITIES[0].peer, rejoin_slot(6), ChunkWanted(DIGEST, 3), 5)
    assert [frame for _, frame in sent] == [StateIndex(DIGEST, b"\0"), ChunkShown(DIGEST, 3, memoryview(b"chunk"))]
    assert read == [3]


def _served(catch_up: CatchUpServer, sent: list[tuple[PeerId, Frame]], asker: PeerId, times: int) -> int:
    """Chunks that are handed out, if one asks so many times."""
    sent.clear()
    for number in range(times):
        catch_up.hear(asker, rejoin_slot(6), ChunkWanted(DIGEST, number), 5)
    assert len(sent) == times, "whoever gets nothing more is told"
    return sum(len(frame.blob) > 0 for _, frame in sent if isinstance(frame, ChunkShown))


def _asked(catch_up: CatchUpServer, sent: list[tuple[PeerId, Frame]], asker: PeerId, digest: Digest) -> bool:
    """Whether a chunk of this state is handed out."""
    sent.clear()
    catch_up.hear(asker, rejoin_slot(6), ChunkWanted(digest, 0), 5)
    return bool(sent)


def test_what_serving_costs_in_a_step_is_bounded() -> None:
    """[J1] For one observer, and for all of them; in the next step it goes on."""
    catch_up, sent = _server()
    half = memoryview(bytes(1 << 22))  # of what one gets in a step
    state = Served(lambda: bytes(half), lambda number: half if number < 1000 else None)
    observers = [one.peer for one in IDENTITIES[:5]]
    catch_up.watch(observers)
    catch_up.show(rejoin_slot(6), {}, {}, state=(DIGEST, state, 1 << 30))
    assert [_served(catch_up, sent, asker, 3) for asker in observers] == [2, 2, 2, 2, 0]
    catch_up.watch(observers)
    assert _served(catch_up, sent, observers[4], 3) == 2
    sent.clear()
    for _ in range(20):
        catch_up.hear(observers[0], rejoin_slot(6), StateWanted(DIGEST), 5)
    assert len(sent) == 8, "indexes too"
    catch_up.watch(observers)
    catch_up.hear(observers[0], rejoin_slot(6), ChunkWanted(DIGEST, 1000), 5)
    assert len(sent) == 8, "there is no such chunk"


def test_those_who_ask_first_in_every_step_leave_their_share_to_others() -> None:
    """[J1] Whoever asked in the last step has its share in this one, however late it asks."""
    catch_up, sent = _server()
    chunk = memoryview(bytes(1 << 20))
    observers = [one.peer for one in IDENTITIES[:8]]
    catch_up.watch(observers)
    catch_up.show(rejoin_slot(6), {}, {}, state=(DIGEST, Served(lambda: b"", lambda _number: chunk), 1 << 30))
    assert [_served(catch_up, sent, asker, 50) for asker in observers] == [8] * 4 + [0] * 4
    for _ in range(2):
        catch_up.watch(observers)
        assert [_served(catch_up, sent, asker, 50) for asker in observers] == [4] * 8


@pytest.mark.parametrize(
    ("size", "members", "chunks"), [(1000, 4, 8), (1 << 22, 4, 8), (25 << 20, 4, 50), (25 << 20, 16, 13)]
)
def test_members_together_hand_out_two_aggregates_while_the_run_makes_one(size: int, members: int, chunks: int) -> None:
    """[J1] Else a newcomer of a run with a large model would fall behind for ever; small ones are bounded all the same."""
    catch_up, sent = _server()
    catch_up.roster = Roster(tuple(PEERS * 3)[:members])
    catch_up.watch([IDENTITIES[0].peer], size)
    state = Served(lambda: b"", lambda _number: memoryview(bytes(1 << 20)))
    catch_up.show(rejoin_slot(6), {}, {}, state=(DIGEST, state, 1 << 30))
    assert _served(catch_up, sent, IDENTITIES[0].peer, 60) == chunks
    assert members * chunks << 20 >= 2 * 4 * size, "the last chunk may go beyond"


def test_a_state_that_somebody_fetches_is_kept_for_a_while() -> None:
    """[J1] One for each observer, and four at most: else a download of more than two steps would never end."""
    catch_up, sent = _server()
    digests = [Digest(bytes([number]) * 32) for number in range(40)]
    observers = [one.peer for one in IDENTITIES[:6]]
    catch_up.watch(observers)

    def show(step: int) -> None:
        served = Served(lambda: b"", lambda _number: memoryview(b"chunk"))
        catch_up.show(rejoin_slot(step), {}, {}, state=(digests[step], served, 1 << 30))

    def has(asker: PeerId, step: int) -> bool:
        return _asked(catch_up, sent, asker, digests[step])

    for step in range(8):
        show(step)
        assert has(observers[0], 0), "it goes on with the one it has begun"
        assert has(observers[1], max(0, step - 1))
    for late in (2, 3, 4, 5):
        assert not has(observers[late], 4), "nobody fetches it"
    for step in range(8, 18):
        show(step)
    assert not has(observers[0], 0), "it had its time"
    catch_up.watch([])
    catch_up.watch(observers)
    for number, asker in enumerate(observers):
        show(18 + number)
        assert has(asker, 18 + number)
    show(24)
    show(25)
    held = [step for step in range(18, 26) if has(observers[0], step)]
    assert held[-2:] == [24, 25]
    assert len(held) <= 2 + 4


def test_one_seat_has_one_request_and_is_shown_records_once() -> None:
    """[B2, B3] A liar signs for a hundred keys; others that come back must still be listed, and memory is bounded."""
    catch_up, _ = _server()
    liar, honest = IDENTITY_OF[PEERS[0]], max(PEERS[1:])
    for number in range(100):
        heir = Identity.from_secret(derive(0, "heir", number))
        key, signed = heir.peer, signed_request(rejoin_slot(6), liar, heir, 3)
        catch_up.hear(key, rejoin_slot(6), RejoinRequest(liar.peer, signed.signature, signed.accepted), 5)
        catch_up.hear(key, rejoin_slot(4), SyncWanted(4, liar.peer, _delegation(liar, key, rejoin_slot(4))), 5)
    assert _request_rejoin(catch_up, honest, honest)
    listed = catch_up.rejoins(6)[:MOST_REJOINS]
    assert (honest, honest) in {(rejoin.member, rejoin.key) for rejoin in listed}
    assert len(catch_up.asking) <= len(PEERS)
    assert len(catch_up.rejoins(6)) <= len(PEERS)


def test_strangers_cost_no_signature_however_many_ask() -> None:
    """[J3, M4] A thousand names cost a member some records in a step, and no time: the connection has proved each, and nobody
    asks in another's name."""
    tools = _Counting()
    catch_up = CatchUpServer(lambda _to, _slot, _frame: None, tools)
    catch_up.roster = Roster((), away=(Away(3, PEERS[0]),), door=Door(probation=8, slots=1))
    keys = [PeerId(derive(number, "stranger")) for number in range(1000)]
    for key, other in pairwise(keys):
        catch_up.hear(key, rejoin_slot(0), SyncWanted(0, other, bytes(64)), 5)
    assert len(catch_up.strangers) == 0
    for key in (*keys, *keys):
        catch_up.hear(key, rejoin_slot(0), SyncWanted(0, key, bytes(64)), 5)
    assert len(catch_up.strangers) == 8
    assert tools.looked == 0
    asks = _delegation(IDENTITY_OF[PEERS[0]], PEERS[0], rejoin_slot(0))
    catch_up.hear(PEERS[0], rejoin_slot(0), SyncWanted(0, PEERS[0], asks), 5)
    assert PEERS[0] in catch_up.asking, "absent members are heard, whatever crowd stands at the door"
