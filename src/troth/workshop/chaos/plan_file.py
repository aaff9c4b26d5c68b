"""Plans as files: `troth chaos` writes one for a world that broke a promise, and plays it again.

A file may come from anywhere, so it is parsed strictly, and a plan that no world can be played from is refused.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from troth.clip.blocks import Code
from troth.errors import OperatorError, printable
from troth.protocol.core.run import most_byzantine
from troth.specs import parse_spec
from troth.workshop.attacks.broadcasts import WIRE_BEHAVIOURS
from troth.workshop.attacks.door import DOOR_LIES
from troth.workshop.chaos.draws import WIDE_ATTACKS
from troth.workshop.chaos.plan import BEHAVIOURS, TASKS, Plan

FORMAT = "troth/chaos/2"
DIMENSIONS = {task: int(parse_spec(task)[1]["dimension"]) for task in TASKS}
MOST_PEERS = DIMENSIONS[TASKS[0]]  # a vector cannot be cut into more parts than it has coordinates
MOST_STEPS = 10_000
MOST_LOCAL_STEPS = 16
_MOST_BYTES = 1 << 20
_MOST_SHOWN = 60  # characters of a file that may be hostile
_LARGEST = 1e9  # of any number in a plan but the seed, and …
_MOST_SPIKE = 3.4e38  # … a number of a gradient


class PlanFileError(OperatorError):
    """A file that is not a plan."""


@dataclass(frozen=True)
class PlanFile:
    """A world that broke a promise: as it was drawn, and as small as it could be made."""

    format: str
    broken: tuple[str, ...]  # promises that the drawn plan breaks; the shrunk one breaks the first of them too
    drawn: Plan
    shrunk: Plan | None = None

    @property
    def smallest(self) -> Plan:
        return self.shrunk or self.drawn


def plan_bytes(plan: Plan) -> bytes:
    """Canonical bytes: equal plans, equal bytes."""
    return msgspec.json.encode(msgspec.to_builtins(plan, str_keys=True, order="sorted"))


def to_text(file: PlanFile) -> str:
    raw = msgspec.json.encode(msgspec.to_builtins(file, str_keys=True, order="deterministic"))
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def load(path: Path) -> PlanFile:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror}; a plan is the plan.json of a world") from error
    try:
        return from_bytes(raw)
    except ValueError as error:
        raise PlanFileError(f"{path} is not a plan of troth chaos: {error}") from error


def from_bytes(raw: bytes) -> PlanFile:
    """Parse a plan file; raise ValueError (msgspec's included) for anything else."""
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES} bytes")
    try:
        file = msgspec.json.decode(raw, type=PlanFile, strict=True)
        unknown = next(_unknown(msgspec.to_builtins(file, str_keys=True), msgspec.json.decode(raw)), None)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if file.format != FORMAT:
        raise ValueError(f"its format is '{printable(file.format[:_MOST_SHOWN])}', and not {FORMAT}")
    if unknown is not None:
        raise ValueError(f"unknown field '{printable(unknown[:_MOST_SHOWN])}'")
    for name, plan in (("drawn", file.drawn), ("shrunk", file.shrunk)):
        wrong = None if plan is None else flaw(plan)
        if wrong is not None:
            raise ValueError(f"{name}: {wrong}")
    return file


def flaw(plan: Plan) -> str | None:
    """Reason why no world can be played from this plan, or None."""
    if plan.task not in TASKS:
        return f"unknown task '{printable(plan.task[:_MOST_SHOWN])}'"  # any other name could be that of a file
    if plan.code not in Code.known:
        return f"unknown code '{printable(plan.code[:_MOST_SHOWN])}'"
    most = -(-DIMENSIONS[plan.task] // Code.known[plan.code].grain)
    if not 1 <= plan.peers <= most:
        return f"peers must be from 1 to {most}, got {plan.peers}"
    if not 1 <= plan.steps <= MOST_STEPS:
        return f"steps must be from 1 to {MOST_STEPS}, got {plan.steps}"
    if not 1 <= plan.local_steps <= MOST_LOCAL_STEPS:
        return f"local_steps must be from 1 to {MOST_LOCAL_STEPS}, got {plan.local_steps}"
    if set(plan.strangers) != set(range(plan.peers, plan.peers + len(plan.strangers))):
        return f"strangers are numbered from {plan.peers} on"
    unknown = sorted({how for _, how in plan.strangers.values()} - set(BEHAVIOURS))
    if unknown:
        return f"no stranger behaves like '{printable(unknown[0][:_MOST_SHOWN])}'"
    if not plan.leaves.keys() <= plan.strangers.keys() or (plan.strangers and not plan.probation):
        return "strangers need a probation, and nobody else leaves"
    strangers = sorted(peers_in(dataclasses.replace(plan, strangers={}, leaves={})) - set(range(plan.peers)))
    if strangers:
        return f"there is no peer {strangers[0]} among {plan.peers}"
    most = most_byzantine(plan.peers, 1)
    if len(plan.lying) > most:
        return f"{len(plan.lying)} liars among {plan.peers} peers: at most {most}"
    if not len(plan.lying) <= plan.promised <= most:
        return f"byzantine must be from {len(plan.lying)}, who lie, to {most}, got {plan.promised}"
    liars = plan.liars.keys()
    if not plan.forge_from.keys() | plan.attacks.keys() <= liars or plan.intensity.keys() != liars:
        return "forge_from and attacks must be of liars, and intensity of all of them"
    behaviours = sorted({name for liar in plan.liars.values() for name in liar} - {*WIRE_BEHAVIOURS, *DOOR_LIES})
    if behaviours:
        return f"unknown behaviour '{printable(behaviours[0][:_MOST_SHOWN])}'"
    attacks = sorted(set(plan.attacks.values()) - set(WIDE_ATTACKS))
    if attacks:
        return f"unknown attack '{printable(attacks[0][:_MOST_SHOWN])}'"
    return _wrong_number(plan)


def _wrong_number(plan: Plan) -> str | None:
    rate = plan.network.bytes_per_second
    if rate is not None and rate <= 0:
        return f"bytes_per_second must be above 0, got {rate}"
    if not 2.0**-300 <= plan.tau <= _LARGEST or not (plan.tau_auto is None or 0 < plan.tau_auto <= 0.5):
        return f"tau must be above 0, and tau_auto at most 0.5, got {plan.tau} and {plan.tau_auto}"
    for ahead, faster in plan.network.clocks.values():
        if abs(ahead) > _LARGEST or not -0.5 <= faster <= 0.5:
            return f"a clock may be ahead by up to {_LARGEST:g} and faster by up to 0.5, got {ahead} and {faster}"
    if not 0 <= plan.spikes <= _MOST_SPIKE:
        return f"spikes must be from 0 to {_MOST_SPIKE:g}, got {plan.spikes}"
    others = dataclasses.replace(plan, seed=0, spikes=0.0, network=dataclasses.replace(plan.network, clocks={}))
    for number in numbers_in(others):
        if not 0 <= number <= _LARGEST:
            return f"numbers must be from 0 to {_LARGEST:g}, got {number}"
    return None


# Walks over all values in a plan, so that new fields need no change here


def children(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, tuple) else []


def peers_in(value: Any) -> set[int]:
    """All peers that a value mentions: keys of mappings, and members of sets."""
    here = value if isinstance(value, Mapping | frozenset) else ()
    found = {item for item in here if isinstance(item, int)}
    return found.union(*(peers_in(child) for child in children(value)))


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    for child in children(value):
        yield from numbers_in(child)


def _unknown(known: Any, raw: Any) -> Iterator[str]:
    """Fields in the text that were not read: msgspec ignores them in dataclasses."""
    if isinstance(raw, dict):
        yield from sorted(raw.keys() - known.keys())
        pairs = [(known[name], raw[name]) for name in raw.keys() & known.keys()]
    else:
        pairs = list(zip(known, raw, strict=False)) if isinstance(raw, list) else []  # of sets, equal items are one
    for one, its in pairs:
        yield from _unknown(one, its)
