"""Hunt for rows whose clipped centre a juror would not acquit: `python -m tests.aggregation.hunt CASES [PROCESSES] [--slow]`.

Every case goes through the owner's way (`acquitted_center`), with `--slow` through the slow solver alone. Rows of many kinds,
widths of 1 to 300 numbers, with some of 10,000 that go through compiled loops, and 10⁶ once in a thousand.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import torch

from tests.aggregation.hostile_rows import KINDS, draw_rows
from troth.aggregation import judge_center, solve_centered_clip
from troth.aggregation.centered_clip_total import solve_for_any_rows

_BATCH = 1000
_WIDE, _WIDEST = (10_000, 40_000), (1_000_000,)


def _hunt(first: int, slow: bool) -> tuple[Counter[str], float, list[str]]:
    torch.set_num_threads(1)
    seen, worst, beyond = Counter[str](), 0.0, []
    for seed in range(first, first + _BATCH):
        kind = list(KINDS)[seed % len(KINDS)]
        widths = {"widths": _WIDEST} if seed % _BATCH == 0 else {"widths": _WIDE} if seed % 100 == 1 else {}
        rows_PD, tau = draw_rows(kind, seed, **widths)
        value_D = (solve_for_any_rows(rows_PD, tau=tau)[0]) if slow else solve_centered_clip(rows_PD, tau=tau).value_D
        residual, tolerance = judge_center(rows_PD, value_D, tau=tau)
        share = residual / tolerance if residual else 0.0
        worst = max(worst, share)
        seen["cases"] += 1
        seen["over an eighth"] += share > 1 / 8
        seen["over a half: the owner says that it has none"] += share > 1 / 2
        seen["beyond the tolerance: the owner would be convicted"] += share > 1
        if share > 1:
            beyond.append(f"{kind} seed {seed} {tuple(rows_PD.shape)} tau {tau}: {share}")
    return seen, worst, beyond


def main() -> None:
    options = [word for word in sys.argv[1:] if not word.startswith("--")]
    cases, processes = int(options[0]), int(options[1]) if len(options) > 1 else 1
    slow = "--slow" in sys.argv
    total, worst = Counter[str](), 0.0
    with ProcessPoolExecutor(processes) as pool:
        starts = range(0, cases, _BATCH)
        for seen, most, beyond in pool.map(_hunt, starts, [slow] * len(starts)):
            total, worst = total + seen, max(worst, most)
            print(*beyond, sep="\n", end="\n" if beyond else "", flush=True)
    for name in ("cases", "over an eighth", "over a half: the owner says that it has none"):
        print(f"{total[name]:>9} {name}")
    name = "beyond the tolerance: the owner would be convicted"
    print(f"{total[name]:>9} {name}; the worst residual is {worst:.3f} tolerances")
    sys.exit(total[name] > 0)


if __name__ == "__main__":
    main()
