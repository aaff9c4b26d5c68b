"""The fast CenteredClip solver against the published loop, on P=16, D=1,000,000, 7 rows × (−1000).

The honest rows are a common direction plus noise of equal length, as gradients of small batches are. How many
iterations the published loop needs depends on τ relative to the spread of the rows, so several are shown.
"""

import torch
from torch import Tensor

from benchmarks.timing import best_of
from troth.clip.centered_clip import centered_clip_published, clip_residual
from troth.clip.fast import solve_centered_clip

PEERS, BYZANTINE, WIDTH = 16, 7, 1_000_000


def run() -> str:
    vectors_PD = _gradients()
    spread = float((vectors_PD[BYZANTINE:] - vectors_PD[BYZANTINE:].mean(dim=0)).norm(dim=1).mean())
    lines = [
        "## CenteredClip",
        "",
        f"P={PEERS}, D={WIDTH:,}, float32, {BYZANTINE} rows × (−1000). One copy of the matrix is the yardstick; "
        "the loop starts at the coordinate median, as published. Residual: ‖Σ (x_i − v)·min(1, τ/‖x_i − v‖)‖.",
        "",
        "| τ / spread | | time, ms | copies | residual | iterations | fast is |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for share in (1.0, 0.1, 0.03):
        lines += _compare(vectors_PD, share * spread, share)
    return "\n".join(lines)


def _compare(vectors_PD: Tensor, tau: float, share: float) -> list[str]:
    start_D = torch.zeros(WIDTH)
    short = best_of(
        {
            "copy": vectors_PD.clone,
            "fast": lambda: solve_centered_clip(vectors_PD, tau=tau),
            "loop, 20 iterations": lambda: centered_clip_published(vectors_PD, tau=tau),
            "loop, 20 iterations, from 0": lambda: centered_clip_published(vectors_PD, tau=tau, start_D=start_D),
        },
        rounds=7,
    )
    released = "loop as released (500, 1e-6)"
    times = short | best_of(
        {released: lambda: centered_clip_published(vectors_PD, tau=tau, iterations=500, stop=1e-6)}, rounds=2
    )
    solved = solve_centered_clip(vectors_PD, tau=tau)
    results = {
        "fast": (solved.value_D, f"{solved.iterations} on P×P, {solved.reads} reads"),
        "loop, 20 iterations": (centered_clip_published(vectors_PD, tau=tau), "20"),
        "loop, 20 iterations, from 0": (centered_clip_published(vectors_PD, tau=tau, start_D=start_D), "20"),
        released: (centered_clip_published(vectors_PD, tau=tau, iterations=500, stop=1e-6), "up to 500"),
    }
    rows = [f"| {share:g} | copy | {times['copy'] * 1e3:.1f} | 1 | | | |"]
    best_residual = float(clip_residual(vectors_PD, solved.value_D, tau=tau).norm())
    for name, (value_D, iterations) in results.items():
        residual = float(clip_residual(vectors_PD, value_D, tau=tau).norm())
        gain = (
            ""
            if name == "fast"
            else f"{times[name] / times['fast']:.1f} × faster, residual {residual / best_residual:.1e} × smaller"
        )
        rows.append(
            f"| {share:g} | {name} | {times[name] * 1e3:.1f} | {times[name] / times['copy']:.0f} | {residual:.1e} "
            f"| {iterations} | {gain} |"
        )
    return rows


def _gradients() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    common_D = torch.randn(WIDTH, generator=generator)
    vectors_PD: Tensor = (common_D + torch.randn(PEERS, WIDTH, generator=generator)) / WIDTH**0.5
    vectors_PD[:BYZANTINE] *= -1000
    return vectors_PD
