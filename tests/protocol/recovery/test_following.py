"""A stranger follows a run from its founders, whoever answers: to the right history or to none (SPEC J8)."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from tests.protocol.recovery.certified_records import led_by, signed_again
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
from tests.workshop.chaos.planted import door
from troth.crypto import Digest, Identity, PeerId, Slot, derive
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.records import Newcomer, decode_record, encode_record
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.roster import CommonState, Roster, decode_standing
from troth.protocol.core.run import CannotGoOnError, LeftOutError
from troth.protocol.core.state import Outcome, Peer
from troth.protocol.history import record_of, unsigned
from troth.protocol.recovery.following import (
    FRESH,
    Changes,
    Following,
    Invitation,
    InvitationError,
    NewestRecord,
    TwoHistoriesError,
    confirmed,
    tip_bytes,
)
from troth.protocol.wire.frames import CertifiedRecord, Frame, HistoryShown, HistoryWanted, Packet, TipSigned, TipWanted
from troth.protocol.wire.messages import Malformed, Phase
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training
from troth.workshop.chaos.virtual_time import VirtualLink, VirtualTime

TOOLS = Primitives()


def standing_after(outcome: Outcome[Training]) -> CommonState:
    state = outcome.state
    return state.common


def changes_since(step: int, before: int) -> list[CertifiedRecord]:
    return [one for one in certified()[step:before] if decode_record(one.record).changes_roster]


def history(since: int = 0, at: int = STEPS - 2) -> HistoryShown:
    return history_since(since, at)


@pytest.mark.long
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
    changes = led_by(Changes.founding(world().run), shown.changes, TOOLS)
    tip = NewestRecord.of(changes, shown, TOOLS)
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
    changes = led_by(Changes.founding(world().run), wrong(), TOOLS)
    right = led_by(Changes.founding(world().run), history().changes, TOOLS)
    assert changes.step < right.step
    assert NewestRecord.of(changes, history(), TOOLS) is None
    assert led_by(changes, history(changes.step + 1).changes, TOOLS) == right, "somebody else goes on from there"


def test_a_record_with_an_address_that_is_no_text_is_none() -> None:
    """[J8, B2]"""
    record = msgspec.structs.replace(decode_record(certified()[0].record), admitted=(Newcomer(bytes(32), "host:1"),))
    raw = encode_record(record)
    assert record_of(CertifiedRecord(raw, {})) == record
    assert record_of(CertifiedRecord(raw.replace(b"host:1", b"host\xff1"), {})) is None


def test_another_standing_or_record_is_no_tip() -> None:
    """[J8]"""
    changes = led_by(Changes.founding(world().run), history().changes, TOOLS)
    right = history()
    other = standing_after(world().witness[STEPS - 3]).encode()
    assert NewestRecord.of(changes, msgspec.structs.replace(right, standing=other), TOOLS) is None
    assert NewestRecord.of(changes, msgspec.structs.replace(right, tip=None), TOOLS) is None
    unsigned = CertifiedRecord(certified()[STEPS - 2].record, {})
    assert NewestRecord.of(changes, msgspec.structs.replace(right, tip=unsigned), TOOLS) is None
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


def follow_among(
    contacts: Sequence[Contact | None],
    invitation: Invitation | None = None,
    unasked: Sequence[HistoryShown] = (),
    slow: int = 0,
) -> NewestRecord | CannotGoOnError:
    """Result of following, if members answer so; None is one that cannot be reached. A key of nobody's sends each frame of
    `unasked`, before anybody answers. The first members answer after the others, if they are `slow`."""
    run, members = world().run, world().witness[STEPS - 2].state.roster.members
    time: VirtualTime[Any] = VirtualTime(lambda sender, *_: (0.6 if sender in members[:slow] else 0.1,))
    stranger = Identity.from_secret(derive(9, "stranger"))

    async def follows() -> NewestRecord | CannotGoOnError:
        try:
            return await following(stranger, time.link(stranger.peer), invitation).run()
        except CannotGoOnError as error:
            return error

    async def answers(link: VirtualLink, who: Identity, contact: Contact) -> None:
        while (heard := await link.receive(1e7)) is not None:
            for answer in contact(who, heard[1].frame):
                link.send(heard[0], Packet(Slot(run.id, 0, Phase.REJOIN), answer))

    async def speaks(link: VirtualLink, shown: HistoryShown) -> None:
        link.send(stranger.peer, Packet(Slot(run.id, 0, Phase.REJOIN), shown))
        await link.receive(1e7)

    coroutines: dict[PeerId, Any] = {stranger.peer: follows()}
    for key, contact in zip(members, contacts, strict=True):
        if contact is not None:
            coroutines[key] = answers(time.link(key), identities()[key], contact)
    for key, shown in zip(map(nobody, range(len(unasked))), unasked, strict=True):
        coroutines[key] = speaks(time.link(key), shown)
    time.run(coroutines, most_events=200_000, until=[stranger.peer])
    found: NewestRecord | CannotGoOnError = time.results[stranger.peer]
    return found


def following(stranger: Identity, link: VirtualLink, invitation: Invitation | None = None) -> Following[Any]:
    channel = BroadcastChannel(stranger, link, Timeouts(), TOOLS, observing=True)
    peer: Peer[Any] = Peer(stranger, world().run, None, channel, SeededEntropy(0, 0), TOOLS)  # type: ignore[arg-type]
    return Following(peer, channel, invitation)


def nobody(number: int) -> PeerId:
    return Identity.from_secret(derive(77, "nobody", number)).peer


def test_honest_members_lead_to_the_newest_record() -> None:
    """[J8]"""
    members = len(world().witness[STEPS - 2].state.roster.members)
    found = follow_among([_honest] * members)
    assert isinstance(found, NewestRecord)
    assert found.record == world().witness[STEPS - 2].record


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_if_all_contacts_lie_but_one_there_is_no_wrong_state(seed: int) -> None:
    """[J1, J2, J8] Liars who are fewer than a quorum can neither make an old record look new nor hand out another model: it ends
    with a refusal, or with the very state that the honest hold. `make test-following` has 500 seeds."""
    end = play(seed)
    assert end.verdict in ("right", "refused")
    assert (len(end.states) == 1 + MODELS) == (end.refusal is None)


@pytest.mark.long
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
    standing = CommonState(after.after(latest), scales, randomness, randomness)
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
        assert isinstance(alone, NewestRecord), "nobody told it otherwise"
        assert alone.record.members != world().witness[at].record.members
    right = isinstance(invited, NewestRecord) and invited.signed.record == certified()[invited.record.step].record
    assert isinstance(invited, TwoHistoriesError) or (honest and right)


@pytest.mark.long
def test_an_invitation_is_for_this_history_and_nothing_older() -> None:
    """[J9]"""
    at = STEPS - 2
    members = len(world().witness[at].state.roster.members)
    named = [(decode_record(one.record).step, TOOLS.digest(one.record)) for one in changes_since(0, STEPS)]
    for step in (0, named[0][0], at - FRESH - 3, at):
        found = follow_among([_honest] * members, Invitation.to(world().run.id, step, named))
        assert isinstance(found, NewestRecord)
    late = follow_among([_honest] * members, Invitation.to(world().run.id, at + 1, named))
    assert isinstance(late, LeftOutError), "they show what is older than the invitation"
    other = follow_among([_honest] * members, Invitation.to(world().run.id, at, named[1:]))
    assert isinstance(other, TwoHistoriesError)
    assert Invitation.read(f" {Invitation.to(world().run.id, 7, named)}\n") == Invitation.to(world().run.id, 7, named)
    for text in ("", "7", "7-abc", "x-" + 32 * "0", "7-" + 33 * "0", "-7-" + 32 * "0"):
        with pytest.raises(InvitationError, match="troth invite"):
            Invitation.read(text)


# Where two histories part


def _everyone_signs(at: int, **changes: Any) -> CertifiedRecord:
    """Another record of this step, or of the step that the changes say, signed by all who were members."""
    record = decode_record(certified()[at].record)
    return signed_again(certified()[at], [identities()[PeerId(key)] for key in record.members], world().run, **changes)


def _first_change() -> int:
    step: int = decode_record(changes_since(0, STEPS)[0].record).step
    return step


def _all_changes() -> Changes:
    return led_by(Changes.founding(world().run), changes_since(0, STEPS), TOOLS)


NOTHING = HistoryShown((), CertifiedRecord(b"", {}), b"")  # of a history that is none


@pytest.mark.parametrize("honest", [1, 2])
@pytest.mark.parametrize("keys", [8, 40])
def test_keys_of_nobody_cannot_silence_those_who_show_another_history(honest: int, keys: int) -> None:
    """[J8] Eight of them once took all places for other histories, before the honest answered: the thieves' history was taken."""
    members = len(world().witness[STEPS - 2].state.roster.members)
    contacts = [_honest if k < honest else _thief(_first_change()) for k in range(members)]
    assert isinstance(follow_among(contacts, unasked=[NOTHING] * keys, slow=honest), TwoHistoriesError)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_long_history_is_shown_in_pages_and_heard_to_the_end(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[J8] The thieves part late, and the one honest member shows a change or two in an answer, and answers slowly."""
    monkeypatch.setattr("troth.protocol.recovery.following._RECORDS", at_once)
    at, members = STEPS - 2, len(world().witness[STEPS - 2].state.roster.members)
    last = decode_record(changes_since(0, at)[-1].record).step

    def pages(_who: Identity, frame: Frame) -> list[Frame]:
        if not isinstance(frame, HistoryWanted):
            return []
        shown = history(frame.since)
        more = len(shown.changes) > at_once
        return [HistoryShown(shown.changes[:at_once], None if more else shown.tip, b"" if more else shown.standing)]

    thief = _thief(last)

    def shows_all(who: Identity, frame: Frame) -> list[Frame]:
        """The thieves have no other history than the honest up to there."""
        found = list(thief(who, frame))
        if isinstance(frame, HistoryWanted) and isinstance(found[0], HistoryShown):
            before = changes_since(frame.since, last)
            return [msgspec.structs.replace(found[0], changes=(*before, *found[0].changes))]
        return found

    found = follow_among([pages, *[shows_all] * (members - 1)], slow=1)
    assert isinstance(found, TwoHistoriesError)
    assert f"part in step {last}" in str(found)


@pytest.mark.parametrize("place", ["change", "tip"])
def test_the_record_where_a_history_parts_is_heard_from_anyone(place: str) -> None:
    """[J8] Members all tell the truth; a key that is nobody's shows one record, and nothing of what would follow it."""
    members = len(world().witness[STEPS - 2].state.roster.members)
    other = _everyone_signs(_first_change(), spread=1e9)
    shown = HistoryShown((other,), None, b"") if place == "change" else HistoryShown((), other, b"")
    assert isinstance(follow_among([_honest] * members, unasked=[shown]), TwoHistoriesError)
    assert isinstance(follow_among([_honest] * members, unasked=[shown], slow=members), TwoHistoriesError), (
        "comes first"
    )


def test_an_invitation_settles_which_history_is_right_up_to_its_step() -> None:
    """[J8, J9] Whoever has the right one is not stopped by another that parts before."""
    named = [(decode_record(one.record).step, TOOLS.digest(one.record)) for one in changes_since(0, STEPS)]
    shown = HistoryShown((_everyone_signs(_first_change(), spread=1e9),), None, b"")
    for step, stops in ((_first_change(), False), (_first_change() - 1, True)):
        stranger = following(
            Identity.from_secret(derive(9, "stranger")), _link(), Invitation.to(world().run.id, step, named)
        )
        stranger._take(nobody(1), history())
        with pytest.raises(TwoHistoriesError) if stops else nullcontext():
            stranger._take(nobody(2), shown)


def _link() -> VirtualLink:
    return VirtualTime[Any](lambda *_: (0.1,)).link(nobody(0))


@pytest.mark.parametrize(
    "other",
    [
        lambda first: (first, {"incarnation": 1}),
        lambda first: (first - 1, {"absent": (min(world().run.founders),)}),
        lambda _first: (0, {"absent": (min(world().run.founders),)}),
        lambda first: (first, {**QUIET, "step": first + 5}),
        lambda first: (first, {**QUIET, "step": 10**12}),
    ],
    ids=["made again", "a change before it", "a change in step 0", "knows nothing of it", "nor does one of long after"],
)
def test_one_record_shows_that_there_are_two_histories(other: Callable[[int], tuple[int, dict[str, Any]]]) -> None:
    """[J8] It names a change that both have, so the members that must sign it are known; one less signs none."""
    at, fields = other(_first_change())
    signed, changes = _everyone_signs(at, **fields), _all_changes()
    record = decode_record(signed.record)
    assert changes.parts(signed, TOOLS) == min(record.step, _first_change())
    few = dict(list(signed.signatures.items())[: changes.rosters[0].quorum - 1])
    assert changes.parts(CertifiedRecord(signed.record, few), TOOLS) is None
    forged = {key: bytes(64) for key in signed.signatures}
    assert changes.parts(CertifiedRecord(signed.record, {**forged, **few}), TOOLS) is None


def test_no_record_of_this_history_parts_from_it() -> None:
    """[J8] However old it is, and whoever shows it again."""
    changes = _all_changes()
    for signed in certified():
        record = decode_record(signed.record)
        assert changes.parts(signed, TOOLS) is None
        known = changes.has(record.step, TOOLS.digest(signed.record))
        assert known == record.changes_roster
        assert record.step > changes.step or changes.is_earlier(record) or known


@pytest.mark.parametrize("changes", [False, True])
def test_two_newest_records_part_in_whatever_order_they_come(changes: bool) -> None:
    """[J8] One changes the members, and the other is later and knows nothing of it; or both are of one step."""
    last, at = _all_changes().step, STEPS - 2
    fields = {**QUIET, "step": at - 2, "absent": (min(world().run.founders),)} if changes else {"spread": 1e9}
    other, right = _everyone_signs(at, **fields), certified()[at]
    assert last < at - 2
    for shown in ((right, other), (other, right)):
        stranger = following(
            Identity.from_secret(derive(9, "stranger")), VirtualTime[Any](lambda *_: (0.1,)).link(nobody(0))
        )
        stranger._take(nobody(1), msgspec.structs.replace(history(), tip=shown[0]))
        with pytest.raises(TwoHistoriesError, match=f"part in step {at - 2 if changes else at}"):
            stranger._take(nobody(2), msgspec.structs.replace(history(), tip=shown[1]))


def test_nothing_is_kept_for_those_whom_nobody_asked() -> None:
    """[J8] Nor is more than a signature looked at, for whoever has none: else keys of nobody could take memory and time."""
    tools = _Counting()
    stranger = following(Identity.from_secret(derive(9, "stranger")), _link())
    stranger._peer = dataclasses.replace(stranger._peer, tools=tools)
    stranger._take(nobody(1), history())
    kept, seen = stranger._progress, tools.verified
    unsigned = signed_again(certified()[_first_change()], (), world().run, spread=1e9)
    forged = CertifiedRecord(unsigned.record, dict.fromkeys(map(nobody, range(200)), bytes(64)))
    for number in range(300):
        for shown in (NOTHING, history(), HistoryShown((unsigned,), None, b""), HistoryShown((), forged, b"")):
            stranger._take(nobody(number), shown)
    assert tools.verified == seen
    assert stranger._progress == kept
    assert not stranger._since
    assert not stranger._answered


class _Counting(Primitives):
    verified = 0

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        self.verified += 1
        return super().verify(peer, message, signature)


@pytest.mark.parametrize("right", [0, 1, 4, 5])
def test_a_wrong_signature_settles_it(right: int) -> None:
    """[J8, B2, U2] However many are right: with a wrong one kept beside them, the record would prove nothing to others."""
    run, roster, tools = world().run, Roster.founding(world().run), _Counting()
    signed = certified()[0]
    members, wrong = list(signed.signatures), len(signed.signatures) - right
    said = {key: signed.signatures[key] if k >= wrong else bytes(64) for k, key in enumerate(members)}
    record = decode_record(signed.record)
    assert (unsigned(run, CertifiedRecord(signed.record, said), record, roster, tools) is None) == (
        right == len(members)
    )
    assert tools.verified == (len(members) if right == len(members) else 1)
