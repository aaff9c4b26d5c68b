"""Bugs to plant in the protocol, each of which `troth chaos` must find; and which seed finds it first.

`python -m tests.simulation.planted [A..B]` looks for the seeds anew and prints them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from troth.protocol import step as step_module
from troth.protocol import trials as trials_module
from troth.protocol.announce import Announcement
from troth.protocol.attempt import Attempt
from troth.simulation.chaos import draw_plan, judge

STEPS = 12


def _v2_skipped() -> Any:
    return patch.object(step_module, "suspicious_parts", lambda *_: set())


def _v1_skipped() -> Any:
    return patch.object(step_module, "wrong_reporters", lambda *_: [])


def _first_of_two_taken() -> Any:
    original = Announcement._decide_by_chains

    def lenient(self: Announcement, now: float) -> None:
        self._accepted = {peer: dict(list(values.items())[:1]) for peer, values in self._accepted.items()}
        original(self, now)

    return patch.object(Announcement, "_decide_by_chains", lenient)


def _certificates_kept() -> Any:
    original = Announcement.take

    def quiet(self: Announcement) -> list[Any]:
        return [frame for frame in original(self) if type(frame).__name__ != "Certificate"]

    return patch.object(Announcement, "take", quiet)


def _minority_goes_on() -> Any:
    return patch.object(Attempt, "need_majority", lambda _self, _heard: None)


def _audits_unheard() -> Any:
    return patch.object(trials_module, "heard_audits", lambda *_: ())


PLANTED: dict[str, tuple[Callable[[], Any], int]] = {  # bug → how to plant it, and a seed that finds it
    "V2 skipped": (_v2_skipped, 34),
    "V1 skipped": (_v1_skipped, 33),
    "first of two equivocating values taken": (_first_of_two_taken, 17),
    "certificates kept to oneself": (_certificates_kept, 6),
    "a minority goes on": (_minority_goes_on, 9),
    "audits are not heard": (_audits_unheard, 3),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with PLANTED[name][0]():
        yield


def first_seed(name: str, seeds: range) -> tuple[int, str] | None:
    with planted(name):
        for seed in seeds:
            broken = judge(draw_plan(seed, steps=STEPS)).broken
            if broken:
                return seed, broken[0]
    return None


if __name__ == "__main__":
    first, last = map(int, (sys.argv[1] if len(sys.argv) > 1 else "0..300").split(".."))
    for name in sys.argv[2:] or PLANTED:
        print(name, "→", first_seed(name, range(first, last)), flush=True)
