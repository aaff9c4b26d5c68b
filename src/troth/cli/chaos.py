"""`troth chaos`: thousands of small worlds in which liars and accidents try to break a promise."""

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.simulation.chaos import Verdict
    from troth.simulation.world import Plan

_LINE_EVERY_S = 5.0


class ChaosError(OperatorError):
    """Options that no chaos can be drawn from."""


def chaos(
    seeds: Annotated[str, typer.Option(help="Which worlds: A..B, from A to before B.")] = "0..100",
    peers: Annotated[str, typer.Option(help="How many peers: a number, or A..B.")] = "4..12",
    steps: Annotated[int, typer.Option(help="How many steps in each world.")] = 20,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes, whatever is left.")] = None,
    seed: Annotated[int | None, typer.Option(help="One world only.")] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print who sent what to whom, when, and what was decided.")
    ] = False,
) -> None:
    """Try to break the protocol: each seed draws peers, liars, what they do, crashes and delays, and every promise is checked.

    Time is virtual and everything follows from the seed, so what breaks once breaks again: the command to replay it is
    printed. Exit code 1 if a promise was broken.

    Example: troth chaos --seeds 0..200
    """
    from troth.simulation.chaos import draw_plan

    least, most = _range(peers, "--peers", single=True)
    if least < 1 or most > 64:
        raise ChaosError(f"--peers must be from 1 to 64, got {peers}")
    if steps < 1:
        raise ChaosError(f"--steps must be at least 1, got {steps}")
    if seed is not None:
        _one(draw_plan(seed, least_peers=least, most_peers=most, steps=steps), trace=trace)
        return
    if trace:
        raise ChaosError("--trace needs --seed: which world?")
    first, last = _range(seeds, "--seeds")
    plans = [draw_plan(k, least_peers=least, most_peers=most, steps=steps) for k in range(first, last)]
    broken = _many(plans, minutes, f"--peers {peers} --steps {steps}")
    if broken:
        raise typer.Exit(1)


def _range(text: str, option: str, *, single: bool = False) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if match and int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    if single and text.isdigit():
        return int(text), int(text)
    raise ChaosError(f"{option} is {'a number, or ' if single else ''}A..B with A ≤ B, got '{text}'")


def _many(plans: list["Plan"], minutes: float | None, options: str) -> int:
    """All worlds, on all cores; says what broke as soon as it is known."""
    import os
    from collections import Counter
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from troth.simulation.chaos import judge

    start, broken, done = time.monotonic(), 0, 0
    totals: Counter[str] = Counter()
    last_line = start
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(judge, plan) for plan in plans]):
                verdict = future.result()
                done += 1
                totals += verdict.counts
                if verdict.broken:
                    broken += 1
                    _say_broken(verdict, options)
                now = time.monotonic()
                if now - last_line > _LINE_EVERY_S or done == len(plans):
                    last_line = now
                    print(
                        f"{done} of {len(plans)} worlds, {broken} broken, {60 * done / (now - start):.0f} a minute",
                        file=sys.stderr,
                    )
                if minutes is not None and now - start > 60 * minutes:
                    break
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for name, count in sorted(totals.items()):
        typer.echo(f"{count:>12,}  {name}")
    typer.echo(f"{broken} of {done} worlds broke a promise" if broken else f"no promise was broken in {done} worlds")
    return broken


def _say_broken(verdict: "Verdict", options: str) -> None:
    typer.echo(f"seed {verdict.seed} broke a promise: {verdict.plan}")
    for what in verdict.broken:
        typer.echo(f"  {what}")
    typer.echo(f"  replay: troth chaos --seed {verdict.seed} {options} --trace")


def _one(plan: "Plan", *, trace: bool) -> None:
    """One world, told as it goes if asked for."""
    from collections.abc import Sequence

    from troth.crypto import Identity, PeerId, derive
    from troth.protocol.frames import Packet
    from troth.protocol.messages import Phase
    from troth.simulation.checkers import CHECKERS
    from troth.simulation.world import play

    typer.echo(f"seed {plan.seed}: {plan}")
    names = {Identity.from_secret(derive(plan.seed, "identity", k)).peer: k for k in range(plan.peers)}

    def watch(now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        place, kind = packet.place, type(packet.frame).__name__
        arrives = "arrives " + " and ".join(f"{now + delay:.3f}" for delay in delays) if delays else "lost"
        where = f"step {place.step} attempt {place.attempt} {Phase(place.phase).name.lower()}"
        typer.echo(f"{now:9.3f}  {names[sender]:>2} → {names[to]:<2}  {kind:<12} {where:<28} {arrives}")

    world = play(plan, watch if trace else None)
    for record in world.records:
        bans = [f"{world.numbers[j.banned]} ({j.kind.name.lower()})" for j in record.judgements if j.banned]
        absent = [world.numbers[PeerId(peer)] for peer in record.absent]
        struck = [world.numbers[PeerId(peer)] for peer in record.struck]
        typer.echo(
            f"step {record.step}: {len(record.contributors)} contributors, {'updated' if record.updated else 'no update'}"
            f"{f', banned {bans}' if bans else ''}{f', absent {absent}' if absent else ''}"
            f"{f', struck {struck}' if struck else ''}"
        )
    for peer, why in sorted(world.stopped.items(), key=lambda item: names[item[0]]):
        typer.echo(f"peer {names[peer]} stopped: {why}")
    broken = [f"{name}: {what}" for name, check in CHECKERS.items() for what in check(world)]
    for what in broken:
        typer.echo(f"BROKEN {what}")
    if broken:
        raise typer.Exit(1)
    typer.echo("no promise was broken")
