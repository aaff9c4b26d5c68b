"""Promises of an announcement among members with link disputes, and of the blame that follows from it in Accuse (SPEC F1–F3)."""

from collections.abc import Callable
from typing import cast

from tests.protocol.broadcast.announcement import promises
from tests.protocol.broadcast.announcement.link_dispute_world import LinkDisputeWorld
from tests.protocol.broadcast.announcement.promises import Promise, agreement, bounds, proof, termination, validity
from tests.protocol.broadcast.announcement.setting import DELTA
from troth.crypto import PeerId
from troth.protocol.core.roster import Roster
from troth.protocol.step.conclude import LinkDisputes
from troth.protocol.wire.messages import Accuse, Announced, Envelope

_STEP = 5  # of the Accuse in which everyone names whom it did not hear; all disputes are older

LinkDisputePromise = Callable[[LinkDisputeWorld], str | None]


def ends(world: LinkDisputeWorld) -> str | None:
    """The announcement ends for all within Δ; a certificate takes one more delay between two whose link is cut."""
    return promises.ends_within(world, DELTA if world.liars else 2 * DELTA)


def quiet(world: LinkDisputeWorld) -> str | None:
    """Without liars no rounds begin, whatever links are cut: a value, a view and a certificate, with one more on its way."""
    if world.liars:
        return None
    return promises.quiet_since(world, max(member.says_at for member in world.honest), 4 * DELTA)


def passed_on(world: LinkDisputeWorld) -> str | None:
    """Nobody relays more than two values and two views of each disputing member for the other."""
    most = 4 * 2 * len(world.pairs)
    return None if max(world.relayed.values(), default=0) <= most else f"{world.relayed} frames relayed"


PROMISES: tuple[LinkDisputePromise, ...] = (
    termination,
    agreement,
    validity,
    proof,
    ends,
    bounds,
    quiet,
    passed_on,
)


def broken(world: LinkDisputeWorld) -> str | None:
    """The first promise that was not kept, and how."""
    return promises.broken(world, cast(tuple[Promise, ...], PROMISES))


def served(world: LinkDisputeWorld) -> str | None:
    """A value that any honest member has by its T1 reaches those who dispute the link to its sender, unless others keep them
    waiting too."""
    everyone = set(world.everyone)
    for member in world.honest:
        disputed, in_time = world.disputed_links[member.peer], member.heard_in_time
        if everyone - in_time <= disputed and member.has_viewed:
            for other in world.honest:
                if (disputed - in_time - world.disputed_links[other.peer]) & other.heard_in_time:
                    return "a value that somebody had in time was not relayed, or too late"
    return None


# Blame


def standing(world: LinkDisputeWorld) -> str | None:
    """No honest member is struck or expelled, and no two of them get a link dispute; unless their links are cut."""
    honest = {member.peer for member in world.honest} if world.liars else set()
    for left in (None, *(key.peer for key in world.liars)):
        disputes = _disputes(world, left=left)
        if disputes.slowed & honest:
            return "an honest member is struck" + (", by one who then left" if left else "")
        if any(set(pair) <= honest for pair in disputes.new):
            return "two honest members get a link dispute"
        if honest & set(_roster(world).expelled(_STEP, disputes.slowed, disputes.new)):
            return "an honest member is expelled"
    return None


def costs(world: LinkDisputeWorld) -> str | None:
    """A liar that forces all rounds pays with a strike or with a new link dispute."""
    liars = {key.peer for key in world.liars}
    for named in ("nobody", "itself", "disputed links"):
        disputes = _disputes(world, named=named, doubting=False)
        if _was_slow(world) and not disputes.new and not disputes.slowed & liars:
            return f"all rounds, and it costs nobody anything; liars name {named}"
    return None


def _was_slow(world: LinkDisputeWorld) -> bool:
    """Whether it took all rounds, though nobody equivocated, and those who spoke were enough to go on without the rest."""
    decision = world.decisions()[0]
    enough = len(decision.said) >= world.quorum and not decision.equivocations
    return enough and not world.honest[0].holds_certificate


def _disputes(
    world: LinkDisputeWorld, *, named: str = "nobody", left: PeerId | None = None, doubting: bool = True
) -> LinkDisputes:
    """Link disputes after an Accuse in which the honest name whom they did not hear; liars name whom they like, and doubt the
    honest. `left` is out of the step by then, and so is everybody who was silent."""
    accuses = {
        member.peer: Accuse((), bytes(32), tuple(member.core.blame.unheard), tuple(member.core.blame.incomplete))
        for member in world.honest
    }
    honest = tuple(member.peer for member in world.honest)
    for key in world.liars:
        links = tuple(world.disputed_links[key.peer])
        unheard = {"nobody": (), "itself": (key.peer,), "disputed links": links}[named]
        accuses[key.peer] = Accuse((), bytes(32), unheard, honest if doubting else ())
    there = set(world.decisions()[0].said) - {left}
    heard = {peer: Announced(peer, said, Envelope(b"", bytes(64))) for peer, said in accuses.items() if peer in there}
    disputes = LinkDisputes(_roster(world), _STEP)
    disputes.hear(heard, there)
    return disputes


def _roster(world: LinkDisputeWorld) -> Roster:
    return Roster(
        world.everyone,
        byzantine=len(world.liars),
        link_disputes=tuple((0, min(pair), max(pair)) for pair in sorted(world.pairs, key=sorted)),
    )
