"""Deliveries, believed, denied, or said again; and how many attempts that can take (SPEC A3, N1, N5, F2)."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from tests.protocol.scripted_world import FIRST_LYING_STEP, LiarLink, LiarScript, WorldRun, peer_ids, plan, run_world
from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.channel import Delivery
from troth.protocol.core.roles import Roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import most_byzantine
from troth.protocol.step.attempt import Attempt, AttemptAborted, StepContext
from troth.protocol.step.deliveries import agreed_centers, bitmap, lacking, undecided_aggregates, weigh
from troth.protocol.wire.frames import BlobSent, Packet
from troth.protocol.wire.messages import (
    ATTEMPTS_PER_MEMBER,
    Announced,
    Center,
    Clip,
    Commit,
    Confirm,
    Envelope,
    Message,
    Phase,
    Reveal,
)

NOTHING = Envelope(b"", bytes(64))


def _key(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


def _attempt(roster: Roster, owners: Sequence[PeerId], seed: int = 0) -> Attempt[Any]:
    """The first attempt of a step, as an observer sees it."""
    peer = SimpleNamespace(me=bytes(32), observing=True, entropy=SimpleNamespace(coins=lambda *_: None))
    state = SimpleNamespace(step=5, roster=roster, randomness=Digest(seed.to_bytes(32)), incarnation=0)
    roles = Roles({}, (), tuple(owners), tuple(range(len(owners) + 1)))
    commits = {
        who: Announced(who, Commit(bytes(32) if who in owners else None, bytes(32), bytes(32)), NOTHING)
        for who in roster.members
    }
    context = StepContext(cast(Any, peer), cast(Any, state), roles)
    return Attempt(context, 0, frozenset(), cast(Any, None), commits)


# Belief and denial


@pytest.mark.parametrize(
    ("members", "byzantine", "facts"),
    [
        (16, 7, {8: "believed", 7: "denied", 0: "denied"}),  # 9 of 16 are a quorum
        (14, 7, {8: "believed", 7: "undecided", 6: "denied"}),  # two are gone, and may be honest
        (12, 7, {8: "believed", 7: "undecided", 5: "undecided", 4: "denied"}),
        (16, 3, {4: "believed", 3: "denied"}),
        (5, 0, {1: "believed", 0: "denied"}),
    ],
)
def test_more_voices_than_liars_are_believed_and_a_quorum_denies(
    members: int, byzantine: int, facts: Mapping[int, str]
) -> None:
    """[A3, N5] With neither, liars can make it either."""
    roster = Roster(tuple(_key(k) for k in range(members)), byzantine=byzantine)
    assert {holders: weigh(holders, members, roster).name.lower() for holders in facts} == facts


def _held(roster: Roster, holders: Collection[int]) -> dict[PeerId, bytes]:
    """Everyone holds all aggregates but that of part 0, which only these do."""
    parts = range(len(roster.members))
    return {
        peer: bitmap([part > 0 or number in holders for part in parts]) for number, peer in enumerate(roster.members)
    }


def test_seven_liars_and_a_lost_blob_do_not_push_an_honest_owner_out() -> None:
    """[A3] Eight of sixteen hold it: one of them is honest. Only where half and one more lack it is its owner out."""
    roster = Roster(tuple(_key(k) for k in range(16)), byzantine=7)
    attempt = _attempt(roster, roster.members)
    assert undecided_aggregates(attempt, _held(roster, range(8)), range(16)) == []
    assert lacking(attempt, _held(roster, range(8))) == {_key(k): {_key(0)} for k in range(8, 16)}
    with pytest.raises(AttemptAborted) as why:
        undecided_aggregates(attempt, _held(roster, range(7)), range(16))
    assert why.value.peers == {_key(0)}


def test_an_aggregate_that_is_neither_believed_nor_denied_stays_undecided() -> None:
    """[A3] Two of sixteen are gone: seven of fourteen may be the liars, and so may the others."""
    roster = Roster(tuple(_key(k) for k in range(14)), byzantine=7)
    attempt = _attempt(roster, roster.members)
    assert undecided_aggregates(attempt, _held(roster, range(7)), range(14)) == [0]
    assert undecided_aggregates(attempt, _held(roster, range(7)), range(1, 14)) == []


# An owner of two parts


def _complaint_of_an_heir(silent: Collection[int]) -> AttemptAborted:
    """Of eight, three of them liars, 7 is out and 4 owns its part besides its own. 2 sent the one part and not the other; 5
    handed its part to nobody, and may be silent."""
    roster = Roster(tuple(_key(k) for k in range(8)), byzantine=3)
    first = _attempt(roster, [_key(k) for k in (4, 0, 1, 2, 3, 5, 6, 7)])
    attempt = first.again(AttemptAborted([_key(7)], disputed=[(0, _key(2)), (0, _key(5))]))
    assert attempt.owners[7] == _key(4)
    assert attempt.to_witness(_key(0)) == [(0, _key(2)), (0, _key(5))]
    clips = {}
    for peer in sorted(attempt.members - {_key(k) for k in silent}):
        parts = [part for part, owner in enumerate(attempt.owners) if owner == peer != _key(4)]
        clips[peer] = Announced(
            peer,
            Clip(
                tuple(Center(part, bytes(32), 1.0) for part in parts),
                missing=(_key(2), _key(5)) if peer == _key(4) else (),
                witnessed=bitmap([peer in {_key(k) for k in (0, 1, 2, 3)}, False]),
            ),
            NOTHING,
        )
    with pytest.raises(AttemptAborted) as found:
        agreed_centers(attempt, clips)
    return found.value


def test_an_owner_that_lacks_a_new_part_is_not_blamed_for_an_old_one_that_it_was_handed() -> None:
    """[N5] It names contributors, not parts: 2 is named for the part of 7, and its part that was handed round is believed."""
    why = _complaint_of_an_heir(silent=())
    assert why.peers == {_key(5)}
    assert (7, _key(2)) in why.disputed
    assert (0, _key(2)) not in why.disputed


def test_nor_where_what_it_lacks_of_the_old_part_is_of_a_member_that_is_gone() -> None:
    """[N5] 5 says nothing more: nothing but the believed part is left of the complaint."""
    why = _complaint_of_an_heir(silent=(5,))
    assert why.peers == {_key(5)}
    assert (7, _key(2)) in why.disputed


# Parts, with everything that liars may say drawn from a seed


@dataclass
class _Step:
    """The attempts of a step, as far as parts are concerned. Honest members say what is; all else is drawn.

    Cunning liars spend their places one by one: in each attempt one of them complains, about another if it can, and that one
    hands its part to just so many that nobody can tell.
    """

    seed: int
    draw: Random = field(init=False)
    attempts: int = 1
    pairs: set[frozenset[PeerId]] = field(default_factory=set)

    def __post_init__(self) -> None:
        draw = self.draw = Random(self.seed)
        self.cunning = draw.random() < 0.7
        self.insists = draw.random() < 0.6  # on what was handed round; else it complains about another in every attempt
        size = draw.randint(4, 40)
        byzantine = draw.choice([draw.randint(0, most_byzantine(size, 1)), most_byzantine(size, 1)])
        everyone = [_key(draw.getrandbits(250)) for _ in range(size)]
        liars = everyone[:byzantine]
        gone = liars[: draw.randint(0, byzantine)] if draw.random() < 0.5 else []
        self.liars = frozenset(liars) - set(gone)
        self.honest = frozenset(everyone) - set(liars)
        link_disputes = [(0, a, b) for a in sorted(self.liars) for b in sorted(self.honest) if draw.random() < 0.2]
        members = tuple(sorted(set(everyone) - set(gone)))
        self.roster = Roster(members, byzantine=byzantine, admitted=size, link_disputes=tuple(link_disputes))
        validator = draw.choice(members) if draw.random() < 0.5 else None
        owners = draw.sample([peer for peer in members if peer != validator], len(members) - (validator is not None))
        self.attempt = _attempt(self.roster, owners, self.seed)
        self.has: set[Delivery] = set()  # what honest owners have
        self.holders: dict[Delivery, set[PeerId]] = {}  # of what was handed round: the honest ones

    def run(self) -> "_Step":
        """Go on until nothing is missing, and nobody lies in what follows."""
        while True:
            try:
                agreed_centers(self.attempt, self.clips())
                late = sorted(self.liars & self.attempt.members)
                if not late or self.draw.random() < (0.1 if self.cunning else 0.5):
                    return self
                raise AttemptAborted(self.draw.sample(late, 1))  # over what it does in a later phase
            except AttemptAborted as why:
                self.pairs |= {frozenset({one, other}) for one, others in why.missed.items() for other in others}
                self.attempt = self.attempt.again(why)
                self.attempts += 1
            assert not self.attempt.out & self.honest, "an honest member is out"
            assert self.attempts <= ATTEMPTS_PER_MEMBER * len(self.roster.members)

    def clips(self) -> dict[PeerId, Announced]:
        self._scatter()
        self._hand_round()
        silent = {peer for peer in sorted(self.liars) if not self.cunning and self.draw.random() < 0.05}
        speakers = sorted(self.attempt.members - silent)
        return {peer: Announced(peer, self._says(peer), NOTHING) for peer in speakers}

    def _sends(self, sender: PeerId) -> bool:
        return sender in self.honest or self.cunning or self.draw.random() < 0.5

    def _scatter(self) -> None:
        attempt = self.attempt
        for part, owner in enumerate(attempt.owners):
            if owner in self.honest and attempt.newly_owned(part):
                for contributor in attempt.roots:
                    way = attempt.relays.get((part, contributor), owner)
                    if way is not None and self._sends(contributor) and self._sends(way):
                        self.has.add((part, contributor))

    def _hand_round(self) -> None:
        attempt, before = self.attempt, self.holders
        self.holders = {}
        for part, contributor in attempt.circulated:
            context = self.honest & attempt.members
            some = set(context) if contributor in self.honest else self._some_of(sorted(context))
            if (part, contributor) in attempt.undecided and before[part, contributor]:
                some = set(context)
            self.holders[part, contributor] = some
            if attempt.owners[part] in self.honest and some:
                self.has.add((part, contributor))

    def _some_of(self, context: list[PeerId]) -> set[PeerId]:
        if self.cunning:  # with all liars as many as are not believed, and the rest fewer than a quorum
            return set(context[: max(0, self.roster.liars - len(self.liars & self.attempt.members))])
        return {peer for peer in context if self.draw.random() < 0.5}

    def _says(self, peer: PeerId) -> Clip:
        attempt, draw = self.attempt, self.draw
        mine = [part for part, owner in enumerate(attempt.owners) if owner == peer]
        asked = attempt.to_witness(peer)
        if peer in self.honest:
            missing = {who for part in mine for who in attempt.roots if (part, who) not in self.has}
            whole = [part for part in mine if all((part, who) in self.has for who in attempt.roots)]
            came = [self._came(peer, delivery) for delivery in asked]
        elif self.cunning:
            liars = sorted(self.liars & attempt.members)
            whole = mine if peer != liars[0] else []
            fellows = sorted(attempt.roots.keys() & set(liars[1:])) or sorted(attempt.roots)
            about = fellows if self.insists else sorted(attempt.roots)
            missing = set(() if whole else [about[attempt.number % len(about)], *self._asked_of(peer)])
            came = [True for _ in asked]
        else:
            whole = [part for part in mine if draw.random() < 0.3]
            missing = set(draw.sample(sorted(attempt.roots), draw.randint(0, len(attempt.roots))))
            missing = {who for who in sorted(missing) if draw.random() < draw.choice([0.1, 0.5, 1.0])}
            came = [draw.random() < 0.5 for _ in asked]
        centers = tuple(Center(part, bytes(32), 1.0) for part in whole)
        return Clip(centers, missing=tuple(sorted(missing)), witnessed=bitmap(came))

    def _asked_of(self, owner: PeerId) -> list[PeerId]:
        return [who for part, who in self.attempt.circulated if self.insists and self.attempt.owners[part] == owner]

    def _came(self, relay: PeerId, delivery: Delivery) -> bool:
        """An honest relay has what an honest owner has through it; what it has for a liar is drawn."""
        if delivery in self.holders:
            return relay in self.holders[delivery]
        part, contributor = delivery
        if self.attempt.owners[part] in self.honest:
            return delivery in self.has
        return self._sends(contributor)


def drawn_step(seed: int) -> _Step:
    return _Step(seed).run()


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(6))
def test_whatever_liars_complain_about_a_step_takes_no_more_than_two_attempts_for_each_member(hundred: int) -> None:
    """[N1, N5, F1] 4 to 40 members, of whom some liars are gone. No honest member is out, or in a dispute with another."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        step = drawn_step(seed)
        assert not any(pair <= step.honest for pair in step.pairs), seed


@pytest.mark.long
def test_the_drawn_liars_try_everything() -> None:
    """Else the test above could not fail: there are long steps, relays, parts that stay undecided, and pairs."""
    found: Counter[str] = Counter()

    class Watched(_Step):
        def clips(self) -> dict[PeerId, Announced]:
            found["undecided"] += bool(self.attempt.undecided)
            found["relayed"] += any(self.attempt.relays.values())
            found["handed round"] += bool(self.attempt.circulated)
            return super().clips()

    steps = [Watched(seed).run() for seed in range(200)]
    assert max(step.attempts for step in steps) >= 20
    assert {name for name, count in found.items() if count > 5} == {"undecided", "relayed", "handed round"}
    assert any(step.pairs for step in steps)


# Whole runs, in which some liars are gone and another one does its worst


class _HandsOutToFew(LiarScript):
    """Two are silent from the start; the third hands its aggregates to so few that nobody can tell: 3 of 6, where b = 3."""

    def __init__(self, everyone: list[PeerId], friends: Collection[PeerId]) -> None:
        self._quiet, self._friends = everyone[1:3], friends

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        if link.me in self._quiet:
            return ()
        lies = packet.slot.step >= FIRST_LYING_STEP and isinstance(packet.frame, BlobSent)
        return () if lies and to not in self._friends else (packet,)


def _confirmed(seen: WorldRun) -> list[int]:
    """The steps in which everyone said again what it holds."""
    return sorted({slot.step for slot in seen.slots if slot.phase == Phase.CONFIRM})


@pytest.mark.long
def test_an_aggregate_in_few_hands_is_handed_on_and_said_again_instead_of_a_stall() -> None:
    """[A3, N6] Two honest members of five have it. They hand it to all, who then say so; from then on the pairs are served."""
    everyone = peer_ids(1, 8)
    seen = run_world(plan(peers=8, liars=(0, 1, 2), steps=7), _HandsOutToFew(everyone, everyone[3:5])).check_promises()
    assert seen.named("absent") == {0: [1, 2]}
    owning = [
        record.step for record in seen.records if record.step >= FIRST_LYING_STEP and everyone[0] in record.contributors
    ]
    assert _confirmed(seen)[:1] == owning[:1]
    assert sum(seen.extra_attempts) == 0
    assert {frozenset(pair) for pair in seen.link_disputes[owning[0]]} == {frozenset({0, k}) for k in (5, 6, 7)}


def test_an_aggregate_in_no_hands_is_denied_at_once() -> None:
    """[A3] Its owner is out, and nothing is said again."""
    everyone = peer_ids(1, 8)
    seen = run_world(plan(peers=8, liars=(0, 1, 2), steps=6), _HandsOutToFew(everyone, ())).check_promises()
    assert [0] in seen.named("absent").values()
    assert seen.named("expelled") == {}, "its machine may have stopped"
    assert seen.link_disputes == {}
    assert _confirmed(seen) == []


class _Denies(LiarScript):
    """Two are silent from the start; the third says that it lacks whatever others own."""

    def __init__(self, everyone: list[PeerId]) -> None:
        self._quiet = everyone[1:3]

    def sends(self, link: LiarLink, to: PeerId, packet: Packet) -> Iterable[Packet]:
        return () if link.me in self._quiet else (packet,)

    def says(self, me: PeerId, slot: Slot, message: Message) -> Message:
        if isinstance(message, Reveal | Confirm) and slot.step >= FIRST_LYING_STEP:
            return structs.replace(message, held=bytes(len(message.held)))
        return message


def test_a_member_that_denies_everything_is_struck_and_nobody_has_to_say_it_again() -> None:
    """[A3, F3] Five honest members are more than three liars. It says so of all, so it is its own link."""
    seen = run_world(plan(peers=8, liars=(0, 1, 2), steps=6), _Denies(peer_ids(1, 8))).check_promises()
    assert _confirmed(seen) == []
    assert list(seen.named("slowed").values()) == [[0]] * 3
    assert list(seen.named("expelled").values()) == [[0]]
