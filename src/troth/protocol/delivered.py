"""What was delivered to whom, decided from what everyone says about it."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from troth.aggregation import exact_norm
from troth.protocol.attempt import Announcements, Attempt, Dropped
from troth.protocol.channel import Delivery
from troth.protocol.messages import Center, Clip, said_as
from troth.protocol.primitives import all_finite, from_blob

T = TypeVar("T")


def agreed_centers(attempt: Attempt[T], clips: Announcements) -> dict[int, Center]:
    """What each owner announced of its parts; where there is nothing, somebody is out or has a part handed round (SPEC N5)."""
    said = {owner: said_as(clips[owner], Clip) for owner in set(attempt.owners)}
    centers = {
        part: center
        for part, owner in enumerate(attempt.owners)
        for center in said[owner].centers
        if center.part == part
    }
    named = {owner: attempt.roots.keys() & set(clip.missing) for owner, clip in said.items()}
    handed, majority = attempt.handed_round, attempt.here.state.roster.quorum
    holders = bits_of([said_as(clips[peer], Clip).witnessed for peer in attempt.members], len(handed)).sum(axis=0)
    delivered = {delivery for delivery, count in zip(handed, holders, strict=True) if count >= majority}
    out = {contributor for _, contributor in set(handed) - delivered}  # asked to, it handed its part to too few
    disputed: set[Delivery] = set()
    for part, owner in enumerate(attempt.owners):
        missed = {(part, peer) for peer in named[owner]}
        if part in centers:
            continue
        if missed & delivered or not 0 < 2 * len(missed) < len(attempt.roots):
            out.add(owner)  # it was handed the part, or misses nothing, or so much that it must be its own line
        elif attempt.complaints.count(owner) >= len(attempt.here.state.roster.members) // 2:
            out.add(owner)  # an honest one may have to complain about every liar
        else:
            disputed |= missed
    counts = Counter(peer for missed in named.values() for peer in missed)
    out |= {peer for peer, count in counts.items() if 2 * count >= len(said) > 1}  # it cannot be all of their lines
    if out or disputed:
        raise Dropped(out, () if out else disputed)
    return centers


def fitting(attempt: Attempt[T], blobs: Mapping[int, bytes], centers: Mapping[int, Center]) -> dict[int, bytes]:
    """The aggregates that have the length of their part, finite numbers, and the norm that was announced, to the last bit: the
    length of the update follows from it (SPEC A3, U3). Found by digest, they have that one."""
    bounds = attempt.here.roles.bounds
    return {
        part: blob
        for part, blob in blobs.items()
        if part in centers
        and len(blob) == 4 * (bounds[part + 1] - bounds[part])
        and all_finite(np.frombuffer(blob, "<f4"))
        and exact_norm(from_blob(blob)) == centers[part].norm
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
