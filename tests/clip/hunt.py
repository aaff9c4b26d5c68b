"""Hunt for rows whose clipped centre a juror would not acquit:

    python -m tests.clip.hunt CASES [PROCESSES] [--slow] [--cuda]

Every case goes through the owner's way (`solve_centered_clip`), with `--slow` through the slow solver alone; with `--cuda` rows
lie on a GPU, and the processor judges as well, as other jurors do. Rows of many kinds, widths of 1 to 300 numbers, with some of
10,000 that go through compiled loops, and 10⁶ once in a thousand.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor

from tests.clip.hostile_rows import KINDS, draw_rows
from troth.clip.centered_clip import judge_center, solve_for_any_rows
from troth.clip.fast import solve_centered_clip

_BATCH = 1000
_WIDE, _WIDEST = (10_000, 40_000), (1_000_000,)


def _hunt(first: int, slow: bool, device: str) -> tuple[Counter[str], float, list[str]]:
    torch.set_num_threads(1)
    seen, worst, beyond = Counter[str](), 0.0, []
    for seed in range(first, first + _BATCH):
        kind = list(KINDS)[seed % len(KINDS)]
        widths = {"widths": _WIDEST} if seed % _BATCH == 0 else {"widths": _WIDE} if seed % 100 == 1 else {}
        rows_PD, tau = draw_rows(kind, seed, **widths)
        there_PD = rows_PD.to(device)
        value_D = solve_for_any_rows(there_PD, tau=tau)[0] if slow else solve_centered_clip(there_PD, tau=tau).value_D
        share = max(_share(there_PD, value_D, tau), _share(rows_PD, value_D.cpu(), tau))
        worst = max(worst, share)
        seen["cases"] += 1
        seen["over an eighth"] += share > 1 / 8
        seen["over a half: the owner says that it has none"] += share > 1 / 2
        seen["beyond the tolerance: the owner would be convicted"] += share > 1
        if share > 1:
            beyond.append(f"{kind} seed {seed} {tuple(rows_PD.shape)} tau {tau}: {share}")
    return seen, worst, beyond


def _share(rows_PD: Tensor, value_D: Tensor, tau: float) -> float:
    residual, tolerance = judge_center(rows_PD, value_D, tau=tau)
    return residual / tolerance if residual else 0.0


def main() -> None:
    options = [word for word in sys.argv[1:] if not word.startswith("--")]
    cases, processes = int(options[0]), int(options[1]) if len(options) > 1 else 1
    slow, device = "--slow" in sys.argv, "cuda" if "--cuda" in sys.argv else "cpu"
    total, worst = Counter[str](), 0.0
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        starts = range(0, cases, _BATCH)
        for seen, most, beyond in pool.map(_hunt, starts, [slow] * len(starts), [device] * len(starts)):
            total, worst = total + seen, max(worst, most)
            print(*beyond, sep="\n", end="\n" if beyond else "", flush=True)
            print(f"\r{total['cases']:,} of {cases:,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for name in ("cases", "over an eighth", "over a half: the owner says that it has none"):
        print(f"{total[name]:>9} {name}")
    name = "beyond the tolerance: the owner would be convicted"
    print(f"{total[name]:>9} {name}; the worst residual is {worst:.3f} tolerances")
    sys.exit(total[name] > 0)


if __name__ == "__main__":
    main()
