"""One leaf of every part, drawn when all aggregates are fixed, and judged number by number by drawn members (SPEC V4)."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

from troth.clip.blocks import BLOCK, Form
from troth.clip.rounded_center import ACCUSE_ROUNDING, farthest_number
from troth.crypto import LEAF_BYTES, Digest, PeerId, digest_of_leaves, hashes_of_leaves, stream
from troth.protocol.core.channel import Delivery, Forward, Said
from troth.protocol.core.parts import Bounds, ProvenPart, opens_digest
from troth.protocol.step.attempt import Attempt, Reduced, Reported
from troth.protocol.step.audits import COVER_AT, center_slack
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Accusation, Accuse, ChargeKind, Phase, said_as

# C contributors, D coordinates of a leaf

T = TypeVar("T")

MOST_CHECKERS = 4  # of a leaf: more would find an owner that hides it hardly sooner, and load one that liars name
DOUBT = 2 * COVER_AT  # about reported distances: those off by less cost nobody anything, and a share of all weights


@dataclass(frozen=True)
class LeafDraw:
    """A leaf of a part, and the members that look at it."""

    part: int
    leaf: int
    checkers: tuple[PeerId, ...]


@dataclass(frozen=True)
class LeafFindings:
    """What one member found of the leaves that it was drawn for."""

    wrong: frozenset[int] = frozenset()  # parts
    missing: frozenset[PeerId] = frozenset()  # owners that showed none, or others than the contributors committed to


def drawn_leaves(attempt: Attempt[T], key: Digest) -> tuple[LeafDraw, ...]:
    """The leaves of an attempt. `key`: the projections', which follows from coins A."""
    context = attempt.context
    about = attempt.owners, context.roles.bounds, context.peer.code.rows
    return draw_leaves(key, *about, attempt.members, context.disputed_links)


def draw_leaves(
    key: Digest,
    owners: Sequence[PeerId],
    bounds: Bounds,
    form: Form,
    members: Set[PeerId],
    disputed_links: Mapping[PeerId, Set[PeerId]],
) -> tuple[LeafDraw, ...]:
    """Draw a leaf of each part, and members that judge it, whom its owner can reach (SPEC F2): one, and one more for each of its
    link disputes, or it could hide what it bent from one after the other. All look at as few leaves as they can, since a link
    that carries one in time may not carry four."""
    draw, ordered, load = stream(key, "leaf"), sorted(members), Counter[PeerId]()
    leaves = [-(-form.length(stop - start) // LEAF_BYTES) for start, stop in pairwise(bounds)]
    cut_off = [disputed_links.get(owner, frozenset()) for owner in owners]
    drawn = [int(draw.integers(count, 1)[0]) for count in leaves]
    checkers: list[tuple[PeerId, ...]] = [() for _ in owners]
    for turn in range(MOST_CHECKERS):
        for part, owner in enumerate(owners):
            if turn > len(cut_off[part]):
                continue
            out_of_reach = {owner, *cut_off[part], *checkers[part]}
            able = [peer for peer in ordered if peer not in out_of_reach]
            if able:
                least = min(load[peer] for peer in able)
                free = [peer for peer in able if load[peer] == least]
                checker = free[int(draw.integers(len(free), 1)[0])]
                checkers[part] += (checker,)
                load[checker] += 1
    return tuple(LeafDraw(part, drawn[part], found) for part, found in enumerate(checkers) if found)


async def look_at_leaves(attempt: Attempt[T], reduced: Reduced, reported: Reported) -> LeafFindings:
    """Show the drawn leaf of each part that this peer owns to the members drawn for it, and judge those shown to this peer."""
    peer = attempt.context.peer
    if not peer.code.rounds_centers or peer.observing:
        return LeafFindings()
    draws = {draw.part: draw for draw in drawn_leaves(attempt, reduced.projection_key)}
    shown: dict[Delivery, tuple[Sequence[PeerId], ProvenPart]] = {
        (part, contributor): (draws[part].checkers, leaf)
        for part in attempt.my_parts
        if part in draws
        for contributor, leaf in show_leaves(attempt.arrived(part), draws[part].leaf).items()
    }
    mine = [draw for draw in draws.values() if peer.me in draw.checkers]
    wanted = [(draw.part, contributor) for draw in mine for contributor in attempt.roots]

    # An offer is asked about again whenever another comes. Each is kept, so that no other gets its address.
    looked_at: dict[tuple[Delivery, int], tuple[ProvenPart, memoryview | None]] = {}

    def bytes_of(delivery: Delivery, offer: ProvenPart) -> memoryview | None:
        about = delivery, id(offer)
        if about not in looked_at:
            looked_at[about] = offer, _leaf_of(attempt, delivery, draws[delivery[0]].leaf, offer)
        return looked_at[about][1]

    exchange = Forward(shown, wanted, lambda delivery, offer: bytes_of(delivery, offer) is not None, turn=1)
    found = await peer.channel.exchange(attempt.slot(Phase.REPORT), exchange, attempt.view)
    views = {delivery: view for delivery, offer in found.items() if (view := bytes_of(delivery, offer)) is not None}
    here = [draw for draw in mine if all((draw.part, contributor) in views for contributor in attempt.roots)]
    wrong = frozenset(draw.part for draw in here if _is_wrong(attempt, draw, views, reduced, reported))
    return LeafFindings(wrong, frozenset(attempt.owners[draw.part] for draw in mine if draw not in here))


def show_leaves(parts: Mapping[PeerId, ProvenPart], leaf: int) -> dict[PeerId, ProvenPart]:
    """A leaf of each row of a part behind the hashes of all its leaves, with the row's own path."""
    views = Blob.leaves([proven.blob for proven in parts.values()], leaf)
    return {
        contributor: ProvenPart(Blob(proven.blob.leaf_hashes + bytes(view)), proven.path)
        for (contributor, proven), view in zip(parts.items(), views, strict=True)
    }


def _leaf_of(attempt: Attempt[T], delivery: Delivery, leaf: int, shown: ProvenPart) -> memoryview | None:
    """The bytes of a leaf, if its contributor committed to them."""
    (part, contributor), peer = delivery, attempt.context.peer
    start, stop = attempt.span(part)
    length = peer.code.rows.length(stop - start)
    hashes_length = 32 * -(-length // LEAF_BYTES)
    raw, expected = shown.blob.view, min(LEAF_BYTES, length - leaf * LEAF_BYTES)
    if len(raw) != hashes_length + expected or len(shown.path) > 32:
        return None
    hashes, view = bytes(raw[:hashes_length]), raw[hashes_length:]
    if hashes_of_leaves([view]) != [hashes[32 * leaf : 32 * leaf + 32]]:
        return None
    about = part, attempt.context.roles.bounds, attempt.roots[contributor], peer.tools, peer.code
    return view if opens_digest(digest_of_leaves(length, hashes), shown.path, *about) else None


def _is_wrong(
    attempt: Attempt[T],
    draw: LeafDraw,
    views: Mapping[Delivery, memoryview],
    reduced: Reduced,
    reported: Reported,
) -> bool:
    """Judge the numbers of a leaf by the reported distances. Whoever reports others is found in the trial (SPEC T6), unless they
    are off by so little that nobody is banned for it: what that can do to a number is not held against it."""
    peer, (start, stop), tau = attempt.context.peer, attempt.span(draw.part), attempt.context.taus[draw.part]
    said, form = reported.table.about(draw.part), peer.code.rows
    first, last = _span(form, draw.leaf, stop - start)
    rows_CD = torch.empty(len(attempt.roots), last - first)
    for row_D, length, contributor in zip(rows_CD, said.lengths_P.tolist(), attempt.roots, strict=True):
        # A malformed part is zeros as a whole [C4].
        if length == 0 or form.unpack(views[draw.part, contributor], row_D.numpy()) is None:
            row_D.zero_()
    if reduced.clipped.centers[draw.part].norm == 0:
        return False  # there is none, and everybody sees it [A7]
    epsilon = center_slack(reduced.clipped.centers[draw.part], stop - start)
    center_D = reduced.aggregate_D[start + first : start + last].cpu()
    norms = said.norms_P.tolist()
    found = farthest_number(rows_CD, center_D, norms, tau=tau, code=peer.code, epsilon=epsilon, doubt=DOUBT)
    return found > ACCUSE_ROUNDING


def _span(form: Form, leaf: int, size: int) -> tuple[int, int]:
    """First and last number of a leaf of a part of so many numbers: a leaf holds whole blocks."""
    width = LEAF_BYTES // form.length(BLOCK) * BLOCK
    return leaf * width, min(size, (leaf + 1) * width)


def heard_checks(attempt: Attempt[T], reduced: Reduced, accuses: Said) -> dict[int, frozenset[PeerId]]:
    """Parts of which a member drawn for the leaf accuses the owner, with all of these; others are not heard."""
    if not attempt.context.peer.code.rounds_centers:
        return {}
    step, clips, tools = attempt.context.state.step, reduced.clipped.clips, attempt.context.peer.tools
    heard = {}
    for draw in drawn_leaves(attempt, reduced.projection_key):
        owner = attempt.owners[draw.part]
        wanted = charge_of(draw.part, owner, step, tools.digest(clips[owner].envelope.payload))
        here = [peer for peer in draw.checkers if peer in accuses]
        heard[draw.part] = frozenset(peer for peer in here if wanted in said_as(accuses[peer], Accuse).accusations)
    return {part: accusers for part, accusers in heard.items() if accusers}


def charge_of(part: int, owner: PeerId, step: int, clip: Digest) -> Accusation:
    """The accusation of an owner of having rounded a number of this part wrong; `clip`: the digest of its Clip."""
    return Accusation(owner, ChargeKind.ROUNDING, step, part, clip)
