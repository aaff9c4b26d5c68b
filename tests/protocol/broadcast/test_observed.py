"""Observing an announcement: an observer believes what a majority, or one with a certificate, says of its end (SPEC B2)."""

import pytest

from tests.protocol.broadcast.announcement.setting import KEYS, SLOT, CheapPrimitives, sealed
from tests.protocol.returning_members import IDENTITY_OF, PEERS, RUN, SUCCESSORS
from troth.crypto import PeerId, Slot, blob_digest
from troth.protocol.broadcast.announcement import Timing, chain_bytes, values_digest, view_bytes
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.wire.frames import Certificate, Decided
from troth.protocol.wire.messages import Commit, Envelope, Phase
from troth.protocol.wire.phases import seal
from troth.protocol.wire.primitives import Primitives

COMMIT_SLOT = Slot(RUN.id, 3, Phase.COMMIT)


def _said(*numbers: int, coin: int = 1) -> dict[bytes, Envelope]:
    """Messages of these members."""
    message = Commit(None, bytes([coin]) * 32, bytes(32))
    return {PEERS[k]: seal(IDENTITY_OF[PEERS[k]], COMMIT_SLOT, message) for k in numbers}


def _observed() -> ObservedAnnouncement:
    return ObservedAnnouncement(COMMIT_SLOT, PEERS, 4, Timing(0.0, 0.0, 1.0), Primitives())


def test_an_end_that_more_than_half_tell_alike_was_decided() -> None:
    """[B2] Four of seven; liars before, between and after them change nothing."""
    observed, everyone = _observed(), Decided(_said(*range(7)), {})
    lies = [Decided(_said(*range(6)), {}), Decided(_said(*range(7), coin=9), {}), Decided({}, {})]
    for teller, decided in enumerate([lies[0], everyone, lies[1], everyone, lies[2], everyone]):
        observed.hear(PEERS[teller], decided, 1.0)
        assert observed.decision is None
    observed.hear(PEERS[6], everyone, 2.0)
    assert observed.decision is not None
    assert observed.decision.said == everyone.said
    assert observed.deadline is None


def test_nobody_counts_twice_and_strangers_not_at_all() -> None:
    """[B2] Else one liar would be a majority."""
    observed = _observed()
    for _ in range(5):
        observed.hear(PEERS[0], Decided({}, {}), 1.0)
        observed.hear(SUCCESSORS[0], Decided({}, {}), 1.0)
    for teller in (1, 2):
        observed.hear(PEERS[teller], Decided({}, {}), 1.0)
    assert observed.decision is None


def test_two_signatures_of_one_message_are_one_message() -> None:
    """[B2] A liar may sign the same one differently for different members; that it said two things counts, not which two."""
    members, (liar, equivocator, *others) = KEYS[:5], KEYS[:5]
    observed = ObservedAnnouncement(SLOT, [key.peer for key in members], 3, Timing(0.0, 0.0, 1.0), CheapPrimitives())
    for number, teller in enumerate(others):
        said: dict[bytes, Envelope] = {key.peer: sealed(key, b"said") for key in others}
        said[liar.peer] = sealed(liar, b"said", nonce=bytes([number]) * 32)
        pair = (sealed(equivocator, b"one"), sealed(equivocator, b"another %d" % number))
        observed.hear(teller.peer, Decided(said, {equivocator.peer: pair}), 1.0)
    assert observed.decision is not None
    assert observed.decision.said.keys() == {key.peer for key in (liar, *others)}
    assert observed.decision.equivocations.keys() == {equivocator.peer}


def test_an_observer_that_loses_sight_stops_and_says_nothing() -> None:
    """[B2] Without a majority in time there is nothing to go on; an observer never speaks."""
    observed = _observed()
    assert observed.deadline is not None
    observed.tick(observed.deadline)
    assert observed.decision is not None
    assert not observed.decision.said
    assert observed.take() == []


def test_an_observer_takes_messages_whose_signatures_fit() -> None:
    """[B2] Right payloads with wrong signatures, from the one who makes the majority full: nothing of them could be opened."""
    observed, right = _observed(), _said(*range(7))
    wrong: dict[bytes, Envelope] = {peer: Envelope(said.payload, bytes(64)) for peer, said in right.items()}
    for teller, decided in ((0, right), (1, right), (2, right), (3, wrong), (4, right)):
        observed.hear(PEERS[teller], Decided(decided, {}), 1.0)
    assert observed.decision is not None
    assert observed.decision.said == right


def test_a_certificate_that_only_an_observer_gets_does_not_set_its_clock() -> None:
    """[B2] A liar that keeps its view from the members can hand it out: they decide much later, and so must the observer.

    What is sure: of those who say how it ended, one at least is honest, and said so at once.
    """
    observed, right = _observed(), _said(*range(7))
    values = bytes(32)
    views: dict[bytes, bytes] = {peer: IDENTITY_OF[peer].sign(view_bytes(COMMIT_SLOT, values)) for peer in PEERS}
    observed.hear(PEERS[0], Certificate(values, views, {}), 1.0)
    for teller in range(4):
        observed.hear(PEERS[teller], Decided(right, {}), 20.0)
    assert observed.ends is not None
    assert observed.ends >= 20.0 - 2.0


@pytest.mark.parametrize(("gone", "broken_off"), [((), ()), ((6,), ()), ((), (6,)), ((5,), (6,))])
@pytest.mark.parametrize(
    ("flaw", "believed"),
    [
        ("none", True),
        ("liars hold it", False),
        ("a view is missing", False),
        ("of another end", False),
        ("few left", False),
    ],
)
def test_one_voice_is_enough_with_a_certificate_that_an_honest_member_decided_by(
    flaw: str, believed: bool, gone: tuple[int, ...], broken_off: tuple[int, ...]
) -> None:
    """[B2, Q9] Three liars can complete a certificate that nobody decided by: so a fourth has to sign that it did. Values of
    members that broke off count."""
    gone = tuple(k for k in (4, 5, 6) if k not in broken_off) if flaw == "few left" else gone
    said = _said(*(k for k in range(7) if k not in gone))
    seen = (
        values_digest({PeerId(peer): blob_digest(envelope.payload) for peer, envelope in said.items()}),
        tuple(sorted(PEERS[k] for k in gone)),
    )
    named = (*seen, tuple(sorted(PEERS[k] for k in broken_off)))
    views: dict[bytes, bytes] = {
        peer: IDENTITY_OF[PeerId(peer)].sign(view_bytes(COMMIT_SLOT, *named)) for peer in said if peer not in named[2]
    }
    if flaw == "a view is missing":
        views[PEERS[3]] = views[PEERS[2]]
    holders = PEERS[: 3 if flaw == "liars hold it" else 4]
    chain: dict[bytes, bytes] = {
        peer: IDENTITY_OF[peer].sign(chain_bytes(COMMIT_SLOT, b"", seen[0])) for peer in holders
    }
    observed = ObservedAnnouncement(COMMIT_SLOT, PEERS, 4, Timing(0.0, 0.0, 1.0), Primitives(), 5)
    decided = Decided({peer: said[peer] for peer in sorted(said)[1:]} if flaw == "of another end" else said, {})
    observed.hear(PEERS[0], decided, 1.0)
    before = observed.decision
    observed.hear(PEERS[0], Certificate(seen[0], views, chain, *named[1:]), 1.0)
    decision = observed.decision
    assert before is None
    assert (decision is not None) == believed
    assert decision is None or decision.said.keys() == said.keys()
