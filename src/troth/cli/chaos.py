"""`troth chaos`: thousands of small worlds in which liars and accidents try to break a promise."""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.cli.fields import UsageError, with_options
from troth.cli.progress import Tally
from troth.files import OutputError, claim, write_text

if TYPE_CHECKING:
    from troth.workshop.chaos.judge import WorldVerdict
    from troth.workshop.chaos.plan import Plan
    from troth.workshop.chaos.trace import TraceLog
    from troth.workshop.chaos.world import World

_INTERRUPTED = 130
_MOST_SHRUNK = 3  # of many worlds: the others most likely broke in the same way


def chaos(
    seeds: Annotated[str, typer.Option(help="Which worlds: A..B, from A to before B.")] = "0..100",
    peers: Annotated[str, typer.Option(help="How many peers: a number, or A..B.")] = "4..16",
    steps: Annotated[int, typer.Option(min=1, help="How many steps in each world.")] = 20,
    draw: Annotated[
        str,
        typer.Option(
            help="Which kind of worlds: classic, wide (more of everything), beyond (safety alone is promised), door "
            "(strangers come), or slow (codes and local steps)."
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
    smaller while it still breaks the same promise, and saved: its plan, which --plan plays again, and its trace. Of
    many worlds that broke that is done for the first three, after all others were played. Ctrl-C stops, and prints what
    was found so far. Exit code 1 if a promise was broken.

    Example: troth chaos --seeds 0..200
    """
    if plan is not None and seed is not None:
        raise UsageError("--plan and --seed each say which world: leave one of them out")
    if drawn and plan is None:
        raise UsageError("--drawn needs --plan: which world?")
    if trace and seed is None and plan is None:
        raise UsageError("--trace needs --seed or --plan: which world?")
    if minutes is not None and not (0 < minutes < math.inf):
        raise UsageError(f"--minutes must be above 0, got {minutes}")
    worlds = _Worlds(draw, peers, steps)
    first, last = _range(seeds, "--seeds")
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file: choose a folder")
    try:
        if plan is not None:
            broken = _play_again(plan, drawn=drawn, trace=trace)
        elif seed is not None:
            broken = _seed(worlds, seed, out or Path(f"chaos-{seed}"), trace=trace, smaller=not no_shrink)
        else:
            broken = _many(worlds, range(first, last), out or Path(), minutes, smaller=not no_shrink)
    except KeyboardInterrupt:
        typer.echo("troth: interrupted", err=True)
        raise SystemExit(_INTERRUPTED) from None
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Worlds:
    """Worlds to draw, as asked for."""

    draw: str
    peers: str
    steps: int

    def __post_init__(self) -> None:
        from troth.specs import pick
        from troth.workshop.chaos.draws import DRAWS
        from troth.workshop.chaos.plan_file import MOST_PEERS

        least, most = self._least_and_most()
        if least < 1 or most > MOST_PEERS:
            raise UsageError(f"--peers must be from 1 to {MOST_PEERS}, got {self.peers}")
        pick(DRAWS, self.draw, "draw")

    def _least_and_most(self) -> tuple[int, int]:
        return _range(self.peers, "--peers", single=True)

    def plan(self, seed: int) -> "Plan":
        from troth.workshop.chaos.draws import DRAWS

        least, most = self._least_and_most()
        return DRAWS[self.draw](seed, least_peers=least, most_peers=most, steps=self.steps)

    def replay(self, seed: int) -> str:
        """Command that plays one of these worlds again."""
        draw = "" if self.draw == "classic" else f" --draw {self.draw}"
        return f"troth chaos --seed {seed} --peers {self.peers} --steps {self.steps}{draw} --trace"


def _range(text: str, option: str, *, single: bool = False) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)\.\.([0-9]+)", f"{text}..{text}" if single and text.isdecimal() else text)
    if match and int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise UsageError(f"{option} is {'a number, or ' if single else ''}A..B with A ≤ B, got '{text}'")


# One world


def _play_again(path: Path, *, drawn: bool, trace: bool) -> bool:
    from troth.workshop.chaos.plan_file import load

    file = load(path)
    return bool(_one(file.drawn if drawn else file.smallest, trace=trace))


def _seed(worlds: _Worlds, seed: int, folder: Path, *, trace: bool, smaller: bool) -> bool:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, and a folder of that name is for what broke: choose another with --out")
    from troth.workshop.chaos.judge import WorldVerdict

    plan = worlds.plan(seed)
    broken = _one(plan, trace=trace)
    if broken:
        _Findings(folder, WorldVerdict(seed, str(plan), broken), plan, worlds.replay(seed)).save(smaller=smaller)
    return bool(broken)


def _one(plan: "Plan", *, trace: bool) -> list[str]:
    """Play a plan and print what happened; return the promises that it broke."""
    from troth.workshop.chaos.trace import TraceLog

    log = TraceLog(plan) if trace else None
    if log is None:
        typer.echo(f"seed {plan.seed}: {plan}")
    world, broken, traceback = _played(plan, log)
    for line in log.lines() if log is not None else _step_lines(world):
        typer.echo(line)
    if traceback:
        typer.echo(traceback, err=True)
    for text in broken:
        typer.echo(f"BROKEN {text}")
    if not broken:
        typer.echo("no promise was broken")
    return broken


def _played(plan: "Plan", log: "TraceLog | None") -> "tuple[World | None, list[str], str]":
    """The world, its broken promises, and the traceback if something raised."""
    import traceback

    import torch

    from troth.workshop.chaos.judge import broken_in, play

    torch.set_num_threads(1)  # as in `judge`
    world = None
    try:
        world = play(plan) if log is None else log.play()
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


# Many worlds


def _many(worlds: _Worlds, seeds: range, out: Path, minutes: float | None, *, smaller: bool) -> bool:
    """Play all on all cores; say what broke as soon as it is known, and look closer when all were played."""
    totals: Counter[str] = Counter()
    broken: list[WorldVerdict] = []
    done, interrupted = 0, False
    try:
        with closing(_verdicts(worlds, seeds, minutes)) as verdicts:
            for verdict in verdicts:
                done += 1
                totals += verdict.counts
                broken += [verdict] if verdict.broken else []
    except KeyboardInterrupt:
        interrupted = True
    for name, count in sorted(totals.items()):
        typer.echo(f"{count:>12,}  {name}")
    rest = "" if done == len(seeds) else f", of {len(seeds)}: {'interrupted' if interrupted else 'the time is up'}"
    result = f"{len(broken)} of {done} worlds broke a promise" if broken else f"no promise was broken in {done} worlds"
    typer.echo(result + rest)
    for verdict in sorted(broken, key=lambda verdict: verdict.seed)[:_MOST_SHRUNK]:
        seed = verdict.seed
        try:
            findings = _Findings(out / f"chaos-{seed}", verdict, worlds.plan(seed), worlds.replay(seed))
            findings.save(smaller=smaller, closer=not interrupted)
        except OutputError as error:
            refused = with_options(str(error), {"out": "--out"})
            typer.echo(f"troth: {refused}", err=True)  # the other folders may be writable
    if interrupted:
        raise KeyboardInterrupt
    return bool(broken)


def _verdicts(worlds: _Worlds, seeds: range, minutes: float | None) -> "Generator[WorldVerdict]":
    """Verdicts as they come, with a bar that shows how far it is."""
    from troth.workshop.chaos.judge import judge_all

    broken = 0
    with Tally("chaos", len(seeds), minutes=minutes) as tally, ExitStack() as stack:
        judging = judge_all(map(worlds.plan, seeds), os.cpu_count() or 1, tally.until)
        verdicts = stack.enter_context(closing(judging))
        tally.show(0, f"0 of {len(seeds)} worlds")
        for done, verdict in enumerate(verdicts, start=1):
            yield verdict  # first of all: what is shown was counted, whenever somebody interrupts
            if verdict.broken:
                broken += 1
                tally.say(f"seed {verdict.seed} broke a promise: {verdict.plan}")
                for text in (*verdict.broken, f"replay: {worlds.replay(verdict.seed)}"):
                    tally.say(f"  {text}")
            pace = 60 * done / (time.monotonic() - tally.began)
            tally.show(done, f"{done} of {len(seeds)} worlds, {broken} broken, {pace:.0f} a minute")


# Findings of a world that broke


@dataclass(frozen=True)
class _Findings:
    """Folder with the plan of a world that broke a promise, a smaller plan, and its trace."""

    folder: Path
    verdict: "WorldVerdict"
    drawn: "Plan"
    replay: str  # command that plays the drawn plan again

    def save(self, *, smaller: bool, closer: bool = True) -> None:
        """Write the plan at once, so that an interruption loses nothing; then a smaller one, and its trace."""
        from troth.workshop.chaos.trace import TraceLog

        claim(self.folder, {}, overwrite=True)
        self._write(self.drawn)
        typer.echo(f"saved in {self.folder}: troth chaos --plan {self.folder / 'plan.json'} --trace")
        if not closer:
            return
        small = self._shrunk() if smaller else self.drawn
        log = TraceLog(small)
        _, broken, traceback = _played(small, log)
        story = [*log.lines(), *(f"BROKEN {text}" for text in broken), *([traceback] if traceback else [])]
        write_text(self.folder / "trace.txt", "\n".join(story) + "\n")
        self._write(small, broken)
        if small != self.drawn:
            typer.echo(f"  smaller: {small}")
            for text in broken:
                typer.echo(f"  {text}")

    def _shrunk(self) -> "Plan":
        from troth.workshop.chaos.shrink import MOST_WORLDS, breaks_like, shrink

        smallest = self.drawn
        with Tally(f"shrinking seed {self.drawn.seed}", MOST_WORLDS, timed=False) as tally:

            def show(best: "Plan", tried: int) -> None:
                nonlocal smallest
                if best != smallest:
                    smallest = best
                    self._write(best)
                size = f"{best.peers} peers, {best.steps} steps, {len(best.liars)} liars"
                tally.show(tried, f"{tried} worlds tried, the smallest has {size}")

            return shrink(self.drawn, breaks_like(self.verdict), on_try=show)

    def _write(self, small: "Plan", broken: list[str] | None = None) -> None:
        from troth.workshop.chaos.plan_file import FORMAT, PlanFile, to_text

        shrunk = None if small == self.drawn else small
        file = PlanFile(FORMAT, tuple(self.verdict.broken), self.drawn, shrunk)
        write_text(self.folder / "plan.json", to_text(file))
        lines = [f"seed {self.verdict.seed}: {self.drawn}", *(f"  {text}" for text in self.verdict.broken)]
        lines += [f"  replay: {self.replay}"]
        if shrunk is not None:
            lines += [f"smaller: {shrunk}", *(f"  {text}" for text in broken or ())]
            lines += [f"  replay: troth chaos --plan {self.folder / 'plan.json'} --trace"]
        write_text(self.folder / "verdict.txt", "\n".join(lines) + "\n")
