"""Every lie on the wire is told, and breaks no promise; and what the false frames are made of."""

import math

import pytest

from troth.crypto import Digest, Identity, PeerId, Signature, Slot, derive, signed_bytes, stream, valid_peer, verify
from troth.protocol.broadcast.announcement import Announcement, Timing, proves, view_bytes
from troth.protocol.core.records import record_bytes_to_sign
from troth.protocol.wire.frames import (
    BlobSent,
    Certificate,
    Chained,
    Frame,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
)
from troth.protocol.wire.messages import (
    Accuse,
    Center,
    Clip,
    Close,
    Commit,
    Confirm,
    Malformed,
    Message,
    Phase,
    Report,
    Reveal,
    Vote,
)
from troth.protocol.wire.phases import decode, encode, seal
from troth.protocol.wire.primitives import Primitives
from troth.workshop.attacks.broadcasts import WIRE_BEHAVIOURS, LastRound
from troth.workshop.attacks.lies import (
    announcing,
    another,
    false_decision,
    false_rejoin,
    false_signature,
    forged_certificate,
    impersonations,
    malformed,
    not_finite,
    not_numbers,
    oversized,
    oversized_blob,
    signed_view,
    values_digest,
    with_wrong_path,
)
from troth.workshop.attacks.link import LyingLink
from troth.workshop.chaos.checkers import CHECKERS
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.world import World
from troth.workshop.simulation.exchange import DropOut

PLACE = Slot(Digest(b"r" * 32), 3, Phase.REPORT)
ME, OTHER = (Identity.from_secret(derive(0, name)) for name in ("me", "other"))
MESSAGES: dict[Phase, Message] = {
    Phase.COMMIT: Commit(bytes(32), b"a" * 32, b"b" * 32, length=1.5, signature=bytes(64)),
    Phase.CLIP: Clip((Center(0, bytes(32), 1.0), Center(1, bytes(32), 2.0))),
    Phase.REVEAL: Reveal(b"c" * 32, b"\x03"),
    Phase.CONFIRM: Confirm(b"\x03"),
    Phase.REPORT: Report(b"\x3f" * (8 * 34)),
    Phase.ACCUSE: Accuse((), b"d" * 32),
    Phase.VOTE: Vote(()),
    Phase.CLOSE: Close(b"e" * 64),
}
STEPS = 4
AGAINST_WHO_WAS_GONE = {"mislead": 1.0, "false-rejoin": 120.0}  # and for how long: it has to look on, or to stay away


def world_of(behaviour: str, seed: int = 0) -> World:
    """Two of seven do it whenever they can; where it needs somebody who was gone, there is one."""
    doing = frozenset({behaviour})
    plan = Plan(
        seed=seed,
        peers=7,
        steps=STEPS,
        liars={0: doing, 3: doing},
        forge_from={},
        attacks={},
        intensity={0: (1.0, 0), 3: (1.0, 1)},
        crashes={5: DropOut(0, 3, AGAINST_WHO_WAS_GONE[behaviour])} if behaviour in AGAINST_WHO_WAS_GONE else {},
        network=Network(latency=0.4),
    )
    return play(plan)


def broken_in(world: World) -> list[str]:
    return [f"{name}: {what}" for name, check in CHECKERS.items() for what in check(world)]


@pytest.mark.long
@pytest.mark.parametrize("behaviour", WIRE_BEHAVIOURS)
def test_two_of_seven_break_no_promise(behaviour: str) -> None:
    """[Q1–Q7, N5, M1–M3] Honest peers agree, none of them is banned or left out, and every step ends."""
    world = world_of(behaviour)
    assert world.lies[behaviour] > 0
    assert set(world.lies) == {behaviour}
    assert broken_in(world) == []
    assert len(world.records) == STEPS


@pytest.mark.long
@pytest.mark.parametrize("behaviour", ["malformed", "oversized"])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_no_message_is_silence_and_not_an_equivocation(behaviour: str, seed: int) -> None:
    """[M3, Q6] Everyone hears the same, so everyone hears nothing: absent or struck, but not banned."""
    world = world_of(behaviour, seed)
    assert broken_in(world) == []
    assert not any(record.banned for record in world.records)
    hurt = {peer for record in world.records for peer in (*record.absent, *record.struck)}
    assert hurt
    assert hurt.isdisjoint(world.honest)


@pytest.mark.long
def test_whoever_is_shunned_takes_part_all_the_same() -> None:
    """[Q5, N5] Two liars send nothing to one peer each, ever; the others carry their words and parts to it."""
    world = world_of("cut-link")
    assert broken_in(world) == []
    assert set(world.honest) <= set(world.records[-1].members)


class _Recorder:
    """A line that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[PeerId, Packet]] = []

    def now(self) -> float:
        return 0.0

    def send(self, to: PeerId, packet: Packet) -> None:
        self.sent.append((to, packet))

    def gone(self) -> frozenset[PeerId]:
        return frozenset()

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        return None


def sent_by(behaviours: set[str], packets: list[Packet], peers: int = 6) -> list[tuple[PeerId, Packet]]:
    """Packets that a liar makes of these to everyone, if its behaviours are drawn whenever they can be."""
    link, others = _Recorder(), [PeerId(bytes([number]) * 32) for number in range(1, peers)]
    liar = LyingLink(link, ME, frozenset(behaviours), 20.0, 0, stream(0, "liar"))
    for packet in packets:
        for other in others:
            liar.send(other, packet)
    return link.sent


def test_what_is_malformed_is_so_for_all_alike() -> None:
    packet = Packet(PLACE, Value(seal(ME, PLACE, MESSAGES[Phase.REPORT])))
    frames = {packet.frame for _, packet in sent_by({"malformed"}, [packet])}
    assert len(frames) == 1
    (frame,) = frames
    assert isinstance(frame, Value)
    assert isinstance(decode(Phase.REPORT, frame.envelope.payload), Malformed)
    truth = Packet(PLACE, Chained(ME.peer, seal(ME, PLACE, MESSAGES[Phase.REPORT]), {}))
    assert len(sent_by({"malformed"}, [packet, truth])) == 5, "the truth is told to nobody, by no way"


def test_a_feud_is_with_one_and_always_the_same() -> None:
    packets = [Packet(PLACE._replace(step=step), View(None, bytes(64))) for step in range(5)]
    sent = sent_by({"cut-link"}, packets)
    shunned = {to for to, packet in sent if packet.slot.step == 0} - {to for to, packet in sent if packet.slot.step > 0}
    assert len(shunned) == 1
    assert len(sent) in range(5 + 4 * 4, 5 + 4 * 4 + 5)  # the first may get something before the choice is made


def test_two_views_are_both_signed() -> None:
    sent = sent_by({"two-views"}, [Packet(PLACE, View(bytes(32), bytes(64)))], peers=20)
    views = [packet.frame for _, packet in sent if isinstance(packet.frame, View)]
    assert len({view.values for view in views}) > 2
    assert None in {view.values for view in views}
    assert all(verify(ME.peer, view_bytes(PLACE, view.values), view.signature) for view in views)


def test_replays_elsewhere_are_of_earlier_steps() -> None:
    old, new = (Packet(PLACE._replace(step=step), View(bytes([step]) * 32, bytes(64))) for step in (1, 2))
    value = Packet(PLACE._replace(step=2), Value(seal(ME, PLACE, MESSAGES[Phase.REPORT])))  # begins step 2
    sent = sent_by({"replay-elsewhere"}, [old, value, new], peers=20)
    moved = {packet.slot for _, packet in sent if packet.frame == old.frame} - {old.slot}
    assert new.slot in moved
    assert {slot.run for slot in moved} > {PLACE.run}


@pytest.mark.parametrize("phase", MESSAGES)
def test_payloads_that_are_no_message(phase: Phase) -> None:
    """[M3] Validly signed, and refused with a reason by whoever opens them."""
    payload, draw = encode(MESSAGES[phase]), stream(0, "payloads")
    lies = [*(malformed(phase, payload, draw) for _ in range(20)), oversized(phase, payload)]
    assert len(set(lies)) > 5
    for lie in lies:
        opened = Primitives().open(PLACE._replace(phase=phase), ME.peer, signed(phase, lie).envelope)
        assert isinstance(opened, Malformed)
        assert opened.reason != "the signature does not fit"


def signed(phase: Phase, payload: bytes) -> Value:
    return announcing(ME, PLACE._replace(phase=phase), payload)


@pytest.mark.parametrize("phase", [Phase.COMMIT, Phase.CLIP, Phase.REPORT])
def test_numbers_that_are_none(phase: Phase) -> None:
    """[M3] All but the largest that is allowed are refused."""
    draw = stream(0, "numbers")
    opened = [decode(phase, encode(not_finite(MESSAGES[phase], draw))) for _ in range(30)]
    assert {type(message) for message in opened} == {Malformed, type(MESSAGES[phase])}


@pytest.mark.parametrize("phase", MESSAGES)
def test_another_message_is_a_message(phase: Phase) -> None:
    other = another(MESSAGES[phase])
    assert decode(phase, encode(other)) == other
    assert other != MESSAGES[phase] or phase == Phase.VOTE


def test_blobs() -> None:
    part, shown = (
        PartSent(1, (b"x" * 32, b"y" * 32), memoryview(bytes(12))),
        PartShown(1, bytes(32), (b"x" * 32, b"y" * 32), memoryview(bytes(12))),
    )
    draw = stream(0, "paths")
    for frame in (part, shown):
        paths = {with_wrong_path(frame, draw).path for _ in range(30)}
        assert frame.path not in paths
        assert {len(path) for path in paths} == {0, 1, 2, 34}
    blob = BlobSent(memoryview(bytes(12)))
    assert len(oversized_blob(blob).blob) > 100_000
    assert math.isnan(memoryview(not_numbers(blob).blob).cast("f")[0])
    assert len(not_numbers(blob).blob) == 12


def test_nothing_that_claims_to_be_somebody_elses_is_signed_by_it() -> None:
    """[M1, Q5] Nobody can say anything for another: each of these fails the check of whoever gets it."""
    value = Value(seal(OTHER, PLACE, MESSAGES[Phase.REPORT]))
    frames = list(impersonations(ME, PLACE, OTHER.peer, value, {ME.peer, OTHER.peer}, stream(0, "impersonate")))
    assert {type(frame) for frame in frames} == {Chained, Relayed, Value, Certificate, PartShown}
    tools = Primitives()
    for frame in frames:
        assert not _believed(frame, tools)
    running = Announcement(PLACE, OTHER, [ME.peer, OTHER.peer], Timing(0.0, 1.0, 1.0), tools)
    for frame in frames:
        if isinstance(frame, Value | View | Chained | Certificate):
            running.hear(ME.peer, frame, 0.5)
    assert running.heard == {}
    assert running.decision is None


def _believed(frame: Frame, tools: Primitives) -> bool:
    match frame:
        case Chained(originator, envelope) | Relayed(originator, Value(envelope)):
            digest = tools.digest(envelope.payload)
            return verify(PeerId(originator), signed_bytes(PLACE, PeerId(originator), digest), envelope.signature)
        case Value(envelope):
            return verify(ME.peer, signed_bytes(PLACE, ME.peer, tools.digest(envelope.payload)), envelope.signature)
        case Relayed(originator, View(values, signature)):
            return verify(PeerId(originator), view_bytes(PLACE, values), signature)
        case Certificate(values, views):
            return all(verify(PeerId(peer), view_bytes(PLACE, values), views[peer]) for peer in views)
        case _:
            return False


def test_a_false_value_can_be_certified() -> None:
    """A liar's view fits what it has said, and not what its own code believes that it said."""
    running = Announcement(PLACE, OTHER, [ME.peer, OTHER.peer], Timing(0.0, 1.0, 1.0), Primitives())
    said = {OTHER.peer: Value(seal(OTHER, PLACE, MESSAGES[Phase.REPORT])), ME.peer: signed(Phase.REPORT, b"noise")}
    running.say(said[OTHER.peer].envelope, 0.0)
    running.hear(ME.peer, said[ME.peer], 0.1)
    views = [frame for frame in running.take() if isinstance(frame, View)]
    assert [view.values for view in views] == [values_digest(said)]


# Certificates that come late, or that nobody signed


FELLOW, *HONEST = (Identity.from_secret(derive(0, "peer", number)) for number in range(4))


def _heard_by(liar: LastRound) -> Digest:
    """The liar tells everyone, and hears everyone's value and view; what they all saw."""
    said = {who.peer: Value(seal(who, PLACE, MESSAGES[Phase.REPORT])) for who in (ME, FELLOW, *HONEST)}
    for who in (FELLOW, *HONEST):
        liar.tells(who.peer, PLACE, said[ME.peer], 0.0)
        liar.hears(who.peer, PLACE, said[who.peer], 0.1)
    for who in HONEST:
        liar.hears(who.peer, PLACE, signed_view(who, PLACE, values_digest(said)), 0.2)
    return values_digest(said)


def test_a_late_certificate_is_right_and_has_the_signatures_of_all_liars() -> None:
    """[Q3, Q5] The fellow's view was never sent, and is made; in the last round it is one signature short."""
    liar = LastRound(ME, {FELLOW.peer: FELLOW}, stream(0, "late"))
    mine = signed_view(ME, PLACE, _heard_by(liar))
    assert liar.hides(PLACE, mine, lambda: True)
    lies = list(liar.began(HONEST[0].peer, PLACE, 6.0))
    assert {to for to, _ in lies} == {who.peer for who in HONEST}
    second = lies[0][1]
    assert all(frame == second for _, frame in lies)
    assert isinstance(second, Chained)
    assert second.originator == FELLOW.peer
    assert set(second.chain) == {ME.peer}
    assert list(liar.began(HONEST[1].peer, PLACE, 6.5)) == [], "it is said once"
    assert list(liar.due(liar.next_due)) == [], "now it knows whose rounds began last"
    ((victim, packet),) = liar.due(liar.next_due)
    assert victim == HONEST[1].peer
    assert isinstance(packet.frame, Certificate)
    assert proves(PLACE, frozenset(who.peer for who in (ME, FELLOW, *HONEST)), packet.frame, Primitives(), None)
    assert set(packet.frame.chain) == {ME.peer, FELLOW.peer}
    assert liar.next_due == math.inf


def test_nothing_is_tried_where_somebody_saw_something_else() -> None:
    """No certificate, so a second value would be a ban for nothing."""
    liar = LastRound(ME, {FELLOW.peer: FELLOW}, stream(0, "late"))
    mine = signed_view(ME, PLACE, b"x" * 32)
    _heard_by(liar)
    assert liar.hides(PLACE, mine, lambda: True)
    assert list(liar.began(HONEST[0].peer, PLACE, 6.0)) == []
    assert liar.next_due == math.inf


def test_a_forged_certificate_proves_nothing() -> None:
    """[Q3] It has the right form, and one of its signatures fits."""
    said = {who.peer: Value(seal(who, PLACE, MESSAGES[Phase.REPORT])) for who in (ME, *HONEST)}
    view, certificate = forged_certificate(ME, PLACE, said)
    assert isinstance(certificate, Certificate)
    assert view == signed_view(ME, PLACE, certificate.values)
    assert set(certificate.views) == set(said)
    assert not proves(PLACE, frozenset(said), certificate, Primitives(), None)


def test_what_is_said_of_those_who_were_gone() -> None:
    """[B2, B3, U2] Well-formed, and false: a key of nobody's, somebody left out, another record."""
    draw, commit = stream(0, "gone"), MESSAGES[Phase.COMMIT]
    assert isinstance(commit, Commit)
    knocking = false_rejoin(commit, OTHER.peer, draw)
    assert decode(Phase.COMMIT, encode(knocking)) == knocking
    (rejoin,) = knocking.rejoins
    assert rejoin.member == OTHER.peer
    assert valid_peer(PeerId(rejoin.key))
    assert rejoin.key not in (ME.peer, OTHER.peer)
    said = {who.peer: seal(who, PLACE, MESSAGES[Phase.REPORT]) for who in HONEST}
    assert len(false_decision(said, draw).said) == len(said) - 1
    digest, false = Digest(b"d" * 32), false_signature(commit, ME, PLACE)
    assert decode(Phase.COMMIT, encode(false)) == false
    assert false.signature is not None
    assert not verify(
        ME.peer, record_bytes_to_sign(PLACE.run, PLACE.step - 1, ME.peer, digest), Signature(false.signature)
    )
