"""[E1] Liars make their votes long: evidence holds the shortest that convict, as many as it takes, and no more."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pytest

import troth.attacks
from troth.crypto import Digest, Identity, Slot, derive
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import MOST_BYTES, SignedMessage, checksum, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.channel import AttemptView, Said
from troth.protocol.step.trials import Charge, convicts
from troth.protocol.wire.messages import Ballot, ChargeKind, GuiltySide, Message, Phase, Vote
from troth.protocol.wire.phases import decode, seal
from troth.workshop.attacks.base import ColludingChannel
from troth.workshop.attacks.gradient_lies import SignFlip
from troth.workshop.simulation import ProtocolSimulation, Scenario


def invented(number: int) -> Ballot:
    """A ballot on a charge that nobody brought."""
    accuser, target = (hashlib.sha256(f"{who} {number}".encode()).digest() for who in ("accuser", "target"))
    return Ballot(accuser, target, ChargeKind.AGGREGATE, 2**61 + number, 1000, GuiltySide.ACCUSER)


JUNK = tuple(map(invented, range(500)))


class Padding(ColludingChannel):
    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        if isinstance(message, Vote):
            message = Vote((*message.ballots, *JUNK))  # also with the right verdict: it may be chosen
        return await self._honest.announce(slot, message, view)


@dataclass(frozen=True)
class Padded(SignFlip):
    """Sign-flip, with long votes."""

    behaviour: ClassVar[type[ColludingChannel]] = Padding
    needs_protocol: ClassVar[bool] = True


@pytest.fixture(scope="module")
def banned() -> tuple[ProtocolSimulation, BanEvidence]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(troth.attacks.ATTACKS, "padded", Padded)
        simulation = ProtocolSimulation(
            Scenario(
                task="quadratic:dimension=60", peers=9, byzantine=3, attack="padded", attack_start=1, steps=40, seed=1
            )
        )
        for _ in simulation.steps():
            if simulation.evidence:
                return simulation, simulation.evidence[0]
    raise AssertionError("no liar was banned")


def test_padding_of_liars_votes_stays_out(banned: tuple[ProtocolSimulation, BanEvidence]) -> None:
    simulation, evidence = banned
    proof = verify_ban(evidence.text, simulation.run.id)
    file, majority = evidence.file, len(simulation.run.founders) // 2 + 1
    assert len(file.votes) == proof.votes == majority, "as many as it takes"
    honest = {peer.hex() for peer in simulation.honest}
    assert {vote.sender for vote in file.votes} <= honest
    assert len(evidence.text) < 40_000 < 2 * len(msgspec.msgpack.encode(Vote(JUNK))), (
        "one long vote alone would be more"
    )


def test_every_vote_in_the_file_convicts(banned: tuple[ProtocolSimulation, BanEvidence]) -> None:
    """A vote that says something else proves nothing, and only makes the file longer."""
    _, evidence = banned
    judgement = verify_ban(evidence.text).judgement
    for vote in evidence.file.votes:
        message = decode(Phase.VOTE, bytes.fromhex(vote.payload))
        assert isinstance(message, Vote)
        assert convicts(message, judgement)
        assert not convicts(Vote((*message.ballots, *message.ballots)), judgement), (
            "a member that votes twice has no say"
        )
        assert not convicts(Vote(JUNK), judgement)


@pytest.mark.parametrize(("count", "why"), [(5, "a vote does not convict"), (4, "no quorum"), (6, None)])
def test_a_file_with_other_votes_is_refused(
    banned: tuple[ProtocolSimulation, BanEvidence], count: int, why: str | None
) -> None:
    """All are signed by members, for the right slot."""
    simulation, evidence = banned
    proof = verify_ban(evidence.text)
    judgement = proof.judgement
    slot = Slot(simulation.run.id, proof.step, Phase.VOTE, judgement.attempt)
    convict = Vote((Charge.of(judgement).cast(GuiltySide.ACCUSED, Digest(judgement.state)),))
    members = [Identity.from_secret(derive(1, "identity", number)) for number in range(9)]
    votes = []
    for number, member in enumerate(sorted(members, key=lambda one: one.peer)[:count]):
        envelope = seal(member, slot, Vote(()) if why and "does not" in why and not number else convict)
        votes.append(SignedMessage(member.peer.hex(), envelope.payload.hex(), envelope.signature.hex()))
    other = msgspec.structs.replace(evidence.file, votes=votes)
    text = to_text(msgspec.structs.replace(other, checksum=checksum(other)))
    if why is None:
        assert verify_ban(text).votes == count
        return
    with pytest.raises(UnprovedError, match=why):
        verify_ban(text)


def test_evidence_has_a_largest_size() -> None:
    with pytest.raises(ValueError, match="too many"):
        from_text(" " * (MOST_BYTES + 1))
    with pytest.raises(UnprovedError, match="too many"):
        verify_ban(" " * (MOST_BYTES + 1))
