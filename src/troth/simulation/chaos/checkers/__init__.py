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

Checker = Callable[[World], list[str]]

# Name, checker, and whether it holds with at most b liars, however many honest peers are gone.
_PROMISES: tuple[tuple[str, Checker, bool], ...] = (
    ("agreement", agreement, True),
    ("no honest ban", no_honest_ban, True),
    ("evidence", evidence, True),
    ("signed", signed, True),
    ("slots", slots, True),
    ("caught", caught, False),
    ("audits", audits, False),
    ("coins", coins, True),
    ("door", door, True),
    ("lazy", lazy, False),
    ("seats", seats, True),
    ("welcome", welcome, False),
    ("aggregates", aggregates, False),
    ("harm", harm, False),
    ("progress", progress, False),
    ("standing", standing, False),
    ("pauses", pauses, True),
    ("timeouts", timeouts, False),
    ("rejoins", rejoins, False),
    ("follows", follows, False),
    ("comeback", comeback, False),
    ("bans", bans, True),
    ("bounds", bounds, True),
    ("memory", memory, True),
    ("safety", safety, True),
)
CHECKERS = {name: check for name, check, _ in _PROMISES}
OF_SAFETY = frozenset(name for name, _, always in _PROMISES if always)

__all__ = ["CHECKERS", "OF_SAFETY"]
