"""What a run withstands, held against the roster that decides it."""

from dataclasses import replace

import pytest

from troth.crypto import Identity, derive
from troth.network.manifest.manifest import Resilience
from troth.protocol.core.roster import Roster, least_to_move
from troth.protocol.core.run import Parameters, Run, effective_validators, most_byzantine

KEYS = tuple(sorted(Identity.from_secret(derive(0, "founder", k)).peer for k in range(20)))


def run_of(founders: int, byzantine: int) -> Run:
    return Run(KEYS[:founders], b"", Parameters(size=40, tau=1.0, byzantine=byzantine), bytes(32))


def goes_on_without(run: Run, steps: list[int]) -> tuple[bool, bool]:
    """Whether the members go on if so many vanish in each step, and whether the model then moves: by the roster alone."""
    roster = Roster.founding(run)
    for vanish in steps:
        rest = roster.members[vanish:]
        if len(rest) < roster.quorum:
            return False, False
        roster = replace(roster, members=rest)
    count = len(roster.members)
    return True, roster.moves(count, count - effective_validators(count, run.parameters.validators))


@pytest.mark.parametrize("founders", range(1, 21))
def test_the_numbers_are_those_at_which_the_roster_changes_its_mind(founders: int) -> None:
    """[G1, G2, B5] For every number of liars that may be promised: one more gone, and it is as the sentence says."""
    for byzantine in range(most_byzantine(founders, 1) + 1):
        run = run_of(founders, byzantine)
        said = Resilience.of(run)
        assert (said.founders, said.liars) == (founders, byzantine)
        assert goes_on_without(run, [1] * said.gone) == (True, True)
        assert goes_on_without(run, [1] * (said.gone + 1))[1] is False
        assert goes_on_without(run, [said.at_once])[0]
        assert not goes_on_without(run, [said.at_once + 1])[0]
        roster = Roster.founding(run)
        assert said.begins >= roster.restart_quorum
        assert said.begins >= said.agreed == roster.quorum
        assert said.begins <= founders, "else it could never begin"
        needed = least_to_move(roster, 1)
        assert roster.moves(needed, needed - effective_validators(needed, 1))
        assert needed == 1 or not roster.moves(needed - 1, needed - 1 - effective_validators(needed - 1, 1))
        assert founders - needed >= said.gone


def test_four_friends_are_told_in_plain_words() -> None:
    assert Resilience.of(run_of(4, 1)).sentences() == [
        "4 founders: withstands 1 liar.",
        "Goes on training while at most 1 is gone; with 2 gone it pauses until one is back, and steps and schedule wait.",
        "If 2 or more vanish within one step, it stops until 3 are there.",
        "It begins when all are there; 3 are enough after a while (troth join --founding-s).",
    ]


def test_few_and_many() -> None:
    assert Resilience.of(run_of(2, 0)).sentences()[1:] == [
        "Trains while all are there; with 1 gone it pauses until one is back, and steps and schedule wait.",
        "To begin, all have to be there.",
    ]
    assert "nobody checks it" in Resilience.of(run_of(1, 0)).sentences()[0]
    assert "stops until 15 are there (or 9, if you agree" in Resilience.of(run_of(16, 7)).sentences()[2]
    assert "if they leave one after another" in Resilience.of(run_of(8, 0)).sentences()[1]
