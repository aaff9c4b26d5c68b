"""The promises, one small file each: given what happened in a world, say what was broken."""

from collections.abc import Callable

from troth.simulation.checkers.aggregates import aggregates
from troth.simulation.checkers.agreement import agreement
from troth.simulation.checkers.audits import audits
from troth.simulation.checkers.bans import bans
from troth.simulation.checkers.bounds import bounds
from troth.simulation.checkers.caught import caught
from troth.simulation.checkers.coins import coins
from troth.simulation.checkers.comeback import comeback
from troth.simulation.checkers.evidence import evidence
from troth.simulation.checkers.follows import follows
from troth.simulation.checkers.harm import harm
from troth.simulation.checkers.knocks import knocks
from troth.simulation.checkers.memory import memory
from troth.simulation.checkers.no_honest_ban import no_honest_ban
from troth.simulation.checkers.pace import pace
from troth.simulation.checkers.progress import progress
from troth.simulation.checkers.safety import safety
from troth.simulation.checkers.signed import signed
from troth.simulation.checkers.slots import slots
from troth.simulation.checkers.standing import standing
from troth.simulation.world import World

CHECKERS: dict[str, Callable[[World], list[str]]] = {
    "agreement": agreement,
    "no honest ban": no_honest_ban,
    "evidence": evidence,
    "signed": signed,
    "slots": slots,
    "caught": caught,
    "audits": audits,
    "coins": coins,
    "aggregates": aggregates,
    "harm": harm,
    "progress": progress,
    "standing": standing,
    "pace": pace,
    "knocks": knocks,
    "follows": follows,
    "comeback": comeback,
    "bans": bans,
    "bounds": bounds,
    "memory": memory,
    "safety": safety,
}

# What holds with at most b liars, however many honest peers are gone.
OF_SAFETY = frozenset(
    {"agreement", "no honest ban", "bans", "evidence", "signed", "slots", "coins", "bounds", "memory", "safety"}
)

__all__ = ["CHECKERS", "OF_SAFETY"]
