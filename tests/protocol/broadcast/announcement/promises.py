"""Promises of an announcement, one checker each: None if it was kept, or a phrase that says how it was broken."""

from collections.abc import Callable, Sequence
from typing import cast

from tests.protocol.broadcast.announcement.setting import DELTA, SLOT
from tests.protocol.broadcast.announcement.world import AnnouncementWorld
from troth.crypto import PeerId, blob_digest, signed_bytes
from troth.protocol.wire.frames import Certificate, Chained
from troth.protocol.wire.messages import Envelope

Promise = Callable[[AnnouncementWorld], str | None]


def termination(world: AnnouncementWorld) -> str | None:
    """Everybody decides by the end of the last round."""
    for member in world.honest:
        last = member.timing.views_due + 2 * DELTA * world.rounds + DELTA
        if member.decided_at is None or member.decided_at > last:
            return f"decided at {member.decided_at}, not by {last}"
    return None


def agreement(world: AnnouncementWorld) -> str | None:
    """Everybody decides the same payloads: a liar can sign one payload in two ways. Of three values, any two prove the lie."""
    seen = {
        (tuple(sorted((peer, said.payload) for peer, said in one.said.items())), tuple(sorted(one.equivocations)))
        for one in world.decisions()
    }
    return None if len(seen) == 1 else f"{len(seen)} different decisions"


def validity(world: AnnouncementWorld) -> str | None:
    """Every decision holds every honest member's value."""
    for decision in world.decisions():
        for member in world.honest:
            if decision.said.get(member.peer) != member.envelope:
                return "an honest member's value is missing"
    return None


def proof(world: AnnouncementWorld) -> str | None:
    """Only liars are said to have equivocated, and two of their signatures prove it."""
    liars = {key.peer for key in world.liars}
    for decision in world.decisions():
        if not decision.equivocations.keys() <= liars or decision.equivocations.keys() & decision.said.keys():
            return "an equivocation of somebody who did not equivocate"
        for peer, pair in decision.equivocations.items():
            if pair[0].payload == pair[1].payload or not all(_signed(world, peer, one) for one in pair):
                return "two values that prove nothing"
        if not all(_signed(world, peer, one) for peer, one in decision.said.items()):
            return "a value that nobody said"
    return None


def _signed(world: AnnouncementWorld, peer: PeerId, one: Envelope) -> bool:
    return world.tools.verify(peer, signed_bytes(SLOT, peer, blob_digest(one.payload)), one.signature)


def ends(world: AnnouncementWorld) -> str | None:
    """The announcement ends for all within Δ."""
    return ends_within(world, DELTA)


def ends_within(world: AnnouncementWorld, allowed: float) -> str | None:
    found = [end for member in world.honest if (end := member.core.ends) is not None]
    if len(found) < len(world.honest):
        return "no end"
    return None if max(found) - min(found) <= allowed + 1e-9 else f"ends {max(found) - min(found):.3f} apart"


def bounds(world: AnnouncementWorld) -> str | None:
    """Output and memory are bounded, and every frame can be read."""
    n = len(world.everyone)
    for member in world.honest:
        if len(member.sent) > 2 * n + 4:
            return f"{len(member.sent)} frames sent"
        for _, frame in member.sent:
            if isinstance(frame, Chained | Certificate) and len(frame.chain) > n:
                return f"a chain of {len(frame.chain)} signatures forwarded"
        if member.holds_too_much(n):
            return "memory"
    return "a frame that others cannot read" if world.undecodable else None


def quiet(world: AnnouncementWorld) -> str | None:
    """Without liars no rounds begin, and it takes two message delays after the last value."""
    unseen = world.departures is not None and not world.departures.seen_by_all
    if world.liars or any(member.sent for member in world.crashing) or unseen:
        return None
    last = max(member.says_at for member in world.honest)
    if world.crashing:  # they never said a word, and all know by then
        last = max(last, *(member.says_at for member in world.crashing)) + DELTA
    return quiet_since(world, last, 2 * DELTA)


def quiet_since(world: AnnouncementWorld, last: float, allowed: float) -> str | None:
    if any(isinstance(frame, Chained) for member in world.honest for _, frame in member.sent):
        return "a chain"
    slowest = max(cast(float, member.decided_at) for member in world.honest)
    return None if slowest < last + allowed else f"took {slowest - last:.3f} after the last value"


def departure(world: AnnouncementWorld) -> str | None:
    """Without liars, a member that stops after everybody heard it starts no rounds, if all see it in time."""
    departures = world.departures
    if departures is None or world.liars or len(world.crashing) != 1 or not departures.seen_by_all:
        return None
    heard = all(world.crashing[0].peer in member.heard_in_time for member in world.honest)
    due = min(member.timing.views_due for member in world.honest)
    if not heard or departures.seen_at + DELTA >= due:
        return None
    slow = any(isinstance(frame, Chained) for member in world.honest for _, frame in member.sent)
    return "rounds for a member that spoke, and whose end all saw" if slow else None


PROMISES: tuple[Promise, ...] = (termination, agreement, validity, proof, ends, bounds, quiet, departure)


def broken(world: AnnouncementWorld, promises: Sequence[Promise] = PROMISES) -> str | None:
    """The first promise that was not kept, and how."""
    if world.crash is not None:
        return f"crash: {world.crash}"
    for promise in promises:
        why = promise(world)
        if why is not None:
            return f"{promise.__name__}: {why}"
    return None
