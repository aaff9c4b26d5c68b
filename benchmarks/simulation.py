"""Steps per second of the protocol in one process, its phases, and what announcements cost.

`python -m benchmarks.simulation --task … --peers 16 --device cuda --steps 20` prints the milliseconds of any task by phase.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from itertools import islice, pairwise

import torch

from benchmarks.phases import by_phase
from troth.clip.blocks import Code
from troth.options import CodeName
from troth.workshop.simulation import ProtocolSimulation, Scenario, ServerSimulation
from troth.workshop.simulation.report import StepReport

STEPS, MANY_STEPS = 60, 6


def run() -> str:
    lines = [
        "## Simulation",
        "",
        "16 peers on digits in one process, cryptography included; the trusted server beside it in the same run.",
        "",
        "| what | steps a second |",
        "| --- | --- |",
    ]
    scenario = Scenario(steps=STEPS, evaluate_every=STEPS)
    server, _ = _rate(ServerSimulation(Scenario(steps=STEPS, evaluate_every=STEPS, defence="centered-clip")))
    protocol, closing = _rate(ProtocolSimulation(scenario))
    alone, _ = _rate(ProtocolSimulation(scenario, share=False))
    many, _ = _rate(ProtocolSimulation(Scenario(peers=64, steps=MANY_STEPS, evaluate_every=MANY_STEPS)))
    lines += [
        f"| trusted server, CenteredClip | {server:.1f} |",
        f"| the protocol | {protocol:.1f} |",
        f"| the protocol, nothing shared between peers | {alone:.1f} |",
        f"| the protocol, 64 peers | {many:.1f} |",
        "",
        f"The closing step, in which everyone audits, takes as long as {closing:.1f} of them, once in a run.",
        "",
        *_phase_table("digits", peers=16, device="cpu", steps=20),
        "",
        "Announced bytes that one peer receives in a step, without attack (the number of parameters does not matter):",
        "",
        "| peers | bytes a step | for each other peer |",
        "| --- | --- | --- |",
    ]
    for peers in (4, 8, 16, 32):
        simulation = ProtocolSimulation(Scenario(task="quadratic:dimension=64", peers=peers, steps=4, evaluate_every=4))
        for _ in simulation.steps():
            pass
        announced = simulation.exchange.announced_bytes // 4
        lines.append(f"| {peers} | {announced:,} | {announced // (peers - 1):,} |")
    return "\n".join(lines)


def _rate(simulation: ProtocolSimulation | ServerSimulation) -> tuple[float, float]:
    """Steps a second, and how many of them the last one takes: the protocol's run closes with it."""
    steps = simulation.steps()
    next(steps)  # the first step warms up
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in steps]
    *usual, last = [after - before for before, after in pairwise(times)]
    rate = len(usual) / sum(usual)
    return rate, last * rate


def _phase_table(task: str, *, peers: int, device: str, steps: int, code: CodeName = Scenario.code) -> list[str]:
    """Milliseconds of a step: the whole step as it is, then by phase, and the trusted server's beside it."""
    length = 2 * steps + 4
    scenario = Scenario(task=task, peers=peers, device=device, steps=length, evaluate_every=length, code=code)
    began = time.perf_counter()
    simulation = ProtocolSimulation(scenario)
    ready = time.perf_counter() - began
    running = simulation.steps()
    _time(running, 3, device)  # from the third step on, everything happens that ever happens: audits too
    whole = _time(running, steps, device)
    with by_phase(device) as seconds:
        for _ in islice(running, steps):
            pass
    size, how = simulation.problem.size, simulation.problem.why_one_by_one or "all peers in one call"
    del simulation, running  # and the memory that it takes up on an accelerator
    server = ServerSimulation(
        Scenario(
            task=task, peers=peers, device=device, steps=steps + 4, evaluate_every=steps + 4, defence="centered-clip"
        )
    ).steps()
    _time(server, 3, device)
    lines = [
        f"{peers} peers, {size:,} parameters, {device}; gradients: {how}; {ready:.1f} s to get ready. "
        f"A step takes **{1e3 * whole:.1f} ms**; the trusted server's {1e3 * _time(server, steps, device):.1f} ms. By phase, "
        "with timers in between"
        + (", and the device waited for at each, but for gradients that are begun ahead:" if device != "cpu" else ":"),
        "",
        "| phase | ms a step |",
        "| --- | --- |",
    ]
    lines += [
        f"| {phase} | {1e3 * spent / steps:.1f} |" for phase, spent in sorted(seconds.items(), key=lambda p: -p[1])
    ]
    return [*lines, f"| sum | {1e3 * sum(seconds.values()) / steps:.1f} |"]


def _time(running: Iterator[StepReport], steps: int, device: str) -> float:
    """Seconds a step, over several; on an accelerator until it has done its work."""
    gc.collect()
    _settle(device)
    began = time.perf_counter()
    for _ in islice(running, steps):
        pass
    _settle(device)
    return (time.perf_counter() - began) / steps


def _settle(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--code", choices=list(Code.known), default=Scenario.code)
    print("\n".join(_phase_table(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
