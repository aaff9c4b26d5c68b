"""Steps per second of the protocol in one process, and what announcements cost."""

import time
from itertools import pairwise

from troth.simulation import ProtocolSimulation, Scenario, ServerSimulation

STEPS = 60


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
    lines += [
        f"| trusted server, CenteredClip | {server:.1f} |",
        f"| the protocol | {protocol:.1f} |",
        f"| the protocol, nothing shared between peers | {alone:.1f} |",
        "",
        f"The closing step, in which everyone audits, takes as long as {closing:.1f} of them, once in a run.",
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
