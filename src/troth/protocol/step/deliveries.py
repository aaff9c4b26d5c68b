"""Decisions about deliveries of parts and aggregates, from what all members say about them (SPEC A3, N5, N6)."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from troth.crypto import PeerId
from troth.protocol.core.channel import Delivery, Said
from troth.protocol.core.roster import Roster
from troth.protocol.core.run import StalledError
from troth.protocol.step.attempt import Attempt, AttemptAborted
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Center, Clip, said_as

T = TypeVar("T")


class Possession(Enum):
    """Possession of a part or an aggregate."""

    BELIEVED = auto()  # an honest member holds it
    DENIED = auto()  # a quorum lacks it: the peer that was to hand it out did not
    UNDECIDED = auto()  # neither: liars could make it look either way


def weigh(holders: int, voices: int, roster: Roster) -> Possession:
    """Believe more than `L` holders; deny if a quorum lacks it (SPEC A3, N5). A majority of the voices would not do: where
    some members are gone, liars could be half of it."""
    if holders > roster.liars:
        return Possession.BELIEVED
    return Possession.DENIED if voices - holders >= roster.quorum else Possession.UNDECIDED


# Parts


def agreed_centers(attempt: Attempt[T], clips: Said) -> dict[int, Center]:
    """Announced aggregates by part. Where one is missing, abort: a member is out, or a part is circulated (SPEC N5)."""
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
    spoke = attempt.roots.keys() - out  # no owner is blamed for lacking parts of members that are gone
    named = {owner: spoke & set(clip.missing) for owner, clip in said.items()}
    counts = Counter(peer for missed in named.values() for peer in missed)
    out |= {peer for peer, count in counts.items() if len(said) > 1 and roster.is_half(count, len(said))}
    witnesses = witnesses_of(attempt, clips)
    disputed: set[Delivery] = set()
    for part, owner in enumerate(attempt.owners):
        if owner in said and part not in centers:
            lost = lost_deliveries(attempt, part, named[owner])
            facts = {d: weigh(len(witnesses[d]), len(clips), roster) for d in lost if d in witnesses}
            # It names contributors, not parts: one whose part it was handed may be named for another part.
            unproven = {delivery for delivery in lost if facts.get(delivery) != Possession.BELIEVED}
            if not unproven and attempt.roots.keys() & out & set(said[owner].missing):
                continue
            if not unproven or roster.is_half(len(lost), len(spoke)):
                # It lacks nothing but what it was handed, or so much that its own link must be bad.
                out.add(owner)
            else:
                denied = {delivery for delivery in unproven if facts.get(delivery) == Possession.DENIED}
                out |= {contributor for _, contributor in denied}  # asked to circulate its part, it sent it to too few
                disputed |= unproven - denied
    if out or disputed:
        raise aborted(attempt, clips, out, disputed, witnesses)
    return centers


def lost_deliveries(attempt: Attempt[T], part: int, named: Collection[PeerId]) -> set[Delivery]:
    """Deliveries that an owner without an aggregate may call missing: all of them in the attempt in which the part became its
    own, later only those circulated for it. Else it could complain about one part after another (SPEC N5)."""
    lost = {(part, peer) for peer in named}
    return lost if attempt.newly_owned(part) else lost & set(attempt.circulated)


def witnesses_of(attempt: Attempt[T], clips: Said) -> dict[Delivery, frozenset[PeerId]]:
    """Members that say they hold a circulated part, by delivery."""
    found: dict[Delivery, set[PeerId]] = {delivery: set() for delivery in attempt.circulated}
    for peer in sorted(attempt.members & clips.keys()) if found else ():
        for delivery in came_to(attempt, clips, peer) & found.keys():
            found[delivery].add(peer)
    return {delivery: frozenset(peers) for delivery, peers in found.items()}


def came_to(attempt: Attempt[T], clips: Said, peer: PeerId) -> set[Delivery]:
    """Parts that this peer was to forward or relay and that came, by its own word."""
    asked = attempt.to_witness(peer)
    bits = bits_of([said_as(clips[peer], Clip).witnessed], len(asked))[0]
    return {delivery for delivery, bit in zip(asked, bits, strict=True) if bit}


def aborted(
    attempt: Attempt[T],
    clips: Said,
    out: Collection[PeerId],
    disputed: Collection[Delivery],
    witnesses: Mapping[Delivery, frozenset[PeerId]],
) -> AttemptAborted:
    """The reason why the attempt ends. A part that was circulated and stays undecided is circulated once more, by all holders:
    one honest holder makes it believed, none makes it denied. Only where too few are left it is still neither (SPEC N6)."""
    lasting = {d for d in disputed if attempt.owners[d[0]] not in out and d[1] not in out}
    undecided = {delivery: witnesses[delivery] for delivery in lasting if delivery in witnesses}
    if undecided.keys() & attempt.undecided.keys():
        raise StalledError("too few members are left to tell whether a part was circulated")
    missed: dict[PeerId, set[PeerId]] = defaultdict(set)
    for part, contributor in sorted(set(disputed) - witnesses.keys()):
        receiver, sender = broken_link(attempt, clips, (part, contributor))
        missed[receiver].add(sender)
    return AttemptAborted(out, lasting, undecided, missed)


def broken_link(attempt: Attempt[T], clips: Said, delivery: Delivery) -> tuple[PeerId, PeerId]:
    """Receiver and sender between whom the part was lost: owner and relay if the relay had it, else relay and contributor
    (SPEC F2). In a later attempt, which cost a member its seat, owner and contributor: an owner of several parts does not say
    which of them it lacks."""
    (part, contributor), relay = delivery, attempt.relays.get(delivery)
    owner = attempt.owners[part]
    if relay is None or relay not in clips or attempt.number > 0:
        return owner, contributor
    return (owner, relay) if delivery in came_to(attempt, clips, relay) else (relay, contributor)


# Aggregates


def undecided_aggregates(attempt: Attempt[T], held: Mapping[PeerId, bytes], parts: Collection[int]) -> list[int]:
    """Parts whose aggregate is neither believed nor denied; the owner of a denied one is out (SPEC A3)."""
    holders = bits_of(list(held.values()), len(attempt.owners)).sum(axis=0)
    facts = {part: weigh(int(holders[part]), len(held), attempt.context.state.roster) for part in parts}
    denied = {attempt.owners[part] for part, fact in facts.items() if fact == Possession.DENIED}
    if denied:
        raise AttemptAborted(denied)
    return [part for part, fact in facts.items() if fact == Possession.UNDECIDED]


def lacking(attempt: Attempt[T], held: Mapping[PeerId, bytes]) -> dict[PeerId, set[PeerId]]:
    """Owners whose aggregates a member lacks, by member."""
    held_MP = bits_of(list(held.values()), len(attempt.owners))
    if held_MP.all():
        return {}
    return {
        peer: {attempt.owners[part] for part in np.flatnonzero(~held_P)}
        for peer, held_P in zip(held, held_MP, strict=True)
        if not held_P.all()
    }


def fitting(attempt: Attempt[T], blobs: Mapping[int, Blob], centers: Mapping[int, Center]) -> dict[int, Blob]:
    """Aggregates with the length of their part, numbers that mean the same everywhere, and the announced norm and rounding to
    the last bit, from which the length of the update follows, and what V2 allows (SPEC A3, U3). They were found by digest, so
    that one fits."""
    bounds, tools, form = attempt.context.roles.bounds, attempt.context.peer.tools, attempt.context.peer.code.centers
    return {
        part: blob
        for part, blob in blobs.items()
        if part in centers
        and len(blob) == form.length(bounds[part + 1] - bounds[part])
        and tools.aggregate_norm(blob, form) == centers[part].norm
        and tools.rounding(blob, form) == centers[part].rounding
    }


def bitmap(bits: list[bool]) -> bytes:
    """Pack bits: k in byte k // 8, lowest first."""
    return np.packbits(np.array(bits, dtype=bool), bitorder="little").tobytes()


def bits_of(bitmaps: list[bytes], count: int) -> NDArray[np.bool_]:
    """Unpack the first `count` bits of each bitmap; bits that it is too short for are not set."""
    length = -(-count // 8)
    raw = b"".join(each[:length].ljust(length, b"\0") for each in bitmaps)
    bytes_ = np.frombuffer(raw, np.uint8).reshape(len(bitmaps), length)
    return np.unpackbits(bytes_, axis=1, count=count, bitorder="little").astype(bool)
