"""The record of a step: everything agreed on in it, signed by a quorum of its members (SPEC U2)."""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from troth.crypto import Digest, Identity, PeerId, Signature, Slot, signed_bytes, tagged_hash
from troth.protocol.core.run import CannotGoOnError
from troth.protocol.wire.messages import (
    ATTEMPTS_PER_MEMBER,
    MOST_CANDIDATES,
    MOST_CHARGES,
    MOST_MEMBERS,
    MOST_REJOINS,
    NO_BASIS,
    Address,
    Bytes32,
    ChargeKind,
    GuiltySide,
    Incarnation,
    Keys,
    Part,
    Phase,
    Step,
)
from troth.protocol.wire.primitives import Primitives

MOST_OWED = 3  # times that an audit is dealt again (SPEC R7)
Attempt = Annotated[int, msgspec.Meta(ge=0, lt=ATTEMPTS_PER_MEMBER * MOST_MEMBERS)]
Pairs = Annotated[tuple[tuple[Bytes32, Bytes32], ...], msgspec.Meta(max_length=32 * MOST_MEMBERS)]
_OF_CANDIDATES = msgspec.Meta(max_length=MOST_CANDIDATES)


class Judgement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a trial. `verdict` is None if no quorum was found: dismissed (SPEC T4)."""

    accuser: Bytes32 | None
    target: Bytes32
    kind: ChargeKind
    step: Step  # the work of this step was disputed
    part: Part | None
    attempt: Attempt
    verdict: GuiltySide | None
    message: Bytes32 = NO_BASIS  # digest of the judged message, as ballots name it (SPEC E2)
    state: Bytes32 = NO_BASIS  # content of the state that the work was done at, as they name it (SPEC U5)

    @property
    def banned(self) -> PeerId | None:
        match self.verdict:
            case GuiltySide.ACCUSED:
                return PeerId(self.target)
            case GuiltySide.ACCUSER if self.accuser is not None:
                return PeerId(self.accuser)
            case _:
                return None

    @property
    def is_irrefutable(self) -> bool:
        """Whether the ban, if it is one, rests on two signatures for one slot, or on a gradient that was compared bit by bit."""
        return self.verdict == GuiltySide.ACCUSED and self.kind in (ChargeKind.EQUIVOCATION, ChargeKind.GRADIENT)


class Owed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """An audit to deal in the next step: its auditor was lost, or its trial dismissed (SPEC R7), or its target worked beside a
    liar (SPEC R8)."""

    target: Bytes32
    step: Step  # the work of this step is to be audited
    times: Annotated[int, msgspec.Meta(ge=1, le=MOST_OWED)]  # how often it has been put off


class Candidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stranger on probation (SPEC J5)."""

    key: Bytes32
    address: Address
    seated: Step  # in which it got its slot
    worked: Step  # steps in which it committed to a gradient; 0: it has not begun
    missed: Step  # steps in which it did not, since it began


class Newcomer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A candidate that is a member from now on (SPEC J7)."""

    key: Bytes32
    address: Address


class Returned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A peer that is a member again, and its key from then on (SPEC B3)."""

    member: Bytes32
    key: Bytes32


class Rekeyed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member, and the key with which it signs records after this one (SPEC U6)."""

    member: Bytes32
    key: Bytes32


class StepRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything a stranger needs to follow the run from one step to the next."""

    step: Step
    members: Keys  # at the start of the step
    contributors: Keys  # members whose gradients are in the aggregate
    roots: Keys  # Merkle roots of the contributors, in their order
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]  # number of parts of the vector
    seed_randomness: Bytes32  # source of this step's seeds
    randomness: Bytes32  # r_t, from coins B: source of the next step's roles
    state_before: Bytes32
    state_after: Bytes32
    updated: bool
    updates: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]  # updates of the model, this step's included
    tau: float  # clipping radius of this step
    spread: float  # lower median of the distances from the aggregate: later radii follow from it (SPEC A6)
    length: float  # M, the lower median of the gradients' lengths
    norm: float  # length of the aggregate, …
    factor: float  # … and its factor before it went to the optimizer (SPEC U3)
    judgements: Annotated[tuple[Judgement, ...], msgspec.Meta(max_length=MOST_CHARGES)]
    absent: Keys = ()  # silent or malformed: no longer members, but not banned
    struck: Keys = ()  # did not open coin B, or had an attempt with open coins B repeated (SPEC N3)
    slowed: Keys = ()  # to blame for missing messages or the fallback: a strike too (SPEC F3)
    link_disputes: Pairs = ()  # new ones, each on the word of one of the pair; the smaller key first
    expelled: Keys = ()  # three strikes, or disputes with half of the members: no longer members, but not banned
    owed: Annotated[tuple[Owed, ...], msgspec.Meta(max_length=MOST_OWED * MOST_MEMBERS)] = ()  # audits to deal again
    unaudited: Keys = ()  # targets whose audit came to nothing too often
    returned: Annotated[tuple[Returned, ...], msgspec.Meta(max_length=MOST_REJOINS)] = ()  # members after this step
    incarnation: Incarnation = 0  # number of restarts so far (SPEC B5)
    began: bool = False  # the first of its incarnation
    closing: bool = False  # the run's last: nobody contributed, everyone audited (SPEC U4)
    undone: bool = False  # the closing record of a run whose last update was taken back
    aggregates: Bytes32 = NO_BASIS  # digest of the aggregates' digests
    candidates: Annotated[tuple[Candidate, ...], _OF_CANDIDATES] = ()  # after this step (SPEC J5)
    probed: Annotated[tuple[tuple[Bytes32, Bytes32], ...], _OF_CANDIDATES] = ()  # keys and roots
    admitted: Annotated[tuple[Newcomer, ...], _OF_CANDIDATES] = ()  # members after this step
    standing: Bytes32 = NO_BASIS  # digest of all that members have in common after this step but the model (SPEC J8)
    content: bool = True  # `state_after` is the digest of model and optimizer themselves; else it is chained (SPEC U5)
    rekeyed: Annotated[tuple[Rekeyed, ...], msgspec.Meta(max_length=MOST_MEMBERS)] = ()  # in the order of keys
    changed: Annotated[int, msgspec.Meta(ge=-1, lt=2**62)] = -1  # step of the last change before it (SPEC J8); −1: none
    shortened: float = 1.0  # factor of the optimizer's step (SPEC U7)
    alarm: bool = False  # more members are banned than may lie: the run ends with this record (SPEC G4)

    @property
    def ends_run(self) -> bool:
        """Whether no record follows this one."""
        return self.closing or self.alarm

    @property
    def disputable(self) -> frozenset[PeerId]:
        """The banned whom nothing convicts but what jurors computed approximately, or said (SPEC G1)."""
        sure = {j.banned for j in self.judgements if j.is_irrefutable}
        return frozenset(peer for peer in self.banned if peer not in sure)

    @property
    def banned(self) -> tuple[PeerId, ...]:
        return tuple(sorted({peer for peer in (j.banned for j in self.judgements) if peer is not None}))

    @property
    def leaving(self) -> frozenset[PeerId]:
        """Members that are no longer members after this step, for whatever reason."""
        return frozenset((*self.banned, *map(PeerId, self.absent), *map(PeerId, self.expelled)))

    @property
    def applied(self) -> float | None:
        """Length of the update, if there was one."""
        return self.norm * self.factor if self.updated else None

    @property
    def unjudged(self) -> bool:
        """Whether the model stood still because no quorum judged an aggregate, or none found one. Within the guarantee a report
        was wrong then, or a row that nobody can clip, and an audit finds whose (SPEC G2, R6, A7)."""
        left = (None, GuiltySide.ACCUSER)
        return not self.updated and any(j.kind == ChargeKind.AGGREGATE and j.verdict in left for j in self.judgements)

    @property
    def in_vain(self) -> bool:
        """Whether a part was disputed of which a quorum found the aggregate right. Where nobody is banned over it, a row made its
        rounding look wrong, and an audit finds whose (SPEC R6, V2)."""
        return any(j.kind == ChargeKind.AGGREGATE and j.verdict == GuiltySide.ACCUSER for j in self.judgements)

    @property
    def changes_roster(self) -> bool:
        """Whether it changes who the members are, or the keys with which they sign records."""
        return bool(self.leaving or self.returned or self.admitted or self.rekeyed)

    @property
    def commitments(self) -> dict[bytes, bytes]:
        """Roots of all gradients that were committed to, by key: those of contributors and of candidates."""
        return {**dict(zip(self.contributors, self.roots, strict=True)), **dict(self.probed)}


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StepRecord, strict=True)


def encode_record(record: StepRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_record(raw: bytes) -> StepRecord:
    """Decode a record; raise msgspec.MsgspecError on anything else."""
    try:
        return _DECODER.decode(raw)
    except UnicodeDecodeError as error:  # an address that is no text
        raise msgspec.ValidationError(str(error)) from error


@lru_cache(maxsize=MOST_MEMBERS)  # every step verifies all members' signatures under the same record
def record_bytes_to_sign(run: Digest, step: int, signer: PeerId, record_digest: Digest) -> bytes:
    """Bytes that a member signs under a record.

    Tagged, so that they are no payload's digest: else anyone could show the signature that Close carries under the last record
    as a second message of its announcement, and its signer as an equivocator."""
    return signed_bytes(Slot(run, step, Phase.CLOSE), signer, tagged_hash("troth/record/1", record_digest))


def names_content(content_every: int, step: int, *, updated: bool, returned: bool) -> bool:
    """Whether a step's record names the content of the state after it: every k-th does, each after which somebody is a member
    again, and each that left the model as it was (SPEC U5)."""
    return (step + 1) % content_every == 0 or returned or not updated


def chained_state(before: Digest, aggregates: Digest, factor: float, updates: int) -> Digest:
    """Digest of a state by everything that its last update depends on (SPEC U5). Optimizer and rates are the run's."""
    update = struct.pack(">d", factor), updates.to_bytes(8, "big")
    return tagged_hash("troth/state/chained/1", before, aggregates, *update)


def aggregates_digest(centers: Iterable[Digest]) -> Digest:
    return tagged_hash("troth/aggregates/1", *centers)


def roots_basis(roots: Mapping[PeerId, Digest], tau: float) -> Digest:
    """Basis of Clip: the gradients and the radius that the aggregates were made with (SPEC E2)."""
    pairs = (part for peer in sorted(roots) for part in (peer, roots[peer]))
    return tagged_hash("troth/basis/roots/2", struct.pack(">d", tau), *pairs)


def aggregates_basis(centers: Sequence[Digest], projection_key: Digest, tau: float) -> Digest:
    """Basis of Report: the aggregates, projections and radius that its numbers are about (SPEC E2)."""
    return tagged_hash("troth/basis/aggregates/2", struct.pack(">d", tau), projection_key, *centers)


def reports_basis(reports: Mapping[PeerId, Digest]) -> Digest:
    """Basis of Accuse: the reports that its sender had (SPEC E2)."""
    return tagged_hash("troth/basis/reports/1", *(part for peer in sorted(reports) for part in (peer, reports[peer])))


def aggregate_message(clip: Digest, accuse: Digest | None) -> Digest:
    """Digest of the messages that an owner is judged by: its Clip and, if it was heard, its Accuse (SPEC E2)."""
    return tagged_hash("troth/accused/aggregate/1", clip, *(() if accuse is None else (accuse,)))


def right_signers(
    run: Digest,
    step: int,
    raw: bytes,
    record_keys: Mapping[PeerId, PeerId],
    signatures: Mapping[PeerId, Signature],
    tools: Primitives,
) -> dict[PeerId, Signature]:
    """Members' signatures that fit this record, byte for byte. `record_keys`: the key of each of its members (SPEC U6)."""
    digest = tools.digest(raw)
    return {
        peer: signature
        for peer, signature in signatures.items()
        if peer in record_keys
        and tools.verify(record_keys[peer], record_bytes_to_sign(run, step, peer, digest), signature)
    }


# Keys with which one peer signs records: a new one now and then, and old ones are erased (SPEC U6).
#
# Whoever steals a machine, or what somebody left behind on one, finds no key that signed records of the past, and so can tell
# nobody another history.


class LostKeyError(CannotGoOnError):
    """The key that this peer has to sign records with is not here."""


class RecordKeys:
    """The record keys of one peer, oldest first. The newest may not be in use yet."""

    def __init__(self, held: Iterable[Identity] = (), make: Callable[[], Identity] = Identity.generate) -> None:
        self._held = {identity.peer: identity for identity in held}
        self._make = make

    @property
    def held(self) -> tuple[PeerId, ...]:
        return tuple(self._held)

    def next(self, current: PeerId) -> PeerId:
        """A key to change to; the same one until it is in use."""
        newest = next(reversed(self._held), current)
        if newest == current:
            made = self._make()
            self._store(made)
            self._held[made.peer] = made
            newest = made.peer
        return newest

    def sign(self, key: PeerId, message: bytes) -> Signature:
        if key not in self._held:
            raise LostKeyError(
                f"the key {key.hex()[:8]}…, with which this peer signs records, is not here: its folder is an older copy. Move "
                "the folder away and join again: this peer comes back under a new key"
            )
        return self._held[key].sign(message)

    def keep(self, needed: Collection[PeerId]) -> None:
        """Erase all keys but these, and the newest."""
        for key in self.held[:-1]:
            if key not in needed:
                self._drop(key)

    def erase(self) -> None:
        """Erase all keys: the run is over."""
        for key in self.held:
            self._drop(key)

    # On disk

    def _store(self, identity: Identity) -> None:
        """Keep a new key before anybody hears of it."""

    def _drop(self, key: PeerId) -> None:
        """Leave no trace of a key."""
        del self._held[key]
