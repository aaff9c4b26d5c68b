"""`troth chaos`: thousands of small worlds in which liars and accidents try to break a promise."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.output import OutputError, claim
from troth.cli.tally import Tally
from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.simulation.chaos.judge import Verdict
    from troth.simulation.chaos.world import Plan, World
    from troth.simulation.narrate.timeline import Timeline

_INTERRUPTED = 130
_MOST_SHRUNK = 3  # of many worlds: the others are most likely broken in the same way


class ChaosError(OperatorError):
    """Options that no chaos can be drawn from."""


def chaos(
    seeds: Annotated[str, typer.Option(help="Which worlds: A..B, from A to before B.")] = "0..100",
    peers: Annotated[str, typer.Option(help="How many peers: a number, or A..B.")] = "4..16",
    steps: Annotated[int, typer.Option(help="How many steps in each world.")] = 20,
    draw: Annotated[
        str,
        typer.Option(
            help="Which kind of worlds: classic, wide (more of everything), or beyond (safety alone is promised)."
        ),
    ] = "classic",
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes, whatever is left.")] = None,
    seed: Annotated[int | None, typer.Option(help="One world only.")] = None,
    plan: Annotated[Path | None, typer.Option(help="One world only: the plan.json of one that broke.")] = None,
    drawn: Annotated[
        bool, typer.Option("--drawn", help="With --plan: the world as it was drawn, not as small as it could be made.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed or --plan: print who sent what to whom, and who decided what.")
    ] = False,
    no_shrink: Annotated[
        bool, typer.Option("--no-shrink", help="Do not look for smaller worlds that break the same promise.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what broke; with many worlds, a folder for each in it.", show_default="chaos-<seed>"
        ),
    ] = None,
) -> None:
    """Try to break the protocol: each seed draws peers, liars, what they do, crashes and delays, and every promise is checked.

    Time is virtual and everything follows from the seed, so what breaks once breaks again. A world that broke is made
    smaller while it still breaks the same promise, and saved: its plan, which --plan plays again, and its timeline. Of
    many worlds that broke that is done for the first three, after all others were played. Ctrl-C stops, and prints what
    was found so far. Exit code 1 if a promise was broken.

    Example: troth chaos --seeds 0..200
    """
    _check_options(seed, plan, drawn=drawn, trace=trace, minutes=minutes, steps=steps)
    least, most = _range(peers, "--peers", single=True)
    first, last = _range(seeds, "--seeds")
    if out is not None and out.exists() and not out.is_dir():
        raise ChaosError(f"--out {out} is a file: choose a folder")

    from troth.simulation.chaos.draws import DRAWS
    from troth.simulation.chaos.plan_file import MOST_PEERS, load
    from troth.specs import pick

    if least < 1 or most > MOST_PEERS:
        raise ChaosError(f"--peers must be from 1 to {MOST_PEERS}, got {peers}")

    drawing = pick(DRAWS, draw, "draw")

    def drawn_from(number: int) -> "Plan":
        return drawing(number, least_peers=least, most_peers=most, steps=steps)

    replay = f"--peers {peers} --steps {steps}" + ("" if draw == "classic" else f" --draw {draw}")
    try:
        if plan is not None:
            file = load(plan)
            broken = bool(_one(file.drawn if drawn else file.smallest, trace=trace))
        elif seed is not None:
            broken = _seed(drawn_from(seed), out or Path(f"chaos-{seed}"), replay, trace=trace, smaller=not no_shrink)
        else:
            broken = _many(range(first, last), drawn_from, out or Path(), replay, minutes, smaller=not no_shrink)
    except KeyboardInterrupt:
        typer.echo("troth: interrupted", err=True)
        raise SystemExit(_INTERRUPTED) from None
    if broken:
        raise typer.Exit(1)


def _check_options(
    seed: int | None, plan: Path | None, *, drawn: bool, trace: bool, minutes: float | None, steps: int
) -> None:
    if plan is not None and seed is not None:
        raise ChaosError("--plan and --seed each say which world: leave one of them out")
    if drawn and plan is None:
        raise ChaosError("--drawn needs --plan: which world?")
    if trace and seed is None and plan is None:
        raise ChaosError("--trace needs --seed or --plan: which world?")
    if minutes is not None and not (0 < minutes < math.inf):
        raise ChaosError(f"--minutes must be above 0, got {minutes}")
    if steps < 1:
        raise ChaosError(f"--steps must be at least 1, got {steps}")


def _range(text: str, option: str, *, single: bool = False) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)\.\.([0-9]+)", text)
    if match and int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    if single and re.fullmatch("[0-9]+", text):
        return int(text), int(text)
    raise ChaosError(f"{option} is {'a number, or ' if single else ''}A..B with A ≤ B, got '{text}'")


# One world


def _one(plan: "Plan", *, trace: bool) -> list[str]:
    """Played and told; what it broke."""
    from troth.simulation.narrate.timeline import Timeline

    timeline = Timeline(plan) if trace else None
    if timeline is None:
        typer.echo(f"seed {plan.seed}: {plan}")
    world, broken, fell_over = _played(plan, timeline)
    for line in timeline.lines(world) if timeline is not None else _step_lines(world):
        typer.echo(line)
    if fell_over:
        typer.echo(fell_over, err=True)
    for what in broken:
        typer.echo(f"BROKEN {what}")
    if not broken:
        typer.echo("no promise was broken")
    return broken


def _played(plan: "Plan", timeline: "Timeline | None") -> "tuple[World | None, list[str], str]":
    """What happened, what was broken, and the traceback if something fell over."""
    import traceback

    import torch

    from troth.simulation.chaos.judge import broken_in
    from troth.simulation.chaos.world import play

    torch.set_num_threads(1)  # as in `judge`
    world = None
    try:
        world = play(plan) if timeline is None else play(plan, timeline.watch, timeline.wrap)
        return world, broken_in(world), ""
    except Exception as error:
        return world, [f"crash: {type(error).__name__}: {error}"], traceback.format_exc()


def _step_lines(world: "World | None") -> Iterator[str]:
    from troth.crypto import PeerId

    if world is None:
        return
    for record in world.records:
        bans = [f"{world.numbers[j.banned]} ({j.kind.name.lower()})" for j in record.judgements if j.banned]
        absent = [world.numbers[PeerId(peer)] for peer in record.absent]
        struck = [world.numbers[PeerId(peer)] for peer in record.struck]
        yield (
            f"step {record.step}: {len(record.contributors)} contributors, {'updated' if record.updated else 'no update'}"
            f"{f', banned {bans}' if bans else ''}{f', absent {absent}' if absent else ''}"
            f"{f', struck {struck}' if struck else ''}"
        )
    for number, why in sorted(world.stopped.items()):
        yield f"peer {number} stopped: {why}"


def _seed(plan: "Plan", folder: Path, replay: str, *, trace: bool, smaller: bool) -> bool:
    if folder.exists() and not folder.is_dir():
        raise ChaosError(f"{folder} is a file, and a folder of that name is for what broke: choose another with --out")
    from troth.simulation.chaos.judge import Verdict

    broken = _one(plan, trace=trace)
    if broken:
        _save(Verdict(plan.seed, str(plan), broken), plan, folder, replay, smaller=smaller)
    return bool(broken)


# Many worlds


def _many(
    seeds: range, draw: "Callable[[int], Plan]", out: Path, replay: str, minutes: float | None, *, smaller: bool
) -> bool:
    """All of them, on all cores; says what broke as soon as it is known, and looks closer when all were played."""
    import os
    from contextlib import closing

    from troth.simulation.chaos.workers import judge_all

    start = time.monotonic()
    until = None if minutes is None else start + 60 * minutes
    totals: Counter[str] = Counter()
    broken: list[Verdict] = []
    done, interrupted = 0, False
    judging = judge_all(map(draw, seeds), os.cpu_count() or 1, until)
    with closing(judging) as verdicts, Tally("chaos", len(seeds)) as tally:
        tally.show(0, f"0 of {len(seeds)} worlds")
        try:
            for verdict in verdicts:
                done += 1
                totals += verdict.counts
                if verdict.broken:
                    broken.append(verdict)
                    _say_broken(verdict, replay, tally.say)
                now = time.monotonic()
                words = f"{done} of {len(seeds)} worlds, {len(broken)} broken, {60 * done / (now - start):.0f} a minute"
                left = (len(seeds) - done) * (now - start) / done
                tally.show(done, words, left if until is None else max(0.0, min(left, until - now)))
        except KeyboardInterrupt:
            interrupted = True
    for name, count in sorted(totals.items()):
        typer.echo(f"{count:>12,}  {name}")
    rest = "" if done == len(seeds) else f", of {len(seeds)}: {'interrupted' if interrupted else 'the time is up'}"
    what = f"{len(broken)} of {done} worlds broke a promise" if broken else f"no promise was broken in {done} worlds"
    typer.echo(what + rest)
    for verdict in sorted(broken, key=lambda verdict: verdict.seed)[:_MOST_SHRUNK]:
        try:
            folder = out / f"chaos-{verdict.seed}"
            _save(verdict, draw(verdict.seed), folder, replay, smaller=smaller, closer=not interrupted)
        except OutputError as error:
            typer.echo(f"troth: {error}", err=True)  # the others may go where they should
    if interrupted:
        raise KeyboardInterrupt
    return bool(broken)


def _say_broken(verdict: "Verdict", replay: str, say: Callable[[str], None]) -> None:
    say(f"seed {verdict.seed} broke a promise: {verdict.plan}")
    for what in verdict.broken:
        say(f"  {what}")
    say(f"  replay: troth chaos --seed {verdict.seed} {replay} --trace")


# What is left of a world that broke


def _save(verdict: "Verdict", plan: "Plan", folder: Path, replay: str, *, smaller: bool, closer: bool = True) -> None:
    """Its plan at once, so that whoever interrupts loses nothing; then a smaller one, and what happens in it."""
    from troth.files import write_text
    from troth.simulation.narrate.timeline import Timeline

    claim(folder, {}, overwrite=True)
    _write(folder, verdict, plan, plan, replay)
    typer.echo(f"saved in {folder}: troth chaos --plan {folder / 'plan.json'} --trace")
    if not closer:
        return
    small = _shrunk(verdict, plan, lambda best: _write(folder, verdict, plan, best, replay)) if smaller else plan
    timeline = Timeline(small)
    world, broken, fell_over = _played(small, timeline)
    story = [*timeline.lines(world), *(f"BROKEN {what}" for what in broken), *([fell_over] if fell_over else [])]
    write_text(folder / "trace.txt", "\n".join(story) + "\n")
    _write(folder, verdict, plan, small, replay, broken)
    if small != plan:
        typer.echo(f"  smaller: {small}")
        for what in broken:
            typer.echo(f"  {what}")


def _shrunk(verdict: "Verdict", plan: "Plan", keep: "Callable[[Plan], None]") -> "Plan":
    from troth.simulation.chaos.shrink import MOST_WORLDS, breaks_like, shrink

    smallest = plan
    with Tally(f"shrinking seed {plan.seed}", MOST_WORLDS) as tally:

        def told(best: "Plan", tried: int) -> None:
            nonlocal smallest
            if best != smallest:
                smallest = best
                keep(best)
            size = f"{best.peers} peers, {best.steps} steps, {len(best.liars)} liars"
            tally.show(tried, f"{tried} worlds tried, the smallest has {size}")

        return shrink(plan, breaks_like(verdict), told=told)


def _write(
    folder: Path, verdict: "Verdict", drawn: "Plan", small: "Plan", replay: str, broken: list[str] | None = None
) -> None:
    from troth.files import write_text
    from troth.simulation.chaos.plan_file import FORMAT, PlanFile, to_text

    shrunk = None if small == drawn else small
    write_text(folder / "plan.json", to_text(PlanFile(FORMAT, tuple(verdict.broken), drawn, shrunk)))
    lines = [f"seed {verdict.seed}: {drawn}", *(f"  {what}" for what in verdict.broken)]
    lines += [f"  replay: troth chaos --seed {verdict.seed} {replay} --trace"]
    if shrunk is not None:
        lines += [f"smaller: {shrunk}", *(f"  {what}" for what in broken or ())]
        lines += [f"  replay: troth chaos --plan {folder / 'plan.json'} --trace"]
    write_text(folder / "verdict.txt", "\n".join(lines) + "\n")
