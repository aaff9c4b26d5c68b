"""A forger that holds every key of a run: its evidence is validly signed by everyone, and still wrong."""

from collections.abc import Callable
from typing import Any

import msgspec

from troth.crypto import Identity, PeerId, Slot, blob_digest
from troth.evidence.bans import BanEvidence
from troth.evidence.file_format import BanFile, SignedMessage, checksum, from_text, to_text
from troth.evidence.verify import UnprovedError, verify_ban
from troth.protocol.core.records import StepRecord, decode_record, encode_record, record_bytes_to_sign
from troth.protocol.history import SignedRecord
from troth.protocol.wire.messages import Accuse, Message, Phase, Vote
from troth.protocol.wire.phases import decode, seal
from troth.workshop.simulation import ProtocolSimulation


class Forger:
    """Holds every key of a run, and signs whatever is asked."""

    def __init__(self, simulation: ProtocolSimulation, evidence: BanEvidence) -> None:
        self.run = simulation.run
        self.identities = {peer: member.identity for peer, member in simulation.peers.items()}
        self.file = from_text(evidence.text)

    def last(self, **changes: Any) -> list[SignedRecord]:
        """The records before, with changes in the last of them."""
        return [*self.file.before[:-1], self.record(self.file.before[-1], **changes)]

    def record(self, signed: SignedRecord, **changes: Any) -> SignedRecord:
        record: StepRecord = msgspec.structs.replace(decode_record(bytes.fromhex(signed.record)), **changes)
        raw = encode_record(record)
        signatures = {}
        for member in record.members:
            identity = self.identities[PeerId(member)]
            to_sign = record_bytes_to_sign(self.run.id, record.step, identity.peer, blob_digest(raw))
            signatures[member.hex()] = identity.sign(to_sign).hex()
        return SignedRecord(raw.hex(), signatures)

    def charged(self, **changes: Any) -> dict[str, Any]:
        """The same charge with changes, wherever it is said: in the accusation, in every ballot and in the record."""

        def accusation(accuse: Accuse) -> Accuse:
            changed = tuple(msgspec.structs.replace(a, **changes) for a in accuse.accusations)
            return msgspec.structs.replace(accuse, accusations=changed)

        def ballots(vote: Vote) -> Vote:
            return Vote(tuple(msgspec.structs.replace(b, **changes) for b in vote.ballots))

        judged = decode_record(bytes.fromhex(self.file.record.record)).judgements
        return {
            "accusation": self.message(self.file.accusation, Phase.ACCUSE, accusation),
            "votes": [self.message(vote, Phase.VOTE, ballots) for vote in self.file.votes],
            "record": self.record(
                self.file.record, judgements=tuple(msgspec.structs.replace(j, **changes) for j in judged)
            ),
        }

    def message(
        self,
        old: SignedMessage | None,
        phase: Phase,
        change: Callable[[Any], Message],
        step: int | None = None,
        attempt: int = 0,
    ) -> SignedMessage:
        assert old is not None
        decoded = decode(phase, bytes.fromhex(old.payload))
        return self.sign(self.identities[PeerId(bytes.fromhex(old.sender))], phase, change(decoded), step, attempt)

    def sign(
        self, identity: Identity, phase: Phase, message: Message, step: int | None = None, attempt: int = 0
    ) -> SignedMessage:
        slot = Slot(self.run.id, self.step if step is None else step, phase, attempt)
        envelope = seal(identity, slot, message)
        return SignedMessage(identity.peer.hex(), envelope.payload.hex(), envelope.signature.hex())

    @property
    def step(self) -> int:
        return decode_record(bytes.fromhex(self.file.record.record)).step

    def refusal(self, **changes: Any) -> str:
        """Why the changed file is refused; empty if it is not."""
        try:
            verify_ban(self.text(**changes))
        except UnprovedError as error:
            return str(error)
        return ""

    def text(self, **changes: Any) -> str:
        changed: BanFile = msgspec.structs.replace(self.file, **changes)
        return to_text(msgspec.structs.replace(changed, checksum=checksum(changed)))
