"""Steps per second of the protocol in one process, and what announcements cost."""

import time

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
    server = _rate(ServerSimulation(Scenario(steps=STEPS, evaluate_every=STEPS, defence="centered-clip")))
    protocol = _rate(ProtocolSimulation(scenario))
    alone = _rate(ProtocolSimulation(scenario, share=False))
    lines += [
        f"| trusted server, CenteredClip | {server:.1f} |",
        f"| the protocol | {protocol:.1f} |",
        f"| the protocol, nothing shared between peers | {alone:.1f} |",
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


def _rate(simulation: ProtocolSimulation | ServerSimulation) -> float:
    steps = simulation.steps()
    next(steps)  # the first step warms up
    start = time.perf_counter()
    count = sum(1 for _ in steps)
    return count / (time.perf_counter() - start)
