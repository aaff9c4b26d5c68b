"""Votes on a charge: the ballot that a judgement asks for, and whether a vote convicts."""

from troth.protocol.core.records import Judgement
from troth.protocol.wire.messages import Ballot, Verdict, Vote


def convicts(vote: Vote, judgement: Judgement) -> bool:
    """Whether this is a vote for the verdict. Two ballots of one member on one charge count as none."""
    answers = [ballot for ballot in vote.ballots if ballot_on(judgement, ballot.verdict, ballot.state) == ballot]
    return [(ballot.verdict, ballot.state) for ballot in answers] == [(judgement.verdict, judgement.state)]


def ballot_on(judgement: Judgement, verdict: Verdict, state: bytes) -> Ballot:
    """The ballot that answers this judgement's charge with that verdict, found at that state."""
    return Ballot(
        judgement.accuser,
        judgement.target,
        judgement.kind,
        judgement.step,
        judgement.part,
        verdict,
        judgement.message,
        state,
    )
