"""How benchmarks take time: contenders in turns, so that a noisy machine disturbs all of them alike."""

import time
from collections.abc import Callable, Mapping


def best_of(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The shortest time of each, in seconds, over rounds in which everybody runs once."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
