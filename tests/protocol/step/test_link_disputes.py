"""Blame without proof: whoever keeps others waiting pays for it, and honest members never do (SPEC F1–F3)."""

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tests.protocol.bent_world import LIARS_FROM, Bent, Lies, Seen, keys, plan, see
from tests.protocol.broadcast.announce_world import FeudWorld
from troth.attacks.wire.lies import signed_view
from troth.crypto import Identity, PeerId, Slot, blob_digest, derive
from troth.protocol.broadcast.announcement import Announcement, chain_bytes
from troth.protocol.core.records import StepRecord
from troth.protocol.core.roster import MOST_STRIKES, STRIKE_STEPS, Roster
from troth.protocol.step.link_disputes import LinkDisputes
from troth.protocol.wire.frames import (
    Agreement as Frame,
)
from troth.protocol.wire.frames import (
    BlobSent,
    Certificate,
    Chained,
    Packet,
    PartSent,
    PartShown,
    Relayed,
    Value,
    View,
)
from troth.protocol.wire.messages import Accuse, Announced, Clip, Envelope, Message, Phase, Reveal
from troth.simulation.chaos.faults import Network

KEYS = sorted(Identity.from_secret(derive(0, "quarrel", k)).peer for k in range(7))
BYZANTINE = 3  # of these seven
LIAR, VICTIM = 0, 1  # numbers, in worlds

# Who is struck, and who is set apart


def _hear(
    unheard: Mapping[int, Collection[int]] | None = None,
    incomplete: Mapping[int, Collection[int]] | None = None,
    *,
    roster: Roster | None = None,
    step: int = 5,
    out: Collection[int] = (),
) -> tuple[set[int], set[tuple[int, int]]]:
    """Who is struck and who is set apart, by number, if these say so in Accuse; all others say nothing."""
    roster = roster or Roster(tuple(KEYS), byzantine=BYZANTINE)

    def said(number: int) -> Announced:
        names, doubts = ((given or {}).get(number, ()) for given in (unheard, incomplete))
        accuse = Accuse((), bytes(32), tuple(KEYS[k] for k in names), tuple(KEYS[k] for k in doubts))
        return Announced(KEYS[number], accuse, Envelope(b"", bytes(64)))

    present = [k for k in range(7) if k not in out and KEYS[k] in roster.members]
    link_disputes = LinkDisputes(roster, step)
    link_disputes.hear({KEYS[k]: said(k) for k in present}, {KEYS[k] for k in present})
    numbers = {key: number for number, key in enumerate(KEYS)}
    return {numbers[p] for p in link_disputes.slowed}, {(numbers[a], numbers[b]) for a, b in link_disputes.new}


def _disputed_links(*pairs: tuple[int, int], since: int = 0) -> Roster:
    return Roster(tuple(KEYS), byzantine=BYZANTINE, link_disputes=tuple((since, KEYS[a], KEYS[b]) for a, b in pairs))


def _doubted_by_all(number: int, but: Collection[int] = ()) -> dict[int, list[int]]:
    return {k: [number] for k in range(7) if k != number and k not in but}


def test_who_did_not_hear_whom_is_a_pair_whoever_says_so() -> None:
    """[F1] Nobody can tell which of the two it is, so nobody is struck; and a pair is one, from both sides."""
    assert _hear({3: [1]}) == (set(), {(1, 3)})
    assert _hear({3: [1], 1: [3]}) == (set(), {(1, 3)})
    assert _hear({3: [3]}) == (set(), set())


def test_a_pair_is_new_once() -> None:
    """[F2] What is known already is served by others, and not written down again."""
    assert _hear({3: [1, 2]}, roster=_disputed_links((1, 3))) == (set(), {(2, 3)})


def test_whom_more_than_half_did_not_hear_is_struck_and_nobody_is_set_apart_from_it() -> None:
    """[F3] Four of seven: at least one honest member among them."""
    assert _hear({k: [1] for k in (2, 3, 4)}) == (set(), {(1, 2), (1, 3), (1, 4)})
    assert _hear({k: [1] for k in (2, 3, 4, 5)}) == ({1}, set())


def test_who_did_not_hear_half_of_the_members_is_struck() -> None:
    """[F3] It is its own line, or it lies: no honest member is kept waiting by so many."""
    assert _hear({1: [2, 3, 4]}) == (set(), {(1, 2), (1, 3), (1, 4)})
    assert _hear({1: [2, 3, 4, 5]}) == ({1}, set())


def test_who_says_that_something_is_missing_must_name_somebody() -> None:
    """[F3] More than half saw the incomplete view; in the end everyone was heard."""
    assert _hear({}, _doubted_by_all(1)) == ({1}, set())
    assert _hear({1: [2]}, _doubted_by_all(1)) == (set(), {(1, 2)})
    assert _hear({}, {k: [1] for k in (2, 3, 4)})[0] == set(), "three of seven may all be liars"


def test_who_is_served_by_others_cannot_name_the_same_one_again() -> None:
    """[F3] Since others pass on what that one says, nothing can be missing; unless most did not hear it either."""
    assert _hear({1: [2]}, _doubted_by_all(1), roster=_disputed_links((1, 2))) == ({1}, set())
    everyone = {k: [2] for k in range(7) if k != 2}
    assert _hear(everyone, _doubted_by_all(1), roster=_disputed_links((1, 2)))[0] == {2}
    assert _hear({1: [2, 3]}, _doubted_by_all(1), roster=_disputed_links((1, 2))) == (set(), {(1, 3)})


def test_nobody_is_struck_for_what_others_did_not_serve_yet() -> None:
    """[F2, F3] In Accuse of step 5 one speaks of announcements since Accuse of step 4: its pairs were not yet served then."""
    for since, struck in ((4, set()), (3, {1})):
        assert _hear({1: [2]}, _doubted_by_all(1), roster=_disputed_links((1, 2), since=since))[0] == struck


def test_who_left_in_the_step_before_can_still_be_named() -> None:
    """[F1] It kept its value back in the last Accuse, and was then banned: whoever missed it is not to blame."""
    members = tuple(key for key in KEYS if key != KEYS[2])
    gone, stranger = Roster(members, left=(KEYS[2],)), Roster(members)
    assert _hear({1: [2]}, _doubted_by_all(1, but=[2]), roster=gone) == (set(), set())
    assert _hear({1: [2]}, _doubted_by_all(1, but=[2]), roster=stranger) == ({1}, set())


def test_whatever_a_minority_says_no_honest_member_is_struck_or_expelled_for_it() -> None:
    """[F3] Three of seven liars name whom they like; four honest ones, who heard everyone, say nothing."""
    for seed in range(300):
        draw = Random(seed)
        liars = draw.sample(range(7), 3)
        known = [(a, b) for a in range(7) for b in range(a + 1, 7) if {a, b} & set(liars) and draw.random() < 0.3]
        known = [(a, b) for a, b in known if sum(a in p for p in known) < 4 and sum(b in p for p in known) < 4]
        roster = _disputed_links(*known, since=draw.choice([0, 4]))
        unheard = {k: draw.sample(range(7), draw.randint(0, 7)) for k in liars}
        incomplete = {k: draw.sample(range(7), draw.randint(0, 7)) for k in liars}
        struck, disputed_links = _hear(unheard, incomplete, roster=roster, out=draw.sample(liars, draw.randint(0, 1)))
        assert struck <= set(liars)
        assert all({a, b} & set(liars) for a, b in disputed_links)
        pairs = [(KEYS[a], KEYS[b]) for a, b in disputed_links]
        expelled = roster.expelled(5, [KEYS[k] for k in struck], pairs)
        assert {KEYS.index(key) for key in expelled} <= set(liars)


def test_who_is_in_more_pairs_than_there_are_liars_is_struck() -> None:
    """[F3] Honest members are apart from liars only. Whoever is in most pairs comes first; for the others those do not count."""
    few = Roster(tuple(KEYS), byzantine=1)
    assert _hear({0: [1, 2]}, roster=few) == (set(), {(0, 1), (0, 2)}), "lines may be bad without anybody lying"
    assert _hear({0: [1, 2, 3]}, roster=few) == ({0}, {(0, 1), (0, 2), (0, 3)})
    known = Roster(tuple(KEYS), byzantine=1, link_disputes=tuple((0, KEYS[0], KEYS[k]) for k in (1, 2, 3)))
    assert _hear({}, roster=known) == (set(), set()), "once for each new pair"
    assert _hear({3: [0], 4: [0]}, roster=known)[0] == {0}
    assert _hear({3: [4]}, roster=known)[0] == set(), "who is in no new pair has paid"


def test_a_few_bad_lines_are_not_held_against_everyone_at_the_other_end() -> None:
    """[F3] Where nobody lies, two members whom the others do not reach: these pay, not all others."""
    safe = Roster(tuple(KEYS), byzantine=0)
    assert _hear({k: [0, 1] for k in (2, 3, 4)}, roster=safe)[0] == {0, 1}


def test_in_a_small_roster_liars_cannot_cut_an_honest_member_off() -> None:
    """[F3] Three of seven may lie; four are left, one of them honest: it is apart from three of four, and stays."""
    small = Roster(tuple(KEYS[:4]), byzantine=3, admitted=7)
    pairs = [(KEYS[0], KEYS[k]) for k in (1, 2, 3)]
    assert small.expelled(5, [], pairs) == ()
    assert Roster(tuple(KEYS[:4]), byzantine=2).expelled(5, [], pairs) == (KEYS[0],)
    assert _hear({0: [1, 2, 3]}, roster=small)[0] == set()


# Strikes and feuds in the roster


def _record(step: int, **said: Any) -> StepRecord:
    """Of a step in which nothing else happened."""
    digests = {name: bytes(32) for name in ("seed_randomness", "randomness", "state_before", "state_after")}
    scales = dict.fromkeys(("tau", "spread", "length", "norm", "factor"), 1.0)
    numbers = {"parts": 1, "updated": True, "updates": step + 1, **scales}
    given: dict[str, Any] = {
        "members": tuple(KEYS),
        "contributors": (),
        "roots": (),
        "judgements": (),
        **digests,
        **numbers,
    }
    return StepRecord(**{"step": step, **given, **said})


@pytest.mark.parametrize("field", ["struck", "slowed"])
def test_three_strikes_within_a_thousand_steps_expel(field: str) -> None:
    """[F3] Whatever they were for; older ones are forgotten."""
    roster = Roster(tuple(KEYS))
    for step in range(MOST_STRIKES - 1):
        assert roster.expelled(step, [KEYS[0]], []) == ()
        roster = roster.after(_record(step, **{field: (KEYS[0],)}))
    assert roster.expelled(10, [KEYS[0]], []) == (KEYS[0],)
    assert roster.expelled(10, [KEYS[1]], []) == ()
    assert roster.expelled(STRIKE_STEPS - 1, [KEYS[0]], []) == (KEYS[0],)
    assert roster.expelled(STRIKE_STEPS, [KEYS[0]], []) == ()
    assert Roster(tuple(KEYS)).expelled(0, [KEYS[0]] * 3, []) == (KEYS[0],)


def test_whoever_is_apart_from_half_of_the_members_is_expelled_and_not_banned() -> None:
    """[F3] Of seven four, with whomever it happened first; the others stay."""
    roster = _disputed_links((0, 1), (0, 2), (0, 3))
    assert roster.expelled(5, [], []) == ()
    fourth = [(KEYS[0], KEYS[4])]
    assert roster.expelled(5, [], fourth) == (KEYS[0],)
    after = roster.after(_record(5, link_disputes=tuple(fourth), expelled=(KEYS[0],)))
    assert after.members == tuple(KEYS[1:])
    assert after.banned == ()
    assert after.away == (), "no way back but the door"
    assert Roster(tuple(KEYS[:3]), link_disputes=((0, KEYS[0], KEYS[1]),)).expelled(5, [], [(KEYS[0], KEYS[2])]) == ()


def test_feuds_are_forgotten_after_a_thousand_steps_and_with_who_leaves() -> None:
    """[F2] Lines get better; and only members count."""
    roster = Roster(tuple(KEYS)).after(_record(0, link_disputes=((KEYS[0], KEYS[1]),)))
    assert roster.disputed_links() == {KEYS[0]: {KEYS[1]}, KEYS[1]: {KEYS[0]}}
    assert roster.disputed_links(before=0) == {}
    assert roster.after(_record(STRIKE_STEPS - 1)).disputed_links() != {}
    assert roster.after(_record(STRIKE_STEPS)).disputed_links() == {}
    assert roster.after(_record(1, absent=(KEYS[1],))).disputed_links() == {}


# One announcement in which some are apart, liars drawn from a seed


@pytest.mark.parametrize("hundred", range(4))
def test_promises_of_announcements_hold_among_those_who_are_apart(hundred: int) -> None:
    """[F2, Q1–Q6] Agreement, validity, termination, ends within Δ: passing on takes nothing from them."""
    runs = {seed: FeudWorld(seed).run().broken() for seed in range(100 * hundred, 100 * hundred + 100)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def test_honest_members_whose_line_is_cut_never_cost_a_slow_path() -> None:
    """[F2] What one of them says reaches the other through any third one, in time: no rounds, everyone is heard."""
    for seed in range(150):
        world = FeudWorld(seed, liars=0).run()
        assert world.broken() is None, seed
        assert all(not member.core.blame.unheard for member in world.honest)


class _Deaf(Announcement):
    """What others pass on is not accepted."""

    def hear(self, sender: PeerId, frame: Frame, now: float, via: PeerId | None = None) -> None:
        if not isinstance(frame, Relayed):
            super().hear(sender, frame, now, via)


def test_without_passing_on_both_promises_are_broken() -> None:
    """[F2] The adversary is strong enough to show it."""
    assert any(FeudWorld(seed, _Deaf, liars=0).run().broken() == "quiet: a chain" for seed in range(10))
    assert any(FeudWorld(seed, _Deaf).run().served() is not None for seed in range(30))


# Whole runs, with a liar that wants everyone to wait


class _Quiet(Lies):
    """Its own code must not find out, and it names nobody."""

    def hears(self, link: Bent, sender: PeerId, packet: Packet) -> bool:
        return not isinstance(packet.frame, View) or packet.slot.step < LIARS_FROM

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        return structs.replace(message, unheard=(), incomplete=()) if isinstance(message, Accuse) else message

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if packet.slot.step < LIARS_FROM:
            return (packet,)
        return () if isinstance(packet.frame, Certificate) else self.lies(link, to, packet)

    def lies(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return (packet,)


class _Shuns(Lies):
    """Sends nothing at all to one member."""

    def __init__(self, victim: PeerId) -> None:
        self._victim = victim

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return () if to == self._victim and packet.slot.step >= LIARS_FROM else (packet,)


class _KeepsFromOne(Lies):
    """Keeps its values from one member, in every step another one."""

    def __init__(self, others: list[PeerId], kinds: tuple[type, ...] = (Value,)) -> None:
        self._others, self._kinds = others, kinds

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        victim = self._others[packet.slot.step % len(self._others)]
        lies = isinstance(packet.frame, self._kinds) and packet.slot.step >= LIARS_FROM
        return () if lies and to == victim else (packet,)


class _ClaimsIncomplete(_Quiet):
    """Signs in every announcement that something is missing."""

    def lies(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        view = isinstance(packet.frame, View)
        return (Packet(packet.slot, signed_view(link.identity, packet.slot, None)) if view else packet,)


class _HidesViews(_Quiet):
    """Hands its views to nobody."""

    def lies(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return () if isinstance(packet.frame, View) else (packet,)


def _never_again(seen: Seen) -> None:
    """From some step on there are no more slow paths, and training went on all the time."""
    seen.kept_promises()
    last = max(seen.slow_steps())
    assert min(seen.slow_steps()) >= LIARS_FROM
    assert last < LIARS_FROM + 3
    quiet = [seconds for step, seconds in enumerate(seen.seconds) if step > last]
    assert len(quiet) >= 3
    assert seen.records[-1].updated


def test_who_sends_one_member_nothing_costs_one_step_of_slow_paths() -> None:
    """[F1, F2] Every announcement of that step is slow; then the pair is served by others, and nobody is struck."""
    seen = see(plan(), _Shuns(keys(1, 5)[VICTIM]))
    _never_again(seen)
    assert seen.slow_steps() == {LIARS_FROM: 5}
    assert seen.link_disputes == {LIARS_FROM: [{LIAR, VICTIM}]}
    assert seen.named("slowed", "expelled", "absent") == {}


def test_who_keeps_its_values_from_another_one_in_every_step_is_out_when_that_is_half() -> None:
    """[F1, F3] Three of five."""
    seen = see(plan(), _KeepsFromOne(keys(1, 5)[1:]))
    _never_again(seen)
    assert [pair for pairs in seen.link_disputes.values() for pair in pairs] == [{LIAR, 3}, {LIAR, 4}, {LIAR, 1}]
    assert seen.named("slowed") == {LIARS_FROM + 2: [LIAR]}, "more pairs than liars, or bad lines"
    assert seen.named("expelled") == {LIARS_FROM + 2: [LIAR]}
    assert seen.named("absent") == {}


@pytest.mark.parametrize("lies", [_ClaimsIncomplete(), _HidesViews()], ids=["claims", "hides"])
def test_who_makes_everyone_wait_without_naming_anybody_is_out_after_three_strikes(lies: Lies) -> None:
    """[F3] Views that say that something is missing, or no views at all."""
    seen = see(plan(), lies)
    _never_again(seen)
    assert seen.named("slowed") == {LIARS_FROM + k: [LIAR] for k in range(3)}
    assert seen.named("expelled") == {LIARS_FROM + 2: [LIAR]}
    assert seen.link_disputes == {}


def test_who_lets_everything_come_late_is_out_before_long() -> None:
    """[F1, F3] Up to four times as long as it may take: to some in time, to others not."""
    seen = see(plan(behaviours=["late"], steps=7)).kept_promises()
    assert seen.named("expelled").popitem()[1] == [LIAR]
    assert max(seen.slow_steps()) <= min(seen.named("expelled"))
    assert min(seen.named("expelled")) < 5


def test_who_withholds_its_part_from_one_owner_costs_one_attempt() -> None:
    """[F2, N5] The first time it is handed round in a second attempt, from then on in the first."""
    victim = keys(1, 5)[VICTIM]

    class Withholds(Lies):
        def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
            return () if isinstance(packet.frame, PartSent) and to == victim else (packet,)

    seen = see(plan(), Withholds()).kept_promises()
    assert sum(seen.extra_attempts) == 1
    assert seen.link_disputes == {seen.extra_attempts.index(1): [{LIAR, VICTIM}]}
    again = [
        r for r in seen.records[seen.extra_attempts.index(1) + 1 :] if {victim, keys(1, 5)[LIAR]} <= set(r.contributors)
    ]
    assert len(again) >= 3


def test_who_withholds_parts_from_another_owner_in_every_step_pays_each_attempt_with_a_pair() -> None:
    """[F1, F3, N5] Until it is apart from half of the members."""
    seen = see(plan(steps=12), _KeepsFromOne(keys(1, 5)[1:], (PartSent,))).kept_promises()
    assert 0 < sum(seen.extra_attempts) == sum(map(len, seen.link_disputes.values())) <= 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


class _MissesParts(Lies):
    """As owner it says in the first attempt that somebody's part did not come: always the same one's, or never twice the same."""

    def __init__(self, victim: PeerId | None = None) -> None:
        self._victim = victim
        self._came: dict[int, list[PeerId]] = {}
        self._named: set[PeerId] = set()

    def hears(self, link: Bent, sender: PeerId, packet: Packet) -> bool:
        match packet.frame:
            case PartSent():
                self._came.setdefault(packet.slot.step, []).append(sender)
            case PartShown(contributor=contributor):
                self._came.setdefault(packet.slot.step, []).append(PeerId(contributor))
        return True

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        if not isinstance(message, Clip) or slot.attempt or slot.step < LIARS_FROM or not message.centers:
            return message
        came = self._came[slot.step]
        others = (
            [peer for peer in came if peer not in self._named] if self._victim is None else {self._victim} & set(came)
        )
        missing = tuple(others)[:1]
        self._named |= set(missing)
        return structs.replace(message, centers=(), missing=missing) if missing else message


def test_who_says_that_parts_did_not_come_pays_each_attempt_with_a_pair() -> None:
    """[F1, F3, N5] The honest contributors it names keep their place."""
    seen = see(plan(steps=12), _MissesParts()).kept_promises()
    assert 0 < sum(seen.extra_attempts) == sum(map(len, seen.link_disputes.values())) <= 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


def test_who_says_of_the_same_one_again_that_its_part_did_not_come_is_apart_from_whoever_carried_it() -> None:
    """[F2, F3, N5] Each complaint costs it another pair, until it is apart from half of the members."""
    seen = see(plan(steps=12), _MissesParts(keys(1, 5)[VICTIM])).kept_promises()
    first, *later = [pair for pairs in seen.link_disputes.values() for pair in pairs]
    assert first == {LIAR, VICTIM}
    assert len(later) == 2
    assert all(LIAR in pair and VICTIM not in pair for pair in later)
    assert sum(seen.extra_attempts) == 3
    assert list(seen.named("expelled").values()) == [[LIAR]]


def test_an_owner_that_refuses_its_aggregate_to_one_member_makes_it_wait_once() -> None:
    """[F1, F2] From the second time on it is asked for from everyone at once."""
    victim = keys(1, 5)[VICTIM]

    class Refuses(Lies):
        def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
            return () if isinstance(packet.frame, BlobSent) and to == victim else (packet,)

    seen = see(plan(network=Network(latency=0.05)), Refuses()).kept_promises()
    ((first, pairs),) = seen.link_disputes.items()
    assert pairs == [{LIAR, VICTIM}]
    owning = [r.step for r in seen.records if keys(1, 5)[LIAR] in r.contributors]
    assert first == owning[0]
    assert seen.seconds[first] > 3.0, "as long as a blob may take"
    assert len(owning) >= 4
    assert max(seen.seconds[step] for step in owning[1:]) < 1.0
    assert not seen.slow


class _Feud(Lies):
    """In one step all liars say that they lack the aggregates of three parts."""

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        if isinstance(message, Reveal) and slot.step == LIARS_FROM:
            return structs.replace(message, held=bytes([message.held[0] & ~0b111]))
        return message


def test_one_lie_does_not_multiply_what_everyone_sends() -> None:
    """[F2] Three of eight liars are apart from three each, for a thousand steps. A part takes one relay more, not everyone."""
    seen = see(plan(peers=8, liars=(0, 1, 2), steps=7), _Feud()).kept_promises()
    assert len(seen.link_disputes[LIARS_FROM]) >= 6
    assert max(seen.bulk[step] for step in range(LIARS_FROM + 1, 7)) < 1.2 * seen.bulk[1]


# Found by review


class _GarbageFirst(_Shuns):
    """Nothing to the victim; to the others two frames of nonsense before each value, which they pass on in its place."""

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, Value) and packet.slot.step >= LIARS_FROM and to != self._victim:
            for number in range(2):
                link.slip(to, Packet(packet.slot, Value(Envelope(b"nonsense %d" % number, bytes(64)))))
        return super().sends(link, to, packet)


def test_nonsense_is_not_passed_on_in_place_of_the_truth() -> None:
    """[F2, F3] Else the victim misses a value that all others have, names one whom they serve it with, and is struck."""
    seen = see(plan(network=Network()), _GarbageFirst(keys(1, 5)[VICTIM])).kept_promises()
    assert seen.slow_steps().keys() == {LIARS_FROM}


def test_naming_oneself_is_no_excuse() -> None:
    """[F3] Nobody can be apart from itself, so it would cost nothing."""
    assert _hear({1: [1]}, _doubted_by_all(1)) == ({1}, set())


def test_whoever_has_a_wrong_view_of_somebody_is_apart_from_it() -> None:
    """[F1, F3] Two liars, each of whom signs for half of the others that something is missing: no certificate, and no majority.

    An honest member signs one view: all others doubt it, or none.
    """
    assert _hear({}, {2: [0], 3: [0], 4: [1], 5: [1], 6: [1]})[1] == {(0, 2), (0, 3), (1, 4), (1, 5), (1, 6)}


def test_an_honest_member_is_not_struck_for_a_liar_that_let_some_have_its_value_and_left() -> None:
    """[F3] 0 is apart from 2, 3 and 4, and sends its value to nobody; its friend 1 passes it on to 3 and 4.

    So 2, 5 and 6 miss it. That is no majority; but with those who are apart from it anyway, nearly everyone is against it.
    """
    roster = _disputed_links((0, 2), (0, 3), (0, 4))
    unheard = {k: [0] for k in (2, 5, 6)}
    incomplete = {k: [other for other in (2, 5, 6) if other != k] for k in range(1, 7)}
    for out in ((), (0,)):
        struck, _ = _hear(unheard, incomplete, roster=roster, out=out)
        assert 2 not in struck


def test_whatever_liars_do_in_an_announcement_no_honest_member_is_struck_for_it() -> None:
    """[F2, F3] What one has in time all have; and what everyone says in Accuse afterwards strikes liars only."""
    runs = {seed: (world := FeudWorld(seed).run()).served() or world.standing() for seed in range(250)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


def test_whatever_liars_do_in_an_announcement_all_rounds_cost_them_something() -> None:
    """[F3] A strike or a new pair, whomever they name."""
    runs = {seed: FeudWorld(seed).run().costs() for seed in range(400)}
    assert {seed: why for seed, why in runs.items() if why is not None} == {}


class _ChainsEarly(_Quiet):
    """Passes a value on as if its rounds had begun, and hands its view out later, but in time."""

    def __init__(self) -> None:
        self._began: dict[Slot, float] = {}
        self.chains = 0

    def hears(self, link: Bent, sender: PeerId, packet: Packet) -> bool:
        if isinstance(packet.frame, Value) and packet.slot.step >= LIARS_FROM:
            envelope = packet.frame.envelope
            signed = chain_bytes(packet.slot, sender, blob_digest(envelope.payload))
            chained = Chained(sender, envelope, {link.me: link.identity.sign(signed)})
            for to in keys(1, 5):
                if to != link.me:
                    link.slip(to, Packet(packet.slot, chained))
                    self.chains += 1
        return super().hears(link, sender, packet)

    def sends(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        self._began.setdefault(packet.slot, link.now())
        return super().sends(link, to, packet)

    def lies(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, View):
            allowed = {Phase.COMMIT: 2.0, Phase.CLIP: 9.0, Phase.REVEAL: 3.0, Phase.REPORT: 3.0, Phase.ACCUSE: 1.0}
            since = link.now() - self._began.get(packet.slot, link.now())
            link.later(allowed[Phase(packet.slot.phase)] + 3.1 - since, to, packet)
            return ()
        return (packet,)


def test_a_chain_before_its_time_and_a_view_just_in_time_force_no_slow_path() -> None:
    """[Q4] Else it would be for nothing: nobody could say that the view was late."""
    lies = _ChainsEarly()
    seen = see(plan(), lies).kept_promises()
    assert lies.chains
    assert seen.slow_steps() == {}


class _SplitsViews(_Quiet):
    """Signs for every other member that something is missing; two such liars take turns."""

    def __init__(self, everyone: list[PeerId], *wrong: bytes | None) -> None:
        self._everyone, self._wrong = everyone, wrong

    def lies(self, link: Bent, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if isinstance(packet.frame, View) and (self._everyone.index(to) - self._everyone.index(link.me)) % 2 == 0:
            views = [signed_view(link.identity, packet.slot, values) for values in self._wrong]
            return [Packet(packet.slot, view) for view in views]
        return (packet,)


@pytest.mark.parametrize("behaviour", ["splits", "splits, with two wrong views each", "names itself"])
def test_no_liar_can_force_slow_paths_for_ever(behaviour: str) -> None:
    """[F3] Not two together, and not with itself as an excuse."""

    class NamesItself(_ClaimsIncomplete):
        def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
            if isinstance(message, Accuse):
                return structs.replace(message, unheard=(me,), incomplete=())
            return message

    if behaviour.startswith("splits"):
        wrong = (None, bytes(32)) if "two" in behaviour else (None,)
        seen = see(plan(peers=7, liars=(0, 1)), _SplitsViews(keys(1, 7), *wrong))
    else:
        seen = see(plan(), NamesItself())
    seen.kept_promises()
    assert max(seen.slow_steps(), default=0) < LIARS_FROM + 3


def test_a_known_feud_costs_no_time() -> None:
    """[F2] An owner need not wait for what its foe hands round to come from that one itself."""
    seen = see(plan(steps=9, network=Network(latency=0.05)), _Shuns(keys(1, 5)[VICTIM])).kept_promises()
    assert max(seen.seconds[LIARS_FROM + 2 :]) < 2.0
