"""What was delivered to whom, decided from what everyone says about it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from troth.crypto import PeerId
from troth.protocol.core.channel import Delivery
from troth.protocol.core.errors import StalledError
from troth.protocol.core.roster import Roster
from troth.protocol.step.attempt import Announcements, Attempt, AttemptAborted
from troth.protocol.wire.messages import Center, Clip, said_as

T = TypeVar("T")


class Fact(Enum):
    """Whether something is held."""

    BELIEVED = auto()  # somebody honest says so
    DENIED = auto()  # somebody honest lacks it, of so many that whoever was to hand it out did not
    UNDECIDED = auto()  # liars can make it either


def weigh(holders: int, voices: int, roster: Roster) -> Fact:
    """More voices than there are liars are believed; a quorum denies (SPEC A3, N5). Not a majority of those who speak: where
    some are gone, liars would be half of it."""
    if holders > roster.liars:
        return Fact.BELIEVED
    return Fact.DENIED if voices - holders >= roster.quorum else Fact.UNDECIDED


# Parts


def agreed_centers(attempt: Attempt[T], clips: Announcements) -> dict[int, Center]:
    """What each owner announced of its parts; where there is nothing, somebody is out or has a part handed round (SPEC N5)."""
    roster = attempt.context.state.roster
    said = {owner: said_as(clips[owner], Clip) for owner in set(attempt.owners) & clips.keys()}
    centers = {
        part: center
        for part, owner in enumerate(attempt.owners)
        if owner in said
        for center in said[owner].centers
        if center.part == part
    }
    out = set(attempt.members - clips.keys())
    spoke = attempt.roots.keys() - out  # nobody is blamed for lacking what those who are gone did not send
    named = {owner: spoke & set(clip.missing) for owner, clip in said.items()}
    counts = Counter(peer for missed in named.values() for peer in missed)
    out |= {peer for peer, count in counts.items() if len(said) > 1 and roster.is_half(count, len(said))}
    witnesses = witnesses_of(attempt, clips)
    disputed: set[Delivery] = set()
    for part, owner in enumerate(attempt.owners):
        if owner in said and part not in centers:
            lost = lost_deliveries(attempt, part, named[owner])
            if not lost and attempt.roots.keys() & out & set(said[owner].missing):
                continue
            facts = {d: weigh(len(witnesses[d]), len(clips), roster) for d in lost if d in witnesses}
            if not lost or roster.is_half(len(lost), len(spoke)) or Fact.BELIEVED in facts.values():
                out.add(owner)  # nothing is missing, or so much that it must be its own line, or it was handed the part
            else:
                denied = {delivery for delivery in lost if facts.get(delivery) == Fact.DENIED}
                out |= {contributor for _, contributor in denied}  # asked to, it handed its part to too few
                disputed |= lost - denied
    if out or disputed:
        raise aborted(attempt, clips, out, disputed, witnesses)
    return centers


def lost_deliveries(attempt: Attempt[T], part: int, named: Collection[PeerId]) -> set[Delivery]:
    """What an owner without an aggregate may say that it lacks: anything in the attempt in which the part became its own, later
    what is handed round for it. Else it could complain about one part after another (SPEC N5)."""
    lost = {(part, peer) for peer in named}
    return lost if attempt.newly_owned(part) else lost & set(attempt.handed_round)


def witnesses_of(attempt: Attempt[T], clips: Announcements) -> dict[Delivery, frozenset[PeerId]]:
    """Who says that it holds what was handed round."""
    found: dict[Delivery, set[PeerId]] = {delivery: set() for delivery in attempt.handed_round}
    for peer in sorted(attempt.members & clips.keys()) if found else ():
        for delivery in came_to(attempt, clips, peer) & found.keys():
            found[delivery].add(peer)
    return {delivery: frozenset(peers) for delivery, peers in found.items()}


def came_to(attempt: Attempt[T], clips: Announcements, peer: PeerId) -> set[Delivery]:
    """Which of the parts that were to go through its hands came, by its own account."""
    asked = attempt.to_witness(peer)
    bits = bits_of([said_as(clips[peer], Clip).witnessed], len(asked))[0]
    return {delivery for delivery, bit in zip(asked, bits, strict=True) if bit}


def aborted(
    attempt: Attempt[T],
    clips: Announcements,
    out: Collection[PeerId],
    disputed: Collection[Delivery],
    witnesses: Mapping[Delivery, frozenset[PeerId]],
) -> AttemptAborted:
    """Why the attempt ends. What was handed round and stays undecided goes round once more, from everyone who has it: then an
    honest holder makes it believed, and none makes it denied. Only where too few are left it is still neither (SPEC N6)."""
    lasting = {d for d in disputed if attempt.owners[d[0]] not in out and d[1] not in out}
    undecided = {delivery: witnesses[delivery] for delivery in lasting if delivery in witnesses}
    if undecided.keys() & attempt.undecided.keys():
        raise StalledError("too few members are left to tell whether a part was handed round")
    missed: dict[PeerId, set[PeerId]] = defaultdict(set)
    for part, contributor in sorted(set(disputed) - witnesses.keys()):
        receiver, sender = broken_link(attempt, clips, (part, contributor))
        missed[receiver].add(sender)
    return AttemptAborted(out, lasting, undecided, missed)


def broken_link(attempt: Attempt[T], clips: Announcements, delivery: Delivery) -> tuple[PeerId, PeerId]:
    """Who did not get the part from whom. A relay says whether it had it, so that one of these two lies (SPEC F2). In a later
    attempt, which cost somebody its place, an owner of several parts does not say which of them it misses."""
    (part, contributor), relay = delivery, attempt.relays.get(delivery)
    owner = attempt.owners[part]
    if relay is None or relay not in clips or attempt.number > 0:
        return owner, contributor
    return (owner, relay) if delivery in came_to(attempt, clips, relay) else (relay, contributor)


# Aggregates


def undecided_aggregates(attempt: Attempt[T], held: Mapping[PeerId, bytes], parts: Collection[int]) -> list[int]:
    """Of these parts. Owners of aggregates that a quorum lacks are out (SPEC A3)."""
    holders = bits_of(list(held.values()), len(attempt.owners)).sum(axis=0)
    facts = {part: weigh(int(holders[part]), len(held), attempt.context.state.roster) for part in parts}
    denied = {attempt.owners[part] for part, fact in facts.items() if fact == Fact.DENIED}
    if denied:
        raise AttemptAborted(denied)
    return [part for part, fact in facts.items() if fact == Fact.UNDECIDED]


def lacking(attempt: Attempt[T], held: Mapping[PeerId, bytes]) -> dict[PeerId, set[PeerId]]:
    """Who lacks whose aggregates."""
    held_by_P = bits_of(list(held.values()), len(attempt.owners))
    return {
        peer: {attempt.owners[part] for part in np.flatnonzero(~held_P)}
        for peer, held_P in zip(held, held_by_P, strict=True)
        if not held_P.all()
    }


def fitting(attempt: Attempt[T], blobs: Mapping[int, bytes], centers: Mapping[int, Center]) -> dict[int, bytes]:
    """The aggregates that have the length of their part, numbers that mean the same everywhere, and the norm that was announced,
    to the last bit: the length of the update follows from it (SPEC A3, U3). Found by digest, they have that one."""
    bounds = attempt.context.roles.bounds
    return {
        part: blob
        for part, blob in blobs.items()
        if part in centers
        and len(blob) == 4 * (bounds[part + 1] - bounds[part])
        and attempt.context.peer.tools.aggregate_norm(blob) == centers[part].norm
    }


def bitmap(bits: list[bool]) -> bytes:
    """Bit k of byte k // 8, lowest first."""
    return np.packbits(np.array(bits, dtype=bool), bitorder="little").tobytes()


def bits_of(bitmaps: list[bytes], count: int) -> NDArray[np.bool_]:
    """The first bits of each; what it is too short for is not set."""
    length = -(-count // 8)
    raw = b"".join(each[:length].ljust(length, b"\0") for each in bitmaps)
    bytes_ = np.frombuffer(raw, np.uint8).reshape(len(bitmaps), length)
    return np.unpackbits(bytes_, axis=1, count=count, bitorder="little").astype(bool)
