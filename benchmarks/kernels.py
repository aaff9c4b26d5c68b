"""Compiled loops against their NumPy and PyTorch references, side by side; one copy of the input is the yardstick."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from unittest import mock

import numpy as np
import torch

from benchmarks.timing import best_of
from troth.clip import kernels
from troth.clip.centered_clip import judge_center
from troth.clip.exact import exact_norm, flush_in_place, ordinary, ordinary_norm
from troth.clip.fast import solve_centered_clip
from troth.crypto import sign_bytes, tagged_hash
from troth.protocol.core.parts import CommittedParts, part_bounds
from troth.protocol.step.audits import make_report, right_reports
from troth.protocol.wire.primitives import Primitives, part_norms
from troth.training.optimizers import SGD, AdamW

SIZE, PARTS, ROUNDS = 10_000_000, 16, 15


@dataclass(frozen=True)
class Contender:
    """A kernel by the name that the table gives it, and what it reads."""

    name: str
    work: Callable[[], object]
    copy: Callable[[], object]


def run() -> str:
    """One table, with one thread and with two."""
    kernels.prepare(SIZE)
    before, lines = (
        torch.get_num_threads(),
        [
            "## Kernels",
            "",
            f"D={SIZE:,}, float32; rows: {PARTS} of {SIZE // PARTS:,}. Milliseconds, best of {ROUNDS}; a copy is of what the kernel reads. "
            "NumPy: the reference, PyTorch's for optimizers, with as many threads as it uses by itself.",
            "",
            "| kernel | threads | NumPy, ms | compiled, ms | copy, ms | faster |",
            "| --- | --- | --- | --- | --- | --- |",
        ],
    )
    for contender in contenders():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            lines.append(_row(contender, threads))
    torch.set_num_threads(before)
    return "\n".join(lines)


def _row(contender: Contender, threads: int) -> str:
    def reference() -> None:
        with mock.patch.object(kernels, "compiled", return_value=False):
            contender.work()

    times = best_of({"NumPy": reference, "compiled": contender.work, "copy": contender.copy}, ROUNDS)
    plain, fast, copy = (1e3 * times[name] for name in ("NumPy", "compiled", "copy"))
    return f"| {contender.name} | {threads} | {plain:.1f} | {fast:.1f} | {copy:.1f} | {plain / fast:.1f} × |"


def contenders() -> list[Contender]:
    chance = np.random.default_rng(0)
    gradient_D, center_D = (chance.standard_normal(SIZE, dtype=np.float32) for _ in range(2))
    vector_D, aggregate_D = torch.from_numpy(gradient_D), torch.from_numpy(center_D)
    rows_PD = torch.from_numpy(gradient_D.reshape(PARTS, -1))
    part_D, bounds, tau = aggregate_D[: rows_PD.shape[1]], part_bounds(SIZE, PARTS), 100.0
    projector = Primitives().projector(tagged_hash("benchmark"), 16, SIZE)
    own = CommittedParts((), tagged_hash("root"), bounds, vector_D)
    sgd, adamw = SGD(), AdamW()
    momentum, moments = sgd.start(vector_D), adamw.start(vector_D)
    taus, flushed_D = [tau] * PARTS, gradient_D.copy()

    def keystream() -> None:
        for start, stop in pairwise(range(0, SIZE + 1, SIZE // 160)):
            sign_bytes(projector.key, 16, start, stop)

    def two() -> None:
        gradient_D.copy(), center_D.copy()

    one = gradient_D.copy
    return [
        Contender("finite, no subnormal", lambda: ordinary(gradient_D), one),
        Contender("flush in place", lambda: flush_in_place(flushed_D), one),
        Contender("exact norm", lambda: exact_norm(gradient_D), one),
        Contender("exact norm and check", lambda: ordinary_norm(gradient_D), one),
        Contender("lengths of parts", lambda: part_norms(vector_D, bounds), one),
        Contender("keystream alone", keystream, one),
        Contender("report", lambda: make_report(own, aggregate_D, projector, taus), two),
        Contender("right reports of a part", lambda: right_reports(rows_PD, part_D, projector, 0, tau), one),
        Contender("judge a centre", lambda: judge_center(rows_PD, part_D, tau=tau), one),
        Contender("CenteredClip", lambda: solve_centered_clip(rows_PD, tau=tau), one),
        Contender("SGD", lambda: sgd.update(vector_D, aggregate_D, momentum, 0.1), two),
        Contender("AdamW", lambda: adamw.update(vector_D, aggregate_D, moments, 0.1), two),
    ]


if __name__ == "__main__":
    print(run())
