"""Coming back after a power cut or a broken line, among liars who would rather not have one back (SPEC B1–B8)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest
from torch import Tensor

from tests.protocol.bent_world import Bent, Lies, Seen, keys, plan, see
from tests.protocol.broadcast.announce_world import KEYS, PLACE, CheapPrimitives, sealed
from troth.crypto import Digest, Identity, PeerId, Seed, Signature, Slot, blob_digest, derive, signed_bytes
from troth.evidence.bans import History
from troth.evidence.verify import Proof, verify_ban
from troth.protocol.broadcast.announcement import Timing, chain_bytes, values_digest, view_bytes
from troth.protocol.broadcast.catch_up_server import MOST_AHEAD, CatchUpServer
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.observed import ObservedAnnouncement
from troth.protocol.broadcast.signed_slots import SignedBeforeError, SignedSlotsInMemory
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Channel, Entry
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.records import Judgement, Returned, decode_record, encode_record, record_bytes_to_sign
from troth.protocol.core.rejoin import is_request, request_bytes, returning, right_requests
from troth.protocol.core.roles import Audit, PendingAudits, draw_roles, gradient_seed
from troth.protocol.core.roster import MOST_AWAY, MOST_WAIT, STRIKE_STEPS, Away, Roster
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.scales import Scales
from troth.protocol.core.state import LastRecord, Peer, State
from troth.protocol.recovery.member import Followed, ForkedError, Member, _Shown, _Voices, follow, state_after
from troth.protocol.recovery.restart import tip_of
from troth.protocol.recovery.restart_quorum import be_ready
from troth.protocol.step import step as step_module
from troth.protocol.wire.frames import (
    Certificate,
    CertifiedRecord,
    Decided,
    Frame,
    Packet,
    RejoinRequest,
    RestartCertificate,
    StateShown,
    StateWanted,
    SyncShown,
    SyncWanted,
    Value,
)
from troth.protocol.wire.messages import (
    MOST_REJOINS,
    Announced,
    Commit,
    Envelope,
    Kind,
    Malformed,
    Message,
    Phase,
    SignedRejoin,
    Verdict,
    seal,
)
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos import world as world_module
from troth.simulation.chaos.checkers.comeback import comeback
from troth.simulation.chaos.checkers.follows import follows
from troth.simulation.chaos.faults import Cut, Network
from troth.simulation.chaos.virtual_time import VirtualTime
from troth.simulation.lockstep.drop_outs import DropOut, PowerCutError
from troth.training.work import Training, TrainingWork

SOME = [Identity.from_secret(derive(0, "comeback", k)) for k in range(12)]
PEERS = sorted(identity.peer for identity in SOME[:7])
WHO = {identity.peer: identity for identity in SOME}
HEIRS = [identity.peer for identity in SOME[7:]]
RUN = Run(tuple(PEERS), b"coming back", Parameters(size=100, tau=0.1, byzantine=2), bytes(32))
GONE = 2  # the number of whoever loses power, in worlds


# What one has signed (SPEC B1)


def test_no_place_is_signed_that_is_not_later_than_all_before() -> None:
    """[B1] Not the same, not an earlier phase, attempt or step; a new attempt begins with an earlier phase."""
    journal = SignedSlotsInMemory()
    assert journal.last_step == -1
    slot = Slot(RUN.id, 3, Phase.COMMIT)
    later = [(3, 0, Phase.COMMIT), (3, 0, Phase.ACCUSE), (3, 1, Phase.CLIP), (3, 1, Phase.VOTE), (4, 0, Phase.COMMIT)]
    for step, attempt, phase in later:
        journal.claim(slot._replace(step=step, attempt=attempt, phase=phase))
        assert journal.last_step == step
        for again in [(step, attempt, phase), (3, 0, Phase.COMMIT), (step - 1, 9, Phase.VOTE)]:
            with pytest.raises(SignedBeforeError):
                journal.claim(slot._replace(step=again[0], attempt=again[1], phase=again[2]))


class _Silent:
    """A line that nothing comes from; what is sent is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[PeerId, Packet]] = []

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        self.sent.append((to, packet))

    def gone(self) -> frozenset[PeerId]:
        return frozenset()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        raise PowerCutError("nothing comes")


def test_a_place_is_written_down_before_anything_is_sent() -> None:
    """[B1] Whoever signed before, and knows it, sends nothing; and nothing is sent before it would be known."""
    slot, commit = Slot(RUN.id, 3, Phase.COMMIT), Commit(None, bytes(32), bytes(32))
    for signed_before in (False, True):
        journal, link = SignedSlotsInMemory(), _Silent()
        channel = AgreedChannel(SOME[0], link, Timeouts(), Primitives(), journal)
        channel.enter(Entry(frozenset(PEERS)))
        if signed_before:
            journal.claim(slot)
        with pytest.raises(SignedBeforeError if signed_before else PowerCutError):
            channel.announce(slot, commit).send(None)
        assert journal.last_step == 3
        assert len(link.sent) == (0 if signed_before else len(PEERS) - 1)


class _Forgetful(world_module.NotedSignedSlots):
    """What it holds does not last."""

    def claim(self, slot: Slot) -> None:
        pass


class _CutWhileSpeaking:
    """The power goes when a value has been sent and nothing is decided yet: once."""

    def __init__(self, inner: Channel, cuts: list[Slot]) -> None:
        self._inner, self._cuts = inner, cuts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        coroutine = self._inner.announce(slot, message)
        if slot.step == 3 and not self._cuts:
            self._cuts.append(slot)
            coroutine.send(None)  # until it waits for the first answer
            coroutine.close()
            raise PowerCutError("in the middle of Commit")
        return await coroutine


def _cut_in_commit(*, journal: bool, kind: type[SignedSlotsInMemory] = world_module.NotedSignedSlots) -> Seen:
    """One of five loses power for a moment, within which the others still wait for the slowest of them, who contributes."""
    crashes = {GONE: DropOut(step=99, call=0, down=0.2, journal=journal)}
    network = Network(latency=0.1, slow={1: 0.9, 3: 0.9})  # at most one of these validates
    cuts: list[Slot] = []
    mine = keys(1, 5)[GONE]

    def wrap(peer: PeerId, channel: Channel) -> Channel:
        return _CutWhileSpeaking(channel, cuts) if peer == mine else channel

    with patch.object(world_module, "NotedSignedSlots", kind):
        seen = see(plan(liars=(), crashes=crashes, steps=9, network=network), wrap=wrap)
    assert len(cuts) == 1
    return seen


@pytest.mark.parametrize("journal", [True, False])
def test_a_power_cut_does_not_look_like_a_lie(journal: bool) -> None:
    """[B1, B3] With the journal it comes back under its own key, without it under a new one; nobody is banned."""
    seen = _cut_in_commit(journal=journal)
    seen.kept_promises()
    assert not any(record.banned for record in seen.records)
    assert set(seen.returned) == {max(seen.returned)}
    (back,) = next(record.returned for record in seen.records if record.returned)
    assert (back.key == back.member) == journal
    assert back.member == keys(1, 5)[GONE]
    assert back.key in seen.records[-1].members


def test_who_ignores_its_journal_is_banned() -> None:
    """[B1, Q6] It speaks again with other coins: two messages for one place. So the test above can fail."""
    seen = _cut_in_commit(journal=True, kind=_Forgetful)
    (judgement,) = (judgement for record in seen.records for judgement in record.judgements)
    assert (judgement.kind, judgement.banned) == (Kind.EQUIVOCATION, keys(1, 5)[GONE])


@pytest.mark.parametrize("call", [0, 2, 6])
@pytest.mark.parametrize("journal", [True, False])
def test_who_lost_power_between_phases_is_back_within_a_few_steps(call: int, journal: bool) -> None:
    """[B2, B3] Before Commit, Clip or Accuse; for longer than anyone waits."""
    crashes = {GONE: DropOut(2, call, 20.0, journal)}
    seen = see(plan(seed=call, liars=(), crashes=crashes, steps=16)).kept_promises()
    assert list(seen.returned.values()) == [[GONE]]
    assert not any(record.banned for record in seen.records)


@pytest.mark.parametrize("healed", [64, 70, 74])
def test_who_is_cut_off_again_while_it_is_served_can_still_look_on(healed: int) -> None:
    """[B7] It asked between two cuts, and members sent into the void for a while; then it asks again, soon."""
    alone = frozenset({GONE})
    network = Network(latency=0.1, cuts=(Cut(alone, 6.0, 30.0), Cut(alone, 44.0, float(healed))))
    world = see(plan(liars=(), peers=5, steps=40, network=network)).kept_promises().world
    assert follows(world) == []
    assert comeback(world) == []


# Following the records (SPEC B2)


@cache
def _past() -> tuple[Run, tuple[CertifiedRecord, ...], dict[PeerId, Identity]]:
    """What happened in a few steps among five."""
    world = see(plan(liars=(), steps=6)).world
    certified = tuple(
        CertifiedRecord(encode_record(made.record), {bytes(p): bytes(s) for p, s in after.certificate.items()})
        for made, after in pairwise(world.witness)
    )
    everyone = [Identity.from_secret(derive(1, "identity", number)) for number in range(5)]
    return world.run, certified, {identity.peer: identity for identity in everyone}


def _signed_by(signed: CertifiedRecord, signers: Iterable[Identity], **changes: Any) -> CertifiedRecord:
    """Another record in its place, signed by these."""
    run = _past()[0]
    record = msgspec.structs.replace(decode_record(signed.record), **changes)
    raw = encode_record(record)
    digest = blob_digest(raw)
    return CertifiedRecord(
        raw, {who.peer: who.sign(record_bytes_to_sign(run.id, record.step, who.peer, digest)) for who in signers}
    )


def _from_the_start(certified: Sequence[CertifiedRecord], run: Run | None = None) -> Followed | None:
    past, right, _ = _past()
    known = State.first(past if run is None else run, None)
    return follow(run or past, known, Digest(decode_record(right[0].record).state_before), certified, Primitives())


def test_records_lead_from_what_one_knew_to_the_last() -> None:
    """[B2] Each follows on the one before, signed by a quorum of the members before it."""
    run, certified, _ = _past()
    whole = _from_the_start(certified)
    assert whole is not None
    assert [record.step for record in whole.records] == list(range(5))
    assert whole.tip == certified[-1].record
    first = _from_the_start(certified[:3])
    assert first is not None
    known = state_after(run, State.first(run, None), first, None, Primitives())
    model = Digest(first.records[-1].state_after)
    later = follow(run, known, model, certified[3:], Primitives())
    assert later is not None
    assert later.tip == whole.tip
    assert _from_the_start(()) is None
    for elsewhere in (
        replace(known, earlier_randomness=Digest(bytes(32))),
        replace(known, randomness=Digest(bytes(32))),
        replace(known, scales=Scales(0.5)),
    ):
        assert follow(run, elsewhere, model, certified[3:], Primitives()) is None
    assert follow(run, known, Digest(bytes(32)), certified[3:], Primitives()) is None


def _forged(name: str) -> tuple[CertifiedRecord, ...]:
    _, certified, who = _past()
    two = list(who.values())[:2]
    first, second, third, *rest = certified
    forged: dict[str, tuple[CertifiedRecord, ...]] = {
        "no signatures": (CertifiedRecord(first.record, {}), *certified[1:]),
        "signatures that do not fit": (
            CertifiedRecord(first.record, dict.fromkeys(first.signatures, bytes(64))),
            *certified[1:],
        ),
        "signatures of another step": (first, CertifiedRecord(second.record, third.signatures), third, *rest),
        "signed by a minority": (first, _signed_by(second, two, state_after=bytes(32)), third, *rest),
        "signed by strangers": (first, _signed_by(second, SOME[:5], state_after=bytes(32)), third, *rest),
        "another roster": (first, _signed_by(second, who.values(), members=tuple(sorted(who))[:4]), third, *rest),
        "another model before": (first, _signed_by(second, who.values(), state_before=bytes(32)), third, *rest),
        "another model after": (first, _signed_by(second, who.values(), state_after=bytes(32)), third, *rest),
        "other seeds": (first, second, _signed_by(third, who.values(), seed_randomness=bytes(32)), *rest),
        "other coins": (_signed_by(first, who.values(), randomness=bytes(32)), *certified[1:]),
        "another radius": (first, _signed_by(second, who.values(), tau=0.7), third, *rest),
        "another count": (first, _signed_by(second, who.values(), updates=7), third, *rest),
        "an earlier incarnation": (_signed_by(first, who.values(), incarnation=1), second, third, *rest),
        "a gap": (first, third, *rest),
        "twice the same": (first, first, second, third, *rest),
        "from another step on": certified[1:],
        "no record": (first, CertifiedRecord(b"no record", dict(second.signatures)), third, *rest),
    }
    return forged[name]


@pytest.mark.parametrize(
    "name",
    [
        "no signatures",
        "signatures that do not fit",
        "signatures of another step",
        "signed by a minority",
        "signed by strangers",
        "another roster",
        "another model before",
        "another model after",
        "other seeds",
        "other coins",
        "another radius",
        "another count",
        "an earlier incarnation",
        "a gap",
        "twice the same",
        "from another step on",
        "no record",
    ],
)
def test_forged_records_lead_nowhere(name: str) -> None:
    """[B2] Not even as far as the last right one: whoever shows them is not believed at all."""
    assert _from_the_start(_forged(name)) is None


def test_records_of_another_run_lead_nowhere() -> None:
    """[B2, M1] The same people with the same plan."""
    run, certified, _ = _past()
    assert _from_the_start(certified, replace(run, nonce=bytes(32))) is None


class _Named:
    """Models are names, and their digests those in the records."""

    def __init__(self, **digests: bytes) -> None:
        self._digests = digests

    def digest(self, training: str) -> Digest:
        return Digest(self._digests[training])


class _Behind:
    """A peer that knows nothing yet; two others who wait ahead of it show it three records and then two more."""

    def __init__(self) -> None:
        self.run, self.shown, self.who = _past()
        self.time, self.written = 0.0, list[CertifiedRecord]()
        self.first: State[Any] = State.first(self.run, "first")
        records = [decode_record(signed.record) for signed in self.shown]
        work: Any = _Named(first=records[0].state_before, last=records[-1].state_after)
        peer: Any = Peer(SOME[0], self.run, work, cast(Any, None), cast(Any, None), Primitives())
        self.member: Member[Any] = Member(peer, self.first, lambda _: self.channel, patience=30.0)
        self.member.write_down = self.written.extend
        self.channel: Any = SimpleNamespace(now=lambda: self.time, observe_from=lambda _: None)
        self.restart: Any = SimpleNamespace(stand=lambda *_, **__: None, waiting_at=lambda _: [])

    def see(self, *certified: CertifiedRecord, begun: RestartCertificate | None = None) -> "_Shown[Any] | None":
        return self.member._shown(SyncShown(certified, begun=begun))

    def borrow(self, *certified: CertifiedRecord) -> None:
        shown = self.see(*certified)
        assert shown is not None
        self.member._borrow(self.channel, self.restart, shown)

    def complete(self) -> None:
        async def fetched(*_: Any) -> str:
            return "last"

        with patch.object(self.member, "_fetch", fetched), pytest.raises(StopIteration):
            self.member._complete(self.channel, self.restart).send(None)


def test_what_is_borrowed_in_several_pieces_is_given_back_as_a_whole() -> None:
    """[B5] Nobody hands out the model that belongs to it: everything is as before the first piece."""
    behind = _Behind()
    behind.borrow(*behind.shown[:3])
    behind.time = 20.0
    behind.borrow(*behind.shown[3:])
    assert behind.member.certified == behind.shown
    assert behind.member.lacks is not None
    behind.time = 49.0
    behind.member._give_up_borrowing(behind.channel, behind.restart)
    assert behind.member.state.step == 5, "counted from the last piece"
    behind.time = 51.0
    behind.member._give_up_borrowing(behind.channel, behind.restart)
    assert behind.member.state is behind.first
    given_back: Any = (behind.member.lacks, behind.member.certified, behind.member.earlier)
    assert given_back == (None, (), None)
    assert behind.member._hopeless == {behind.shown[2].record, behind.shown[4].record}
    assert behind.written == []


def test_who_lacks_the_last_model_is_not_done() -> None:
    """[B5] It would take the run's first model for the last."""
    behind = _Behind()
    closing = _signed_by(behind.shown[-1], behind.who.values(), closing=True)
    behind.borrow(*behind.shown[:-1], closing)
    assert not behind.member.over
    behind.complete()
    assert behind.member.over


def _knows(count: int) -> _Behind:
    """It has followed so many records, and has the model; its last state and the one before are here."""
    behind = _Behind()
    shown = behind.see(*behind.shown[:count])
    assert shown is not None
    behind.member._stand(shown, "last")
    return behind


def _made_again(
    behind: _Behind, signed: CertifiedRecord, incarnation: int, **changes: Any
) -> tuple[CertifiedRecord, RestartCertificate]:
    """Another record in place of the last one, and the proof that a restart made it."""
    earlier = behind.member.earlier
    assert earlier is not None
    tip = tip_of(behind.run, earlier, behind.member._model_of(earlier))
    ready: dict[bytes, Any] = {peer: be_ready(tip, incarnation, who, 3) for peer, who in behind.who.items()}
    again = _signed_by(signed, behind.who.values(), incarnation=incarnation, **changes)
    return again, RestartCertificate(tip.step, tip.digest, incarnation, ready)


def test_of_two_records_of_one_step_the_later_incarnation_counts_if_its_beginning_is_proved() -> None:
    """[B2, B5] Both are signed by a quorum: who was not there when the others began anew takes theirs, and no other."""
    behind = _knows(3)
    again, begun = _made_again(behind, behind.shown[2], 1, state_after=b"a" * 32)
    shown = behind.see(again, begun=begun)
    assert shown is not None
    behind.member._stand(shown, "last")
    assert behind.member.certified == (*behind.shown[:2], again)
    assert behind.member.state.incarnation == 1
    few = RestartCertificate(begun.step, begun.tip, 1, dict(list(begun.ready.items())[:2]))
    for proof in (
        None,
        few,
        RestartCertificate(begun.step, begun.tip, 2, begun.ready),
        RestartCertificate(begun.step, bytes(32), 1, begun.ready),
        RestartCertificate(begun.step + 1, begun.tip, 1, begun.ready),
    ):
        assert _knows(3).see(again, begun=proof) is None, proof
    same, _ = _made_again(behind, behind.shown[2], 0, state_after=b"a" * 32)
    assert _knows(3).see(same, begun=begun) is None, "of the same incarnation"


def test_a_history_that_differs_before_the_last_record_is_for_people_to_look_into() -> None:
    """[B2] A quorum signed both. But nobody can stop a peer with what no quorum signed."""
    behind = _knows(3)
    other = _signed_by(behind.shown[2], behind.who.values(), seed_randomness=b"a" * 32, incarnation=1)
    with pytest.raises(ForkedError, match="two histories"):
        behind.see(other)
    for signers in (list(behind.who.values())[:2], SOME[:5]):
        assert _knows(3).see(_signed_by(behind.shown[2], signers, seed_randomness=b"a" * 32)) is None


def test_records_from_one_voice_are_enough_and_the_longest_counts() -> None:
    """[B2] They prove themselves; liars who are silent, or show less, change nothing."""
    behind = _Behind()
    shown = behind.see(*behind.shown)
    assert shown is not None
    assert shown.followed.step == 5
    again = _knows(3).see(*behind.shown[2:])
    assert again is not None, "from its own last record on"
    assert again.certified == behind.shown[3:]


def test_liars_who_answer_first_with_the_past_do_not_decide_where_to_look_on() -> None:
    """[B7] Somebody honest must have spoken, or had the time to: then the longest counts."""
    behind, voices = _Behind(), _Voices[Any]()
    past, now = behind.see(*behind.shown[:2]), behind.see(*behind.shown)
    assert past is not None
    assert now is not None
    assert now.followed.roster.liars == 0
    two = replace(now.followed.roster, byzantine=2)
    past, now = (replace(one, followed=replace(one.followed, roster=two)) for one in (past, now))
    liars, honest = two.members[:2], two.members[2]
    assert voices.newest(0.0, 10.0) is None
    for liar in liars:
        voices.hear(liar, past, 1.0)
        assert voices.newest(1.0, 10.0) is None
    voices.hear(SOME[0].peer, past, 1.0)
    assert voices.newest(2.0, 10.0) is None, "a stranger"
    assert voices.newest(11.0, 10.0) is past
    voices.hear(honest, now, 2.0)
    assert voices.newest(2.0, 10.0) is now
    assert voices.tellers(now)[0] == honest


# Standing at what is certified (SPEC U2)


def test_out_of_a_step_a_peer_stands_at_its_last_certified_record() -> None:
    """[U2, B5] The next Commit certifies a record, also if nothing else comes of that step; till then nobody is shown it."""
    behind = _knows(2)
    member, third = behind.member, behind.shown[2]
    before, record = member.state, decode_record(third.record)
    followed = follow(behind.run, before, member._model_of(before), [third], Primitives())
    assert followed is not None
    after = state_after(behind.run, before, followed, "last", Primitives())
    for certified in (False, True):
        member.past, member.state, member.lacks = (before,), after, None
        if certified:
            member._certified(record, {PeerId(peer): Signature(said) for peer, said in third.signatures.items()})
            assert behind.written == [third]
        member._step_back()
        assert member.state is (after if certified else before)
        assert member.certified == (behind.shown[:3] if certified else behind.shown[:2])
        assert (member.lacks is None) == certified, "its model before that is not here"


def test_who_threw_away_what_others_can_prove_has_it_again_with_all_that_it_kept() -> None:
    """[U2, B6, K1] Else a blackout while a record is signed would leave nobody who can audit its step."""
    behind = _knows(2)
    member, third = behind.member, behind.shown[2]
    followed = follow(behind.run, member.state, member._model_of(member.state), [third], Primitives())
    assert followed is not None
    kept: Any = {2: "what audits need"}
    after = replace(state_after(behind.run, member.state, followed, "third", Primitives()), audit_records=kept)
    member.past, member.state = (*member.past, member.state), after
    model = followed.records[-1].state_after
    with patch.object(_Named, "digest", lambda _, name: model if name == "third" else bytes(32)):
        member._step_back()
        assert member.state is not after
        behind.borrow(third)
    assert member.state is after
    assert member.lacks is None
    assert behind.written == [third]


def test_who_steps_back_forgets_what_it_held_beyond() -> None:
    """[U2] Of a step that was made again and not certified, an older record may still be in the journal."""
    behind = _knows(3)
    member, again = behind.member, _made_again(behind, behind.shown[2], 1)[0]
    last = LastRecord(decode_record(again.record), blob_digest(again.record), 3)
    member.state = replace(member.state, last=last)
    member._step_back()
    assert member.certified == behind.shown[:2]
    assert member.state.step == 2


def test_an_heir_that_fails_at_first_is_still_an_heir() -> None:
    """[B1, B2] The others know the old key, however often it tries under the new one."""
    asked: list[tuple[PeerId, Packet]] = []

    class Deaf(_Silent):
        def send(self, to: PeerId, packet: Packet) -> None:
            asked.append((to, packet))

    old, successor, work = SOME[0], SOME[7], cast(Any, SimpleNamespace(digest=lambda _: bytes(32)))
    peer: Any = Peer(old, RUN, work, cast(Any, None), cast(Any, None), Primitives())
    member: Member[Any] = Member(
        peer, State.first(RUN, None), lambda who: AgreedChannel(who, Deaf(), Timeouts(), Primitives())
    )
    for _ in range(2):
        with pytest.raises(PowerCutError):
            cast(Any, anext(member.come_back(successor))).send(None)
    wanted = [packet.frame for _, packet in asked if isinstance(packet.frame, SyncWanted)]
    assert {frame.member for frame in wanted} == {bytes(old.peer)}
    assert len(wanted) >= 2 * (len(PEERS) - 1)


def test_records_of_others_are_written_down_once_the_model_is_here() -> None:
    """[B5] Else who stops again could not show them to those who are behind it."""
    behind = _Behind()
    behind.borrow(*behind.shown[:3])
    behind.borrow(*behind.shown[3:])
    behind.complete()
    assert behind.written == list(behind.shown)
    assert behind.member.state.step == 5
    assert behind.member.state.training == "last"
    behind.time = 1000.0
    behind.member._give_up_borrowing(behind.channel, behind.restart)
    assert behind.member.state.step == 5


# Looking on (SPEC B2)

_PLACE = Slot(RUN.id, 3, Phase.COMMIT)


def _said(*numbers: int, coin: int = 1) -> dict[bytes, Envelope]:
    """Messages of these members."""
    message = Commit(None, bytes([coin]) * 32, bytes(32))
    return {PEERS[k]: seal(WHO[PEERS[k]], _PLACE, message) for k in numbers}


def _sighting() -> ObservedAnnouncement:
    return ObservedAnnouncement(_PLACE, PEERS, 4, Timing(0.0, 0.0, 1.0), Primitives())


def test_what_more_than_half_say_alike_was_decided() -> None:
    """[B2] Four of seven; liars before, between and after them change nothing."""
    observed, everyone = _sighting(), Decided(_said(*range(7)), {})
    lies = [Decided(_said(*range(6)), {}), Decided(_said(*range(7), coin=9), {}), Decided({}, {})]
    for teller, told in enumerate([lies[0], everyone, lies[1], everyone, lies[2], everyone]):
        observed.hear(PEERS[teller], told, 1.0)
        assert observed.decision is None
    observed.hear(PEERS[6], everyone, 2.0)
    assert observed.decision is not None
    assert observed.decision.said == everyone.said
    assert observed.deadline is None


def test_nobody_counts_twice_and_strangers_not_at_all() -> None:
    """[B2] Else one liar would be a majority."""
    observed = _sighting()
    for _ in range(5):
        observed.hear(PEERS[0], Decided({}, {}), 1.0)
        observed.hear(HEIRS[0], Decided({}, {}), 1.0)
    for teller in (1, 2):
        observed.hear(PEERS[teller], Decided({}, {}), 1.0)
    assert observed.decision is None


def test_two_signatures_of_one_message_are_one_message() -> None:
    """[B2] A liar may sign the same one differently for different members; and who said two things counts, not which two."""
    members, (liar, double, *others) = KEYS[:5], KEYS[:5]
    observed = ObservedAnnouncement(PLACE, [key.peer for key in members], 3, Timing(0.0, 0.0, 1.0), CheapPrimitives())
    for number, teller in enumerate(others):
        said: dict[bytes, Envelope] = {key.peer: sealed(key, b"said") for key in others}
        said[liar.peer] = sealed(liar, b"said", nonce=bytes([number]) * 32)
        pair = (sealed(double, b"one"), sealed(double, b"another %d" % number))
        observed.hear(teller.peer, Decided(said, {double.peer: pair}), 1.0)
    assert observed.decision is not None
    assert observed.decision.said.keys() == {key.peer for key in (liar, *others)}
    assert observed.decision.equivocations.keys() == {double.peer}


def test_who_loses_sight_stops_and_says_nothing() -> None:
    """[B2] Without a majority in time there is nothing to go on; an onlooker never speaks."""
    observed = _sighting()
    assert observed.deadline is not None
    observed.tick(observed.deadline)
    assert observed.decision is not None
    assert not observed.decision.said
    assert observed.take() == []


class _Serving(Lies):
    """Answers those who come back, in its own way."""

    serves = True

    def __init__(self, name: str = "") -> None:
        self._name = name

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return [Packet(packet.slot, frame) for frame in self._frames(link, packet.slot, packet.frame)]

    def _frames(self, link: Bent, slot: Slot, frame: Frame) -> list[Frame]:
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
                return [SyncShown((CertifiedRecord(b"garbage", {}),)), StateShown(b"garbage")]
            case "garbage", StateShown(state):
                return [StateShown(b"garbage"), StateShown(state[:-4] + bytes(4))]
            case "another end", Decided(said, equivocations):
                return [Decided({peer: said[peer] for peer in sorted(said)[1:]}, equivocations), Decided({}, {})]
            case "nothing", SyncShown(_) | StateShown(_) | Decided(_):
                return []
            case _:
                return [frame]


@cache
def _come_back_among(name: str) -> Seen:
    """One of five loses power, and one of those who answer it lies."""
    return see(plan(crashes={GONE: DropOut(2, 4, 5.0)}, steps=9), _Serving(name)).kept_promises()


_TOLD = [
    "wrong signatures",
    "a fork of its own",
    "a gap",
    "the past",
    "garbage",
    "another end",
    "nothing",
]


@pytest.mark.parametrize("name", _TOLD)
def test_whatever_a_liar_tells_it_who_comes_back_is_not_deceived(name: str) -> None:
    """[B2] It is a member again as soon as among honest peers, and holds what they hold."""
    seen = _come_back_among(name)
    assert seen.returned == _come_back_among("").returned == {min(seen.returned): [GONE]}
    assert max(seen.world.outcomes[GONE]) >= seen.world.plan.steps - 2


# Knocking (SPEC B3)


def _gate() -> tuple[CatchUpServer, list[tuple[PeerId, Frame]]]:
    sent: list[tuple[PeerId, Frame]] = []
    catch_up = CatchUpServer(lambda to, _, frame: sent.append((to, frame)), Primitives())
    catch_up.roster = Roster((), away=tuple(Away(3, peer) for peer in PEERS))
    return catch_up, sent


def _at(step: int, run: Digest = RUN.id) -> Slot:
    return Slot(run, step, Phase.REJOIN)


def _will(old: Identity, key: PeerId, slot: Slot) -> Signature:
    """The old key says that this one comes in its place."""
    return old.sign(signed_bytes(slot, old.peer, Digest(key)))


def _request_rejoin(
    catch_up: CatchUpServer, member: PeerId, key: PeerId, *, at: int = 6, signed: int | None = None, step: int = 5
) -> bool:
    """Whether it was heard, by a member in this step."""
    request = _request(member, key, at=at if signed is None else signed)
    catch_up.hear(key, _at(at), RejoinRequest(member, request.signature), step)
    return any((rejoin.member, rejoin.key) == (member, key) for rejoin in catch_up.rejoins(at))


def _request(member: PeerId, key: PeerId, *, at: int = 6, since: int = 3, incarnation: int = 0) -> SignedRejoin:
    """As the member signs it that fell out in that step."""
    slot = _at(at)._replace(incarnation=incarnation)
    return SignedRejoin(member, key, WHO[member].sign(request_bytes(slot, member, key, since)))


def test_a_knock_is_heard_for_one_of_the_next_steps() -> None:
    """[B3] Under one's own key or a new one; those who are behind knock for later steps too."""
    for at, heard in ((4, False), (5, False), (6, True), (7, True), (5 + MOST_AHEAD, True), (6 + MOST_AHEAD, False)):
        assert _request_rejoin(_gate()[0], PEERS[0], PEERS[0], at=at) is heard
        assert _request_rejoin(_gate()[0], PEERS[0], HEIRS[0], at=at) is heard


def test_knocks_of_another_step_of_strangers_and_under_somebody_elses_key_are_not_heard() -> None:
    """[B3] What was signed for step 6 does not count for 7; who was never a member, or is banned or expelled, is a stranger."""
    assert not _request_rejoin(_gate()[0], PEERS[0], PEERS[0], at=7, signed=6)
    assert not _request_rejoin(_gate()[0], HEIRS[1], HEIRS[1])
    catch_up, _ = _gate()
    own = _request(PEERS[0], PEERS[0]).signature
    catch_up.hear(
        HEIRS[0], _at(6), RejoinRequest(PEERS[0], own), 5
    )  # somebody else sends what the first one signed for itself
    forged = WHO[HEIRS[0]].sign(request_bytes(_at(6), PEERS[0], HEIRS[0], 3))
    catch_up.hear(HEIRS[0], _at(6), RejoinRequest(PEERS[0], forged), 5)  # or signs it itself
    assert catch_up.rejoins(6) == []
    assert not catch_up.admits(HEIRS[0])


def test_knocks_are_forgotten_with_their_step() -> None:
    """[B3] Nothing grows."""
    catch_up, _ = _gate()
    assert _request_rejoin(catch_up, PEERS[0], PEERS[0])
    assert catch_up.admits(PEERS[0])
    catch_up.forget(6)
    assert catch_up.admits(PEERS[0])
    catch_up.forget(7)
    assert not catch_up.admits(PEERS[0])


def test_only_who_asked_is_shown_the_state_of_this_step() -> None:
    """[B2] Whoever is not looking on gets nothing, and nobody gets another state."""
    catch_up, sent = _gate()
    for who, asks in ((SOME[0], True), (SOME[8], False)):
        wanted = SyncWanted(3, SOME[0].peer, _will(who, SOME[0].peer, _at(3)))
        catch_up.hear(SOME[0].peer, _at(3), wanted, 5)
        assert bool(catch_up.asking) == asks
        catch_up.asking.clear()
    catch_up.watch([SOME[0].peer])
    catch_up.show(_at(6), {SOME[0].peer: SyncShown(())}, (Digest(bytes(32)), b"state"))
    assert sent.pop() == (SOME[0].peer, SyncShown(()))
    for asker, digest in ((SOME[1].peer, bytes(32)), (SOME[0].peer, b"1" * 32)):
        catch_up.hear(asker, _at(6), StateWanted(digest), 5)
    assert sent == []
    catch_up.hear(SOME[0].peer, _at(6), StateWanted(bytes(32)), 5)
    assert sent == [(SOME[0].peer, StateShown(b"state"))]


def _roster(**given: Any) -> Roster:
    """All but the last are members; that one is absent since step 5, when the model had moved five times."""
    given = {"updates": 8, **given}
    return replace(Roster(tuple(PEERS[:-1]), away=(Away(5, PEERS[-1], 5),)), **given)


def _commits(listed: Mapping[int, Sequence[SignedRejoin]]) -> dict[PeerId, Announced]:
    """What each of six members lists."""

    def said(number: int) -> Commit:
        return Commit(None, bytes(32), bytes(32), None, tuple(listed.get(number, ())))

    return {PEERS[k]: Announced(PEERS[k], said(k), Envelope(b"", bytes(64))) for k in range(6)}


def test_one_voice_is_enough() -> None:
    """[B3] A request proves itself: liars, however many, keep nobody out by not listing it."""
    request = _request(PEERS[-1], PEERS[-1])
    back = (Returned(PEERS[-1], PEERS[-1]),)
    assert [returning(_commits({k: [request] for k in range(n)}), _roster(), 8) for n in (0, 1, 6)] == [(), back, back]


def test_a_request_is_for_one_step_of_one_absence_in_one_incarnation() -> None:
    """[B3] A liar keeps requests and lists them when their owner is gone again: it would use up its returns, and let in
    somebody who is not there."""
    absent, slot, roster, tools = PEERS[-1], _at(8), _roster(), Primitives()
    for successor in (absent, HEIRS[0]):
        right = _request(absent, successor, at=8, since=5)
        assert is_request(slot, right, roster, tools)
        wrong = [
            _request(absent, successor, at=7, since=5),
            _request(absent, successor, at=9, since=5),
            _request(absent, successor, at=8, since=4),
            _request(absent, successor, at=8, since=5, incarnation=1),
            SignedRejoin(absent, HEIRS[1], right.signature),
            SignedRejoin(PEERS[0], successor, right.signature),
        ]
        assert [is_request(slot, one, roster, tools) for one in wrong] == [False] * len(wrong)
        back = _changed(roster, 8, returned=(Returned(absent, successor),))
        for at in (9, 10):
            assert not is_request(_at(at), _request(absent, successor, at=at, since=5), back, tools), "it is a member"
        if successor == absent:
            again = _changed(back, 9, absent=(absent,))
            assert not is_request(_at(10), _request(absent, successor, at=10, since=5), again, tools), (
                "kept from last time"
            )
            assert is_request(_at(10), _request(absent, successor, at=10, since=9), again, tools)


def test_requests_are_listed_once_for_each_who_is_absent() -> None:
    """[B3]"""
    absent, tools = PEERS[-1], Primitives()
    one, other = (_request(absent, key, at=8, since=5) for key in (absent, HEIRS[0]))
    junk = SignedRejoin(absent, absent, bytes(64))
    assert right_requests(_at(8), [one, junk], _roster(), tools) == [one]
    assert len(right_requests(_at(8), [one, other], _roster(), tools)) == 1


@pytest.mark.parametrize("lie", ["not signed", "twice", "of another step", "of a member"])
def test_who_lists_what_is_no_request_is_out(lie: str) -> None:
    """[B3, N1] Else everyone could say that somebody knocked, and nobody could tell who made it up."""

    class Lists(Lies):
        def __init__(self) -> None:
            self.audit_records: list[SignedRejoin] = []

        def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
            if not isinstance(message, Commit) or slot.step < 2:
                return message
            self.audit_records += message.rejoins
            gone = keys(1, 5)[GONE]
            lies = {
                "not signed": (SignedRejoin(gone, gone, bytes(64)),) if slot.step == 4 else None,
                "twice": message.rejoins * 2 if message.rejoins else None,
                "of another step": tuple(self.audit_records) if self.audit_records and not message.rejoins else None,
                "of a member": (SignedRejoin(keys(1, 5)[3], HEIRS[0], bytes(64)),) if slot.step == 4 else None,
            }[lie]
            return message if lies is None else msgspec.structs.replace(message, rejoins=lies)

    seen = see(plan(crashes={GONE: DropOut(2, 4, 5.0)}, steps=12), Lists()).kept_promises()
    absent = {number for numbers in seen.named("absent").values() for number in numbers}
    assert absent == {0, GONE}
    assert GONE in {number for numbers in seen.returned.values() for number in numbers}


def test_who_may_come_back() -> None:
    """[B8] Who was absent, for at most 500 updates; not who is a member, was banned, expelled, or never was one."""
    absent, member, stranger = PEERS[-1], PEERS[0], HEIRS[0]
    assert _roster().may_return(Returned(absent, absent), 8)
    assert _roster(updates=5 + MOST_AWAY).may_return(Returned(absent, absent), 900)
    assert not _roster(updates=6 + MOST_AWAY).may_return(Returned(absent, absent), 900)
    for who in (member, stranger):
        assert not _roster().may_return(Returned(who, who), 8)
    for gone in ({"banned": (absent,), "away": ()}, {"away": ()}):  # banned; expelled
        assert not _roster(**gone).may_return(Returned(absent, absent), 8)


def test_under_which_key_one_may_come_back() -> None:
    """[B8] One's own, or one that was never seen: not another member's, a banned one, or one that was given up; and a key."""
    absent = PEERS[-1]
    roster = _roster(banned=(HEIRS[1],), successors=((HEIRS[2], HEIRS[3]),))
    allowed = {absent: True, HEIRS[0]: True, PEERS[0]: False, HEIRS[1]: False, HEIRS[2]: False, HEIRS[3]: False}
    for key, may in {**allowed, PeerId(bytes(32)): False}.items():
        assert roster.may_return(Returned(absent, key), 8) is may, key


def test_who_comes_back_often_waits_longer_each_time() -> None:
    """[B8] 2^k steps after k returns within a thousand, at most 64, whatever its keys were called; nobody is out for it."""
    absent = PEERS[-1]

    def first(returns: Sequence[tuple[int, PeerId]], **given: Any) -> int:
        roster = _roster(returns=tuple(returns), away=(Away(1500, absent, 5),), **given)
        return next(step for step in range(1500, 2000) if roster.may_return(Returned(absent, absent), step)) - 1500

    times = [first([(1400 + k, absent) for k in range(count)]) for count in range(9)]
    assert times == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert times[-1] == MOST_WAIT
    assert first([(1400, PEERS[0])]) == 1, "another's"
    assert first([(1501 - STRIKE_STEPS, absent)]) == 1, "long ago"
    link = ((HEIRS[0], HEIRS[1]), (HEIRS[1], absent))
    assert first([(1400, HEIRS[1]), (1401, absent)], successors=link) == 4, "under other keys"


def test_while_the_run_pauses_nobody_has_to_wait() -> None:
    """[B8, G2] It pauses because too few are there. Steps that do not move the model do not count against who is gone, either."""
    absent = PEERS[-1]
    often = tuple((k, absent) for k in range(9))
    assert not _roster(returns=often).may_return(Returned(absent, absent), 8)
    assert _roster(returns=often, paused=True).may_return(Returned(absent, absent), 8)
    assert _roster(updates=5000, paused=True).may_return(Returned(absent, absent), 8)
    roster = _changed(_roster(), 9, updated=False, updates=8)
    assert roster.paused
    for step in range(10, 3 * MOST_AWAY, 100):
        roster = _changed(roster, step, updated=False, updates=8)
    roster = _changed(roster, 3 * MOST_AWAY, updated=True, updates=9)
    assert not roster.paused
    assert roster.may_return(Returned(absent, absent), 3 * MOST_AWAY + 1), "one is back, the others may follow"


def _changed(roster: Roster, step: int, **said: Any) -> Roster:
    """After a step in which this happened."""
    record = decode_record(_past()[1][0].record)
    return roster.after(msgspec.structs.replace(record, step=step, members=roster.members, **said))


def test_a_seat_is_one_seat_under_whatever_key() -> None:
    """[B3] The old key has given it up, and does not come back beside the new one."""
    absent, successor = PEERS[-1], HEIRS[0]
    back = _changed(_roster(), 8, returned=(Returned(absent, successor),))
    assert set(back.members) == {*PEERS[:-1], successor}
    assert back.away == ()
    assert back.returns == ((8, successor),)
    for key in (absent, successor, HEIRS[1]):
        assert not back.may_return(Returned(absent, key), 9)
    again = _changed(back, 10, absent=(successor,))
    assert not again.may_return(Returned(absent, absent), 12)
    assert not again.may_return(Returned(successor, absent), 12), "a key that was given up"
    assert again.may_return(Returned(successor, HEIRS[1]), 12)


def _ban(peer: PeerId) -> Judgement:
    return Judgement(None, peer, Kind.EQUIVOCATION, 8, None, 0, Verdict.ACCUSED)


def test_a_ban_of_the_old_key_bans_the_new_one() -> None:
    """[B3] Later, in the same step, and along a line of heirs; the other way round is not needed."""
    absent, successor, second = PEERS[-1], HEIRS[0], HEIRS[1]
    back = _changed(_roster(), 8, returned=(Returned(absent, successor),))
    later = _changed(back, 9, judgements=(_ban(absent),))
    assert set(later.banned) == {absent, successor}
    assert later.members == tuple(PEERS[:-1])
    at_once = _changed(_roster(), 8, returned=(Returned(absent, successor),), judgements=(_ban(absent),))
    assert set(at_once.banned) == {absent, successor}
    assert at_once.members == tuple(PEERS[:-1])
    renamed = _changed(_changed(back, 9, absent=(successor,)), 10, returned=(Returned(successor, second),))
    assert set(_changed(renamed, 11, judgements=(_ban(absent),)).banned) == {absent, successor, second}
    assert set(_changed(renamed, 11, judgements=(_ban(second),)).banned) == {second}


def test_one_knock_for_a_seat_counts() -> None:
    """[B3] Two keys for one seat: everyone takes the same one."""
    one, other = (_request(PEERS[-1], key) for key in sorted(HEIRS[:2]))
    for listed in ({0: [other], 1: [one]}, {0: [one], 1: [other]}):
        assert returning(_commits(listed), _roster(), 8) == (Returned(PEERS[-1], one.key),)


class _Hears:
    """A channel that lists no requests."""

    def __init__(self, inner: Channel) -> None:
        self._inner: Any = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rejoins(self, step: int) -> list[SignedRejoin]:
        return []


def test_who_is_listed_by_one_member_only_is_back_as_soon_as_any() -> None:
    """[B3] Seven liars of sixteen would otherwise keep out whomever a power cut takes."""
    listing = keys(1, 5)[4]

    def wrap(peer: PeerId, channel: Channel) -> Channel:
        return channel if peer == listing or not isinstance(channel, AgreedChannel) else cast(Channel, _Hears(channel))

    made = plan(liars=(), crashes={GONE: DropOut(2, 4, 5.0)}, steps=9)
    with_one, with_all = see(made, wrap=wrap).kept_promises(), see(made).kept_promises()
    assert with_one.returned == with_all.returned == {min(with_all.returned): [GONE]}


# Too few (SPEC G2, N4, B5): four founders, of whom one may lie


class _Helpful(Lies):
    serves = True


def _moved(seen: Seen) -> str:
    return "".join("m" if record.updated else "." for record in seen.records)


def test_of_four_one_is_gone_and_the_rest_trains_on() -> None:
    """[G2] It may be the liar."""
    seen = see(plan(peers=4, steps=8, crashes={1: DropOut(2, 2)}), _Helpful()).kept_promises()
    assert _moved(seen) == "mmmmmmmm"
    assert [len(record.members) for record in seen.records] == [4, 4, 4, 3, 3, 3, 3, 3]


def test_of_four_two_are_gone_and_the_run_pauses_until_one_is_back() -> None:
    """[G2, B3] Records go on, the model does not move, and updates are not used up."""
    crashes = {1: DropOut(2, 2), 2: DropOut(4, 2, 20.0)}
    seen = see(plan(peers=4, steps=36, crashes=crashes), _Helpful()).kept_promises()
    ((back, who),) = seen.returned.items()
    assert who == [2]
    assert _moved(seen) == "m" * 4 + "." * (back - 3) + "m" * (35 - back)
    assert [record.updates for record in seen.records][back] == 4


def test_of_four_two_are_gone_at_once_and_the_run_stops_until_one_is_back() -> None:
    """[N4, B5] Two are no quorum; three are as many as begin by themselves."""
    cuts = {1: DropOut(2, 2, 40.0), 2: DropOut(2, 2, 400.0)}
    seen = see(replace(plan(peers=4, steps=10), blackout=cuts))
    assert len(seen.records) == 10
    assert seen.records[-1].incarnation >= 1
    assert seen.named("absent", "banned", "expelled") == {2: [2]}
    assert seen.world.step_ends[2] > 40.0


# The first step after it (SPEC B4)


@contextmanager
def _forging(key: PeerId) -> Iterator[None]:
    """Whoever has this key sends wrong gradients."""
    right = TrainingWork.gradient
    seeds: set[Seed] = set()

    async def gradient(self: TrainingWork, training: Training, seed: Seed, step: int) -> Tensor:
        return await right(self, training, seed, step) * (-10.0 if seed in seeds else 1.0)

    def noted(randomness: Digest, peer: PeerId) -> Seed:
        seed = gradient_seed(randomness, peer)
        if peer == key:
            seeds.add(seed)
        return seed

    with patch.object(world_module._SlowWork, "gradient", gradient), patch.object(step_module, "gradient_seed", noted):
        yield


def _proofs(seen: Seen) -> list[Proof]:
    """Of all bans, from the files that a member would write."""
    history = History(seen.world.run)
    return [verify_ban(evidence.text) for outcome in seen.world.witness for evidence in history.add(outcome)]


def test_who_comes_back_and_lies_in_its_first_step_is_audited_for_certain_and_the_proof_holds() -> None:
    """[B4, E1] Under a new key, which whoever checks the evidence finds in the history, and as a target that was drawn."""
    successor = Identity.from_secret(derive(1, "incarnation", GONE)).peer
    with _forging(successor):
        seen = see(plan(liars=(), peers=7, steps=11, crashes={GONE: DropOut(2, 4, 5.0, journal=False)}))
    ((back, _),) = seen.returned.items()
    assert successor in seen.records[back + 1].contributors
    (proof,) = _proofs(seen)
    assert (proof.banned, proof.step, proof.judgement.kind) == (successor, back + 2, Kind.GRADIENT)
    assert proof.judgement.step == back + 1
    assert successor not in seen.records[back + 3].members


def test_bans_of_others_after_a_return_are_proved_too() -> None:
    """[B3, E1] The history holds who came back, under which key: members and majorities follow from it."""
    crashes = {GONE: DropOut(1, 4, 5.0, journal=False)}
    seen = see(plan(liars=(), forge_from={0: 7}, crashes=crashes, steps=16, seed=4))
    ((back, _),) = seen.returned.items()
    (proof,) = _proofs(seen)
    assert back + 2 < proof.step
    assert (proof.banned, proof.members) == (keys(4, 5)[0], 5)


def test_the_first_step_of_who_came_back_is_audited_beside_those_drawn() -> None:
    """[B4] In the step after it, once, by a validator; whatever was drawn."""
    back = PEERS[3]
    roster = Roster(tuple(PEERS), returns=((5, back),))
    audited = 0
    for seed in range(200):
        roles = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(6, tuple(PEERS)))
        drawn = [(auditor, audit) for auditor, audits in roles.audits.items() for audit in audits]
        assert len(drawn) == len(set(drawn))
        audited += sum(audit == Audit(back, 6) for _, audit in drawn)
        assert all(auditor in roles.validators or auditor != audit.target for auditor, audit in drawn)
        later = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(7, tuple(PEERS)))
        assert sum(map(len, later.audits.values())) == 1
    assert audited > 150


def test_who_comes_back_has_looked_on_for_two_steps() -> None:
    """[B4, K1] So it can audit and judge in its first step as member."""
    seen = see(plan(liars=(), crashes={GONE: DropOut(2, 4, 5.0, journal=True)}, steps=9)).kept_promises()
    ((back, _),) = seen.returned.items()
    own = seen.world.outcomes[GONE]
    assert {back - 1, back, back + 1} <= own.keys()
    assert set(own[back].state.audit_records) == {back - 1, back}


# Found by review


def test_an_onlooker_takes_messages_whose_signatures_fit() -> None:
    """[B2] Right payloads with wrong signatures, from the one who makes the majority full: nothing of them could be opened."""
    observed, right = _sighting(), _said(*range(7))
    wrong: dict[bytes, Envelope] = {peer: Envelope(said.payload, bytes(64)) for peer, said in right.items()}
    for teller, told in ((0, right), (1, right), (2, right), (3, wrong), (4, right)):
        observed.hear(PEERS[teller], Decided(told, {}), 1.0)
    assert observed.decision is not None
    assert observed.decision.said == right


def test_liars_cannot_keep_somebody_out_with_signatures_that_do_not_fit() -> None:
    """[B2] Else it loses sight in the step in which it is let in, three times, and has to stay away for a thousand steps."""

    class Unsigned(_Serving):
        def _frames(self, link: Bent, slot: Slot, frame: Frame) -> list[Frame]:
            if isinstance(frame, Decided):
                return [
                    Decided({k: Envelope(e.payload, bytes(64)) for k, e in frame.said.items()}, frame.equivocations)
                ]
            return [frame]

    seen = see(plan(peers=7, liars=(0, 1), crashes={GONE: DropOut(2, 4, 5.0)}, steps=12), Unsigned()).kept_promises()
    assert list(seen.returned.values()) == [[GONE]]


def test_a_certificate_that_only_an_onlooker_gets_does_not_set_its_clock() -> None:
    """[B2] A liar that keeps its view from the members can hand it out: they decide much later, and so must the onlooker.

    What is sure: of those who say how it ended, one at least is honest, and said so at once.
    """
    observed, right = _sighting(), _said(*range(7))
    values = bytes(32)
    views: dict[bytes, bytes] = {peer: WHO[peer].sign(view_bytes(_PLACE, values)) for peer in PEERS}
    observed.hear(PEERS[0], Certificate(values, views, {}), 1.0)
    for teller in range(4):
        observed.hear(PEERS[teller], Decided(right, {}), 20.0)
    assert observed.ends is not None
    assert observed.ends >= 20.0 - 2.0


@pytest.mark.parametrize("gone", [(), (6,)])
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
    flaw: str, believed: bool, gone: tuple[int, ...]
) -> None:
    """[B2, Q9] Three liars can complete a certificate that nobody decided by: so a fourth has to sign that it did."""
    gone = (4, 5, 6) if flaw == "few left" else gone
    said = _said(*(k for k in range(7) if k not in gone))
    seen = (
        values_digest({PeerId(peer): blob_digest(envelope.payload) for peer, envelope in said.items()}),
        tuple(sorted(PEERS[k] for k in gone)),
    )
    views: dict[bytes, bytes] = {peer: WHO[PeerId(peer)].sign(view_bytes(_PLACE, *seen)) for peer in said}
    if flaw == "a view is missing":
        views[PEERS[3]] = views[PEERS[2]]
    holders = PEERS[: 3 if flaw == "liars hold it" else 4]
    chain: dict[bytes, bytes] = {peer: WHO[peer].sign(chain_bytes(_PLACE, b"", seen[0])) for peer in holders}
    observed = ObservedAnnouncement(_PLACE, PEERS, 4, Timing(0.0, 0.0, 1.0), Primitives(), 5)
    told = Decided({peer: said[peer] for peer in sorted(said)[1:]} if flaw == "of another end" else said, {})
    observed.hear(PEERS[0], told, 1.0)
    before = observed.decision
    observed.hear(PEERS[0], Certificate(seen[0], views, chain, seen[1]), 1.0)
    decision = observed.decision
    assert before is None
    assert (decision is not None) == believed
    assert decision is None or decision.said.keys() == said.keys()


class _Bytes:
    """A state that is nothing but bytes."""

    def unpack(self, raw: bytes) -> bytes:
        return raw

    def digest(self, training: bytes) -> Digest:
        return blob_digest(training)


def _fetch_from(liar_sends: Sequence[float]) -> float:
    """How long it takes to get the state, if one of two who are asked for it has it, and the other sends something else then."""
    mine, liar, honest = SOME[:3]
    time: VirtualTime[float] = VirtualTime(lambda *_: (0.1,))

    async def asks() -> float:
        tools, link = Primitives(), time.link(mine.peer)
        channel = AgreedChannel(mine, link, Timeouts(), tools, observing=True)
        peer: Peer[bytes] = Peer(mine, RUN, cast(Any, _Bytes()), channel, SeededEntropy(0, 0), tools)
        member = Member(peer, State.first(RUN, b""), lambda _: channel)
        assert await member._fetch(channel, [liar.peer, honest.peer], blob_digest(b"state")) == b"state"
        return link.now()

    async def lies() -> float:
        link = time.link(liar.peer)
        for when in liar_sends:
            while link.now() < when:
                await link.receive(when)
            link.send(mine.peer, Packet(_at(3), SyncShown(())))
        return link.now()

    async def answers() -> float:
        link = time.link(honest.peer)
        while link.now() < 1000.0:
            heard = await link.receive(1000.0)
            if heard is not None and isinstance(heard[1].frame, StateWanted):
                link.send(heard[0], Packet(_at(3), StateShown(b"state")))
        return link.now()

    lives = {mine.peer: asks(), liar.peer: lies(), honest.peer: answers()}
    time.run(lives, most_events=10_000, until=[mine.peer])
    return time.results[mine.peer]


def test_who_comes_back_waits_for_nobody_who_does_not_hand_out_the_state() -> None:
    """[B2] A step may be shorter than the time after which one gives somebody up, and then there is another state to ask for.

    Whoever is asked first could keep it out for ever; all the more if every frame it sends starts that time anew.
    """
    assert _fetch_from([]) < 1.0
    assert _fetch_from([float(second) for second in range(900)]) < 1.0


def test_who_comes_back_asks_again_whatever_keeps_coming() -> None:
    """[B2] What it asked was lost while its line was cut; a liar sends it empty answers all the time."""
    victim = keys(1, 5)[GONE]

    class Floods(Lies):
        def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
            if isinstance(packet.frame, Value):
                link.slip(victim, Packet(_at(packet.slot.step, packet.slot.run), SyncShown(())))
            return (packet,)

    cut = Network(latency=0.3, cuts=(Cut(frozenset({GONE}), 8.0, 30.0),))
    for lies in (Lies(), Floods()):
        seen = see(plan(steps=24, network=cut), lies).kept_promises()
        assert list(seen.returned.values()) == [[GONE]]


def test_one_seat_knocks_once_and_is_shown_once() -> None:
    """[B2, B3] A liar signs for a hundred keys; whoever else comes back must still be listed, and memory is bounded."""
    catch_up, _ = _gate()
    liar, honest = WHO[PEERS[0]], max(PEERS[1:])
    for number in range(100):
        key = Identity.from_secret(derive(0, "heir", number)).peer
        catch_up.hear(key, _at(6), RejoinRequest(liar.peer, liar.sign(request_bytes(_at(6), liar.peer, key, 3))), 5)
        catch_up.hear(key, _at(4), SyncWanted(4, liar.peer, _will(liar, key, _at(4))), 5)
    assert _request_rejoin(catch_up, honest, honest)
    listed = catch_up.rejoins(6)[:MOST_REJOINS]
    assert (honest, honest) in {(rejoin.member, rejoin.key) for rejoin in listed}
    assert len(catch_up.asking) <= len(PEERS)
    assert len(catch_up.rejoins(6)) <= len(PEERS)


def test_the_first_step_is_audited_even_if_only_that_one_is_drawn_as_validator() -> None:
    """[B4] It cannot audit itself: somebody else has to."""
    back = PEERS[3]
    roster = Roster(tuple(PEERS), returns=((5, back),))
    for seed in range(100):
        roles = draw_roles(RUN, roster, Digest(derive(seed, "roles")), PendingAudits(6, tuple(PEERS)))
        assert any(audit == Audit(back, 6) for audits in roles.audits.values() for audit in audits)


def test_a_liar_banned_under_two_keys_is_one_liar() -> None:
    """[G1, B3] Else the guarantee would count one liar too few."""
    absent, successor = PEERS[-1], HEIRS[0]
    roster = _changed(_roster(), 8, returned=(Returned(absent, successor),), judgements=(_ban(absent),))
    assert replace(roster, byzantine=2).liars == 1


def test_a_key_that_was_expelled_is_not_one_that_was_never_seen() -> None:
    """[B3] Who was expelled does not take the seat of a friend who is absent."""
    expelled, absent = PEERS[0], PEERS[-1]
    roster = _changed(_roster(), 8, expelled=(expelled,))
    assert not roster.may_return(Returned(absent, expelled), 9)


class _SlowToSee:
    """Ends each step a little later, well within the time for it."""

    def __init__(self, inner: Channel) -> None:
        self._inner: Any = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def announce(self, slot: Slot, message: Message) -> Mapping[PeerId, Announced]:
        said: Mapping[PeerId, Announced] = await self._inner.announce(slot, message)
        if slot.phase == Phase.ACCUSE:
            await self._inner._wait(self._inner._link.now() + 0.8, lambda: False)
        return said


def test_who_is_back_comes_in_and_stays_where_honest_members_are_no_more_than_liars() -> None:
    """[B2] Liars tell onlookers nothing, so all announcements take a proof that liars signed too: the first of a step, of which
    it comes before the parts are there, and the last, of which it comes when the next step has begun."""
    crashes = {2: DropOut(3, 0, 10.0), 3: DropOut(4, 0, 10.0)}
    seen = see(plan(seed=2, peers=6, steps=25, liars=(0, 1), crashes=crashes), Lies())
    assert sorted(number for back in seen.returned.values() for number in back) == [2, 3]
    assert seen.named("absent") == {3: [2], 4: [3]}


def test_two_who_come_back_in_one_step_hear_each_other() -> None:
    """[B3, F1] Neither knows, before that step is over, that the other is a member too; what it says then must not be lost."""
    slow, crashes = keys(1, 7)[2], {2: DropOut(2, 2, 3.0), 5: DropOut(2, 2, 3.0)}

    def wrap(peer: PeerId, channel: Channel) -> Channel:
        return _SlowToSee(channel) if peer == slow and isinstance(channel, AgreedChannel) else channel

    seen = see(plan(peers=7, liars=(), crashes=crashes, steps=8), wrap=wrap).kept_promises()
    assert sorted(number for numbers in seen.returned.values() for number in numbers) == [2, 5]
    assert seen.link_disputes == {}


@pytest.mark.parametrize("away", [0.05, 0.3])
def test_who_has_a_slow_line_comes_back_while_the_others_step_quickly(away: float) -> None:
    """[B2, B3] What reaches it is several steps old, and so is its knock when it arrives."""
    network = Network(least=0.01, far={GONE: away})
    crashes = {GONE: DropOut(2, 0, 2.0, journal=True)}
    seen = see(plan(liars=(), crashes=crashes, steps=150, network=network)).kept_promises()
    assert list(seen.returned.values()) == [[GONE]]
    assert min(seen.returned) < 140


def test_a_signature_under_a_record_is_no_message() -> None:
    """[U2, U4, Q6] Close carries one under the run's last record: shown as a second message of its announcement, it would make
    an honest member one that said two things."""
    run, (signed, *_), _ = _past()
    slot = Slot(run.id, decode_record(signed.record).step, Phase.RECORD)
    for peer, signature in signed.signatures.items():
        assert isinstance(Primitives().open(slot, PeerId(peer), Envelope(signed.record, signature)), Malformed)
        digest = Primitives().digest(signed.record)
        assert not Primitives().verify(PeerId(peer), signed_bytes(slot, PeerId(peer), digest), signature)
