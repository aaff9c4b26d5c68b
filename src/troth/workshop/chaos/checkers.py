"""Promises of the protocol, one function each: given what happened in a world, say what was broken."""

from collections.abc import Callable

from troth.workshop.chaos.check_door import door, lazy, seats, welcome
from troth.workshop.chaos.check_history import (
    agreement,
    bans,
    bounds,
    coins,
    evidence,
    memory,
    no_honest_ban,
    safety,
    signed,
    slots,
)
from troth.workshop.chaos.check_progress import comeback, follows, pauses, progress, rejoins, standing, timeouts
from troth.workshop.chaos.check_work import aggregates, audits, caught, harm
from troth.workshop.chaos.world import World

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
