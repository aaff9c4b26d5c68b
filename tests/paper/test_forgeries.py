"""Evidence that is validly signed by everyone, but wrong in one relation: each must be refused for that reason."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from troth.crypto import Context, Identity, PeerId, blob_digest, derive
from troth.evidence.bans import BanFile, SignedMessage, SignedRecord, checksum, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.messages import Accuse, Message, Phase, Verdict, Vote, decode, seal
from troth.protocol.records import StepRecord, decode_record, encode_record, record_bytes_to_sign
from troth.simulation import ProtocolSimulation


class Forger:
    """Holds every key of a run, and signs whatever is asked."""

    def __init__(self, simulation: ProtocolSimulation) -> None:
        self.run = simulation.run
        self.identities = {peer: member.identity for peer, member in simulation.peers.items()}
        self.file = from_text(simulation.evidence[1].text)

    def record(self, signed: SignedRecord | None, **changes: Any) -> SignedRecord:
        assert signed is not None
        record: StepRecord = msgspec.structs.replace(decode_record(bytes.fromhex(signed.record)), **changes)
        raw = encode_record(record)
        signatures = {}
        for member in record.members:
            identity = self.identities[PeerId(member)]
            to_sign = record_bytes_to_sign(self.run.id, record.step, identity.peer, blob_digest(raw))
            signatures[member.hex()] = identity.sign(to_sign).hex()
        return SignedRecord(raw.hex(), signatures)

    def message(
        self, old: SignedMessage | None, phase: Phase, change: Callable[[Any], Message], step: int | None = None
    ) -> SignedMessage:
        assert old is not None
        decoded = decode(phase, bytes.fromhex(old.payload))
        return self.sign(self.identities[PeerId(bytes.fromhex(old.sender))], phase, change(decoded), step)

    def sign(self, identity: Identity, phase: Phase, message: Message, step: int | None = None) -> SignedMessage:
        place = Context(self.run.id, self.step if step is None else step, phase)
        envelope = seal(identity, place, message)
        return SignedMessage(identity.peer.hex(), envelope.payload.hex(), envelope.signature.hex())

    @property
    def step(self) -> int:
        return decode_record(bytes.fromhex(self.file.record.record)).step

    def refusal(self, **changes: Any) -> str:
        """Why the changed file is refused; empty if it is not."""
        changed: BanFile = msgspec.structs.replace(self.file, **changes)
        try:
            verify_ban(to_text(msgspec.structs.replace(changed, checksum=checksum(changed))))
        except UnprovedError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def forger(attacked: ProtocolSimulation) -> Forger:
    return Forger(attacked)


def test_what_the_forger_leaves_alone_is_accepted(forger: Forger) -> None:
    """[E1] Re-signing everything without a change still proves: the refusals below are for what was changed."""
    votes = [forger.message(vote, Phase.VOTE, lambda vote: vote) for vote in forger.file.votes]
    accusation = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: accuse)
    before, record = forger.record(forger.file.before), forger.record(forger.file.record)
    assert forger.refusal(votes=votes, accusation=accusation, before=before, record=record) == ""


def test_the_accuser_must_have_been_drawn(forger: Forger) -> None:
    """[E1, R4] Under other randomness somebody else was the accused's validator."""
    reasons = {forger.refusal(before=forger.record(forger.file.before, randomness=derive(k))) for k in range(6)}
    assert any("not drawn" in reason for reason in reasons)


def test_the_accused_must_have_contributed(forger: Forger) -> None:
    """[E1, R4]"""
    assert forger.file.before is not None
    before = decode_record(bytes.fromhex(forger.file.before.record))
    place = before.contributors.index(bytes.fromhex(forger.file.banned))
    less = {
        "contributors": before.contributors[:place] + before.contributors[place + 1 :],
        "roots": before.roots[:place] + before.roots[place + 1 :],
    }
    assert "had not contributed" in forger.refusal(before=forger.record(forger.file.before, **less))
    assert "committed to" in forger.refusal(before=forger.record(forger.file.before, roots=()))


def test_the_records_must_be_neighbours(forger: Forger) -> None:
    """[E1] Everything signed again for a later step, but not the record before."""
    later = forger.step + 1
    votes = [forger.message(vote, Phase.VOTE, lambda vote: vote, later) for vote in forger.file.votes]
    accusation = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: accuse, later)
    record = forger.record(forger.file.record, step=later)
    assert "neighbouring" in forger.refusal(votes=votes, accusation=accusation, record=record)


def test_the_accusation_must_be_of_the_accused(forger: Forger) -> None:
    """[E1, T1]"""
    other = forger.run.founders[0]

    def elsewhere(accuse: Accuse) -> Accuse:
        return Accuse(tuple(msgspec.structs.replace(a, target=other) for a in accuse.accusations), accuse.coin)

    assert "of another" in forger.refusal(accusation=forger.message(forger.file.accusation, Phase.ACCUSE, elsewhere))
    nothing = forger.message(forger.file.accusation, Phase.ACCUSE, lambda accuse: Accuse((), accuse.coin))
    assert "of another" in forger.refusal(accusation=nothing)


def test_votes_must_be_members_and_for_the_verdict(forger: Forger) -> None:
    """[E1, T4]"""

    def acquit(vote: Vote) -> Vote:
        return Vote(tuple(msgspec.structs.replace(b, verdict=Verdict.ACCUSER) for b in vote.ballots))

    acquitted = [forger.message(vote, Phase.VOTE, acquit) for vote in forger.file.votes]
    assert "no majority" in forger.refusal(votes=acquitted)
    silent = [forger.message(vote, Phase.VOTE, lambda _: Vote(())) for vote in forger.file.votes]
    assert "no majority" in forger.refusal(votes=silent)
    stranger = forger.message(forger.file.votes[0], Phase.VOTE, lambda vote: vote)
    vote = decode(Phase.VOTE, bytes.fromhex(stranger.payload))
    assert isinstance(vote, Vote)
    outsider = forger.sign(Identity.from_secret(bytes(32)), Phase.VOTE, vote)
    assert "not of a member" in forger.refusal(votes=[*forger.file.votes, outsider])


def test_the_record_must_hold_the_judgement(forger: Forger) -> None:
    """[E1, T4] Without it, or with the case dismissed, nobody was banned."""
    record = decode_record(bytes.fromhex(forger.file.record.record))
    assert "bans somebody else" in forger.refusal(record=forger.record(forger.file.record, judgements=()))
    dismissed = tuple(msgspec.structs.replace(j, verdict=None) for j in record.judgements)
    assert "bans somebody else" in forger.refusal(record=forger.record(forger.file.record, judgements=dismissed))


def test_the_history_must_be_changes_in_order(forger: Forger) -> None:
    """[E1, U2] No padding, and nobody forgotten."""
    assert forger.file.before is not None
    assert forger.refusal(history=[forger.file.before]) != ""
    idle = forger.record(forger.file.before, judgements=())
    assert "more than changes" in forger.refusal(history=[*forger.file.history, idle])
    assert "another roster" in forger.refusal(history=[])
