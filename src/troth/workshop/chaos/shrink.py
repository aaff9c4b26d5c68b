"""Shrink a plan while its world still breaks the same promise: the rest is what matters.

Greedy and deterministic. A plan's fields are found, not listed, so new fields are tried too.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from troth.workshop.chaos.judge import WorldVerdict, judge
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.plan_file import flaw, plan_bytes

MOST_WORLDS = 200
MOST_S = 120.0

Progress = Callable[[Plan, int], None]  # the smallest plan so far, and how many worlds were tried


def breaks_like(verdict: WorldVerdict) -> Callable[[Plan], bool]:
    """Whether a plan fails with the same checker: another promise broken would be another bug."""
    wanted = _checker(verdict.broken[0])
    return lambda plan: wanted in map(_checker, judge(plan).broken)


def _checker(broken: str) -> str:
    """`agreement`, or `crash: TypeError`."""
    return ":".join(broken.split(":")[: 2 if broken.startswith("crash:") else 1])


def shrink(
    plan: Plan,
    broken: Callable[[Plan], bool],
    *,
    most_worlds: int = MOST_WORLDS,
    most_s: float = MOST_S,
    on_try: Progress = lambda _plan, _tried: None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Return the smallest plan found that is still broken; the plan itself, if none is."""
    search = _Search(plan, broken, most_worlds, clock() + most_s, on_try, clock)
    try:
        before = None
        while before != search.best:
            before = search.best
            search.bisect_steps()
            for smaller in (_fewer_liars, _fewer_strangers, _fewer_peers, _more_intense, _earlier, _simpler):
                search.greedily(smaller)
    except _EnoughError:
        pass
    return search.best


class _EnoughError(Exception):
    """No worlds or no time left."""


@dataclass
class _Search:
    """The smallest plan so far, and what may still be tried."""

    best: Plan
    broken: Callable[[Plan], bool]
    left: int  # worlds
    until: float
    on_try: Progress
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._tried = {plan_bytes(self.best)}
        # Where less is promised, a broken promise might be no bug.
        self._fair, self._within = self.best.fair, self.best.within

    def tries(self, plan: Plan) -> bool:
        """Play it, unless it was played before, and keep it if it is broken too."""
        key = plan_bytes(plan)
        if key in self._tried or flaw(plan) is not None or plan.fair < self._fair or plan.within < self._within:
            return False
        if not self.left or self.clock() >= self.until:
            raise _EnoughError
        self._tried.add(key)
        self.left -= 1
        found = self.broken(plan)
        if found:
            self.best = plan
        self.on_try(self.best, len(self._tried) - 1)
        return found

    def greedily(self, smaller: Callable[[Plan], Iterator[Plan]]) -> None:
        """Try one after the other; when one is taken, the rest shifts to its position."""
        position = 0
        while (plan := next(islice(smaller(self.best), position, None), None)) is not None:
            if not self.tries(plan):
                position += 1

    def bisect_steps(self) -> None:
        """A shorter world is the beginning of the longer one, so up to its first broken step it is not broken."""
        low = 1
        while low < self.best.steps:
            middle = (low + self.best.steps) // 2
            if not self.tries(replace(self.best, steps=middle)):
                low = middle + 1


# Ways to be smaller, the boldest first


def _fewer_liars(plan: Plan) -> Iterator[Plan]:
    """With one liar turned honest."""
    for number in sorted(plan.liars):
        yield plan.with_liars(plan.lying - {number})


def _fewer_strangers(plan: Plan) -> Iterator[Plan]:
    """Without one stranger, the last first."""
    for number in sorted(plan.strangers, reverse=True):
        smaller: Plan = _renumbered(plan, number)
        yield smaller


def _fewer_peers(plan: Plan) -> Iterator[Plan]:
    """Without one peer; those above it move down by one. The last first, since then the others keep their keys."""
    for number in reversed(range(plan.peers)):
        smaller: Plan = _renumbered(plan, number)
        yield replace(smaller, peers=plan.peers - 1)


def _renumbered(value: Any, gone: int) -> Any:
    """Without this peer. Keys of mappings and members of sets are peers, if they are numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return replace(value, **{name: _renumbered(item, gone) for name, item in fields.items()})
    if isinstance(value, Mapping):
        return {key - (key > gone): _renumbered(item, gone) for key, item in value.items() if key != gone}
    if isinstance(value, frozenset) and all(isinstance(item, int) for item in value):
        return frozenset(item - (item > gone) for item in value if item != gone)
    if isinstance(value, tuple):
        return tuple(_renumbered(item, gone) for item in value)
    return value


def _more_intense(plan: Plan) -> Iterator[Plan]:
    """With full intensity: a liar that lies whenever it can needs no draw to be understood."""
    for number, (intensity, start) in sorted(plan.intensity.items()):
        if intensity < 1.0:
            yield replace(plan, intensity={**plan.intensity, number: (1.0, start)})


def _earlier(plan: Plan) -> Iterator[Plan]:
    """All lies and accidents earlier by as many steps, or one of them in the first step."""
    starts = [start for _, start in plan.intensity.values()]
    starts += [*plan.forge_from.values(), *(out.step for out in (*plan.crashes.values(), *plan.blackout.values()))]
    by = min(starts, default=0)
    if 0 < by < plan.steps:
        yield replace(
            plan,
            steps=plan.steps - by,
            intensity={number: (intensity, start - by) for number, (intensity, start) in plan.intensity.items()},
            forge_from={number: start - by for number, start in plan.forge_from.items()},
            crashes={number: replace(out, step=out.step - by) for number, out in plan.crashes.items()},
            blackout={number: replace(out, step=out.step - by) for number, out in plan.blackout.items()},
        )
    for number, (intensity, start) in sorted(plan.intensity.items()):
        if start:
            yield replace(plan, intensity={**plan.intensity, number: (intensity, 0)})
    for number, start in sorted(plan.forge_from.items()):
        if start:
            yield replace(plan, forge_from={**plan.forge_from, number: 0})
    for number, drop_out in sorted(plan.crashes.items()):
        if drop_out.step:
            yield replace(plan, crashes={**plan.crashes, number: replace(drop_out, step=0)})


def _simpler(value: Any, default: Any = dataclasses.MISSING) -> Iterator[Any]:
    """Every value with one thing less: empty, without one item, at its default, or rounded down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            for simpler in _simpler(getattr(value, field.name), _default(field)):
                yield replace(value, **{field.name: simpler})
    elif isinstance(value, Mapping):
        if len(value) > 1:
            yield {}
        yield from (_without(value, key) for key in sorted(value))
        for key in sorted(value):
            yield from ({**value, key: simpler} for simpler in _simpler(value[key]))
    elif isinstance(value, frozenset):
        if len(value) > 1:
            yield frozenset()
        yield from (value - {item} for item in sorted(value))
    elif isinstance(value, tuple):
        for slot, item in enumerate(value):
            if dataclasses.is_dataclass(item):  # a list; others are pairs of numbers
                yield value[:slot] + value[slot + 1 :]
                yield from ((*value[:slot], simpler, *value[slot + 1 :]) for simpler in _simpler(item))
    elif default is not dataclasses.MISSING and value != default:
        yield default
        if isinstance(value, float) and math.floor(value * 10) / 10 != value:
            yield math.floor(value * 10) / 10


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _without(values: Mapping[int, Any], key: int) -> dict[int, Any]:
    return {other: value for other, value in values.items() if other != key}
