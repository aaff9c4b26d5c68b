"""Roles: drawn from agreed randomness, the same for everyone, fair in the long run."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.protocol.samples import KEYS, run_of
from troth.crypto import Digest, PeerId, derive
from troth.protocol.core.parts import part_bounds
from troth.protocol.core.roles import (
    NO_PENDING_AUDITS,
    PendingAudits,
    Roles,
    draw_roles,
    first_randomness,
    gradient_seed,
)
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Run, effective_validators

STEP = 7  # the step before the one that roles are drawn for


def draws(run: Run, last: tuple[PeerId, ...], count: int, banned: tuple[PeerId, ...] = ()) -> list[Roles]:
    roster = Roster(tuple(peer for peer in run.founders if peer not in banned), banned)
    return [draw_roles(run, roster, Digest(derive(1, k)), PendingAudits(STEP, last)) for k in range(count)]


def targets(roles: Roles) -> dict[PeerId, PeerId]:
    """By validator: in a quiet step each has one, of the step before."""
    assert all(len(audits) == 1 and audits[0].step == STEP for audits in roles.audits.values())
    return {validator: audits[0].target for validator, audits in roles.audits.items()}


@pytest.mark.parametrize(
    ("members", "asked", "active"), [(1, 1, 0), (3, 1, 0), (4, 1, 1), (7, 3, 2), (16, 1, 1), (16, 9, 5)]
)
def test_how_many_validate(members: int, asked: int, active: int) -> None:
    """[R3] `min(m, ⌊(n − 1)/3⌋)`."""
    assert effective_validators(members, asked) == active


def test_everyone_has_exactly_one_role() -> None:
    """[R3, R5] Validators contribute nothing; all others own one part each."""
    run = run_of(16, validators=3)
    for roles in draws(run, KEYS, 50):
        assert len(roles.validators) == 3
        assert sorted((*roles.validators, *roles.owners)) == list(KEYS)
        assert roles.bounds == part_bounds(1000, 13)


def test_in_the_first_step_all_contribute_and_nobody_audits() -> None:
    """[R3]"""
    run = run_of(16)
    roles = draw_roles(run, Roster.founding(run), first_randomness(run)[0], NO_PENDING_AUDITS)
    assert (roles.validators, roles.audits, len(roles.owners)) == ((), {}, 16)


def test_targets_are_distinct_contributors_of_the_last_step_and_never_oneself() -> None:
    """[R4] Those who left are still targets, those who were banned are not."""
    run, gone, banned = run_of(16, validators=5), KEYS[3], KEYS[5]
    last = KEYS[:12]
    seen: Counter[PeerId] = Counter()
    for roles in draws(run, last, 300, banned=(banned,)):
        dealt = targets(roles)
        assert set(dealt) == set(roles.validators)
        assert len(set(dealt.values())) == len(dealt) == 4
        assert all(validator != target for validator, target in dealt.items())
        assert set(dealt.values()) <= set(last) - {banned}
        seen.update(dealt.values())
    assert seen[gone] > 0


@pytest.mark.long
def test_every_contributor_is_audited_equally_often() -> None:
    """[R4] With probability m/(n − m), here 1/15 each, over 6000 draws: within five standard deviations."""
    counts: Counter[PeerId] = Counter()
    for roles in draws(run_of(16), KEYS[:15], 6000):
        counts.update(targets(roles).values())
    for peer in KEYS[:15]:
        assert abs(counts[peer] - 400) < 5 * 20


def test_parts_are_even_and_cover_everything() -> None:
    """[R5]"""
    for size, parts in ((16, 16), (17, 16), (1000, 13), (5, 1)):
        bounds = part_bounds(size, parts)
        lengths = [b - a for a, b in pairwise(bounds)]
        assert (bounds[0], bounds[-1], len(lengths)) == (0, size, parts)
        assert max(lengths) - min(lengths) <= 1


def test_owners_are_dealt_anew_every_step() -> None:
    """[R5] Nobody keeps a part."""
    first = [roles.owners[0] for roles in draws(run_of(16), KEYS, 200)]
    assert len(set(first)) > 12


def test_seeds_differ_between_peers_and_draws() -> None:
    """[R2] And the first two draws, which no coin made, follow from the run alone."""
    run = run_of(16)
    first, before = first_randomness(run)
    seeds = {gradient_seed(randomness, peer) for randomness in (first, before) for peer in KEYS}
    assert len(seeds) == 32
    assert first_randomness(run_of(15)) != (first, before)
