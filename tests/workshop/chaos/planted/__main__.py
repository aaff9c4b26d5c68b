"""Look for the first seed that finds each planted bug, and print name, seed, steps and the broken promise.

`python -m tests.workshop.chaos.planted [A..B] [--only WORD] [--worlds DRAW] [--most-peers N] [--processes N]`. `--table` prints
a table for people, `--json` as the tests need it (they play every world twice, so small ones are better):

    python -m tests.workshop.chaos.planted 0..400 --most-peers 6 --json > planted.json
    mv planted.json tests/workshop/chaos/planted_seeds.json

A bug that needs more than chance brings together has a planned world: a plan in `plans/`, played in place of seeds.
"""

import argparse
import json
import os
from itertools import chain

from tests.workshop.chaos.planted import NOT_PLANTED, PLANTED
from tests.workshop.chaos.planted.search import Find, find_at, search, seeds_of_tests, world_of
from troth.workshop.chaos.draws import DRAWS
from troth.workshop.chaos.plan_file import MOST_PEERS


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for the first seed that finds each planted bug.")
    parser.add_argument("seeds", nargs="?", default="0..300")
    parser.add_argument("--only", default="", help="bugs with this in their name")
    parser.add_argument("--worlds", choices=sorted(DRAWS), default="classic", help="how they are drawn")
    parser.add_argument("--most-peers", type=int, default=MOST_PEERS, help="pass over larger worlds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="as markdown")
    parser.add_argument("--json", action="store_true", help="as the tests read it")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split(".."))
    names, found = [name for name in PLANTED if asked.only in name], dict[str, Find | None]()
    planned = {name: where for name, where in seeds_of_tests().items() if name in names and isinstance(where, str)}
    seeds = [seed for seed in range(first, last) if world_of(asked.worlds, seed).peers <= asked.most_peers]
    drawn = search([name for name in names if name not in planned], asked.worlds, seeds, asked.processes)
    for name, one in chain(((name, find_at(name, where)) for name, where in planned.items()), drawn):
        found[name] = one
        if not asked.table and not asked.json:
            print(f"{name}: {f'{one.where}, {one.broken}' if one else 'not found'}", flush=True)
    if asked.json:
        kept = {name: one.where for name in names if (one := found[name]) is not None}
        print(json.dumps(kept, indent=2, ensure_ascii=False))
    if asked.table:
        print("| bug | worlds | seed | steps | checker |\n| --- | --- | --- | --- | --- |")
        for name in names:
            one = found[name]
            print(f"| {name} | {one.row} | {one.checker} |" if one else f"| {name} | | not found | | |")
        print("\nNot planted:\n")
        for name, why in NOT_PLANTED.items():
            print(f"- *{name}.* {why}")


if __name__ == "__main__":
    main()
