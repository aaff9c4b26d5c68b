"""The promises, one small file each: given what happened in a world, say what was broken."""

from collections.abc import Callable

from troth.simulation.chaos.checkers.aggregates import aggregates
from troth.simulation.chaos.checkers.agreement import agreement
from troth.simulation.chaos.checkers.audits import audits
from troth.simulation.chaos.checkers.bans import bans
from troth.simulation.chaos.checkers.bounds import bounds
from troth.simulation.chaos.checkers.caught import caught
from troth.simulation.chaos.checkers.coins import coins
from troth.simulation.chaos.checkers.comeback import comeback
from troth.simulation.chaos.checkers.evidence import evidence
from troth.simulation.chaos.checkers.follows import follows
from troth.simulation.chaos.checkers.harm import harm
from troth.simulation.chaos.checkers.memory import memory
from troth.simulation.chaos.checkers.no_honest_ban import no_honest_ban
from troth.simulation.chaos.checkers.progress import progress
from troth.simulation.chaos.checkers.rejoins import rejoins
from troth.simulation.chaos.checkers.safety import safety
from troth.simulation.chaos.checkers.signed import signed
from troth.simulation.chaos.checkers.slots import slots
from troth.simulation.chaos.checkers.standing import standing
from troth.simulation.chaos.checkers.timeouts import timeouts
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
    "aggregates": aggregates,
    "harm": harm,
    "progress": progress,
    "standing": standing,
    "pace": timeouts,
    "knocks": rejoins,
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
