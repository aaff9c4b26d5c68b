"""A stranger follows a run from its founders, whoever answers: to the right history or to none (SPEC J8)."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.protocol.recovery.certified_records import signed_again
from tests.protocol.scripted_world import plan, run_world
from troth.crypto import Digest, Identity, PeerId, Signature, Slot, derive, stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.records import Newcomer, decode_record, encode_record
from troth.protocol.core.standing import Standing, decode_standing
from troth.protocol.core.state import Outcome, Peer
from troth.protocol.recovery.following import (
    FRESH,
    Changes,
    Following,
    Tip,
    TwoHistoriesError,
    confirmed,
    shown_history,
    tip_bytes,
)
from troth.protocol.recovery.history import record_of
from troth.protocol.wire.frames import CertifiedRecord, HistoryShown, HistoryWanted, Packet, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.virtual_time import VirtualLink, VirtualTime
from troth.simulation.chaos.world import World
from troth.training.work import Training

FOUNDERS, STEPS = 5, 40
TOOLS = Primitives()


@cache
def grown() -> World:
    """A run that took in a stranger and banned one that lied."""
    strangers = {FOUNDERS: (0.5, "honest"), FOUNDERS + 1: (0.8, "turns")}
    made = dataclasses.replace(plan(liars=(), steps=STEPS), byzantine=1, probation=8, strangers=strangers)
    return run_world(made).world


@cache
def certified() -> tuple[CertifiedRecord, ...]:
    return tuple(
        CertifiedRecord(encode_record(made.record), {bytes(p): bytes(s) for p, s in after.certificate.items()})
        for made, after in pairwise(grown().witness)
    )


def identities() -> dict[PeerId, Identity]:
    everyone = [Identity.from_secret(derive(1, "identity", number)) for number in range(FOUNDERS + 2)]
    return {identity.peer: identity for identity in everyone}


def changes_since(step: int, before: int) -> list[CertifiedRecord]:
    found = [one for one in certified() if decode_record(one.record).changes_roster]
    return [one for one in found if step <= decode_record(one.record).step < before]


def standing_after(outcome: Outcome[Training]) -> Standing:
    state = outcome.state
    return Standing(state.roster, state.scales, state.randomness, state.earlier_randomness)


def history(since: int = 0, at: int = STEPS - 2) -> HistoryShown:
    """What an honest member shows when this is its last certified record."""
    return shown_history(changes_since(since, at), certified()[at], standing_after(grown().witness[at]), 64)


def test_every_member_names_the_same_standing() -> None:
    """[J8] Whatever it remembers besides; and from it the state follows that members have."""
    for outcome in grown().witness[:-1]:
        standing = standing_after(outcome)
        assert outcome.record.standing == standing.digest
        assert decode_standing(standing.encode()) == standing


def test_a_stranger_comes_to_the_state_that_members_have() -> None:
    """[J8] From the founders, by the records that changed the members alone."""
    shown = history()
    assert 2 <= len(shown.changes) <= 4
    changes = Changes.founding(grown().run).follow(shown.changes, TOOLS)
    tip = Tip.of(changes, shown, TOOLS)
    assert tip is not None
    right, first = grown().witness[STEPS - 2].state, grown().witness[0].state
    state = tip.state(first, TOOLS)
    assert dataclasses.replace(right, training=state.training, model=state.model, audit_records={}) == state


def _some_changes(number: int, **fields: Any) -> tuple[CertifiedRecord, ...]:
    right = list(history().changes)
    signers = [identities()[PeerId(key)] for key in decode_record(right[number].record).members]
    right[number] = signed_again(right[number], signers[:1], grown().run, **fields)  # one liar signs
    return tuple(right)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: _some_changes(0, admitted=()),
        lambda: _some_changes(1),
        lambda: tuple(reversed(history().changes)),
        lambda: history().changes[1:],
        lambda: (history().changes[0], *history().changes),
        lambda: (certified()[0],),
        lambda: (CertifiedRecord(b"nonsense", {}),),
    ],
    ids=["changed", "too few signed", "out of order", "one left out", "twice", "changes nothing", "no record"],
)
def test_changes_that_no_quorum_signed_lead_nowhere(wrong: Callable[[], tuple[CertifiedRecord, ...]]) -> None:
    """[J8] Right ones before them count; and after these the newest record is of other members."""
    changes = Changes.founding(grown().run).follow(wrong(), TOOLS)
    right = Changes.founding(grown().run).follow(history().changes, TOOLS)
    assert changes.step < right.step
    assert Tip.of(changes, history(), TOOLS) is None
    assert changes.follow(history(changes.step + 1).changes, TOOLS) == right, "somebody else goes on from there"


def test_a_record_with_an_address_that_is_no_text_is_none() -> None:
    """[J8, B2]"""
    record = msgspec.structs.replace(decode_record(certified()[0].record), admitted=(Newcomer(bytes(32), "host:1"),))
    raw = encode_record(record)
    assert record_of(CertifiedRecord(raw, {})) == record
    assert record_of(CertifiedRecord(raw.replace(b"host:1", b"host\xff1"), {})) is None


def test_another_standing_or_record_is_no_tip() -> None:
    """[J8]"""
    changes = Changes.founding(grown().run).follow(history().changes, TOOLS)
    right = history()
    other = standing_after(grown().witness[STEPS - 3]).encode()
    assert Tip.of(changes, msgspec.structs.replace(right, standing=other), TOOLS) is None
    assert Tip.of(changes, msgspec.structs.replace(right, tip=None), TOOLS) is None
    unsigned = CertifiedRecord(certified()[STEPS - 2].record, {})
    assert Tip.of(changes, msgspec.structs.replace(right, tip=unsigned), TOOLS) is None
    assert isinstance(decode_standing(b""), Malformed)
    assert isinstance(decode_standing(b"\x91" * 100_000), Malformed)


def test_a_member_confirms_what_is_in_its_history() -> None:
    """[J8]"""
    until, digest = certified()[:20], TOOLS.digest(certified()[10].record)
    assert confirmed(until, 0, TipWanted(bytes(32), 10, digest), TOOLS)
    assert confirmed(until[5:], 5, TipWanted(bytes(32), 10, digest), TOOLS)
    for step, named in ((9, digest), (10, b"1" * 32), (10**9, digest)):
        assert not confirmed(until, 0, TipWanted(bytes(32), step, named), TOOLS)
    assert not confirmed(until[12:], 12, TipWanted(bytes(32), 10, digest), TOOLS)
    assert confirmed(
        certified()[: 11 + FRESH], 0, TipWanted(bytes(32), 11, TOOLS.digest(certified()[11].record)), TOOLS
    )
    assert not confirmed(certified()[: 11 + FRESH], 0, TipWanted(bytes(32), 10, digest), TOOLS), (
        "it is not new any more"
    )


# Contacts

Contact = Callable[[Identity, object], Iterable[object]]  # what somebody answers


def _honest(who: Identity, frame: object, at: int = STEPS - 2) -> list[object]:
    match frame:
        case HistoryWanted(since=since):
            return [history(since, at)]
        case TipWanted(nonce=nonce, step=step, digest=digest) if confirmed(certified()[: at + 1], 0, frame, TOOLS):
            about = Slot(grown().run.id, step, Phase.REJOIN)
            return [TipSigned(nonce, Signature(who.sign(tip_bytes(about, who.peer, nonce, Digest(digest)))))]
    return []


def _liar(seed: int) -> Contact:
    """Shows the past as if it were now, forged or cut histories, and signs whatever it is asked."""
    draw = stream(derive(seed, "liar"), "contact")

    def answers(who: Identity, frame: object) -> Sequence[object]:
        how = int(draw.integers(6, 1)[0])
        if isinstance(frame, TipWanted):
            about = Slot(grown().run.id, frame.step, Phase.REJOIN)
            signed = who.sign(tip_bytes(about, who.peer, frame.nonce, Digest(frame.digest)))
            return [TipSigned(frame.nonce, signed if how else bytes(64))] * (1 + how)
        assert isinstance(frame, HistoryWanted)
        old = history(frame.since, int(draw.integers(STEPS - 2, 1)[0]))
        forged = signed_again(certified()[STEPS - 2], [who], grown().run, members=(who.peer,), standing=bytes(32))
        return [
            [],
            [old],
            [msgspec.structs.replace(old, changes=old.changes[1:])],
            [msgspec.structs.replace(history(frame.since), tip=forged)],
            [msgspec.structs.replace(old, standing=old.standing[:-1])],
            [old, history(frame.since)],
        ][how]

    return answers


def follow_among(contacts: Sequence[Contact | None]) -> Tip | CannotGoOnError:
    """Result of following, if members answer so; None is one that cannot be reached."""
    run, members = grown().run, grown().witness[STEPS - 2].state.roster.members
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.1,))
    stranger = Identity.from_secret(derive(9, "stranger"))

    async def follows() -> Tip | CannotGoOnError:
        link = time.link(stranger.peer)
        channel = BroadcastChannel(stranger, link, Timeouts(), TOOLS, observing=True)
        peer: Peer[Any] = Peer(stranger, run, None, channel, SeededEntropy(0, 0), TOOLS)  # type: ignore[arg-type]
        try:
            return await Following(peer, channel).run()
        except CannotGoOnError as error:
            return error

    async def answers(link: VirtualLink, who: Identity, contact: Contact) -> None:
        while (heard := await link.receive(1e7)) is not None:
            for answer in contact(who, heard[1].frame):
                link.send(heard[0], Packet(Slot(run.id, 0, Phase.REJOIN), answer))  # type: ignore[arg-type]

    coroutines: dict[PeerId, Any] = {stranger.peer: follows()}
    for key, contact in zip(members, contacts, strict=True):
        if contact is not None:
            coroutines[key] = answers(time.link(key), identities()[key], contact)
    time.run(coroutines, most_events=200_000, until=[stranger.peer])
    found: Tip | CannotGoOnError = time.results[stranger.peer]
    return found


def test_honest_members_lead_to_the_newest_record() -> None:
    """[J8]"""
    members = len(grown().witness[STEPS - 2].state.roster.members)
    found = follow_among([_honest] * members)
    assert isinstance(found, Tip)
    assert found.record == grown().witness[STEPS - 2].record


@pytest.mark.parametrize("seed", range(20))
def test_if_all_contacts_lie_but_one_there_is_no_wrong_history(seed: int) -> None:
    """[J8] Liars who are fewer than a quorum cannot make an old record look new: it ends with a refusal, or with a record that
    the honest hold. Unreached members answer nothing."""
    members = len(grown().witness[STEPS - 2].state.roster.members)
    quorum = grown().witness[STEPS - 2].state.roster.quorum
    contacts: list[Contact | None] = [_honest, *(_liar(100 * seed + k) for k in range(quorum - 1))]
    contacts += [None] * (members - len(contacts))
    order = stream(derive(seed, "order"), "contacts").permutation(members)
    found = follow_among([contacts[k] for k in order])
    if isinstance(found, Tip):
        assert found.signed.record == certified()[found.record.step].record
        assert found.record.step > STEPS - 2 - FRESH, "a quorum takes the one who is honest, and it knows what is new"


def test_two_histories_stop_a_stranger() -> None:
    """[J8] Stolen keys could make one; which one is right, people have to find out."""
    at = STEPS - 2
    record = decode_record(certified()[at].record)
    signers = [identities()[PeerId(key)] for key in record.members]
    other = signed_again(certified()[at], signers, grown().run, spread=record.spread + 1.0)

    def thief(_who: Identity, frame: object) -> list[object]:
        return [msgspec.structs.replace(history(frame.since), tip=other)] if isinstance(frame, HistoryWanted) else []

    members = len(grown().witness[at].state.roster.members)
    found = follow_among([_honest, *[thief] * (members - 1)])
    assert isinstance(found, TwoHistoriesError)
    assert "two records of step" in str(found)
