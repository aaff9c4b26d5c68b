"""Promises of the protocol, one function each: given what happened in a world, say what was broken."""

from collections.abc import Callable

from troth.simulation.chaos.checkers.agreement import agreement, safety
from troth.simulation.chaos.checkers.audits import audits, caught
from troth.simulation.chaos.checkers.bans import bans, evidence, no_honest_ban
from troth.simulation.chaos.checkers.bounds import bounds, memory
from troth.simulation.chaos.checkers.coins import coins
from troth.simulation.chaos.checkers.door import door, lazy
from troth.simulation.chaos.checkers.progress import pauses, progress, standing
from troth.simulation.chaos.checkers.returns import comeback, follows, rejoins
from troth.simulation.chaos.checkers.seats import seats
from troth.simulation.chaos.checkers.signatures import signed, slots
from troth.simulation.chaos.checkers.timeouts import timeouts
from troth.simulation.chaos.checkers.updates import aggregates, harm
from troth.simulation.chaos.checkers.welcome import welcome
from troth.simulation.chaos.world import World

CHECKERS: dict[str, Callable[[World], list[str]]] = {
    "agreement": agreement,
    "no honest ban": no_honest_ban,
    "evidence": evidence,
    "signed": signed,
    "slots": slots,
    "caught": caught,
    "audits": audits,
    "coins": coins,
    "door": door,
    "lazy": lazy,
    "seats": seats,
    "welcome": welcome,
    "aggregates": aggregates,
    "harm": harm,
    "progress": progress,
    "standing": standing,
    "pauses": pauses,
    "timeouts": timeouts,
    "rejoins": rejoins,
    "follows": follows,
    "comeback": comeback,
    "bans": bans,
    "bounds": bounds,
    "memory": memory,
    "safety": safety,
}

# Promises that hold with at most b liars, however many honest peers are gone.
OF_SAFETY = frozenset(
    {
        "agreement",
        "no honest ban",
        "bans",
        "evidence",
        "signed",
        "slots",
        "coins",
        "door",
        "seats",
        "pauses",
        "bounds",
        "memory",
        "safety",
    }
)

__all__ = ["CHECKERS", "OF_SAFETY"]
