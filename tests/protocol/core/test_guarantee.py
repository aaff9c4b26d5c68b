"""How many liars are covered, and when the model stands still."""

import dataclasses
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.protocol.samples import CLOSE, KEYS, run_of
from tests.protocol.small_runs import SMALL, kept_promises, records, run_on, wrap_channel
from troth.crypto import Digest
from troth.protocol.core.records import Returned
from troth.protocol.core.roles import PendingAudits, draw_roles
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import Parameters, Run, RunError, most_byzantine
from troth.protocol.core.state import State
from troth.protocol.recovery.ledger import Known, Ledger
from troth.protocol.wire.primitives import UNSHARED
from troth.workshop.simulation import ProtocolSimulation
from troth.workshop.simulation.exchange import DropOut, DroppingChannel


@pytest.mark.parametrize(
    ("members", "validators", "most"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 1), (5, 1, 1), (16, 1, 7), (16, 2, 6), (16, 0, 0)],
)
def test_how_many_liars_a_run_may_promise_to_withstand(members: int, validators: int, most: int) -> None:
    """[G1] 2b < n − m; without validators nobody is caught, so none."""
    assert most_byzantine(members, validators) == most
    run_of(members, validators, byzantine=most)
    with pytest.raises(RunError, match="2b < n − m"):
        run_of(members, validators, byzantine=most + 1)


def test_beyond_the_guarantee_must_be_said() -> None:
    """[G1] No more is promised then than a majority allows."""
    run = Run(KEYS, b"", Parameters(size=100, tau=1.0, byzantine=8, validators=1, beyond_guarantee=True), bytes(32))
    assert Roster.founding(run).liars == 7


def without(roster: Roster, *, banned: int = 0, gone: int = 0) -> Roster:
    """The first are banned, the next are gone."""
    out, members = roster.members[:banned], roster.members[banned + gone :]
    return dataclasses.replace(roster, members=members, banned=(*roster.banned, *out))


def test_only_bans_lower_the_number_of_liars() -> None:
    """[G1] L = b − bans, however many left: nobody can tell who is gone for good. One under two keys counts once."""
    founders = Roster.founding(run_of(16, byzantine=7))
    for bans in range(8):
        for gone in range(8):
            assert without(founders, banned=bans, gone=gone).liars == 7 - bans
    equivocations = dataclasses.replace(founders, banned=KEYS[:3], successors=((KEYS[0], KEYS[1]),))
    assert (equivocations.liars_gone, equivocations.liars) == (2, 5)
    assert without(founders, banned=9).liars == 0


@pytest.mark.parametrize(
    ("banned", "gone", "quorum"),
    [
        (0, 0, 9),
        (0, 1, 8),
        (0, 2, 8),
        (0, 3, 8),
        (0, 7, 8),
        (0, 8, 8),
        (0, 9, 8),
        (1, 0, 8),
        (7, 0, 5),
        (7, 4, 3),
        (3, 6, 5),
    ],
)
def test_a_quorum_is_a_majority_and_more_than_all_liars(banned: int, gone: int, quorum: int) -> None:
    """[G1] Else seven liars would be one as soon as three honest members were gone."""
    roster = without(Roster.founding(run_of(16, byzantine=7)), banned=banned, gone=gone)
    assert roster.quorum == quorum
    assert 2 * quorum > len(roster.members)
    assert quorum > roster.liars


@pytest.mark.parametrize(
    ("banned", "gone", "contributors", "moves"),
    [
        (0, 0, 15, True),
        (0, 7, 8, True),  # they may be all of the liars
        (0, 8, 8, False),  # one of them is honest, and those who are left may be half liars
        (0, 8, 15, True),  # but not if all those contribute (they do not)
        (7, 0, 6, True),
        (7, 4, 5, True),  # no liar is left
        (1, 6, 8, True),
        (1, 7, 8, False),
        (3, 8, 9, True),  # four liars of nine
        (3, 8, 8, False),
    ],
)
def test_when_the_model_moves(banned: int, gone: int, contributors: int, moves: bool) -> None:
    """[G2] At most b gone, for whatever reason; or fewer than half of the contributors can be liars."""
    roster = without(Roster.founding(run_of(16, byzantine=7)), banned=banned, gone=gone)
    assert roster.moves(len(roster.members), contributors) == moves
    # A member that leaves in the step itself counts as gone.
    before = without(Roster.founding(run_of(16, byzantine=7)), banned=banned)
    assert before.moves(16 - banned - gone, contributors) == moves


# Of four one may lie, and does not.
FOUR = dataclasses.replace(
    SMALL, peers=4, byzantine=1, attack_start=11, attack_probability=1e-12, steps=12, evaluate_every=12, tau_auto=0.5
)


@pytest.mark.parametrize(("gone", "rests"), [(4, False), (6, True), (9, True)])
def test_whoever_makes_no_update_rests(gone: int, rests: bool) -> None:
    """[G3, R3] Ten of sixteen with L = 4 would do if all contributed, but two are validators: members made steps for ever,
    without a rest, and kept the record of each."""
    run = run_of(16, validators=2, byzantine=4)
    last = before = Roster.founding(run)
    for step in range(3):
        absent = tuple(map(bytes, KEYS[:gone])) if not step else ()
        record = msgspec.structs.replace(
            CLOSE, step=step, members=before.members, absent=absent, changed=before.changed
        )
        roles = draw_roles(run, before, Digest(bytes(32)), PendingAudits(step - 1, before.members))
        updated = not step or before.moves(len(before.members), len(roles.owners))
        record = msgspec.structs.replace(record, updated=updated, updates=1, closing=False)
        last, before = before, before.after(record)
    assert before.paused == rests
    first = State.first(run, None, Digest(bytes(32)))
    known = Known(dataclasses.replace(first, roster=before), past=(dataclasses.replace(first, roster=last),))
    peer: Any = SimpleNamespace(run=run, tools=UNSHARED)
    ledger = Ledger(peer, known, lambda _: None, lambda _: None)
    assert ledger.rests == rests


@pytest.mark.parametrize("gone", [1, 2])
def test_of_four_one_may_go_and_with_two_gone_the_run_pauses(gone: int) -> None:
    """[G2, R6, A6] With three left everyone audits, and the model moves on. With two it stands still, and so do τ and what
    counts updates: nothing is used up."""
    simulation = ProtocolSimulation(FOUR)
    for number, peer in enumerate(simulation.honest[:gone]):
        wrap_channel(simulation, peer, partial(DroppingChannel, drop_out=DropOut(3 + 2 * number, 0)))
    run_on(simulation)
    kept_promises(simulation)
    by_step = [record for record in records(simulation) if not record.closing]
    assert len(by_step) == 12
    for before, record in pairwise(by_step):
        left = set(record.members) - set(record.absent)
        paused = len(left) < 3
        assert record.updated == (not paused)
        assert record.updates == before.updates + record.updated
        assert (record.state_after == record.state_before) == paused
        assert record.contributors == tuple(sorted(left)) or len(record.members) == 4
    assert by_step[-1].updates == (12 if gone == 1 else 5)
    if gone == 2:
        assert len({record.tau for record in by_step[5:]}) == 1
    witness = simulation.states[simulation.honest[-1]]
    assert witness.scales.updates == by_step[-1].updates
    # One audit in each step while a validator can be spared; then everyone's of everyone.
    assert simulation.audits > 12 * gone


def test_with_one_of_two_back_the_model_moves_again() -> None:
    """[G2, B3] Members that are there count, even if they once were gone."""
    roster = Roster.founding(run_of(4, byzantine=1))
    gone = msgspec.structs.replace(CLOSE, members=KEYS[:4], absent=KEYS[:2])
    roster = roster.after(gone)
    assert (roster.members, roster.quorum, roster.moves(2, 2)) == (KEYS[2:4], 2, False)
    back = msgspec.structs.replace(CLOSE, step=gone.step + 9, members=KEYS[2:4], returned=(Returned(KEYS[0], KEYS[0]),))
    roster = roster.after(back)
    assert (roster.members, roster.quorum, roster.moves(3, 3)) == ((KEYS[0], *KEYS[2:4]), 2, True)


def test_the_run_id_names_everything_that_was_agreed() -> None:
    """[G1, U2] Another parameter, founder or description is another run."""
    base = Parameters(size=100, tau=1.0, byzantine=1)
    runs = [
        Run(KEYS, b"a", base, bytes(32)),
        Run(KEYS, b"b", base, bytes(32)),
        Run(KEYS, b"a", base, b"n" * 32),
        Run(KEYS[:-1], b"a", base, bytes(32)),
        Run(KEYS, b"a", Parameters(size=101, tau=1.0, byzantine=1), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.5, byzantine=1), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=2), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, validators=2), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, projections=8), bytes(32)),
        Run(KEYS, b"a", Parameters(size=100, tau=1.0, byzantine=1, beyond_guarantee=True), bytes(32)),
    ]
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0, "tau": 1.0, "byzantine": 0},
        {"size": 10, "tau": 0.0, "byzantine": 0},
        {"size": 10, "tau": float("nan"), "byzantine": 0},
        {"size": 10, "tau": 1e-300, "byzantine": 0},
        {"size": 10, "tau": 1.0, "byzantine": -1},
        {"size": 10, "tau": 1.0, "byzantine": 0, "projections": 65},
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    """[G1]"""
    with pytest.raises(RunError):
        Parameters(**wrong)  # type: ignore[arg-type]


def test_founders_are_sorted_distinct_and_no_more_than_parameters() -> None:
    """[R5]"""
    numbers = Parameters(size=100, tau=1.0, byzantine=0)
    for founders in ((), KEYS[::-1], (KEYS[0], KEYS[0])):
        with pytest.raises(RunError):
            Run(founders, b"", numbers, bytes(32))
    with pytest.raises(RunError, match="cannot be split"):
        Run(KEYS, b"", Parameters(size=3, tau=1.0, byzantine=0), bytes(32))
