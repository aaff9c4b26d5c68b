"""Checking evidence of a ban, offline, trusting nothing in the file but what the signatures carry (SPEC E1).

What is proved: starting from the founders named by the run's hash, and following only records that more than half of
the members before them signed, the banned peer was judged by more than half of the members of its step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from troth.crypto import Context, Digest, PeerId, Signature, valid_peer
from troth.evidence.bans import FORMAT, BanFile, SignedMessage, SignedRecord, envelope_of, from_text
from troth.protocol.messages import Accuse, Commit, Kind, Malformed, Message, Phase, Verdict, Vote
from troth.protocol.primitives import Primitives
from troth.protocol.records import Judgement, StepRecord, decode_record, right_signers
from troth.protocol.roles import draw_roles
from troth.protocol.roster import Roster
from troth.protocol.run import Parameters, Run, RunError


class UnprovedError(ValueError):
    """The file does not prove what it says; the message says where it breaks."""


@dataclass(frozen=True)
class Proof:
    """What the file proves, and the pieces that a recomputation needs."""

    run: Run
    judgement: Judgement
    before: StepRecord  # the step of the disputed gradient
    step: int  # the step of the ban
    votes: int
    members: int
    commit: Commit
    control: tuple[PeerId, Commit]

    @property
    def banned(self) -> PeerId:
        banned = self.judgement.banned
        assert banned is not None
        return banned

    def sentence(self) -> str:
        who, run = self.banned.hex()[:12], self.run.id.hex()[:12]
        if self.banned == self.judgement.target:
            what = f"recomputed its gradient of step {self.before.step} and found that it does not follow from its seed"
        else:
            what = f"found its accusation of peer {self.judgement.target.hex()[:12]} to be false"
        beyond = " (a run beyond the guarantee)" if self.run.parameters.beyond_guarantee else ""
        return (
            f"Peer {who} was banned in step {self.step} of run {run}{beyond}: "
            f"{self.votes} of {self.members} members {what}."
        )


def verify_ban(text: str) -> Proof:
    """Raise `UnprovedError`, or return what was proved."""
    try:
        file = from_text(text)
        if file.format != FORMAT:
            raise UnprovedError(f"unknown format '{file.format}'")
        return _prove(file)
    except UnprovedError:
        raise
    except (ValueError, msgspec.MsgspecError) as error:
        raise UnprovedError(str(error)) from error


def _prove(file: BanFile) -> Proof:
    run, tools = _run(file), Primitives()
    roster = Roster.founding(run)
    for change in file.history:
        roster = roster.without(_record(run, change, roster, tools).banned)
    before = _record(run, file.before, roster, tools)
    roster = roster.without(before.banned)
    record = _record(run, file.record, roster, tools)
    _expect(record.step == before.step + 1, "the records are not of neighbouring steps")

    commit = _open(run, file.commit, before.step, Phase.COMMIT, tools)
    control = _open(run, file.control, before.step, Phase.COMMIT, tools)
    accusation = _open(run, file.accusation, record.step, Phase.ACCUSE, tools)
    assert isinstance(commit, Commit)
    assert isinstance(control, Commit)
    assert isinstance(accusation, Accuse)
    accuser, target = _key(file.accusation.sender), _key(file.commit.sender)
    _expect(target in before.contributors, "the accused did not contribute to that step")
    _expect(_key(file.control.sender) in before.contributors, "the control did not contribute to that step")
    _expect(
        any(a.target == target and a.kind == Kind.GRADIENT for a in accusation.accusations),
        "the accusation is of somebody else",
    )
    roles = draw_roles(run, roster, Digest(before.randomness), [PeerId(c) for c in before.contributors])
    _expect(roles.targets.get(accuser) == target, "the accuser was not drawn to audit the accused")

    judgement = _judgement(record, accuser, target)
    _expect(judgement.banned == _key(file.banned), "the record bans somebody else")
    votes = _count(run, file.votes, record, judgement, roster, tools)
    _expect(votes >= roster.majority, f"{votes} of {len(roster.members)} votes are no majority")
    return Proof(
        run, judgement, before, record.step, votes, len(roster.members), commit, (_key(file.control.sender), control)
    )


def _run(file: BanFile) -> Run:
    founding = file.run
    try:
        return Run(
            founders=tuple(_key(peer) for peer in founding.founders),
            description=founding.description.encode(),
            parameters=Parameters(
                size=founding.size,
                tau=float.fromhex(founding.tau),
                byzantine=founding.byzantine,
                validators=founding.validators,
                projections=founding.projections,
                beyond_guarantee=founding.beyond_guarantee,
            ),
        )
    except RunError as error:
        raise UnprovedError(f"no run can be founded like this: {error}") from error


def _record(run: Run, signed: SignedRecord, roster: Roster, tools: Primitives) -> StepRecord:
    """The record, if it follows on this roster and more than half of it signed; every signature listed must fit."""
    raw = bytes.fromhex(signed.record)
    record = decode_record(raw)
    _expect(record.members == roster.members, f"the record of step {record.step} is of another roster")
    signatures = {_key(peer): Signature(bytes.fromhex(s)) for peer, s in signed.signatures.items()}
    right = right_signers(run.id, record.step, raw, roster.members, signatures, tools)
    _expect(len(right) == len(signed.signatures), f"a signature of the record of step {record.step} does not fit")
    _expect(len(right) >= roster.majority, f"too few signed the record of step {record.step}")
    return record


def _open(run: Run, message: SignedMessage, step: int, phase: Phase, tools: Primitives) -> Message:
    announced = tools.open(Context(run.id, step, phase), _key(message.sender), envelope_of(message))
    if isinstance(announced, Malformed):
        raise UnprovedError(f"a {phase.name.lower()} message of step {step}: {announced.reason}")
    return announced.message


def _judgement(record: StepRecord, accuser: PeerId, target: PeerId) -> Judgement:
    found = [j for j in record.judgements if (j.accuser, j.target, j.kind) == (accuser, target, Kind.GRADIENT)]
    _expect(len(found) == 1, "the record holds no such judgement")
    return found[0]


def _count(
    run: Run,
    messages: Sequence[SignedMessage],
    record: StepRecord,
    judgement: Judgement,
    roster: Roster,
    tools: Primitives,
) -> int:
    """How many members voted as judged. Every message listed must be a member's, and no member may be listed twice."""
    voters = [_key(message.sender) for message in messages]
    _expect(len(set(voters)) == len(voters), "a vote is listed twice")
    _expect(set(voters) <= set(roster.members), "a vote is not of a member")
    count = 0
    for message in messages:
        vote = _open(run, message, record.step, Phase.VOTE, tools)
        assert isinstance(vote, Vote)
        charge = (judgement.accuser, judgement.target, judgement.kind)
        mine: list[Verdict] = [b.verdict for b in vote.ballots if (b.accuser, b.target, b.kind) == charge]
        count += mine == [judgement.verdict]
    return count


def _key(text: str) -> PeerId:
    key = bytes.fromhex(text)
    _expect(valid_peer(key), f"'{text[:16]}…' is no valid key")
    return PeerId(key)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnprovedError(otherwise)
