"""Search for worlds that find planted bugs, and the worlds that the tests play."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from tests.workshop.chaos.planted import PLANTED
from troth.workshop.chaos.draws import DRAWS
from troth.workshop.chaos.judge import judge
from troth.workshop.chaos.plan import Plan
from troth.workshop.chaos.plan_file import load

STEPS = 12
LONGER = {"door": 24}  # a stranger has to follow, wait for a draw, and work
SMALL = {"door": {"most_peers": 5}, "slow": {"most_peers": 7}}  # else these would take long
SEEDS = Path(__file__).parent.with_name("planted_seeds.json")

Where = tuple[str, int, int] | str  # kind of worlds, seed and steps to play; or the file of a plan


@dataclass(frozen=True)
class Find:
    """A world that breaks a promise with the bug, and none without."""

    where: Where
    broken: str

    @property
    def seed(self) -> int:
        assert not isinstance(self.where, str)
        return self.where[1]

    @property
    def checker(self) -> str:
        return self.broken.split(":")[0]

    @property
    def row(self) -> str:
        """Worlds, seed and steps, for people."""
        if isinstance(self.where, str):
            return f"[as planned](../tests/workshop/chaos/{self.where}) | | {plan_of(self.where).steps}"
        return " | ".join(map(str, self.where))


def steps_of(worlds: str) -> int:
    """Most steps to play of such worlds."""
    return LONGER.get(worlds, STEPS)


def world_of(worlds: str, seed: int) -> Plan:
    """Drawn for the most steps, however many are played: else it would be another world."""
    return DRAWS[worlds](seed, steps=steps_of(worlds), **SMALL.get(worlds, {}))


def plan_of(where: Where) -> Plan:
    if isinstance(where, str):
        return load(SEEDS.parent / where).smallest
    worlds, seed, steps = where
    return replace(world_of(worlds, seed), steps=steps)


def broken_by(name: str | None, where: Where) -> list[str]:
    """Promises broken in this world with the bug; with None, without any bug."""
    with PLANTED[name]() if name is not None else ExitStack():
        return judge(plan_of(where)).broken


def find_at(name: str, where: Where) -> Find | None:
    broken = broken_by(name, where)
    return Find(where, broken[0]) if says_what_broke(broken) and not broken_by(None, where) else None


def says_what_broke(broken: list[str]) -> bool:
    """Whether a checker found it: a patch that only raises, since what it replaces has changed, shows nothing."""
    return bool(broken) and not broken[0].startswith("crash:")


def find(name: str, worlds: str, seed: int) -> Find | None:
    """Find of this seed, if any, in as few steps as show it."""
    least, steps = 1, steps_of(worlds)
    found = find_at(name, (worlds, seed, steps))
    while found and least < steps:
        middle = (least + steps) // 2
        shorter = find_at(name, (worlds, seed, middle))
        found = shorter or found
        least, steps = (least, middle) if shorter else (middle + 1, steps)
    return found


def search(names: list[str], worlds: str, seeds: Sequence[int], processes: int) -> Iterator[tuple[str, Find | None]]:
    """First seed of each bug, as they are found; all processes are busy until the last."""
    left = {name: iter(seeds) for name in names}
    tried = Counter[str]()
    running: dict[Future[Find | None], str] = {}
    best: dict[str, Find] = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        while left or running:
            while left and len(running) < processes:
                name = min(left, key=tried.__getitem__)
                seed = next(left[name], None)
                tried[name] += 1
                if seed is None:
                    del left[name]
                    if name not in running.values():
                        yield name, best.get(name)
                else:
                    running[pool.submit(find, name, worlds, seed)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, found = running.pop(future), future.result()
                if found is not None:
                    best[name] = min(found, best.get(name, found), key=lambda one: one.seed)
                    left.pop(name, None)
                if name not in left and name not in running.values():
                    yield name, best.get(name)


def seeds_of_tests() -> dict[str, Where]:
    return {
        name: where if isinstance(where, str) else (where[0], where[1], where[2])
        for name, where in json.loads(SEEDS.read_text()).items()
    }
