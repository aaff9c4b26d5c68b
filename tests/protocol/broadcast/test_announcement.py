"""Announcing on a network that delays and among members that lie: the clauses Q1–Q7, one announcement at a time and whole steps.

`announce_world` draws network and adversary from a seed; here are the promises, bugs planted to show that they can break, and the
protocol itself on virtual time.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, cast

import msgspec
import pytest

from tests.protocol.broadcast.announce_world import (
    DELTA,
    ELSEWHERE,
    KEYS,
    PLACE,
    CheapPrimitives,
    FeudWorld,
    Key,
    World,
    sealed,
)
from troth.crypto import Digest, Identity, PeerId, blob_digest, derive
from troth.protocol.broadcast.announcement import Announcement, Seen, Timing, chain_bytes, view_bytes
from troth.protocol.broadcast.channel import AgreedChannel
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.channel import Blame, Entry
from troth.protocol.core.coins import SeededEntropy
from troth.protocol.core.errors import CannotGoOnError
from troth.protocol.core.records import encode_record
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import Outcome, Peer, State
from troth.protocol.step.step import run_step
from troth.protocol.wire.frames import Agreement as Frame
from troth.protocol.wire.frames import Certificate, Chained, Packet, Value, View
from troth.protocol.wire.messages import MOST_MEMBERS, Commit, Envelope, Phase, seal
from troth.protocol.wire.primitives import Primitives
from troth.simulation.chaos.virtual_time import VirtualTime
from troth.simulation.lockstep.drop_outs import DropOut, DroppingChannel
from troth.simulation.lockstep.memo import MemoPrimitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork

# One announcement, liars drawn from a seed


@pytest.mark.parametrize("hundred", range(30))
def test_promises_hold_whatever_liars_do(hundred: int) -> None:
    """[Q1–Q6] Agreement, validity, termination, proof of lies, ends within Δ of each other, bounded output."""
    runs = {seed: World(seed).run().broken() for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def test_without_liars_no_rounds_begin_and_two_delays_are_enough() -> None:
    """[Q2, Q3] Values, then views: whatever the delays below Δ, and however far starts lie apart."""
    for seed in range(200):
        world = World(seed, liars=0).run()
        assert world.broken() is None, seed
        last = max(member.says_at for member in world.honest)
        decided = [cast(float, member.decided_at) for member in world.honest]
        assert max(decided) <= last + 2 * world.longest + 1e-6
        assert all(len(member.sent) == 3 for member in world.honest)  # value, view, certificate


def test_equal_seeds_give_equal_runs() -> None:
    """[Q6] Everything follows from the seed, or a failure could not be looked at again."""
    for seed in range(20):
        one, other = World(seed).run(), World(seed).run()
        assert [member.sent for member in one.honest] == [member.sent for member in other.honest]


# Bugs planted in it, to show that the promises above can break


@contextmanager
def _as_if_earlier(core: Announcement, rounds: int) -> Iterator[None]:
    """What is heard within is judged as so many rounds before."""
    core._round_now -= rounds
    try:
        yield
    finally:
        core._round_now += rounds


class _OneShort(Announcement):
    """A chain is accepted with one signature less."""

    def _hear_chained(self, item: Chained) -> None:
        with _as_if_earlier(self, 1):
            super()._hear_chained(item)

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        with _as_if_earlier(self, 1):
            super()._hear_certificate(certificate, now)


class _CertificateExempt(Announcement):
    """A certificate is accepted in any round, whoever passed it on."""

    def _hear_certificate(self, certificate: Certificate, now: float) -> None:
        with _as_if_earlier(self, self._round_now):
            super()._hear_certificate(certificate, now)


class _UncheckedCertificate(Announcement):
    """A certificate is believed for its form."""

    def _proves(self, certificate: Certificate) -> bool:
        return set(certificate.views) == set(self._members) - set(certificate.gone)


class _FirstTaken(Announcement):
    """Of two values the one that came first counts."""

    def _decide_by_chains(self, now: float) -> None:
        self._accepted = {peer: dict(list(values.items())[:1]) for peer, values in self._accepted.items()}
        super()._decide_by_chains(now)


class _KeepsCertificate(Announcement):
    """Whoever decides by a certificate keeps it."""

    def _hold(self, certificate: Certificate, now: float) -> None:
        before = len(self._out)
        super()._hold(certificate, now)
        del self._out[before:]


class _RoundTooFew(Announcement):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rounds -= 1


class _ChainStartsRounds(Announcement):
    """Rounds begin as soon as a chain is heard, while values are still on their way."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        super().hear(sender, frame, now, via)
        if self._early and self._slow_since is None and self.decision is None:
            self._go_slow(now)


class _EarlyChainsLost(Announcement):
    """What arrives from a faster member before one's own rounds begin is thrown away."""

    def _hear_chained(self, item: Chained) -> None:
        if self._slow_since is not None:
            super()._hear_chained(item)


class _EndsWithItsRounds(Announcement):
    """Whoever has a certificate goes on as soon as it has it, but those whose rounds had begun wait for the last."""

    @property
    def ends(self) -> float | None:
        return self._decided_at if self._slow_since is None else self._round_end(self._rounds)


@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_OneShort, "agreement", 400),
        (_CertificateExempt, "agreement", 800),
        (_UncheckedCertificate, "agreement", 100),
        (_FirstTaken, "agreement", 20),
        (_KeepsCertificate, "agreement", 100),
        (_RoundTooFew, "agreement", 800),
        (_ChainStartsRounds, "validity", 50),
        (_EarlyChainsLost, "agreement", 100),
        (_EndsWithItsRounds, "ends", 100),
    ],
)
def test_planted_bugs_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[Q1–Q6] Each rule is needed, and the adversary is strong enough to show it: some seed breaks the promise."""
    broken = (World(seed, bug).run().broken() for seed in range(within))
    assert any(why is not None and why.startswith(promise) for why in broken)


# Members who leave (SPEC Q9), and more liars than half of those who take part (SPEC Q6)


@pytest.mark.parametrize("hundred", range(20))
def test_promises_hold_whoever_breaks_off(hundred: int) -> None:
    """[Q9] Power cuts that all see, or some; in the middle of sending; liars that break off towards some, or claim that others
    have; and whoever is back."""
    runs = {seed: World(seed, departures=True).run().broken() for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def _mostly_liars(seed: int, kind: type[Announcement] = Announcement) -> World:
    """Any number of them, as when honest members are out of the step."""
    members = Random(seed).randint(3, 9)
    return World(seed, kind, members=members, liars=Random(-seed).randint(1, members - 1), departures=True)


@pytest.mark.parametrize("hundred", range(10))
def test_promises_hold_though_most_who_take_part_lie(hundred: int) -> None:
    """[Q6] The rounds are for so many liars as there may be, not for a share of those who take part."""
    runs = {seed: _mostly_liars(seed).run().broken() for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


@pytest.mark.parametrize("hundred", range(10))
def test_whoever_breaks_off_towards_some_pays_as_if_it_had_kept_its_value_from_them(hundred: int) -> None:
    """[F1, F3, Q9] No honest member is struck or set apart from another; all rounds cost a liar a strike or a pair."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        world = FeudWorld(seed, departures=True).run()
        assert (world.broken() or world.served() or world.standing() or world.costs()) is None, seed


class _HalfTheRounds(Announcement):
    """As many as are enough against a minority of those who take part."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rounds = min(self._rounds, (len(self._members) + 1) // 2)


def test_rounds_for_a_minority_are_too_few_where_most_lie() -> None:
    """[Q6] The same liars, with the rounds that a minority of them would need."""
    assert any(
        (_mostly_liars(seed, _HalfTheRounds).run().broken() or "").startswith("agreement") for seed in range(800)
    )


class _AFewCertify(Announcement):
    """Those who are left need not be a quorum: liars alone may say that all others are gone."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._quorum = 1


class _Impatient(Announcement):
    """Names whoever has not spoken yet, though it has not broken off."""

    def _missing(self, now: float) -> tuple[PeerId, ...] | None:
        return super()._missing(max(now, self._values_due))


class _ChangesItsMind(Announcement):
    """Signs another view when somebody is back, and speaks."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        named = self._seen[1] if self._seen is not None else ()
        if isinstance(frame, Value) and sender in named and self.decision is None and self._slow_since is None:
            self._viewed_at = self._seen = None
        super().hear(sender, frame, now, via)


class _QuorumCertifies(Announcement):
    """A quorum of equal views is taken for a certificate, whatever the others saw."""

    def _proves(self, certificate: Certificate) -> bool:
        signed = view_bytes(self._slot, certificate.values, certificate.gone)
        right = [p for p, signature in certificate.views.items() if self._tools.verify(PeerId(p), signed, signature)]
        return len(right) >= cast(int, self._quorum)


@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [
        (_AFewCertify, "validity", 200),
        (_Impatient, "validity", 50),
        (_ChangesItsMind, "agreement", 2000),
        (_QuorumCertifies, "agreement", 400),
        (_CertificateExempt, "agreement", 2000),
        (_KeepsCertificate, "agreement", 400),
    ],
)
def test_bugs_about_departures_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[Q9] Each rule is needed: some seed breaks the promise."""
    broken = (World(seed, bug, departures=True).run().broken() for seed in range(within))
    assert any(why is not None and why.startswith(promise) for why in broken)


class _NamesFoes(Announcement):
    """Takes the word of a bad line, though others would pass on what comes from there."""

    def broken_off(self, gone: Collection[PeerId]) -> None:
        self._gone = frozenset(gone)


class _NoSay(Announcement):
    """Where somebody was silent, views have no say."""

    def _right_view(self, said: Mapping[PeerId, Envelope]) -> Seen | None:
        return super()._right_view(said) if len(said) == len(self._members) else None


class _ForgivesHiddenViews(Announcement):
    """Where somebody was silent, nobody is named for a view that did not come."""

    def _blame(self, said: Mapping[PeerId, Envelope]) -> Blame:
        blame = super()._blame(said)
        return (
            blame if len(said) == len(self._members) else Blame(frozenset(set(said) - self._in_time), blame.incomplete)
        )


@pytest.mark.parametrize(
    ("bug", "promise", "within"),
    [(_NamesFoes, "standing", 400), (_NoSay, "costs", 1000), (_ForgivesHiddenViews, "costs", 1000)],
)
def test_bugs_about_blame_for_departures_are_caught(bug: type[Announcement], promise: str, within: int) -> None:
    """[F1, F3, Q9] Each rule is needed: without it an honest member pays, or nobody does."""
    worlds = (FeudWorld(seed, bug, departures=True).run() for seed in range(within))
    assert any(getattr(world, promise)() is not None for world in worlds if world.broken() is None)


class _OriginatorCounts(Announcement):
    """The originator's own signature counts in a chain."""

    short = 0
    _own: Mapping[bytes, bytes] = MappingProxyType({})  # the originator's signature, to be passed on with the others

    def _hear_chained(self, item: Chained) -> None:
        signed = chain_bytes(self._slot, item.originator, self._tools.digest(item.envelope.payload))
        own = item.chain.get(item.originator, b"")
        if self._tools.verify(PeerId(item.originator), signed, own):
            self._own = {item.originator: own}
        with _as_if_earlier(self, self.short + len(self._own)):
            super()._hear_chained(item)
        self._own = {}

    def _accept(self, originator: PeerId, envelope: Envelope, chain: Mapping[bytes, bytes]) -> None:
        super()._accept(originator, envelope, {**chain, **self._own})


class _OriginatorCountsAndOneShort(_OriginatorCounts):
    short = 1


def test_the_last_round_is_needed_by_certificates_alone() -> None:
    """[Q5] f liars make chains of f − 1 signatures beside a value's originator, but of f on a certificate.

    So for values there is one round to spare: counting the originator does no harm; with one signature less it does.
    """
    assert all(World(seed, _OriginatorCounts).run().broken() is None for seed in range(300))
    assert any(World(seed, _OriginatorCountsAndOneShort).run().broken() is not None for seed in range(100))


# One announcement, step by step


class _Table:
    """A few members by hand: each frame is carried where and when the test says."""

    def __init__(self, *starts: float, liars: int) -> None:
        self.tools = CheapPrimitives()
        keys = KEYS[: len(starts) + liars]
        self.honest, self.liars = keys[: len(starts)], keys[len(starts) :]
        self.everyone = [key.peer for key in keys]
        self.cores = [
            Announcement(PLACE, cast(Identity, key), self.everyone, Timing(start, 0.0, DELTA), self.tools)
            for key, start in zip(self.honest, starts, strict=True)
        ]

    def say(self, number: int, now: float) -> list[Frame]:
        self.cores[number].say(sealed(self.honest[number], b"honest %d" % number), now)
        return self.cores[number].take()

    def carry(self, frames: list[Frame], sender: int, to: int, now: float) -> None:
        for frame in frames:
            self.cores[to].hear(self.honest[sender].peer, frame, now)

    def tick(self, number: int, now: float) -> list[Frame]:
        self.cores[number].tick(now)
        return self.cores[number].take()

    def lie(self, liar: Key, to: int, frame: Frame, now: float) -> None:
        self.cores[to].hear(liar.peer, frame, now)


def test_values_count_until_they_are_due_and_two_make_a_view_incomplete() -> None:
    """[Q1, Q2] Due after 2Δ here: a moment earlier it counts, at that moment no longer; two values are not one."""
    for moment, second, complete in ((2 * DELTA - 1e-9, False, True), (2 * DELTA, False, False), (1.0, True, False)):
        table = _Table(0.0, 0.0, liars=1)
        said = [table.say(0, 0.0), table.say(1, 0.0)]
        table.carry(said[1], 1, 0, 0.5)
        liar = table.liars[0]
        if second:
            table.lie(liar, 0, Value(sealed(liar, b"one")), 0.4)
            table.lie(liar, 0, Value(sealed(liar, b"two")), 0.5 - 1e-9)
        table.lie(liar, 0, Value(sealed(liar, b"one")), moment)
        views = [frame for frame in (*table.cores[0].take(), *table.tick(0, 2 * DELTA)) if isinstance(frame, View)]
        assert [view.values is not None for view in views] == [complete] or second


def test_what_was_signed_elsewhere_counts_for_nothing() -> None:
    """[Q1–Q5] Values, views and chains are bound to their place."""
    table = _Table(0.0, 0.0, liars=1)
    victim, liar = table.honest[1], table.liars[0]
    old = sealed(victim, b"elsewhere", ELSEWHERE)
    digest = blob_digest(old.payload)
    views = {key.peer: key.sign(view_bytes(ELSEWHERE, digest)) for key in (*table.honest, liar)}
    table.cores[0].hear(victim.peer, Value(old), 0.1)
    table.cores[0].hear(victim.peer, View(digest, views[victim.peer]), 0.1)
    table.cores[0].hear(liar.peer, Certificate(digest, cast(Any, views), {}), 0.1)
    assert table.cores[0].deadline == 2 * DELTA  # nothing has happened yet
    table.tick(0, 2 * DELTA)
    table.tick(0, 4 * DELTA)
    chain: dict[bytes, bytes] = {liar.peer: liar.sign(chain_bytes(PLACE, victim.peer, digest))}
    table.cores[0].hear(liar.peer, Chained(victim.peer, old, chain), 4.5)
    table.tick(0, 99.0)
    decision = table.cores[0].decision
    assert decision is not None
    assert victim.peer not in decision.said


def test_chains_of_a_faster_member_count_though_own_rounds_have_not_begun() -> None:
    """[Q4, Q5] The first goes slow Δ before the other does; what it then passes on must not be lost."""
    table = _Table(0.0, DELTA, liars=1)
    liar = table.liars[0]
    first = table.say(0, 0.0)
    table.lie(liar, 0, Value(sealed(liar, b"to one only")), 0.5)
    table.carry(first, 0, 1, 0.5)
    second = table.say(1, 1.0)
    table.carry(second, 1, 0, 1.5)
    slow = table.cores[0].take() + table.tick(0, 4.0)
    table.carry(slow, 0, 1, 4.5)  # within Δ; the other's rounds begin at 5
    joined = table.cores[1].take() + table.tick(1, 5.0)
    table.carry(joined, 1, 0, 5.5)
    for number in (0, 1):
        table.tick(number, 20.0)
    one, other = (core.decision for core in table.cores)
    assert one is not None
    assert other is not None
    assert {*one.said} == {*other.said}


def test_signatures_that_do_not_count_are_not_passed_on() -> None:
    """[Q5] Else a chain padded to the most that a frame may hold could be accepted but not forwarded: nobody could read it."""
    table = _Table(0.0, 0.0, 0.0, liars=2)
    originator, signer = table.liars
    table.say(0, 0.0)
    table.tick(0, 2 * DELTA)
    table.tick(0, 4 * DELTA)
    envelope = sealed(originator, b"padded")
    item = chain_bytes(PLACE, originator.peer, blob_digest(envelope.payload))
    junk: dict[bytes, bytes] = {sha256(b"%d" % k).digest(): bytes(64) for k in range(MOST_MEMBERS - 1)}
    table.lie(signer, 0, Chained(originator.peer, envelope, {**junk, signer.peer: signer.sign(item)}), 4.5)
    (forwarded,) = (frame for frame in table.cores[0].take() if isinstance(frame, Chained))
    assert forwarded.chain.keys() == {signer.peer, table.honest[0].peer}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(forwarded), type=Frame) == forwarded


def test_two_signatures_of_one_value_are_no_lie() -> None:
    """[Q6] What counts is the payload: whoever signs it twice has said one thing."""
    table = _Table(0.0, 0.0, liars=1)
    liar = table.liars[0]
    said = [table.say(0, 0.0), table.say(1, 0.0)]
    for to in (0, 1):
        table.lie(liar, to, Value(sealed(liar, b"the same", nonce=bytes([to]) * 32)), 0.1)
    for to in (0, 1):
        table.carry(said[1 - to], 1 - to, to, 0.2)
    slow = [table.cores[k].take() + table.tick(k, 4.0) for k in (0, 1)]
    for to in (0, 1):
        table.carry(slow[1 - to], 1 - to, to, 4.5)
        table.tick(to, 20.0)
    for core in table.cores:
        assert core.decision is not None
        assert not core.decision.equivocations
        assert core.decision.said[liar.peer].payload == b"the same"


def test_who_is_gone_is_written_in_one_way() -> None:
    """[Q9, M3] Else one set could be signed in several ways; and an incomplete view names nobody."""
    one, other = sorted(key.peer for key in KEYS[:2])
    right: list[Frame] = [View(bytes(32), bytes(64), (one, other)), Certificate(bytes(32), {}, {}, (one, other))]
    for frame in right:
        raw = msgspec.msgpack.encode(frame)
        assert msgspec.msgpack.decode(raw, type=Frame) == frame
        for gone in ((other, one), (one, one), (one[:-1],), (one,) * (MOST_MEMBERS + 1)):
            wrong = msgspec.msgpack.encode([*msgspec.msgpack.decode(raw)[:-1], gone])
            with pytest.raises(msgspec.ValidationError):
                msgspec.msgpack.decode(wrong, type=Frame)
    with pytest.raises(ValueError, match="names nobody"):
        View(None, bytes(64), (one,))


def _broken(members: int, *, heard: int, gone: int, liars: int = 0, now: float = 0.5) -> Announcement:
    """The first of so many, who has heard so many, itself included; the last have broken off."""
    keys, tools = KEYS[:members], CheapPrimitives()
    quorum = max(members // 2 + 1, liars + 1)
    everyone, timing = [key.peer for key in keys], Timing(0.0, 0.0, DELTA)
    core = Announcement(PLACE, cast(Identity, keys[0]), everyone, timing, tools, frozenset(), liars, quorum)
    core.broken_off(everyone[members - gone :] if gone else [])
    core.say(sealed(keys[0], b"first"), now)
    for key in keys[1:heard]:
        core.hear(key.peer, Value(sealed(key, b"another")), now)
    return core


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"members": 8, "heard": 7, "gone": 1}, 1),  # before anything is due
        ({"members": 8, "heard": 6, "gone": 1}, None),  # one may still speak
        ({"members": 8, "heard": 6, "gone": 1, "now": 2 * DELTA}, None),  # by then nothing counts any more
        ({"members": 8, "heard": 5, "gone": 3}, 3),
        ({"members": 8, "heard": 4, "gone": 4}, None),  # the other half may say the same
        ({"members": 8, "heard": 5, "gone": 3, "liars": 5}, None),  # all of these may be liars
    ],
)
def test_who_has_broken_off_is_named_where_a_quorum_is_left(given: dict[str, Any], named: int | None) -> None:
    """[Q9] At once; of a network cut in two neither half goes on by itself, nor do liars alone."""
    core = _broken(**given)
    views = [frame for frame in core.take() if isinstance(frame, View)]
    assert [len(view.gone) for view in views if view.values is not None] == ([] if named is None else [named])


def test_whoever_is_certified_as_gone_is_left_behind() -> None:
    """[Q9] It decides nothing by itself; and liars alone, or views that do not fit, leave nobody behind."""
    everyone = [key.peer for key in KEYS[:5]]
    me, others = KEYS[0], KEYS[1:5]
    signed = view_bytes(PLACE, bytes(32), (me.peer,))
    views: dict[bytes, bytes] = {key.peer: key.sign(signed) for key in others}
    few: dict[bytes, bytes] = {key.peer: views[key.peer] for key in others[:3]}
    gone = tuple(sorted((me.peer, others[3].peer)))
    two: dict[bytes, bytes] = {key.peer: key.sign(view_bytes(PLACE, bytes(32), gone)) for key in others[:3]}
    for given, left in ((views, True), (few, False), (two, False)):
        core = Announcement(
            PLACE, cast(Identity, me), everyone, Timing(0.0, 0.0, DELTA), CheapPrimitives(), frozenset(), 3, 4
        )
        core.say(sealed(me, b"here"), 0.1)
        core.hear(others[0].peer, Certificate(bytes(32), given, {}, gone if given is two else (me.peer,)), 0.5)
        assert (core.decision is not None) == left
        assert core.decision is None or not core.decision.said


# Whole steps on virtual time


class _PowerCutError(CannotGoOnError):
    pass


class _FailingLine:
    """The machine stops in the middle of sending, after so many packets."""

    def __init__(self, link: Any, most: int) -> None:
        self._link, self._left = link, most

    def now(self) -> float:
        return float(self._link.now())

    def send(self, to: PeerId, packet: Packet) -> None:
        if not self._left:
            raise _PowerCutError
        self._left -= 1
        self._link.send(to, packet)

    def gone(self) -> frozenset[PeerId]:
        return frozenset(self._link.gone())

    async def receive(self, until: float) -> tuple[PeerId, Packet] | None:
        heard: tuple[PeerId, Packet] | None = await self._link.receive(until)
        return heard


@dataclasses.dataclass
class _Steps:
    """What came out of a few steps among honest peers."""

    peers: list[PeerId]
    outcomes: dict[PeerId, list[Outcome[Training]]]
    stopped: Mapping[PeerId, CannotGoOnError]
    sent: dict[PeerId, int]
    chains: int
    seconds: float
    trace: bytes

    def agreed(self) -> list[Outcome[Training]]:
        """What all who went on saw, and that they saw the same."""
        seen = [outcomes for peer, outcomes in self.outcomes.items() if peer not in self.stopped]
        assert len({tuple(encode_record(outcome.record) for outcome in one) for one in seen}) == 1
        return seen[0]


class _Net:
    """Delays below `most`, drawn or steady; and everything that was sent, as a digest."""

    _PROBLEM: ClassVar[list[Problem]] = []

    def __init__(self, seed: int, most: float, steady: bool) -> None:
        self._draw, self._most, self._steady = Random(seed), most, steady
        self.trace = sha256()
        self.chains = 0
        self.sent: dict[PeerId, int] = {}

    def __call__(self, sender: PeerId, to: PeerId, packet: Packet, now: float) -> tuple[float]:
        delay = self._most if self._steady else self._draw.random() * self._most
        self.trace.update(sender + to + repr((tuple(packet.slot), now, delay)).encode())
        self.trace.update(msgspec.msgpack.encode(packet.frame))
        self.sent[sender] = self.sent.get(sender, 0) + 1
        self.chains += isinstance(packet.frame, Chained)
        return (delay,)

    @classmethod
    def problem(cls) -> Problem:
        if not cls._PROBLEM:
            cls._PROBLEM.append(Problem(make_task("quadratic:dimension=24"), lanes_for=5))
        return cls._PROBLEM[0]


def _run(
    *,
    seed: int = 1,
    peers: int = 5,
    steps: int = 3,
    most: float = 0.999,
    steady: bool = False,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
    crash: DropOut | None = None,
    packets: int | None = None,
) -> _Steps:
    """The real protocol; the last peer may crash, before a call of its channel or in the middle of sending."""
    net, tools, problem = _Net(seed, most, steady), MemoPrimitives(), _Net.problem()
    identities = [Identity.from_secret(derive(seed, "identity", k)) for k in range(peers)]
    run = Run(
        tuple(sorted(identity.peer for identity in identities)),
        b"announcing",
        Parameters(size=problem.size, tau=0.1, byzantine=1),
        derive(seed, "run"),
    )
    time: VirtualTime[None] = VirtualTime(net)
    outcomes: dict[PeerId, list[Outcome[Training]]] = {identity.peer: [] for identity in identities}

    async def member(number: int) -> None:
        identity = identities[number]
        link: Any = time.link(identity.peer)
        failing = number == peers - 1
        if failing and packets is not None:
            link = _FailingLine(link, packets)
        channel: Any = AgreedChannel(identity, link, timeouts, tools)
        if failing and crash is not None:
            channel = DroppingChannel(channel, crash)
        work = TrainingWork(problem, OPTIMIZERS["sgd"](), SCHEDULES["constant"](0.1, steps), tools)
        peer = Peer(identity, run, work, channel, SeededEntropy(seed, number), tools)
        state = State.first(run, work.first(derive(seed, "model")))
        for _ in range(steps):
            outcome = await run_step(peer, state)
            outcomes[identity.peer].append(outcome)
            state = outcome.state

    time.run({identity.peer: member(k) for k, identity in enumerate(identities)}, most_events=1_000_000)
    members = [identity.peer for identity in identities]
    return _Steps(members, outcomes, time.stopped, net.sent, net.chains, time.now, net.trace.digest())


@pytest.mark.parametrize("seed", range(4))
def test_honest_peers_agree_step_after_step_whatever_the_delays(seed: int) -> None:
    """[Q3, Q7] Same records, nobody absent, no rounds, though packets take up to Δ and overtake each other."""
    done = _run(seed=seed)
    outcomes = done.agreed()
    assert len(outcomes) == 3
    assert not done.stopped
    assert not done.chains
    for outcome in outcomes:
        assert not outcome.record.absent + outcome.record.struck
        assert outcome.attempts == 1
        assert outcome.record.step == 0 or len(outcome.certificate) >= 3


def test_a_quiet_step_takes_twelve_message_delays() -> None:
    """[Q3, U2] Five announcements of two, parts, aggregates; nothing waits for a deadline, nor for the record's signatures."""
    done = _run(steps=4, most=0.1, steady=True)
    assert not done.chains
    assert done.seconds == pytest.approx(4 * 12 * 0.1)


def test_equal_seeds_give_equal_traces() -> None:
    """[Q6] Every packet, with its time."""
    assert _run(seed=5, steps=2).trace == _run(seed=5, steps=2).trace != _run(seed=6, steps=2).trace


def _others_go_on(done: _Steps) -> None:
    lost = done.peers[-1]
    outcomes = done.agreed()
    assert set(done.stopped) == {lost}
    assert len(outcomes) == 3
    assert {peer for outcome in outcomes for peer in outcome.record.absent} == {lost}
    assert not any(outcome.record.banned for outcome in outcomes)
    assert lost not in outcomes[-1].state.roster.members
    assert len(outcomes[-1].state.roster.members) == 4


@pytest.mark.parametrize("call", range(8))
def test_whoever_stops_between_phases_is_absent_and_not_banned(call: int) -> None:
    """[Q6, Q7] One of five crashes before each call of its channel in turn: the others finish, and agree."""
    _others_go_on(_run(seed=call, crash=DropOut(step=1, call=call)))


@pytest.mark.parametrize("call", [0, 1, 2, 4, 5, 6])
def test_a_departure_costs_a_round_trip_and_no_timeout(call: int) -> None:
    """[Q9] One of eight stops before a call of its channel: no rounds, and at most another attempt beside a quiet step."""
    quiet = _run(peers=8, steps=1, most=0.1, steady=True).seconds
    done = _run(peers=8, steps=2, most=0.1, steady=True, crash=DropOut(step=1, call=call))
    assert not done.chains
    assert len(done.agreed()) == 2
    assert done.seconds - quiet < 2 * quiet


@pytest.mark.parametrize("seed", range(16))
def test_whoever_stops_while_sending_is_absent_and_not_banned(seed: int) -> None:
    """[Q4–Q7] Some have its last frame and some have not: chains decide, the same for all."""
    undisturbed = _run(seed=seed, steps=2)
    most = undisturbed.sent[undisturbed.peers[-1]]
    _others_go_on(_run(seed=seed, packets=Random(seed).randrange(most)))


@pytest.mark.parametrize(
    "timeouts", [Timeouts(bulk=8.0), Timeouts(compute=8.0), Timeouts(delta=2.0, compute=0.5, bulk=0.5)]
)
def test_a_crash_before_the_record_is_signed_makes_nobody_late(timeouts: Timeouts) -> None:
    """[Q1] The others wait for its signature as long as they may, and their next values are still in time."""
    _others_go_on(_run(timeouts=timeouts, most=0.999 * timeouts.delta, crash=DropOut(step=1, call=7)))


# Announcements that follow each other

_FIRST, _SECOND = (PLACE._replace(run=Digest(bytes(32)), step=step, phase=int(Phase.COMMIT)) for step in (0, 1))


@pytest.mark.parametrize("moment", [0.3, 2.0, 4.0, 5.5, 6.5, 7.1, 8.15, 9.0, 12.0])
def test_a_late_chain_of_the_announcement_before_sets_nobody_apart(moment: float) -> None:
    """[Q3, Q4] All decided the first quietly; then one of them is told that its rounds have begun, amid the second.

    One liar gave its second value to that one alone, the other reveals another value in the rounds of the rest.
    """
    identities = [Identity.from_secret(derive(0, "late chain", k)) for k in range(5)]
    one, two, _, giver, helper = identities
    everyone = frozenset(identity.peer for identity in identities)
    time: VirtualTime[Any] = VirtualTime(lambda *_: (0.1,))
    tools = Primitives()

    def message(number: int) -> Commit:
        return Commit(None, bytes([number]) * 32, bytes(32))

    async def first(identity: Identity, number: int) -> AgreedChannel:
        channel = AgreedChannel(identity, time.link(identity.peer), Timeouts(), tools)
        channel.enter(Entry(everyone))
        await channel.announce(_FIRST, message(number))
        return channel

    async def honest(identity: Identity, number: int) -> Any:
        channel = await first(identity, number)
        said = await channel.announce(_SECOND, message(number))
        return {peer: one.envelope.payload for peer, one in said.items()}, set(channel.equivocations(1))

    async def until(identity: Identity, when: float) -> None:
        link = time.link(identity.peer)
        while link.now() < when:
            await link.receive(when)

    async def give() -> None:
        await first(giver, 3)
        link = time.link(giver.peer)
        link.send(one.peer, Packet(_SECOND, Value(seal(giver, _SECOND, message(90)))))
        await until(giver, moment)
        late = seal(helper, _FIRST, message(92))
        mine = giver.sign(chain_bytes(_FIRST, helper.peer, blob_digest(late.payload)))
        link.send(one.peer, Packet(_FIRST, Chained(helper.peer, late, {giver.peer: mine})))
        await until(giver, 60.0)

    async def help_it() -> None:
        await first(helper, 4)
        link = time.link(helper.peer)
        for honest_one in identities[:3]:
            link.send(honest_one.peer, Packet(_SECOND, Value(seal(helper, _SECOND, message(4)))))
        other: Envelope = seal(giver, _SECOND, message(91))
        mine = helper.sign(chain_bytes(_SECOND, giver.peer, blob_digest(other.payload)))
        for when in range(30):
            await until(helper, float(when))
            link.send(two.peer, Packet(_SECOND, Chained(giver.peer, other, {helper.peer: mine})))
        await until(helper, 60.0)

    lives: dict[PeerId, Any] = {identity.peer: honest(identity, k) for k, identity in enumerate(identities[:3])}
    time.run({**lives, giver.peer: give(), helper.peer: help_it()}, most_events=100_000)
    results = [time.results[identity.peer] for identity in identities[:3]]
    assert results[0] == results[1] == results[2]
