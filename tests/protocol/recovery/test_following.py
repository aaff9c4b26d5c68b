"""A stranger follows a run from its founders, whoever answers: to the right history or to none (SPEC J8)."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from tests.protocol.recovery.certified_records import signed_again
from tests.protocol.recovery.lying_contacts import (
    LIES,
    MODELS,
    STEPS,
    certified,
    honest,
    identities,
    play,
    world,
)
from tests.protocol.recovery.lying_contacts import history as history_since
from tests.simulation.chaos.planted import door
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.errors import CannotGoOnError, LeftOutError
from troth.protocol.core.records import Newcomer, decode_record, encode_record
from troth.protocol.core.roster import Roster
from troth.protocol.core.standing import Standing, decode_standing
from troth.protocol.core.state import Outcome, Peer
from troth.protocol.recovery.following import (
    FRESH,
    Changes,
    Following,
    Tip,
    TwoHistoriesError,
    confirmed,
    tip_bytes,
)
from troth.protocol.recovery.history import record_of
from troth.protocol.recovery.invitation import Invitation, InvitationError
from troth.protocol.wire.frames import CertifiedRecord, Frame, HistoryShown, HistoryWanted, Packet, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.virtual_time import VirtualLink, VirtualTime
from troth.training.work import Training

TOOLS = Primitives()


def standing_after(outcome: Outcome[Training]) -> Standing:
    state = outcome.state
    return Standing(state.roster, state.scales, state.randomness, state.earlier_randomness)


def changes_since(step: int, before: int) -> list[CertifiedRecord]:
    return [one for one in certified()[step:before] if decode_record(one.record).changes_roster]


def history(since: int = 0, at: int = STEPS - 2) -> HistoryShown:
    return history_since(since, at)


def test_every_member_names_the_same_standing() -> None:
    """[J8] Whatever it remembers besides; and from it the state follows that members have."""
    for outcome in world().witness[:-1]:
        standing = standing_after(outcome)
        assert outcome.record.standing == standing.digest
        assert decode_standing(standing.encode()) == standing


def test_a_stranger_comes_to_the_state_that_members_have() -> None:
    """[J8] From the founders, by the records that changed the members alone."""
    shown = history()
    assert 2 <= len(shown.changes) <= 4
    changes = Changes.founding(world().run).follow(shown.changes, TOOLS)
    tip = Tip.of(changes, shown, TOOLS)
    assert tip is not None
    right, first = world().witness[STEPS - 2].state, world().witness[0].state
    state = tip.state(first, TOOLS)
    assert dataclasses.replace(right, training=state.training, model=state.model, audit_records={}) == state


def _some_changes(number: int, **fields: Any) -> tuple[CertifiedRecord, ...]:
    right = list(history().changes)
    signers = [identities()[PeerId(key)] for key in decode_record(right[number].record).members]
    right[number] = signed_again(right[number], signers[:1], world().run, **fields)  # one liar signs
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
    changes = Changes.founding(world().run).follow(wrong(), TOOLS)
    right = Changes.founding(world().run).follow(history().changes, TOOLS)
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
    changes = Changes.founding(world().run).follow(history().changes, TOOLS)
    right = history()
    other = standing_after(world().witness[STEPS - 3]).encode()
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

Contact = Callable[[Identity, Frame], Iterable[Frame]]  # what somebody answers


def _honest(who: Identity, frame: Frame, at: int = STEPS - 2) -> list[Frame]:
    return honest(who, frame, at)


def follow_among(contacts: Sequence[Contact | None], invitation: Invitation | None = None) -> Tip | CannotGoOnError:
    """Result of following, if members answer so; None is one that cannot be reached."""
    run, members = world().run, world().witness[STEPS - 2].state.roster.members
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.1,))
    stranger = Identity.from_secret(derive(9, "stranger"))

    async def follows() -> Tip | CannotGoOnError:
        link = time.link(stranger.peer)
        channel = BroadcastChannel(stranger, link, Timeouts(), TOOLS, observing=True)
        peer: Peer[Any] = Peer(stranger, run, None, channel, SeededEntropy(0, 0), TOOLS)  # type: ignore[arg-type]
        try:
            return await Following(peer, channel, invitation).run()
        except CannotGoOnError as error:
            return error

    async def answers(link: VirtualLink, who: Identity, contact: Contact) -> None:
        while (heard := await link.receive(1e7)) is not None:
            for answer in contact(who, heard[1].frame):
                link.send(heard[0], Packet(Slot(run.id, 0, Phase.REJOIN), answer))

    coroutines: dict[PeerId, Any] = {stranger.peer: follows()}
    for key, contact in zip(members, contacts, strict=True):
        if contact is not None:
            coroutines[key] = answers(time.link(key), identities()[key], contact)
    time.run(coroutines, most_events=200_000, until=[stranger.peer])
    found: Tip | CannotGoOnError = time.results[stranger.peer]
    return found


def test_honest_members_lead_to_the_newest_record() -> None:
    """[J8]"""
    members = len(world().witness[STEPS - 2].state.roster.members)
    found = follow_among([_honest] * members)
    assert isinstance(found, Tip)
    assert found.record == world().witness[STEPS - 2].record


@pytest.mark.parametrize("seed", range(20))
def test_if_all_contacts_lie_but_one_there_is_no_wrong_state(seed: int) -> None:
    """[J1, J2, J8] Liars who are fewer than a quorum can neither make an old record look new nor hand out another model: it ends
    with a refusal, or with the very state that the honest hold. `make test-following` has 500 seeds."""
    end = play(seed)
    assert end.verdict in ("right", "refused")
    assert (len(end.states) == 1 + MODELS) == (end.refusal is None)


@pytest.mark.parametrize("bug", ["chunks", "standing", "nonce"])
def test_a_wrong_state_would_be_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bug in what strangers check, liars lead some of them to a wrong state."""
    bugs = {"chunks": door.chunks_unchecked, "standing": door.standing_unchecked}
    kinds = {"chunks": "state", "standing": "standing", "nonce": "old tip"}
    if bug == "nonce":
        monkeypatch.setattr(Following, "_count", lambda self, *_: setattr(self, "_confirmed", 0.0))  # one is enough
    place = 3 * list(LIES).index(kinds[bug])
    with bugs[bug]() if bug in bugs else nullcontext():
        ends = [play(place + 3 * len(LIES) * turn) for turn in range(8)]
    assert any(end.verdict == "wrong" for end in ends)


def test_two_histories_stop_a_stranger() -> None:
    """[J8] Stolen keys could make one; which one is right, people have to find out."""
    at = STEPS - 2
    record = decode_record(certified()[at].record)
    signers = [identities()[PeerId(key)] for key in record.members]
    other = signed_again(certified()[at], signers, world().run, spread=record.spread + 1.0)

    def thief(_who: Identity, frame: Frame) -> list[Frame]:
        return [msgspec.structs.replace(history(frame.since), tip=other)] if isinstance(frame, HistoryWanted) else []

    members = len(world().witness[at].state.roster.members)
    found = follow_among([_honest, *[thief] * (members - 1)])
    assert isinstance(found, TwoHistoriesError)
    assert f"two histories part in step {at}" in str(found)


# Stolen keys


def _thief(at: int) -> Contact:
    """Has the keys of the members before the first change, and no more: it signs that all others left in that step, and that the
    run went on without them."""
    before = decode_record(certified()[at - 1].record)
    stolen = [identities()[PeerId(key)] for key in decode_record(certified()[at].record).members]
    kept = tuple(sorted(identity.peer for identity in stolen))[: Roster.founding(world().run).quorum]
    run, roster = world().run, world().witness[at - 1].state.roster
    left = signed_again(certified()[at], stolen, run, absent=tuple(sorted(set(before.members) - set(kept))), **QUIET)
    after = roster.after(decode_record(left.record))
    latest = msgspec.structs.replace(
        decode_record(left.record), step=STEPS - 2, members=after.members, absent=(), changed=at
    )
    scales, randomness = world().witness[at].state.scales, world().witness[at].state.randomness
    standing = Standing(after.after(latest), scales, randomness, randomness)
    members = [identity for identity in stolen if identity.peer in kept]
    tip = signed_again(CertifiedRecord(encode_record(latest), {}), members, run, standing=standing.digest)

    def answers(who: Identity, frame: Frame) -> list[Frame]:
        if isinstance(frame, HistoryWanted):
            changes = [left] if frame.since <= at else []
            return [HistoryShown(tuple(changes), tip, standing.encode())]
        assert isinstance(frame, TipWanted)
        about = Slot(run.id, frame.step, Phase.REJOIN)
        return [TipSigned(frame.nonce, who.sign(tip_bytes(about, who.peer, frame.nonce, Digest(frame.digest))))]

    return answers


QUIET: dict[str, Any] = {
    "candidates": (),
    "admitted": (),
    "probed": (),
    "returned": (),
    "judgements": (),
    "expelled": (),
}


@pytest.mark.parametrize("honest", [0, 1, 2])
def test_whoever_steals_old_keys_cannot_take_a_stranger_elsewhere(honest: int) -> None:
    """[J8, J9] A quorum of old keys signs another history. Without an invitation, one honest member is enough to stop the
    stranger; with one, none is needed."""
    at = STEPS - 2
    first = decode_record(changes_since(0, at)[0].record).step
    members = world().witness[at].state.roster.members
    contacts = [_honest if k < honest else _thief(first) for k in range(len(members))]
    named = [(decode_record(one.record).step, TOOLS.digest(one.record)) for one in changes_since(0, STEPS)]
    invitation = Invitation.to(world().run.id, at - 5, named)
    alone, invited = follow_among(contacts), follow_among(contacts, invitation)
    if honest:
        assert isinstance(alone, TwoHistoriesError)
    else:
        assert isinstance(alone, Tip), "nobody told it otherwise"
        assert alone.record.members != world().witness[at].record.members
    right = isinstance(invited, Tip) and invited.signed.record == certified()[invited.record.step].record
    assert isinstance(invited, TwoHistoriesError) or (honest and right)


def test_an_invitation_is_for_this_history_and_nothing_older() -> None:
    """[J9]"""
    at = STEPS - 2
    members = len(world().witness[at].state.roster.members)
    named = [(decode_record(one.record).step, TOOLS.digest(one.record)) for one in changes_since(0, STEPS)]
    for step in (0, named[0][0], at - FRESH - 3, at):
        found = follow_among([_honest] * members, Invitation.to(world().run.id, step, named))
        assert isinstance(found, Tip)
    late = follow_among([_honest] * members, Invitation.to(world().run.id, at + 1, named))
    assert isinstance(late, LeftOutError), "they show what is older than the invitation"
    other = follow_among([_honest] * members, Invitation.to(world().run.id, at, named[1:]))
    assert isinstance(other, TwoHistoriesError)
    assert Invitation.read(f" {Invitation.to(world().run.id, 7, named)}\n") == Invitation.to(world().run.id, 7, named)
    for text in ("", "7", "7-abc", "x-" + 32 * "0", "7-" + 33 * "0", "-7-" + 32 * "0"):
        with pytest.raises(InvitationError, match="troth invite"):
            Invitation.read(text)


def test_histories_part_where_one_changes_the_members_and_the_other_does_not() -> None:
    """[J8] An earlier record of the same history is no other one."""
    changes = Changes.founding(world().run)
    tips = []
    for at in range(STEPS - 1):
        shown = history(0, at)
        tip = Tip.of(changes.follow(shown.changes, TOOLS), shown, TOOLS)
        assert tip is not None
        tips.append(tip)
    assert all(one.parts_from(two) is None for one in tips for two in tips)
