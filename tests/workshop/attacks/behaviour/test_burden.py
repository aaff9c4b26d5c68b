"""Votes full of invented charges, and complaints about parts that did come."""

import dataclasses

import pytest

from tests.protocol.small_runs import SMALL, finished, kept_promises, records
from troth.protocol.wire.messages import MOST_CHARGES, ChargeKind, GuiltySide, Malformed, Phase, Vote
from troth.protocol.wire.phases import decode, encode
from troth.specs import SpecError
from troth.workshop.attacks import make_attack
from troth.workshop.attacks.roles import invented
from troth.workshop.simulation import ProtocolSimulation, Scenario

BALLOTS = 300
PADDED = dataclasses.replace(SMALL, attack=f"pad-votes:ballots={BALLOTS}")


def test_a_full_vote_is_a_message() -> None:
    """[M3] As many as there may be; one more is refused."""
    assert decode(Phase.VOTE, encode(Vote(invented(b"x", MOST_CHARGES)))) == Vote(invented(b"x", MOST_CHARGES))
    assert isinstance(decode(Phase.VOTE, encode(Vote(invented(b"x", MOST_CHARGES + 1)))), Malformed)


def test_invented_charges_differ_and_are_the_same_for_all_liars() -> None:
    assert len({(b.accuser, b.target, b.step) for b in invented(b"x", 50)}) == 50
    assert invented(b"x", 50) == invented(b"x", 50)


def test_ballots_have_a_limit() -> None:
    for wrong in (0, MOST_CHARGES + 1):
        with pytest.raises(SpecError, match="ballots must be from 1"):
            make_attack(f"pad-votes:ballots={wrong}")


@pytest.fixture(scope="module")
def padded() -> ProtocolSimulation:
    return finished(PADDED, until=lambda s: bool(s.bans))


def test_padding_changes_no_verdict(padded: ProtocolSimulation) -> None:
    """[T4] Fewer than half vote on such a charge, so there is none."""
    assert set(kept_promises(padded)) <= set(padded.byzantine)
    assert padded.bans
    assert all(j.verdict == GuiltySide.ACCUSED for record in records(padded) for j in record.judgements)
    assert {j.kind for record in records(padded) for j in record.judgements} == {ChargeKind.GRADIENT}


@pytest.mark.long
def test_evidence_holds_the_votes_that_convict_and_no_more(padded: ProtocolSimulation) -> None:
    bare = finished(dataclasses.replace(SMALL, attack="sign-flip"), until=lambda s: bool(s.bans))
    assert len(padded.evidence[0].text) < 2 * len(bare.evidence[0].text)


TWENTY = Scenario(
    task="quadratic:dimension=60", peers=20, byzantine=9, attack="complain", attack_start=1, steps=2, seed=1
)


@pytest.fixture(scope="module")
def complained() -> ProtocolSimulation:
    return finished(TWENTY)


def test_every_complaint_repeats_the_attempt(complained: ProtocolSimulation) -> None:
    """[N5] Whoever complains about what came is out, and no honest peer is."""
    kept_promises(complained)
    assert complained.attempts > 3 + 4, "two steps and the closing one, and what the complaints cost"
    assert set(complained.absent) <= set(complained.byzantine)


def test_attempts_are_bounded_by_twice_the_members(complained: ProtocolSimulation) -> None:
    assert complained.attempts <= 1 + 2 * 20
