"""Beginning anew after too many have stopped, among liars who would rather keep the run from it (SPEC B5)."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import pytest

from tests.protocol.bent_world import Seen, keys, plan, see
from troth.attacks.wire.lies import false_waiting
from troth.crypto import Digest, Identity, PeerId, Slot, derive, stream
from troth.evidence.bans import History
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.signed_slots import SignedBeforeError, SignedSlotsInMemory
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Entry
from troth.protocol.core.errors import StalledError
from troth.protocol.core.records import encode_record
from troth.protocol.core.roster import Roster
from troth.protocol.recovery.member import Member
from troth.protocol.recovery.restart_quorum import Enough, Patience, RestartQuorum, Tip, be_ready
from troth.protocol.wire.frames import Busy, Packet, Ready, RestartCertificate, Waiting
from troth.protocol.wire.messages import Commit, Phase
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos import world as world_module
from troth.simulation.chaos.faults import Cut, Network
from troth.simulation.chaos.judge import draw_plan, judge
from troth.simulation.lockstep.drop_outs import DropOut, PowerCutError

SOME = sorted((Identity.from_secret(derive(0, "gathering", k)) for k in range(9)), key=lambda one: one.peer)
T = TypeVar("T")
KEYS = [identity.peer for identity in SOME]
TIP = Tip(Digest(bytes(32)), 7, Digest(bytes([7]) * 32))
REVEALING = 4  # a call of the channel in a quiet step


class _Tools(Primitives):
    """Each signature is checked once."""

    verify = staticmethod(cache(Primitives().verify))


def gathering(
    me: int = 0,
    members: int = 5,
    patience: float = 30.0,
    incarnation: int = 1,
    enough: int = 0,
    before: RestartCertificate | None = None,
) -> RestartQuorum:
    """By default of a run without liars: a majority may begin."""
    majority = members // 2 + 1
    counts = Enough(majority, enough or majority)
    one = RestartQuorum(
        SOME[me], KEYS[:members], TIP, incarnation, Patience(patience, 10.0, 100.0), _Tools(), counts, before
    )
    one.tick(0.0)
    return one


@cache
def here(incarnation: int = 1, tip: Tip = TIP) -> Waiting:
    return Waiting(tip.step, tip.digest, incarnation, None)


@cache
def ready(peer: int, incarnation: int = 1, tip: Tip = TIP, least: int = 3) -> Waiting:
    return Waiting(tip.step, tip.digest, incarnation, be_ready(tip, incarnation, SOME[peer], least))


def proof(*peers: int, incarnation: int = 1, least: int = 3) -> RestartCertificate:
    said = {bytes(KEYS[peer]): ready(peer, incarnation, least=least).ready for peer in sorted(peers)}
    return RestartCertificate(
        TIP.step, TIP.digest, incarnation, {peer: one for peer, one in said.items() if one is not None}
    )


# One member


def test_all_begin_when_all_are_ready() -> None:
    """[B5]"""
    one = gathering()
    for peer in range(1, 5):
        assert one.told == (here(),)
        one.hear(KEYS[peer], here(), 1.0)
    assert one.told == (ready(0),)
    for peer in range(1, 5):
        assert one.begun is None
        one.hear(KEYS[peer], ready(peer), 2.0)
    assert one.begun == proof(*range(5))
    assert [*one.told] == [one.begun]  # type: ignore[comparison-overlap]


def test_a_majority_begins_without_the_rest_after_a_while_and_fewer_never() -> None:
    """[B5, N4]"""
    for others, begins in ((1, False), (2, True)):
        one = gathering()
        for now in range(0, 400, 5):
            for peer in range(1, 1 + others):
                one.hear(KEYS[peer], ready(peer) if now > 30 else here(), float(now))
            one.tick(float(now))
            assert one.begun is None or now > 30
        assert (one.begun == proof(0, 1, 2)) == begins


def test_who_waits_for_something_else_does_not_count() -> None:
    """[B5] Another history, another step, another incarnation, somebody who is no member, or who was here a while ago."""
    others = (replace(TIP, step=8), replace(TIP, digest=Digest(bytes(32))))
    for incarnation, tip in ((1, others[0]), (1, others[1]), (2, TIP)):
        one = gathering(patience=0.0)
        for peer in range(1, 5):
            one.hear(KEYS[peer], ready(peer, incarnation, tip), 1.0)
        assert one.told == (here(),)
        assert len(one.missing(1.0)) == 4
    one = gathering(patience=0.0)
    for peer in range(5, 9):
        one.hear(KEYS[peer], ready(peer), 1.0)
    assert one.told == (here(),)
    one.hear(KEYS[1], ready(1), 1.0)
    one.hear(KEYS[2], ready(2), 12.0)
    assert one.told == (here(),)


def test_that_others_are_ready_has_to_be_proved() -> None:
    """[B5] Their signatures are asked for, and more than half: else a liar could make one honest member begin alone."""
    one = gathering()
    one.hear(KEYS[1], Waiting(7, TIP.digest, 1, Ready(1, bytes(64))), 1.0)
    for peer in range(2, 5):
        one.hear(KEYS[peer], ready(peer), 1.0)
    assert one.told == (here(),), "a signature that does not fit is no word at all"
    assert one.begun is None
    false = (
        proof(1, 2),
        replace_signature(proof(1, 2, 3), KEYS[3]),
        proof(1, 2, 5),
        RestartCertificate(7, TIP.digest, 2, proof(1, 2, 3).ready),
        RestartCertificate(8, TIP.digest, 1, proof(1, 2, 3).ready),
    )
    for begun in false:
        one.hear(KEYS[4], begun, 1.0)
        assert one.begun is None
    one.hear(KEYS[8], proof(1, 2, 3), 1.0)
    assert one.begun is None, "brought by a stranger"
    one.hear(KEYS[4], proof(1, 2, 3), 1.0)
    assert one.begun == proof(1, 2, 3), "whoever is ready, and however little this one has heard of them"


def replace_signature(begun: RestartCertificate, peer: PeerId) -> RestartCertificate:
    return RestartCertificate(
        begun.step, begun.tip, begun.incarnation, {**begun.ready, bytes(peer): Ready(3, bytes(64))}
    )


def test_an_incarnation_is_begun_once() -> None:
    """[B1, B5] Who began and failed has signed something in it. Who was not there then learns of it, and comes after."""
    tried = gathering(incarnation=2, before=proof(0, 1, 2))
    assert tried.told == (here(2), proof(0, 1, 2))
    tried.hear(KEYS[1], proof(1, 2, 3), 1.0)
    assert tried.begun is None
    late = gathering(3)
    for frame in tried.told:
        late.hear(KEYS[0], frame, 1.0)
    assert late.begun == proof(0, 1, 2)
    assert late.told == (late.begun,)
    tip, patience = replace(TIP, step=8), Patience(30.0, 10.0, 100.0)
    elsewhere = RestartQuorum(SOME[0], KEYS[:5], tip, 1, patience, _Tools(), Enough(3, 3), proof(0, 1, 2))
    assert len(elsewhere.told) == 1, "the proof is of another place"


def test_who_is_still_in_a_step_is_waited_for_but_not_for_ever() -> None:
    """[B5] Its announcements may take a while to fail, and it would come out into a run that went on without it. A liar says
    so as well."""
    one = gathering()
    for now in range(0, 200, 5):
        for peer in (1, 2):
            one.hear(KEYS[peer], ready(peer), float(now))
        one.hear(KEYS[3], Busy(7), float(now))
        assert (one.begun is not None) == (now >= 130)
    one = gathering()
    one.hear(KEYS[3], Busy(7), 0.0)
    for now in range(0, 35, 5):
        for peer in (1, 2):
            one.hear(KEYS[peer], ready(peer), float(now))
    assert one.begun is not None, "it said so once, and is gone"


def test_a_restart_begins_by_itself_with_as_many_as_no_forgotten_quorum_can_miss() -> None:
    """[B5, U2] A quorum may have signed something that those who wait do not know: one of these has to be honest and among it."""
    for members, liars, enough in ((16, 7, 15), (16, 3, 11), (5, 2, 5), (5, 1, 4), (4, 1, 3), (7, 0, 4), (9, 2, 7)):
        roster = Roster(tuple(PeerId(bytes([k]) * 32) for k in range(members)), byzantine=liars)
        assert roster.restart_quorum == enough
        assert enough + roster.quorum - members > liars


def test_with_fewer_it_never_begins_by_itself() -> None:
    """[B5] Liars are there at once; else they would begin with the first honest members who are back. Nor by a proof."""
    one = gathering(members=7, enough=6)
    for now in range(0, 4000, 5):
        for peer in range(1, 5):
            one.hear(KEYS[peer], ready(peer, least=4), float(now))
    one.hear(KEYS[1], proof(1, 2, 3, 4, 5, least=4), 4000.0)
    assert one.begun is None
    assert one.least == 6
    for now in range(4000, 4040, 5):
        for peer in range(1, 6):
            one.hear(KEYS[peer], ready(peer, least=6), float(now))
        assert (one.begun is not None) == (now >= 4030)


def test_people_may_say_how_many_are_enough_but_not_fewer_than_a_quorum() -> None:
    """[B5, N4] Four of seven at least, whatever they say."""
    for said, begins in ((5, 5), (4, 4), (1, 4), (99, 6)):
        for here_are in (3, 4, 5, 6):
            one = gathering(members=7, enough=6)
            for now in range(0, 60, 5):
                for peer in range(1, here_are):
                    one.hear(KEYS[peer], ready(peer, least=min(4, begins)), float(now))
                one.allow(said, float(now))
            assert (one.begun is not None) == (here_are >= begins), (said, here_are)


def test_nobody_is_counted_among_fewer_than_it_agreed_to() -> None:
    """[B5] A liar claims that less is enough; who asks for more is not part of a proof, and without it too few are left."""
    one = gathering(members=7, enough=6)
    one.allow(4, 0.0)
    for now in range(0, 60, 5):
        for peer in (1, 2):
            one.hear(KEYS[peer], ready(peer, least=4), float(now))
        for peer in (3, 4):
            one.hear(KEYS[peer], ready(peer, least=6), float(now))
    assert one.begun is None
    mixed = {**proof(1, 2, 5, least=4).ready, **proof(3, 4, least=6).ready}
    one.hear(KEYS[1], RestartCertificate(TIP.step, TIP.digest, 1, mixed), 60.0)
    assert one.begun is None, "five are ready, three of them for so few"
    one.hear(KEYS[1], proof(1, 2, 5, 6, least=4), 60.0)
    assert one.begun == proof(1, 2, 5, 6, least=4)


def test_what_a_member_signed_for_more_does_not_count_for_fewer() -> None:
    """[B5] The number is signed: else a liar could lower it for others."""
    lowered = {peer: Ready(4, one.signature) for peer, one in proof(1, 2, 3, 4, least=6).ready.items()}
    one = gathering(members=7, enough=6)
    one.allow(4, 0.0)
    one.hear(KEYS[1], RestartCertificate(TIP.step, TIP.digest, 1, lowered), 1.0)
    assert one.begun is None


def test_who_signed_a_record_that_others_may_go_on_from_does_not_begin_before_it_without_them() -> None:
    """[B9, U2] In it two of five left. One of the other three stops before it knows that a quorum signed it too; it and the two
    who left are three of five, and those two are two of three: both would go on."""
    after = Roster(tuple(KEYS[:3]))
    for others, begins in (((3, 4), False), ((1, 3), True)):
        counts = Enough(3, 3, after)
        one = RestartQuorum(SOME[0], KEYS[:5], TIP, 1, Patience(30.0, 10.0, 100.0), _Tools(), counts)
        for now in range(0, 90, 5):
            for peer in others:
                one.hear(KEYS[peer], ready(peer), float(now))
        one.hear(KEYS[3], proof(0, *others), 90.0)
        assert (one.begun is not None) == begins
    one = RestartQuorum(SOME[0], KEYS[:5], TIP, 1, Patience(30.0, 10.0, 100.0), _Tools(), Enough(3, 3, after))
    one.allow(3, 0.0)
    one.hear(KEYS[3], proof(2, 3, 4), 1.0)
    assert one.begun is not None, "its people say so"


def test_who_is_told_later_that_fewer_are_enough_still_begins_with_the_others() -> None:
    """[B5] They began a moment before its people spoke."""
    one, few = gathering(members=7, enough=6), proof(1, 2, 3, 4, least=4)
    one.hear(KEYS[1], few, 1.0)
    assert one.begun is None
    one.allow(4, 2.0)
    assert one.begun == few


def test_an_incarnation_that_most_have_left_is_not_begun_any_more() -> None:
    """[B5] Else whoever comes late would always be one behind. That liars have left it means nothing."""
    for left, joins in ((2, True), (3, False)):
        one = gathering(4)
        for peer in range(left):
            one.hear(KEYS[peer], ready(peer, 2), 1.0)
        one.hear(KEYS[0], proof(0, 1, 2), 1.0)
        assert (one.begun == proof(0, 1, 2)) == joins
        if not joins:
            assert one.told == (here(2), proof(0, 1, 2))
            one.hear(KEYS[0], proof(0, 1, 2, incarnation=2), 1.0)
            assert one.begun == proof(0, 1, 2, incarnation=2)


class _Traced:
    """A line on which these wait for a step."""

    def __init__(self, *frames: tuple[PeerId, Waiting]) -> None:
        self.left = list(frames)
        self.sent: list[tuple[PeerId, Packet]] = []

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        self.sent.append((to, packet))

    def gone(self) -> frozenset[PeerId]:
        return frozenset()

    async def receive(self, until: float) -> tuple[PeerId, Packet]:
        if not self.left:
            raise PowerCutError("nothing more comes")
        sender, frame = self.left.pop(0)
        return sender, Packet(Slot(TIP.run, frame.step, Phase.RESTART), frame)


@pytest.mark.parametrize("observing", [False, True])
def test_nobody_looks_on_in_a_step_that_more_than_half_have_left(observing: bool) -> None:
    """[B5, N4] Nothing can come of it. But a member does not leave it: liars would say to some that they wait, and go on with
    the rest. Who waits elsewhere, or is no member, does not count."""
    waits = [(KEYS[peer], here()) for peer in (1, 2, 3)]
    others = [(KEYS[1], here()), (KEYS[1], here(2)), (KEYS[8], here()), (KEYS[2], here(0))]
    elsewhere = [(KEYS[peer], here(1, replace(TIP, step=step))) for peer in (3, 4) for step in (6, 8)]
    slot, commit = Slot(TIP.run, 7, Phase.COMMIT), Commit(None, bytes(32), bytes(32))
    leaves = StalledError if observing else PowerCutError
    for frames, why in ((waits, leaves), ([*others, *elsewhere], PowerCutError)):
        link = _Traced(*frames)
        channel = AgreedChannel(SOME[0], link, Timeouts(), Primitives(), observing=observing)
        channel.enter(Entry(frozenset(KEYS[:5])))
        with pytest.raises(why):
            channel.announce(slot, commit).send(None)
        told = [to for to, packet in link.sent if isinstance(packet.frame, Busy)]
        assert told == ([] if observing else [peer for peer, frame in frames if frame.step <= 7])


# Many, among liars


def begun(members: int, liars: int, seed: int) -> dict[int, tuple[float, int]]:
    """When and under which incarnation each honest member begins; lines take up to 1, liars tell each something else."""
    draw, order, delta, asked = stream(seed, "gathering"), count(), 1.0, members - liars
    honest = {me: gathering(me, members, enough=asked) for me in range(liars, members)}
    told: dict[int, object] = dict.fromkeys(honest)
    events: list[tuple[float, int, int, int, Waiting | RestartCertificate]] = []
    done: dict[int, tuple[float, int]] = {}

    def tell(now: float, sender: int, to: int, frame: Waiting | RestartCertificate) -> None:
        heapq.heappush(events, (now + delta * float(draw.uniform(1)[0]), next(order), sender, to, frame))

    def lie(now: float, liar: int, to: int) -> None:
        one = honest[to]
        signers = [*range(liars), *(me for me, other in honest.items() if other.told[0] == ready(me, least=asked))]
        frames = (
            here(),
            ready(liar, least=asked),
            ready(liar, 2, least=1),
            ready(liar, least=1),
            false_waiting(one.told[0], draw),
            proof(*signers, least=asked),
        )
        tell(now, liar, to, frames[int(draw.integers(len(frames), 1)[0])])

    for tick in range(100):
        until = tick / 2
        for me, one in honest.items():
            for other in range(members):
                if other < liars and draw.integers(3, 1)[0] == 0:
                    lie(until, other, me)
                elif other != me:
                    for frame in one.told if other >= liars else ():
                        tell(until, me, other, frame)
        while events and events[0][0] <= until + 0.5:
            now, _, sender, to, heard = heapq.heappop(events)
            honest[to].hear(KEYS[sender], heard, now)
            if honest[to].told != told[to]:
                told[to] = honest[to].told
                for other in honest.keys() - {to}:
                    for frame in honest[to].told:
                        tell(now, to, other, frame)
            proved = honest[to].begun
            if proved is not None:
                done.setdefault(to, (now, proved.incarnation))
        for one in honest.values():
            one.tick(until + 0.5)
    return done


@pytest.mark.parametrize("seed", range(60))
def test_liars_can_neither_keep_the_others_from_beginning_nor_let_some_begin_alone(seed: int) -> None:
    """[B5] All honest members begin, under one incarnation, within the longest time that a line takes."""
    members, liars = ((5, 2), (7, 3), (8, 3), (9, 4))[seed % 4]
    done = begun(members, liars, seed)
    assert len(done) == members - liars
    assert len({incarnation for _, incarnation in done.values()}) == 1
    times = [when for when, _ in done.values()]
    assert max(times) - min(times) <= 1.0, "or they would not hear each other in time"


# Worlds


def blackout(call: int, amid: Sequence[float] = (0.0,) * 5) -> Seen:
    """Five honest peers; all stop in step 3, so many seconds after a call of the channel, and have power again a little later."""
    cuts = {number: DropOut(3, call, 5.0 + number, True, seconds) for number, seconds in enumerate(amid)}
    return see(replace(plan(liars=(), steps=8), blackout=cuts)).kept_promises()


def test_all_stop_and_all_go_on() -> None:
    """[B6, R6] The step that was not finished is made again, with fresh coins, and everyone audits the one before: a draw
    may have been thrown away."""
    seen = blackout(REVEALING)
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert seen.named("absent", "expelled", "struck") == {}
    audits = {step: sum(len(o[step].audited) for o in seen.world.outcomes.values()) for step in range(2, 5)}
    by_all = {step + 1: 4 * len(seen.records[step].contributors) for step in (2, 3)}  # all others audit each of them
    assert audits == {2: 1, **by_all}, "the step that was made again too"


def certifying(amid: Sequence[float], downs: Sequence[float] = (5.0, 6.0, 7.0, 8.0, 9.0), steps: int = 8) -> Seen:
    """Five peers, without liars; all stop in the Commit of step 4, so many seconds after it began: it certifies step 3."""
    cuts = {
        number: DropOut(4, 0, down, True, seconds)
        for number, (down, seconds) in enumerate(zip(downs, amid, strict=True))
    }
    return see(replace(plan(liars=(), steps=steps, network=Network(latency=0.3)), blackout=cuts))


@pytest.mark.parametrize("holds", [{0}, {1, 4}, {0, 1, 2, 3}])
def test_what_is_certified_is_not_made_again_though_one_alone_has_it(holds: set[int]) -> None:
    """[B6, U2] Some have the agreed Commits of step 4 when the power goes, the rest borrows the record of step 3 from them."""
    seen = certifying([0.95 if number in holds else 0.3 for number in range(5)]).kept_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert seen.named("absent") == {}


def test_without_borrowing_the_run_would_not_go_on_with_all() -> None:
    """[B5] So that the test above can fail."""
    with patch.object(Member, "_borrow", lambda *_: None):
        seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3])
    assert seen.world.outcomes[1][3].record.incarnation == 1


def test_what_nobody_can_prove_is_made_again() -> None:
    """[U2, B6] All hold the record of step 3, and none the signatures of a quorum: nobody could show it to others."""
    seen = certifying([0.2] * 5).kept_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert seen.named("absent") == {}


def test_a_certificate_outlives_the_step_that_brought_it() -> None:
    """[U2] The Commits of step 4 were agreed; the power goes for all two phases later."""
    cuts = {number: DropOut(4, REVEALING, 5.0 + number) for number in range(5)}
    seen = see(replace(plan(liars=(), steps=8), blackout=cuts)).kept_promises()
    assert [record.incarnation for record in seen.records] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_who_alone_holds_a_certified_record_and_comes_too_late_takes_the_other_one() -> None:
    """[B2, B5] People let the others begin without it, and these made the step again: of two records of one step the one of the
    later incarnation counts, with the proof that it began."""
    seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3], downs=(150.0, 5.0, 6.0, 7.0, 8.0), steps=60)
    late = seen.world.outcomes[0]
    assert seen.world.outcomes[1][3].record.incarnation == 1
    assert 3 not in late, "what the others made again, and had to, is not held against anyone"
    assert seen.named("absent") == {3: [0]}
    assert list(seen.returned.values()) == [[0]]
    assert late[max(late)].record == seen.records[-1]


def test_who_is_behind_is_not_drawn_into_looking_on_where_nobody_goes_on() -> None:
    """[B5] That some who wait show the same as a liar does not make it what goes on."""
    seen = certifying([0.95, 0.95, 0.95, 0.3, 0.3])
    assert len(seen.records) == 8
    assert not any(outcome.observed for outcomes in seen.world.outcomes.values() for outcome in outcomes.values())


def test_a_record_whose_model_nobody_hands_out_is_given_back() -> None:
    """[B6] Whoever alone holds it could keep everyone waiting."""
    forgotten = property(lambda _: None, lambda _, __: None)  # else all who ended the step have the model themselves
    with patch.object(Member, "_complete", no_model), patch.object(Member, "_unsure", forgotten, create=True):
        seen = certifying([0.95, 0.3, 0.3, 0.3, 0.3], downs=(5.0,) * 5)
    assert len(seen.records) == 8
    assert seen.world.outcomes[1][3].record.incarnation == 1


async def no_model(*_: Any) -> None:
    pass


def test_who_lacks_the_model_borrows_that() -> None:
    """[B5] A large model is not written down with every step."""
    victim, lacked = keys(1, 5)[3], []

    class Forgets(Member[T]):
        def __init__(self, peer: Any, state: Any, opened: Any, **given: Any) -> None:
            if given.get("certified") and peer.me == victim:
                lacked.append(peer.work.digest(state.training))
                state = replace(state, training=peer.work.update(state.training, state.training.parameters_D, 0))
                given["lacks"] = lacked[0]
            super().__init__(peer, state, opened, **given)

    with patch.object(world_module, "Member", Forgets):
        seen = blackout(REVEALING)
    assert lacked == [Digest(seen.records[2].state_after)]
    assert seen.records[3].incarnation == 1
    assert seen.named("absent") == {}


def test_a_network_in_pieces_that_heals_goes_on() -> None:
    """[B5, N4] Nobody loses power; but no piece has a majority, so all stop, and nobody has to be asked to go on."""
    cuts = (Cut(frozenset({0, 1}), 12.0, 90.0), Cut(frozenset({2, 3}), 12.0, 90.0))
    made = replace(plan(liars=(), steps=12, network=Network(latency=0.3, cuts=cuts)), blackout={4: DropOut(99, 0)})
    seen = see(made)
    assert len(seen.records) == 12
    assert seen.records[-1].incarnation >= 1
    assert seen.named("absent", "banned", "expelled") == {}


def test_a_ban_after_a_new_beginning_is_proved_by_its_evidence() -> None:
    """[B5, E1] Messages of one incarnation are worth nothing in another."""
    cuts = {number: DropOut(2, 3, 5.0) for number in range(1, 5)}
    made = replace(plan(liars=(0,), steps=14, forge_from={0: 4}), blackout=cuts)
    world = see(made).world
    history, records = History(world.run), {outcome.record.step: outcome.record for outcome in world.witness}
    found = [evidence for outcome in world.witness for evidence in history.add(outcome)]
    (evidence,) = found
    record = records[evidence.step]
    assert record.incarnation == 1
    assert verify_ban(evidence.text).banned == keys(1, 5)[0]
    forged = encode_record(msgspec.structs.replace(record, incarnation=0)).hex()
    with pytest.raises(UnprovedError):
        verify_ban(evidence.text.replace(encode_record(record).hex(), forged))


@pytest.mark.parametrize("seed", [9, 41, 86, 94])
def test_drawn_blackouts_break_no_promise(seed: int) -> None:
    """[B5] With liars that come back too, and lie about where they wait."""
    verdict = judge(draw_plan(seed))
    assert verdict.broken == []
    assert verdict.counts["blackouts"] == 1
    assert verdict.counts["beginnings anew"] >= 1


def test_a_step_that_is_made_again_has_places_of_its_own() -> None:
    """[B1, B5] Incarnations come first: a run that goes back to an earlier step can sign it, and never the old one again."""
    journal, slot = SignedSlotsInMemory(), Slot(Digest(bytes(32)), 3, Phase.VOTE, 2)
    journal.claim(slot)
    for later in (
        slot._replace(step=4, phase=Phase.COMMIT, attempt=0),
        slot._replace(step=2, incarnation=1, attempt=0, phase=Phase.COMMIT),
        slot._replace(incarnation=1, phase=Phase.COMMIT),
    ):
        journal.claim(later)
        for earlier in (slot, slot._replace(step=9)):
            if later.incarnation > earlier.incarnation or earlier is slot:
                with pytest.raises(SignedBeforeError):
                    journal.claim(earlier)
    assert (journal.last_incarnation, journal.last_step) == (1, 3)
