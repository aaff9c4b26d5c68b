"""The restart quorum: when members that wait begin anew, whatever liars tell each of them (SPEC B5)."""

import heapq
from dataclasses import replace
from itertools import count

import pytest

from tests.protocol.recovery.restart_frames import IDENTITIES, PEERS, TIP, _Tools, proof, ready, restart_quorum, waiting
from troth.crypto import Digest, PeerId, Slot, stream
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import AttemptView
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import StalledError
from troth.protocol.recovery.restart import Enough, Patience, RestartQuorum
from troth.protocol.wire.frames import Busy, Packet, Ready, RestartCertificate, Waiting
from troth.protocol.wire.messages import Commit, Phase
from troth.protocol.wire.primitives import Primitives
from troth.workshop.attacks.lies import false_waiting
from troth.workshop.simulation.exchange import PowerCutError


def test_all_begin_when_all_are_ready() -> None:
    """[B5]"""
    one = restart_quorum()
    for peer in range(1, 5):
        assert one.told == (waiting(),)
        one.hear(PEERS[peer], waiting(), 1.0)
    assert one.told == (ready(0),)
    for peer in range(1, 5):
        assert one.begun is None
        one.hear(PEERS[peer], ready(peer), 2.0)
    assert one.begun == proof(*range(5))
    assert [*one.told] == [one.begun]  # type: ignore[comparison-overlap]


def test_a_majority_begins_without_the_rest_after_a_while_and_fewer_never() -> None:
    """[B5, N4]"""
    for others, begins in ((1, False), (2, True)):
        one = restart_quorum()
        for now in range(0, 400, 5):
            for peer in range(1, 1 + others):
                one.hear(PEERS[peer], ready(peer) if now > 30 else waiting(), float(now))
            one.tick(float(now))
            assert one.begun is None or now > 30
        assert (one.begun == proof(0, 1, 2)) == begins


def test_members_that_wait_for_something_else_do_not_count() -> None:
    """[B5] Another history, step or incarnation, somebody who is no member, or a member that was here a while ago."""
    others = (replace(TIP, step=8), replace(TIP, digest=Digest(bytes(32))))
    for incarnation, tip in ((1, others[0]), (1, others[1]), (2, TIP)):
        one = restart_quorum(patience=0.0)
        for peer in range(1, 5):
            one.hear(PEERS[peer], ready(peer, incarnation, tip), 1.0)
        assert one.told == (waiting(),)
        assert len(one.missing(1.0)) == 4
    one = restart_quorum(patience=0.0)
    for peer in range(5, 9):
        one.hear(PEERS[peer], ready(peer), 1.0)
    assert one.told == (waiting(),)
    one.hear(PEERS[1], ready(1), 1.0)
    one.hear(PEERS[2], ready(2), 12.0)
    assert one.told == (waiting(),)


def test_readiness_of_others_has_to_be_proved() -> None:
    """[B5] Their signatures are asked for, and more than half: else a liar could make one honest member begin alone."""
    one = restart_quorum()
    one.hear(PEERS[1], Waiting(7, TIP.digest, 1, Ready(1, bytes(64))), 1.0)
    for peer in range(2, 5):
        one.hear(PEERS[peer], ready(peer), 1.0)
    assert one.told == (waiting(),), "a wrong signature counts for nothing"
    assert one.begun is None
    false = (
        proof(1, 2),
        replace_signature(proof(1, 2, 3), PEERS[3]),
        proof(1, 2, 5),
        RestartCertificate(7, TIP.digest, 2, proof(1, 2, 3).ready),
        RestartCertificate(8, TIP.digest, 1, proof(1, 2, 3).ready),
    )
    for begun in false:
        one.hear(PEERS[4], begun, 1.0)
        assert one.begun is None
    one.hear(PEERS[8], proof(1, 2, 3), 1.0)
    assert one.begun is None, "brought by a stranger"
    one.hear(PEERS[4], proof(1, 2, 3), 1.0)
    assert one.begun == proof(1, 2, 3), "however little this one has heard of those who are ready"


def replace_signature(begun: RestartCertificate, peer: PeerId) -> RestartCertificate:
    return RestartCertificate(
        begun.step, begun.tip, begun.incarnation, {**begun.ready, bytes(peer): Ready(3, bytes(64))}
    )


def test_an_incarnation_is_begun_once() -> None:
    """[B1, B5] A member that began and failed has signed something in it. One that was away learns of it, and comes after."""
    tried = restart_quorum(incarnation=2, before=proof(0, 1, 2))
    assert tried.told == (waiting(2), proof(0, 1, 2))
    tried.hear(PEERS[1], proof(1, 2, 3), 1.0)
    assert tried.begun is None
    late = restart_quorum(3)
    for frame in tried.told:
        late.hear(PEERS[0], frame, 1.0)
    assert late.begun == proof(0, 1, 2)
    assert late.told == (late.begun,)
    tip, patience = replace(TIP, step=8), Patience(30.0, 10.0, 100.0)
    elsewhere = RestartQuorum(IDENTITIES[0], PEERS[:5], tip, 1, patience, _Tools(), Enough(3, 3), proof(0, 1, 2))
    assert len(elsewhere.told) == 1, "the proof is of another step"


def test_a_member_still_in_a_step_is_waited_for_but_not_for_ever() -> None:
    """[B5] Its announcements may take a while to fail, and it would come out into a run that went on without it. A liar says
    so as well."""
    one = restart_quorum()
    for now in range(0, 200, 5):
        for peer in (1, 2):
            one.hear(PEERS[peer], ready(peer), float(now))
        one.hear(PEERS[3], Busy(7), float(now))
        assert (one.begun is not None) == (now >= 130)
    one = restart_quorum()
    one.hear(PEERS[3], Busy(7), 0.0)
    for now in range(0, 35, 5):
        for peer in (1, 2):
            one.hear(PEERS[peer], ready(peer), float(now))
    assert one.begun is not None, "it said so once, and is gone"


def test_a_restart_begins_by_itself_with_as_many_as_no_forgotten_quorum_can_miss() -> None:
    """[B5, U2] A quorum may have signed something that those who wait do not know: one of these has to be honest and among it."""
    for members, liars, enough in ((16, 7, 15), (16, 3, 11), (5, 2, 5), (5, 1, 4), (4, 1, 3), (7, 0, 4), (9, 2, 7)):
        roster = Roster(tuple(PeerId(bytes([k]) * 32) for k in range(members)), byzantine=liars)
        assert roster.restart_quorum == enough
        assert enough + roster.quorum - members > liars


def test_with_fewer_it_never_begins_by_itself() -> None:
    """[B5] Liars are there at once; else they would begin with the first honest members who are back. Nor by a proof."""
    one = restart_quorum(members=7, enough=6)
    for now in range(0, 4000, 5):
        for peer in range(1, 5):
            one.hear(PEERS[peer], ready(peer, least=4), float(now))
    one.hear(PEERS[1], proof(1, 2, 3, 4, 5, least=4), 4000.0)
    assert one.begun is None
    assert one.least == 6
    for now in range(4000, 4040, 5):
        for peer in range(1, 6):
            one.hear(PEERS[peer], ready(peer, least=6), float(now))
        assert (one.begun is not None) == (now >= 4030)


def test_people_may_say_how_many_are_enough_but_not_fewer_than_a_quorum() -> None:
    """[B5, N4] Four of seven at least, whatever they say."""
    for said, begins in ((5, 5), (4, 4), (1, 4), (99, 6)):
        for here_are in (3, 4, 5, 6):
            one = restart_quorum(members=7, enough=6)
            for now in range(0, 60, 5):
                for peer in range(1, here_are):
                    one.hear(PEERS[peer], ready(peer, least=min(4, begins)), float(now))
                one.allow(said, float(now))
            assert (one.begun is not None) == (here_are >= begins), (said, here_are)


def test_nobody_is_counted_among_fewer_than_it_agreed_to() -> None:
    """[B5] A liar claims that fewer are enough; one that asks for more is not in a proof, and without it too few are left."""
    one = restart_quorum(members=7, enough=6)
    one.allow(4, 0.0)
    for now in range(0, 60, 5):
        for peer in (1, 2):
            one.hear(PEERS[peer], ready(peer, least=4), float(now))
        for peer in (3, 4):
            one.hear(PEERS[peer], ready(peer, least=6), float(now))
    assert one.begun is None
    mixed = {**proof(1, 2, 5, least=4).ready, **proof(3, 4, least=6).ready}
    one.hear(PEERS[1], RestartCertificate(TIP.step, TIP.digest, 1, mixed), 60.0)
    assert one.begun is None, "five are ready, three of them for so few"
    one.hear(PEERS[1], proof(1, 2, 5, 6, least=4), 60.0)
    assert one.begun == proof(1, 2, 5, 6, least=4)


def test_a_signature_for_more_members_does_not_count_for_fewer() -> None:
    """[B5] The number is signed: else a liar could lower it for others."""
    lowered = {peer: Ready(4, one.signature) for peer, one in proof(1, 2, 3, 4, least=6).ready.items()}
    one = restart_quorum(members=7, enough=6)
    one.allow(4, 0.0)
    one.hear(PEERS[1], RestartCertificate(TIP.step, TIP.digest, 1, lowered), 1.0)
    assert one.begun is None


def test_a_signer_of_a_record_that_others_may_go_on_from_does_not_begin_before_it_without_them() -> None:
    """[B9, U2] In it two of five left. One of the other three stops before it knows that a quorum signed it too; it and the two
    who left are three of five, and those two are two of three: both would go on."""
    after = Roster(tuple(PEERS[:3]))
    for others, begins in (((3, 4), False), ((1, 3), True)):
        counts = Enough(3, 3, after)
        one = RestartQuorum(IDENTITIES[0], PEERS[:5], TIP, 1, Patience(30.0, 10.0, 100.0), _Tools(), counts)
        for now in range(0, 90, 5):
            for peer in others:
                one.hear(PEERS[peer], ready(peer), float(now))
        one.hear(PEERS[3], proof(0, *others), 90.0)
        assert (one.begun is not None) == begins
    one = RestartQuorum(IDENTITIES[0], PEERS[:5], TIP, 1, Patience(30.0, 10.0, 100.0), _Tools(), Enough(3, 3, after))
    one.allow(3, 0.0)
    one.hear(PEERS[3], proof(2, 3, 4), 1.0)
    assert one.begun is not None, "its people say so"


def test_a_member_told_later_that_fewer_are_enough_still_begins_with_the_others() -> None:
    """[B5] They began a moment before its people spoke."""
    one, few = restart_quorum(members=7, enough=6), proof(1, 2, 3, 4, least=4)
    one.hear(PEERS[1], few, 1.0)
    assert one.begun is None
    one.allow(4, 2.0)
    assert one.begun == few


def test_an_incarnation_that_most_have_left_is_not_begun_any_more() -> None:
    """[B5] Else a late member would always be one behind. That liars have left it means nothing."""
    for left, joins in ((2, True), (3, False)):
        one = restart_quorum(4)
        for peer in range(left):
            one.hear(PEERS[peer], ready(peer, 2), 1.0)
        one.hear(PEERS[0], proof(0, 1, 2), 1.0)
        assert (one.begun == proof(0, 1, 2)) == joins
        if not joins:
            assert one.told == (waiting(2), proof(0, 1, 2))
            one.hear(PEERS[0], proof(0, 1, 2, incarnation=2), 1.0)
            assert one.begun == proof(0, 1, 2, incarnation=2)


class _ScriptedWaitLink:
    """A link on which these wait for a step."""

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
def test_nobody_observes_a_step_that_more_than_half_have_left(observing: bool) -> None:
    """[B5, N4] Nothing can come of it. But a member does not leave it: liars would say to some that they wait, and go on with
    the rest. Members that wait elsewhere, and strangers, do not count."""
    waits = [(PEERS[peer], waiting()) for peer in (1, 2, 3)]
    others = [(PEERS[1], waiting()), (PEERS[1], waiting(2)), (PEERS[8], waiting()), (PEERS[2], waiting(0))]
    elsewhere = [(PEERS[peer], waiting(1, replace(TIP, step=step))) for peer in (3, 4) for step in (6, 8)]
    slot, commit = Slot(TIP.run, 7, Phase.COMMIT), Commit(None, bytes(32), bytes(32))
    leaves = StalledError if observing else PowerCutError
    for frames, why in ((waits, leaves), ([*others, *elsewhere], PowerCutError)):
        link = _ScriptedWaitLink(*frames)
        channel = BroadcastChannel(IDENTITIES[0], link, Timeouts(), Primitives(), observing=observing)
        with pytest.raises(why):
            channel.announce(slot, commit, AttemptView(frozenset(PEERS[:5]))).send(None)
        told = [to for to, packet in link.sent if isinstance(packet.frame, Busy)]
        assert told == ([] if observing else [peer for peer, frame in frames if frame.step <= 7])


def begun(members: int, liars: int, seed: int) -> dict[int, tuple[float, int]]:
    """When and under which incarnation each honest member begins; links take up to 1, liars tell each something else."""
    draw, order, delta, asked = stream(seed, "gathering"), count(), 1.0, members - liars
    honest = {me: restart_quorum(me, members, enough=asked) for me in range(liars, members)}
    told: dict[int, object] = dict.fromkeys(honest)
    events: list[tuple[float, int, int, int, Waiting | RestartCertificate]] = []
    done: dict[int, tuple[float, int]] = {}

    def tell(now: float, sender: int, to: int, frame: Waiting | RestartCertificate) -> None:
        heapq.heappush(events, (now + delta * float(draw.uniform(1)[0]), next(order), sender, to, frame))

    def lie(now: float, liar: int, to: int) -> None:
        one = honest[to]
        signers = [*range(liars), *(me for me, other in honest.items() if other.told[0] == ready(me, least=asked))]
        frames = (
            waiting(),
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
            honest[to].hear(PEERS[sender], heard, now)
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_liars_can_neither_keep_the_others_from_beginning_nor_let_some_begin_alone(seed: int) -> None:
    """[B5] All honest members begin, under one incarnation, within the longest time that a link takes."""
    members, liars = ((5, 2), (7, 3), (8, 3), (9, 4))[seed % 4]
    done = begun(members, liars, seed)
    assert len(done) == members - liars
    assert len({incarnation for _, incarnation in done.values()}) == 1
    times = [when for when, _ in done.values()]
    assert max(times) - min(times) <= 1.0, "or they would not hear each other in time"
