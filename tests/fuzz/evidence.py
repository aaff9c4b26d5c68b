"""Ban files that are wrong, but signed by everyone: all keys of a small real run are at hand."""

import dataclasses
import json
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import msgspec

from tests.fuzz.drawn import drawn, drawn_field, field_types
from tests.fuzz.mutate import JSON_ATOMS, altered, altered_tree, damaged
from tests.protocol.small_runs import SMALL, finished
from troth.crypto import Digest, Identity, PeerId, Slot, blob_digest, derive, signed_bytes
from troth.evidence.file_format import BanFile, Exhibit, SignedMessage, checksum, from_text, to_text
from troth.evidence.verify import Proof, verify_ban
from troth.protocol.core.records import Judgement, StepRecord, decode_record, encode_record, record_bytes_to_sign
from troth.protocol.core.run import Parameters, Run
from troth.protocol.history import SignedRecord
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.messages import Accuse, ChargeKind, Phase, Vote
from troth.protocol.wire.phases import encode
from troth.protocol.wire.primitives import Primitives
from troth.training.work import Training, TrainingWork
from troth.workshop.simulation import ProtocolSimulation

_NONSENSE = (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
_NEWCOMERS = [Identity.from_secret(derive(0, "fuzz", "newcomer", k)) for k in range(3)]


class Forger:
    """Files of real bans and of an equivocation, and everyone's keys."""

    def __init__(self) -> None:
        simulation = _with_two_bans()
        self._keys = {peer.hex(): member.identity for peer, member in simulation.peers.items()}
        self._keys |= {one.peer.hex(): one for one in _NEWCOMERS}
        real = [from_text(evidence.text) for evidence in simulation.evidence]
        self.files = (*real, self._equivocation(real[1]))
        self.texts = tuple(map(to_text, self.files))
        self.run = simulation.run
        self.certified = tuple(self._certified(raw) for raw in simulation.trace[:4])
        scenario = simulation.scenario
        self.work = TrainingWork(simulation.problem, scenario.make_optimizer(), scenario.rates(), Primitives())
        self.state = self.work.pack(self.work.first(0))

    def _equivocation(self, file: BanFile) -> BanFile:
        """The same ban, for an equivocation."""
        record = decode_record(bytes.fromhex(file.record.record))
        judged = tuple(
            msgspec.structs.replace(j, accuser=None, kind=ChargeKind.EQUIVOCATION, step=record.step, part=None)
            for j in record.judgements
        )
        raw = encode_record(msgspec.structs.replace(record, judgements=judged))
        return self.signed(
            msgspec.structs.replace(
                file,
                record=SignedRecord(raw.hex(), dict.fromkeys(file.record.signatures, "")),
                accusation=None,
                votes=[],
                equivocation=[SignedMessage(file.banned, payload, "") for payload in ("00", "01")],
                phase=int(Phase.REPORT),
                exhibit=None,
            )
        )

    # Signing

    def signed(self, file: BanFile) -> BanFile:
        """The file with everything signed again by its alleged signers, for the run that it names; and the checksum."""
        with suppress(*_NONSENSE):  # where there is nothing that could be signed, it goes out as it is
            run = _run_id(file)
            step = decode_record(bytes.fromhex(file.record.record)).step
            attempt = self._attempt(file)
            file = msgspec.structs.replace(
                file,
                history=[self._record(run, old) for old in file.history],
                before=[self._record(run, old) for old in file.before],
                record=self._record(run, file.record),
                accusation=file.accusation and self._message(Slot(run, step, Phase.ACCUSE, attempt), file.accusation),
                votes=[self._message(Slot(run, step, Phase.VOTE, attempt), vote) for vote in file.votes],
                equivocation=[
                    self._message(Slot(run, step, file.phase, attempt), message) for message in file.equivocation
                ],
                exhibit=file.exhibit and self._exhibit(run, self._disputed(file), file.exhibit),
            )
        return msgspec.structs.replace(file, checksum=checksum(file))

    def _exhibit(self, run: Digest, step: int, old: Exhibit) -> Exhibit:
        phases = {"commits": Phase.COMMIT, "clips": Phase.CLIP, "reports": Phase.REPORT, "accuses": Phase.ACCUSE}
        signed: dict[str, Any] = {
            name: [
                self._message(Slot(run, step, phase, 0 if phase == Phase.COMMIT else old.attempt), message)
                for message in getattr(old, name)
            ]
            for name, phase in phases.items()
        }
        return msgspec.structs.replace(old, **signed)

    def _certified(self, raw: bytes) -> CertifiedRecord:
        """A record with everyone's signatures, for a member that comes back."""
        members = decode_record(raw).members
        signed = self._record(self.run.id, SignedRecord(raw.hex(), {peer.hex(): "" for peer in members}))
        return CertifiedRecord(
            raw, {bytes.fromhex(peer): bytes.fromhex(signature) for peer, signature in signed.signatures.items()}
        )

    def _attempt(self, file: BanFile) -> int:
        return next((judged.attempt for judged in self._judged(file)), 0)

    def _disputed(self, file: BanFile) -> int:
        return next((judged.step for judged in self._judged(file)), 0)

    def _judged(self, file: BanFile) -> list[Judgement]:
        judged = decode_record(bytes.fromhex(file.record.record)).judgements
        return [j for j in judged if j.banned is not None and j.banned.hex() == file.banned]

    def _record(self, run: Digest, old: SignedRecord) -> SignedRecord:
        raw = bytes.fromhex(old.record)
        step = decode_record(raw).step
        return SignedRecord(
            old.record,
            {
                peer: self._keys[peer]
                .sign(record_bytes_to_sign(run, step, self._keys[peer].peer, blob_digest(raw)))
                .hex()
                if peer in self._keys
                else signature
                for peer, signature in old.signatures.items()
            },
        )

    def _message(self, slot: Slot, old: SignedMessage) -> SignedMessage:
        key = self._keys.get(old.sender)
        if key is None:
            return old
        signature = key.sign(signed_bytes(slot, key.peer, blob_digest(bytes.fromhex(old.payload))))
        return SignedMessage(old.sender, old.payload, signature.hex())

    # Lies

    def forged(self, random: Random) -> str:
        """A file that is well formed and well signed as far as that is possible, with one or two lies in it."""
        file = random.choice(self.files)
        for _ in range(random.choice((1, 1, 2))):
            with suppress(*_NONSENSE):  # after the first lie there may be nothing left to lie about
                file = self._with_a_lie(file, random)
        return to_text(self.signed(file))

    def _with_a_lie(self, file: BanFile, random: Random) -> BanFile:
        match random.randrange(8):
            case 0 | 1 | 2:
                return _with_another_record(file, random)
            case 3 | 4:
                return _with_another_message(file, random)
            case 5:
                numbers = {**file.run.parameters, **_wrong_parameter(random)}
                return msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, parameters=numbers))
            case 6:
                founders = sorted(
                    {*file.run.founders, random.choice(list(self._keys))} - {random.choice(list(self._keys))}
                )
                return msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, founders=founders))
            case _:
                return msgspec.convert(
                    altered_tree(json.loads(to_text(file)), random, JSON_ATOMS), BanFile, strict=True
                )

    def followed(self, random: Random) -> tuple[CertifiedRecord, ...]:
        """Records of the first steps, some of them others, all of them signed; not always all of them, nor in order."""
        certified = list(self.certified)
        for _ in range(random.choice((1, 1, 2))):
            where = random.randrange(len(certified))
            with suppress(*_NONSENSE):
                old = SignedRecord(certified[where].record.hex(), {})
                certified[where] = self._certified(bytes.fromhex(_another_record(old, random).record))
        match random.randrange(8):
            case 0:
                certified.pop(random.randrange(len(certified)))
            case 1:
                certified.insert(random.randrange(len(certified)), random.choice(certified))
            case 2:
                certified[0] = msgspec.structs.replace(
                    certified[0], signatures=drawn_field(CertifiedRecord, "signatures", random)
                )
            case 3:
                certified[0] = msgspec.structs.replace(certified[0], record=damaged(certified[0].record, random))
        return tuple(certified)

    def described(self, description: str) -> tuple[Proof, Training]:
        """A ban that is proved, in a run that is described like this, and the state that it can be recomputed from."""
        state = self.work.first(0)

        def there(old: SignedRecord) -> SignedRecord:
            record = decode_record(bytes.fromhex(old.record))
            raw = encode_record(msgspec.structs.replace(record, state_before=self.work.digest(state)))
            return SignedRecord(raw.hex(), old.signatures)

        file = self.files[0]
        run = msgspec.structs.replace(file.run, description=description)
        file = self.signed(msgspec.structs.replace(file, run=run, before=[there(old) for old in file.before]))
        return verify_ban(to_text(file)), state

    def state_bytes(self, random: Random) -> bytes:
        """A state with another header or other numbers, as safetensors lays it out."""
        size = int.from_bytes(self.state[:8], "little")
        header, numbers = self.state[8 : 8 + size], self.state[8 + size :]
        match random.randrange(4):
            case 0:
                return damaged(self.state, random)
            case 1:
                header = damaged(header, random)
            case 2:
                kind = random.choice(
                    ("F32", "BF16", "F16", "F64", "F8_E5M2", "F8_E4M3", "I8", "BOOL", "U64", "C64", "F4")
                )
                shape = random.choice(([60], [], [60, 1], [120], [30], [240], [0], [2**62, 0], [2**63, 0], [-1]))
                numbers = b"" if 0 in shape else numbers[:240]
                header = json.dumps({"parameters": tensor(kind, shape, len(numbers))}).encode()
            case _:
                header = json.dumps(altered_tree(json.loads(header), random, JSON_ATOMS)).encode()
        return safetensors(header, numbers)

    def written(self, random: Random) -> str:
        """A text that is damaged somewhere, or an odd tree with a right checksum."""
        text = random.choice(self.texts)
        match random.randrange(4):
            case 0 | 1:
                return damaged(text.encode(), random).decode("utf-8", "surrogateescape")
            case 2:
                return json.dumps(altered_tree(json.loads(text), random, JSON_ATOMS), indent=1, sort_keys=True) + "\n"
            case _:
                file: BanFile = drawn(BanFile, random)
                return to_text(msgspec.structs.replace(file, checksum=checksum(file)))


def _with_two_bans() -> ProtocolSimulation:
    """A small run in which the second ban comes long enough after the first to have a history."""
    for seed in range(29, 99):  # the first of them fits, until roles are drawn otherwise
        scenario = dataclasses.replace(SMALL, peers=6, attack_start=0, attack_every=5, steps=24, seed=seed)
        simulation = finished(scenario, until=lambda simulation: len(simulation.evidence) == 2)
        if len(simulation.evidence) == 2 and from_text(simulation.evidence[1].text).history:
            return simulation
    raise AssertionError("no seed gives two bans, one some steps after the other")


def tensor(kind: str, shape: list[int], size: int) -> dict[str, Any]:
    """An entry of the header of safetensors."""
    return {"dtype": kind, "shape": shape, "data_offsets": [0, size]}


def safetensors(header: bytes, numbers: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + numbers


@cache
def forger() -> Forger:
    return Forger()


def _records(file: BanFile) -> list[SignedRecord]:
    return [*file.history, *file.before, file.record]


def _run_id(file: BanFile) -> Digest:
    """The id of the run that the file names, if there can be such a run."""
    founders = tuple(PeerId(bytes.fromhex(peer)) for peer in file.run.founders)
    parameters = Parameters.from_plain(file.run.parameters)
    return Run(founders, file.run.description.encode(), parameters, bytes.fromhex(file.run.nonce)).id


def _wrong_parameter(random: Random) -> dict[str, Any]:
    name = random.choice(
        ("size", "byzantine", "validators", "projections", "tau", "tau_auto", "deviation", "beyond_guarantee")
    )
    values: tuple[Any, ...] = (0, 1, 7, -1, 64, 2**63, 10**4000, None, True, "nan", "0x1.0p-3", "0x1.0p+0", "0x1p99999")
    return {name: random.choice(values)}


def _with_another_record(file: BanFile, random: Random) -> BanFile:
    """One of its records with a field of the right type but any content, or with another shape, or damaged; or in disorder."""
    name = random.choice(("history", "before", "record"))
    if name == "record":
        return msgspec.structs.replace(file, record=_another_record(file.record, random))
    records = list(getattr(file, name))
    if not records or random.random() < 0.1:
        records.append(random.choice(_records(file)))
    elif random.random() < 0.1:
        records.pop(random.randrange(len(records)))
    else:
        where = random.randrange(len(records))
        records[where] = _another_record(records[where], random)
    return msgspec.structs.replace(file, **{name: records})


def _another_record(old: SignedRecord, random: Random) -> SignedRecord:
    raw = bytes.fromhex(old.record)
    match random.randrange(5):
        case 0:
            raw = altered(raw, random)
        case 1:
            raw = damaged(raw, random)
        case 2:
            raw = _with_members(decode_record(raw), random)
        case _:
            name = random.choice(list(field_types(StepRecord)))
            changed = msgspec.structs.replace(decode_record(raw), **{name: drawn_field(StepRecord, name, random)})
            raw = encode_record(changed)
    return SignedRecord(raw.hex(), old.signatures)


def _with_members(record: StepRecord, random: Random) -> bytes:
    """The file with real peers where they do not belong, or fewer of them where they do."""
    names = [
        name for name in field_types(StepRecord) if isinstance(getattr(record, name), tuple) and name != "judgements"
    ]
    keys = random.sample(record.members, random.randint(0, len(record.members)))
    return encode_record(msgspec.structs.replace(record, **{random.choice(names): tuple(keys)}))


def _with_another_message(file: BanFile, random: Random) -> BanFile:
    votes, twice = list(file.votes), list(file.equivocation)
    if file.accusation is not None and random.random() < 0.3:
        return msgspec.structs.replace(file, accusation=_another_message(file.accusation, Accuse, random))
    for messages in (votes, twice):
        if messages:
            where = random.randrange(len(messages))
            messages[where] = _another_message(messages[where], Vote, random)
    return msgspec.structs.replace(file, votes=votes, equivocation=twice)


def _another_message(old: SignedMessage, kind: type[Accuse | Vote], random: Random) -> SignedMessage:
    raw = bytes.fromhex(old.payload)
    match random.randrange(3):
        case 0 if len(raw) > 1:
            raw = altered(raw, random)
        case 1:
            raw = damaged(raw, random)
        case _:
            raw = encode(drawn(kind, random))
    return SignedMessage(old.sender, raw.hex(), old.signature)
