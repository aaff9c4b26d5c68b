"""Chaos: drawn worlds keep their promises, the same seed is the same world, and planted bugs are found."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.seeds import drawn
from tests.workshop.chaos.digests import digests
from tests.workshop.chaos.planted import PLANTED
from tests.workshop.chaos.planted.search import SEEDS, broken_by, seeds_of_tests
from troth.evidence.bans import History
from troth.evidence.file_format import checksum as checksum_of
from troth.evidence.file_format import from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import encode_record
from troth.workshop.attacks.broadcasts import WIRE_BEHAVIOURS
from troth.workshop.chaos.draws import AWAKE, CLASSIC_ATTACKS, LATER_BEHAVIOURS, draw_plan, draw_slow, draw_wide
from troth.workshop.chaos.judge import judge, play
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.plan_file import load
from troth.workshop.chaos.world import World

FOUND = seeds_of_tests()
PLANS = SEEDS.with_name("plans")
ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.parametrize("seed", drawn(3, many=40))
def test_no_promise_is_broken(seed: int) -> None:
    """Nor is one in the worlds of the planted bugs, without the bug."""
    verdict = judge(draw_plan(seed, steps=6))
    assert verdict.broken == []
    assert verdict.counts["steps"] > 0


@pytest.mark.long
def test_an_owner_shows_what_counts_and_nothing_else() -> None:
    """[T6] Seed 239: a part of somebody who was out stood for one that was still on its way, and an honest owner was out."""
    assert judge(draw_plan(239, most_peers=16, steps=7)).broken == []


def test_a_silent_owner_cannot_stop_the_model() -> None:
    """[T6] Door 8323: it was not heard in Accuse, and showed its disputed part to two of three."""
    assert judge(load(PLANS / "silent-owner.json").smallest).broken == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [47, 66, 91, 115])
def test_seeds_that_once_broke_something(seed: int) -> None:
    """47: an owner split the jury by showing its parts to some. 66: a juror fell over a verdict. 91: deadlines that did not
    follow a late slow path. 115: evidence of somebody banned twice."""
    assert judge(draw_plan(seed, steps=12 if seed == 47 else 10)).broken == []


@pytest.mark.long
def test_an_owner_that_named_a_liar_in_vain_is_not_taken_for_its_cover() -> None:
    """[T7] Five of twelve lie and four honest peers are gone: no quorum convicts whom an owner names, and an audit finds that
    report wrong a step later. The owner, who had said so, was banned for letting it pass."""
    assert judge(load(PLANS / "named-in-vain.json").smallest).broken == []


@pytest.mark.long
def test_an_owner_that_shows_its_parts_to_some_stops_nothing() -> None:
    """[T6, G2] Within the guarantee. It accuses somebody falsely; those who see its parts clear them, the others cannot tell, and
    neither are a quorum: the step moves nothing, and nothing is held against it."""
    assert judge(replace(draw_wide(11, steps=12), steps=5)).broken == []


@pytest.mark.long
def test_half_of_the_owners_may_name_an_honest_contributor() -> None:
    """[N5] Beyond the guarantee: a liar, and a peer that lacks a part since its packets get lost. The run may stop."""
    assert judge(replace(draw_slow(136, most_peers=7, steps=8), steps=2)).broken == []


@pytest.mark.long
def test_a_stranger_banned_for_its_gradient_is_no_ban_too_many() -> None:
    """[G4, J7] Its seat is gone with it. Here it turns once it is in, and a founder is banned before it."""
    assert judge(replace(draw_slow(20006, most_peers=5, steps=8), steps=16)).broken == []


@pytest.mark.long
def test_equal_seeds_are_equal_worlds() -> None:
    def trace(seed: int) -> tuple[list[tuple[object, ...]], list[bytes]]:
        seen: list[tuple[object, ...]] = []
        world = play(draw_plan(seed, steps=3), lambda *event: seen.append(event))
        return seen, [encode_record(record) for record in world.records]

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


@pytest.mark.long
def test_worlds_do_not_depend_on_the_order_of_sets() -> None:
    """Another process hashes keys otherwise: who sends to a set of peers, or draws for each of them, has to sort it."""
    child = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    command = [sys.executable, "-m", "tests.workshop.chaos.digests"]
    told = subprocess.run(command, env=child, capture_output=True, check=True, text=True, cwd=ROOT).stdout
    assert json.loads(told) == digests()


def test_a_quiet_step_takes_twelve_delays_and_waits_for_nothing() -> None:
    """[Q2, Q3] Five announcements of two delays, parts and aggregates: 1.2 s with links of 100 ms."""
    world = play(Plan(0, 6, 4, {}, {}, {}, {}, {}, Network(least=0.1)))
    assert world.time.now == pytest.approx(4 * 12 * 0.1)
    assert world.records[-1].step == 3


def test_the_draw_covers_what_there_is() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    behaviours = Counter(name for plan in plans for liar in plan.liars.values() for name in liar)
    assert set(behaviours) == set(WIRE_BEHAVIOURS) - LATER_BEHAVIOURS - {AWAKE}
    assert min(behaviours.values()) > 15
    assert {attack for plan in plans for attack in plan.attacks.values()} == set(CLASSIC_ATTACKS)
    assert {plan.peers for plan in plans} == set(range(4, 17))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOUND))
def test_planted_bugs_are_found(name: str) -> None:
    """The checkers can fail: with this bug, this seed breaks a promise; without it, none."""
    assert broken_by(name, FOUND[name])
    assert broken_by(None, FOUND[name]) == []


def test_every_planted_bug_has_its_seed() -> None:
    assert FOUND.keys() == PLANTED.keys()


@pytest.fixture(scope="module")
def equivocated() -> World:
    """Two of seven tell different peers different things, whenever they can."""
    two = frozenset({"equivocate"})
    return play(Plan(3, 7, 3, {0: two, 1: two}, {}, {}, {0: (1.0, 1), 1: (1.0, 1)}, {}, Network(latency=0.4)))


def evidence_of(world: World) -> str:
    """Of the first ban for it, made when the step after certifies its record."""
    history = History(world.run)
    files = [made.file for outcome in world.witness for made in history.add(outcome)]
    return to_text(next(file for file in files if file.equivocation))


def test_equivocation_proves_itself(equivocated: World) -> None:
    """[Q6, E1] Two signed messages for one place: a ban without a vote, and evidence that anyone can check."""
    banned = {equivocated.numbers[peer] for record in equivocated.records for peer in record.banned}
    assert banned == {0, 1}
    proof = verify_ban(evidence_of(equivocated))
    assert equivocated.numbers[proof.banned] in (0, 1)
    assert "two different messages" in proof.sentence()


@pytest.mark.parametrize("change", ["same message twice", "one message", "another phase", "somebody else's"])
def test_forged_equivocations_are_refused(equivocated: World, change: str) -> None:
    """[Q6, E1] Whoever wants to frame somebody needs its key."""
    file = from_text(evidence_of(equivocated))
    first, second = file.equivocation
    honest = min(equivocated.honest).hex()
    changes: dict[str, dict[str, Any]] = {
        "same message twice": {"equivocation": [first, first]},
        "one message": {"equivocation": [first]},
        "another phase": {"phase": file.phase % 6 + 1},
        "somebody else's": {"equivocation": [msgspec.structs.replace(m, sender=honest) for m in (first, second)]},
    }
    changed = msgspec.structs.replace(file, **changes[change], checksum="")
    text = to_text(msgspec.structs.replace(changed, checksum=checksum_of(changed)))
    with pytest.raises(UnprovedError):
        verify_ban(text)
