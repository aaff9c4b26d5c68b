"""Bans of every kind, to be recomputed, or signed again with changes."""

from typing import Any

import msgspec

from tests.evidence.forger import Forger
from troth.crypto import Digest
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import Exhibit, SignedMessage
from troth.evidence.recompute import Recomputed, recompute
from troth.evidence.verify import verify_ban
from troth.protocol.step.trials import Charge
from troth.protocol.wire.messages import ChargeKind, Phase, Vote
from troth.workshop.simulation import ProtocolSimulation, Scenario

QUICK = Scenario(
    task="quadratic:dimension=60", peers=8, byzantine=3, attack_start=3, steps=25, evaluate_every=30, seed=1
)
ATTACKS = {  # and the kinds of their bans
    "sign-flip": {ChargeKind.GRADIENT},
    "wrong-report": {ChargeKind.REPORT},
    "wrong-aggregate": {ChargeKind.AGGREGATE},
    "false-accusation": {ChargeKind.REPORT},
    "mass-accusation": {ChargeKind.REPORT},  # of validators too, who report nothing: that is not heard
    "covered-aggregate": {ChargeKind.AUDITED_REPORT, ChargeKind.COVER},
}


def recomputed(evidence: BanEvidence, text: str | None = None, **changes: Any) -> Recomputed:
    """Result of recomputing this ban, or the text of another one, from its companions or others."""
    proof = verify_ban(evidence.text if text is None else text)
    return recompute(proof, **{"training": evidence.training, "blobs": evidence.blobs, **changes})


def ban_of_kind(runs: dict[str, ProtocolSimulation], kind: ChargeKind) -> tuple[ProtocolSimulation, BanEvidence]:
    """A ban of the accused for that kind of lie, and the run it happened in."""
    for attack, kinds in ATTACKS.items():
        for evidence in runs[attack].evidence if kind in kinds and "accusation" not in attack else ():
            if verify_ban(evidence.text).judgement.kind == kind:
                return runs[attack], evidence
    raise AssertionError(f"nobody was banned for {kind.name}")


class ExhibitedBan:
    """Evidence of one kind, to be signed again with changes, each message by its own sender."""

    def __init__(self, runs: dict[str, ProtocolSimulation], kind: ChargeKind) -> None:
        simulation, self.evidence = ban_of_kind(runs, kind)
        self.forger, self.proof = Forger(simulation, self.evidence), verify_ban(self.evidence.text)
        assert self.forger.file.exhibit is not None
        self.exhibit: Exhibit = self.forger.file.exhibit

    def signed_again(self, phase: Phase, messages: list[SignedMessage], **changes: Any) -> list[SignedMessage]:
        """These messages with changes, each signed again by its sender."""

        def changed(message: Any) -> Any:
            return msgspec.structs.replace(message, **changes)

        attempt = 0 if phase == Phase.COMMIT else self.exhibit.attempt
        return [
            self.forger.message(one, phase, changed, self.proof.judgement.step, attempt=attempt) for one in messages
        ]

    def text(self, *, judged: Digest, tau: float | None = None, **changes: Any) -> str:
        """The file with these changes, in which all members say that they judged this message, and that the step had this
        radius."""
        exhibit, file = msgspec.structs.replace(self.exhibit, **changes), self.forger.file
        judgement = msgspec.structs.replace(self.proof.judgement, message=judged)

        def ballots(_vote: Vote) -> Vote:
            assert judgement.verdict is not None
            return Vote((Charge.of(judgement).cast(judgement.verdict, Digest(judgement.state)),))

        other = {} if tau is None else {"tau": tau}
        record = self.forger.record(file.record, judgements=(judgement,), **other)
        votes = [self.forger.message(one, Phase.VOTE, ballots, attempt=judgement.attempt) for one in file.votes]
        return self.forger.text(exhibit=exhibit, record=record, votes=votes)

    def refusal(self, **changes: Any) -> str:
        """Why the file with this exhibit is refused; empty if it is not."""
        return self.forger.refusal(exhibit=msgspec.structs.replace(self.exhibit, **changes))
