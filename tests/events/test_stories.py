"""Trials as stories, for every kind of charge and every end."""

import pytest
from msgspec.structs import replace

from tests.protocol.small_runs import SMALL
from troth.events.kinds import Ballot, Trial
from troth.events.phrases import story_of
from troth.protocol.wire.messages import ChargeKind
from troth.workshop.simulation import ProtocolSimulation

TRIAL = Trial(
    kind="gradient",
    target="eve",
    step=7,
    verdict="accused",
    accuser="bob",
    part=2,
    banned="eve",
    votes={"bob": "accused", "eve": "accuser", "carol": "accused"},
    quorum=2,
)


@pytest.mark.parametrize("kind", [kind.name.lower() for kind in ChargeKind])
def test_every_kind_of_charge_has_words(kind: str) -> None:
    public = replace(TRIAL, kind=kind, accuser=None, votes={})
    for trial in (replace(TRIAL, kind=kind), public):
        first, *_, last = story_of(trial)
        assert first.startswith("eve ")
        assert last == "eve is banned."
        assert not any("None" in sentence or "{" in sentence for sentence in story_of(trial))


def test_those_who_accused_it_of_the_same_are_told_together() -> None:
    def found(*also: str) -> str:
        return story_of(replace(TRIAL, also=also))[1].removeprefix(story_of(TRIAL)[1])

    assert found("carol") == " So did carol."
    assert found("carol", "dave") == " So did carol and dave."
    assert found(*"abcde") == " So did a, b, c, d and e."
    assert found(*"abcdefg") == " So did a, b, c, d and 3 others."


def test_votes_are_told_as_what_voters_say() -> None:
    assert story_of(TRIAL)[2] == (
        "3 members voted, each on what it computed itself: 2 say eve is wrong, 1 say bob is wrong. 2 votes decide."
    )


def test_a_false_accuser_is_banned_and_a_dismissed_trial_bans_nobody() -> None:
    assert story_of(replace(TRIAL, verdict="accuser", banned="bob"))[-1] == "bob is banned for accusing eve falsely."
    assert story_of(replace(TRIAL, verdict="withheld", banned=None))[-1] == "eve is out, without a ban."
    assert "nobody is banned" in story_of(replace(TRIAL, verdict="dismissed", banned=None))[-1]


def test_an_owner_whose_part_was_disputed_is_acquitted_in_words() -> None:
    """Nobody accused it, and all found its work right: not a trial without enough votes."""
    votes: dict[str, Ballot] = {"bob": "accuser", "eve": "accuser", "carol": "accuser"}
    trial = replace(TRIAL, kind="aggregate", accuser=None, verdict="accuser", banned=None, votes=votes)
    _, found, said, end = story_of(trial)
    assert "part 2 was disputed" in found
    assert said == "3 members voted, each on what it computed itself: 3 say eve is right. 2 votes decide."
    assert end == "eve is acquitted."


@pytest.mark.parametrize("kind", ["aggregate", "report", "cover"])
def test_only_audits_are_made_again_after_a_dismissal(kind: str) -> None:
    dismissed = replace(TRIAL, verdict="dismissed", banned=None)
    assert "still to be audited" in story_of(dismissed)[-1]
    assert story_of(replace(dismissed, kind=kind))[-1] == "Neither side has enough votes: nobody is banned."


@pytest.mark.long
def test_a_run_under_attack_is_told_without_what_it_did_not_see() -> None:
    """Who did what in a step, against the scenario: liars vote for each other, and the auditor is the accuser."""
    simulation = ProtocolSimulation(SMALL)
    events = [event for report in simulation.steps() for event in report.events]
    liars = {f"peer{number}" for number in simulation.byzantine}
    assert [event.step for event in events] == list(range(SMALL.total_steps + 1))
    trials = [(event, trial) for event in events for trial in event.trials]
    assert {trial.banned for _, trial in trials} == liars == {ban.peer for event in events for ban in event.banned}
    for event, trial in trials:
        assert trial.accuser is not None
        assert (trial.accuser, trial.target, trial.step) in {(a.auditor, a.target, a.step) for a in event.audits}
        assert all(ballot == "accused" for voter, ballot in trial.votes.items() if voter not in liars)
        assert sum(ballot == "accused" for ballot in trial.votes.values()) >= trial.quorum
    for event in events[:-1]:
        contributors = {*event.owners}
        assert not contributors & {*event.validators}
        assert all(audit.auditor != audit.target for audit in event.audits)
