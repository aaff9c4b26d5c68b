"""The door: tickets of strangers, candidates on probation, and admission (SPEC J3–J7).

All of it is a function of agreed values, so every member lets in the same newcomers. What a candidate claims costs work: a ticket
costs hashes, a slot a gradient in every step, and nobody can tell before it has committed to one whether it will be recomputed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from troth.crypto import Digest, Identity, PeerId, Signature, Slot, signed_bytes, smallest_hash, tagged_hash
from troth.protocol.core.records import Candidate, Newcomer, StepRecord
from troth.protocol.core.run import Parameters, Run
from troth.protocol.wire.messages import (
    MOST_CANDIDATES,
    MOST_MEMBERS,
    NO_BASIS,
    Announced,
    Commit,
    Envelope,
    Phase,
    Probe,
    Ticket,
)
from troth.protocol.wire.phases import encode
from troth.protocol.wire.primitives import Primitives

_TICKET: Final = "troth/ticket/1"
AUDITS: Final = 6  # of a candidate's gradients by honest members, in expectation, while it is on probation (SPEC J6)
_LOTTERIES = 8  # within one probation
_LEAST_BETWEEN = 2  # steps between lotteries: a record is certified, and strangers know its draw, in the step after it
# An empty slot keeps somebody out: a candidate gets time to fetch the model, and no more (SPEC J5).
_LEAST_TO_BEGIN = 32  # steps; two contents of a large model are named within them (SPEC U5)
_TO_BEGIN = 4  # or a share of the probation
_STEPS_A_SLOT = 8  # as many slots as that one falls free in so many steps, while all of them are worked in
_SEATS_AT_ONCE = 8  # one seat in so many may go to newcomers within one probation (SPEC J7)
# A machine that stops for longer than a step is late twice in a row: in this step, and in the next, which it begins late.
_SPARE_MISSES = 2
_STEPS_A_MISS = 8  # one more miss in so many steps since a candidate began (SPEC J5)


@dataclass(frozen=True)
class Door:
    """The door at the start of a step. `probation` is 0 where it is closed."""

    probation: int = 0  # T, commitments until admission
    slots: int = 0  # most candidates at a time
    ticket_bits: int = 0  # zeros that a ticket's hash begins with
    seed: Digest = NO_BASIS  # that tickets are made for
    candidates: tuple[Candidate, ...] = ()
    admissions: tuple[int, ...] = ()  # steps of the last ones, and of returns of those who were admitted once
    turned_away: tuple[PeerId, ...] = ()  # candidates that were banned: they never were members, so no liar is gone

    @classmethod
    def founding(cls, run: Run) -> "Door":
        parameters = run.parameters
        if not parameters.probation:
            return cls()
        seed = tagged_hash("troth/door/first/1", run.id)
        return cls(parameters.probation, parameters.slots, parameters.ticket_bits, seed)

    @property
    def keys(self) -> frozenset[PeerId]:
        return frozenset(PeerId(candidate.key) for candidate in self.candidates)

    def is_lottery(self, step: int) -> bool:
        """Whether slots are given away in this step (SPEC J4)."""
        return self.probation > 0 and (step + 1) % max(_LEAST_BETWEEN, self.probation // _LOTTERIES) == 0

    @property
    def steps_to_begin(self) -> int:
        """Steps within which a candidate has to begin, or loses its slot (SPEC J5)."""
        return min(self.probation, max(_LEAST_TO_BEGIN, self.probation // _TO_BEGIN))

    def after(
        self, record: StepRecord, *, turned_away: Collection[PeerId], members: Collection[PeerId], entered: int
    ) -> "Door":
        """The door of the next step. `turned_away`: candidates that this record bans; `entered`: how many that came, or once had
        come, in by the door are members from now on. Nobody is a member and a candidate at once: it would commit to two
        gradients in a step, a right one for audits and another one for the aggregate (SPEC J5)."""
        if not self.probation:
            return self
        return replace(
            self,
            seed=Digest(record.randomness) if self.is_lottery(record.step) else self.seed,
            candidates=tuple(candidate for candidate in record.candidates if candidate.key not in members),
            admissions=(
                *(step for step in self.admissions if step > record.step - self.probation),
                *(record.step for _ in range(entered)),
            ),
            turned_away=tuple(sorted({*self.turned_away, *turned_away})),
        )

    def most_admitted(self, members: int) -> int:
        """How many may still be admitted in this step (SPEC J7)."""
        return max(0, max(1, members // _SEATS_AT_ONCE) - len(self.admissions))


CLOSED: Final = Door()


# Tickets (SPEC J4)


def ticket_hash(run: Digest, seed: Digest, ticket: Ticket) -> int:
    """The number that a ticket is drawn by: the smallest ones get the free slots."""
    nonce, address = ticket.nonce.to_bytes(8, "big"), ticket.address.encode()
    digest = tagged_hash(_TICKET, run, seed, ticket.key, nonce, address)
    return int.from_bytes(digest, "big")


def best_nonce(run: Digest, seed: Digest, key: bytes, address: str, nonces: range) -> tuple[Digest, int]:
    """The smallest hash of a ticket among these nonces, and its nonce: `ticket_hash`, at five times its speed."""
    return smallest_hash(nonces, (run, seed, key), (address.encode(),), _TICKET)


def ticket_bytes(run: Digest, seed: Digest, ticket: Ticket) -> bytes:
    """Bytes that a stranger signs: nobody else can put its key into a ticket, or change the address in it."""
    what = tagged_hash("troth/ticket/signed/1", ticket_hash(run, seed, ticket).to_bytes(32, "big"))
    return signed_bytes(Slot(run, 0, Phase.REJOIN), PeerId(ticket.key), what)


def signed_ticket(run: Digest, seed: Digest, key: Identity, nonce: int, address: str) -> Ticket:
    ticket = Ticket(key.peer, nonce, address, bytes(64))
    return msgspec.structs.replace(ticket, signature=key.sign(ticket_bytes(run, seed, ticket)))


def has_work(run: Digest, door: Door, ticket: Ticket) -> bool:
    """Tell whether enough work is in it."""
    return ticket_hash(run, door.seed, ticket) >> (256 - door.ticket_bits) == 0


def best_tickets(
    run: Digest, door: Door, tickets: Iterable[Ticket], known: Collection[PeerId], tools: Primitives
) -> list[Ticket]:
    """The tickets that may win a slot: the best ones, one for each key, of keys that were never seen, signed by them. Signatures
    are looked at only where the work is done."""
    right = {
        ticket
        for ticket in tickets
        if ticket.key not in known and ticket.key not in door.keys and has_work(run, door, ticket)
    }
    best: dict[bytes, Ticket] = {}
    for ticket in sorted(right, key=lambda ticket: (ticket_hash(run, door.seed, ticket), ticket.signature)):
        key = PeerId(ticket.key)
        if len(best) == door.slots:
            break
        if key not in best and tools.verify(key, ticket_bytes(run, door.seed, ticket), ticket.signature):
            best[key] = ticket
    return list(best.values())


# Probes (SPEC J5)


def probe_commit(root: Digest) -> Commit:
    """A candidate's Commit: to a gradient, and to nothing else. It is signed for the slot of the step's Commits, so that a key
    commits to one gradient in a step, as a candidate or as a member."""
    return Commit(root, bytes(32), bytes(32), length=0.0)


def probe_bytes(slot: Slot, key: PeerId, root: Digest, tools: Primitives) -> bytes:
    """Bytes that a candidate signs."""
    return signed_bytes(slot._replace(phase=Phase.COMMIT, attempt=0), key, tools.digest(encode(probe_commit(root))))


def right_probe(slot: Slot, probe: Probe, tools: Primitives) -> bool:
    """Tell whether the candidate signed it for this step."""
    key = PeerId(probe.key)
    return tools.verify(key, probe_bytes(slot, key, Digest(probe.root), tools), probe.signature)


class ListedProbes:
    """Commits of candidates that a member listed in Reveal, in any attempt of a step. One voice is enough, since the candidate
    signed it, and nobody can know the next draw yet. What was listed stays: else a liar that has seen the draw could have the
    attempt repeated, and say no more of its friend's commitment, which would then be a miss, and not audited."""

    def __init__(self, door: Door, tools: Primitives) -> None:
        self._keys = door.keys
        self._tools = tools
        self._found: dict[PeerId, set[Probe]] = {}

    def hear(self, slot: Slot, listed: Iterable[tuple[Probe, ...]]) -> None:
        """Take what members listed in an attempt."""
        for probe in {probe for probes in listed for probe in probes if probe.key in self._keys}:
            found = self._found.get(PeerId(probe.key), set())
            if probe not in found and right_probe(slot, probe, self._tools):
                self._found[PeerId(probe.key)] = {*found, probe}

    @property
    def counted(self) -> dict[PeerId, Announced]:
        """One commitment of each candidate; none of a candidate that signed two."""
        counted = {}
        for key, probes in sorted(self._found.items()):
            if key not in self.signed_two:
                first = min(probes, key=lambda probe: probe.signature)
                commit = probe_commit(Digest(first.root))
                counted[key] = Announced(key, commit, Envelope(encode(commit), Signature(first.signature)))
        return counted

    @property
    def signed_two(self) -> frozenset[PeerId]:
        """Candidates that signed two gradients for this step."""
        return frozenset(key for key, probes in self._found.items() if len({probe.root for probe in probes}) > 1)


# Decisions at the end of a step


@dataclass(frozen=True)
class Entrance:
    """Who is on probation after a step, and who is a member from then on."""

    candidates: tuple[Candidate, ...] = ()
    admitted: tuple[Newcomer, ...] = ()


def decide(
    door: Door,
    step: int,
    probed: Collection[PeerId],
    tickets: list[Ticket],
    *,
    most: int,
    out: Collection[PeerId],
    lenient: bool,
) -> Entrance:
    """Let candidates go on, out, or in, and give free slots away (SPEC J4, J5, J7).

    `tickets` are the best ones that members listed, `most` is how many may be admitted, `out` are the banned, and candidates
    that signed two commitments. `lenient`: the run has just restarted, and nobody is blamed for a miss."""
    if not door.probation:
        return Entrance()
    staying = [
        candidate
        for candidate in (_counted(one, PeerId(one.key) in probed, lenient=lenient) for one in door.candidates)
        if candidate.key not in out and (lenient or _may_stay(candidate, door, step))
    ]
    # Only with a commitment in this very step: else a seat could go to somebody who is gone.
    done = sorted(
        (-candidate.worked, candidate.key, candidate.address)
        for candidate in staying
        if candidate.worked >= door.probation and candidate.key in probed
    )
    admitted = [Newcomer(key, address) for _, key, address in done[:most]]
    keys = {newcomer.key for newcomer in admitted}
    staying = [candidate for candidate in staying if candidate.key not in keys]
    if door.is_lottery(step):
        free = door.slots - len(staying)
        staying += [Candidate(ticket.key, ticket.address, step, 0, 0) for ticket in tickets[: max(0, free)]]
    return Entrance(
        tuple(sorted(staying, key=lambda candidate: candidate.key)),
        tuple(sorted(admitted, key=lambda newcomer: newcomer.key)),
    )


def _counted(candidate: Candidate, probed: bool, *, lenient: bool) -> Candidate:
    """The candidate after a step in which it committed to a gradient, or did not."""
    if probed:
        return msgspec.structs.replace(candidate, worked=candidate.worked + 1)
    missed = candidate.worked > 0 and not lenient
    return msgspec.structs.replace(candidate, missed=candidate.missed + 1) if missed else candidate


def _may_stay(candidate: Candidate, door: Door, step: int) -> bool:
    """Whether it keeps its slot: it has time to begin, and then so many misses (SPEC J5)."""
    return misses_few(candidate) if candidate.worked else step - candidate.seated < door.steps_to_begin


def misses_few(candidate: Candidate, more: int = 0) -> bool:
    """Whether a candidate that has begun keeps its slot, also after so many misses more (SPEC J5)."""
    missed = candidate.missed + more
    return missed <= _SPARE_MISSES + (candidate.worked + missed) // _STEPS_A_MISS


def least_probation(members: int, liars: int) -> int:
    """The shortest probation with as many audits by honest members as are wanted. In a shorter one there are fewer, though every
    gradient is audited (SPEC J6)."""
    return -(-AUDITS * members // max(1, members - liars))


def usual_slots(probation: int) -> int:
    """Slots of a run with this probation. With fewer, whoever wins most draws has most seats, and empty slots keep others out for
    longer; with more, members audit more candidates in a step (SPEC J3)."""
    return min(MOST_CANDIDATES, max(Parameters.slots, probation // _STEPS_A_SLOT))


def most_members(parameters: Parameters) -> int:
    """Every contributor owns a part of at least one number, or one block of a code."""
    return min(MOST_MEMBERS, parameters.most_parts)


def fields_of(probed: Mapping[PeerId, Announced]) -> tuple[tuple[bytes, bytes], ...]:
    """Keys and roots of candidates, as a record holds them."""
    found = {key: said.message for key, said in probed.items()}
    return tuple((key, said.root) for key, said in sorted(found.items()) if isinstance(said, Commit) and said.root)
