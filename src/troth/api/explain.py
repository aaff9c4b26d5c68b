"""Evidence in words: what was claimed, who decided, what can be repeated, and what it does not say."""

from troth.crypto import PeerId
from troth.events.kinds import Ballot, Trial
from troth.events.stories import story_of
from troth.evidence.verify import Proof
from troth.evidence.verify_model import ModelProof
from troth.protocol.wire.messages import Kind, Verdict

_SIDE: dict[Verdict, Ballot] = {Verdict.ACCUSED: "accused", Verdict.ACCUSER: "accuser", Verdict.WITHHELD: "withheld"}
_GRADIENT = (
    "the gradient of {target} in step {step}, from the state before that step ({state}…) and the seed drawn for it"
)
_PART = "part {part} of step {step}, from what its contributors and its owner signed"
_REPEATED = {
    Kind.GRADIENT: _GRADIENT,
    Kind.DEVIATION: _GRADIENT,
    Kind.AUDITED_REPORT: _GRADIENT + ", and from that its report",
    Kind.REPORT: _PART,
    Kind.AGGREGATE: _PART,
    Kind.COVER: _PART,
}


def explain_ban(proof: Proof) -> tuple[str, ...]:
    """What the file of a ban says, a paragraph each; all of it was checked, but for the recomputation."""
    members = ", ".join(map(proof.name, proof.roster.members))
    lines = [
        "Claimed: " + " ".join(story_of(_trial(proof))),
        f"Who the members were follows from the run's founders: the file holds every change since, each signed by a quorum. In "
        f"step {proof.step} they were {members}.",
    ]
    if proof.voters:
        voters = ", ".join(map(proof.name, proof.voters))
        lines.append(
            f"Voted for the ban: {voters}. {proof.roster.quorum} decide, and the file holds no more than it takes."
        )
    return (
        *lines,
        f"Can be repeated: {_repeatable(proof)}.",
        "Says nothing of intent: a bug, another version, other hardware or broken memory look the same. Only a key is banned.",
    )


def explain_model(proof: ModelProof) -> tuple[str, ...]:
    """What the proof of a model says, a paragraph each; all of it was checked, but for the weights."""
    members = ", ".join(map(proof.name, proof.roster.members))
    return (
        f"Claimed: the run ended after {proof.record.updates} updates with the state {proof.state.hex()}.",
        f"Who the members were follows from the run's founders: the file holds every change since, each signed by a quorum. At "
        f"the end they were {members}.",
        f"Signed by {proof.signers} of them; {proof.roster.quorum} are a quorum. Each made the last update itself.",
        "Can be repeated: the digests of the weights beside it, as the task names them.",
        "Says nothing of quality, nor of steps that nobody audited.",
    )


def _trial(proof: Proof) -> Trial:
    judged = proof.judgement
    side = _SIDE[Verdict.ACCUSED if judged.verdict is None else judged.verdict]
    return Trial(
        kind=judged.kind.name.lower(),
        target=proof.name(PeerId(judged.target)),
        step=judged.step,
        verdict=side,
        accuser=None if judged.accuser is None else proof.name(PeerId(judged.accuser)),
        part=judged.part,
        banned=proof.name(proof.banned),
        votes={proof.name(voter): side for voter in proof.voters},
        quorum=proof.roster.quorum,
    )


def _repeatable(proof: Proof) -> str:
    judged = proof.judgement
    if judged.kind == Kind.EQUIVOCATION:
        return "both signatures, which are in the file; nothing else is needed"
    if proof.exhibit is None:
        return "nothing but the signatures: the file holds votes"
    state = "" if proof.state is None else proof.state.hex()[:8]
    what = _REPEATED[judged.kind].format(
        target=proof.name(PeerId(judged.target)), step=judged.step, part=judged.part, state=state
    )
    basis = (
        "and the banned peer signed itself what that starts from" if proof.own_word else f"but {proof.not_own_word()}"
    )
    return f"{what}, {basis}"
