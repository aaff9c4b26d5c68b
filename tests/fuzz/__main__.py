"""`make fuzz`: a million hostile inputs for every decoder that sees peers' bytes, on all cores.

Exit code 1 if anything but accepting or refusing happened, or if memory grew: with the inputs, and how to have them again.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from tests.fuzz.harness import Chunk, Done, Tally, hostile_input, prepare, work
from tests.fuzz.targets import BY_NAME, TARGETS, Target

CHUNK = 1000  # inputs that a process is given at once
EVERY_S = 5.0  # a line of progress


def chunks(inputs: int) -> Iterator[Chunk]:
    """Chunks of every target's share, all targets in turn, so that an early stop has seen a bit of each."""
    total = sum(target.share for target in TARGETS)
    rows = [list(_chunks_of(target, -(-inputs * target.share // total))) for target in TARGETS]
    for turn in range(max(map(len, rows))):
        yield from (row[turn] for row in rows if turn < len(row))


def _chunks_of(target: Target, inputs: int) -> Iterator[Chunk]:
    draws = -(-inputs // target.inputs)
    size = max(1, CHUNK // target.inputs // (10 if target.name == "verify.verify_ban" else 1))
    for first in range(0, draws, size):
        yield Chunk(target.name, first, min(size, draws - first))


def fuzz(inputs: int, seed: int, jobs: int) -> bool:
    """Feed all targets, each its share; whether all went well."""
    start = shown = time.monotonic()
    tallies, growth = {target.name: Tally() for target in TARGETS}, {0: 0}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=prepare) as pool:
        waiting: dict[Future[Done], Chunk] = {pool.submit(work, chunk, seed): chunk for chunk in chunks(inputs)}
        try:
            for future in as_completed(list(waiting)):
                done = future.result()
                del waiting[future]
                tallies[done.target].add(done.tally)
                growth[done.process] = max(done.growth, growth.get(done.process, 0))
                if time.monotonic() - shown > EVERY_S:
                    shown = time.monotonic()
                    print(_progress(tallies, inputs, shown - start, max(growth.values())), flush=True)
        except BrokenProcessPool:
            print("A process died, at one of these (decoder, first number, how many):")
            print("\n".join(f"  {tuple(chunk)}" for chunk in list(waiting.values())[: 2 * jobs + 1]))
            return False
    print(_report(tallies, time.monotonic() - start, growth, jobs, seed))
    return not any(tally.failures for tally in tallies.values())


def _progress(tallies: dict[str, Tally], inputs: int, seconds: float, growth: int) -> str:
    done, crashes = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("inputs", "crashes"))
    return f"{seconds:5.0f} s  {done:>9,} of {inputs:,} inputs, {crashes} crashes, memory +{growth / 2**20:.1f} MiB"


def _report(tallies: dict[str, Tally], seconds: float, growth: dict[int, int], jobs: int, seed: int) -> str:
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    lines = [f"{'decoder':<24}{'inputs':>11}{'accepted':>11}{'refused':>11}{'crashes':>9}{'slowest ms':>12}"]
    for name, tally in (*tallies.items(), ("all", total)):
        lines.append(
            f"{name:<24}{tally.inputs:>11,}{tally.accepted:>11,}{tally.refused:>11,}{tally.crashes:>9,}"
            f"{1000 * tally.slowest_s:>12.1f}"
        )
    lines.append(
        f"{seconds:.0f} s in {jobs} processes, seed {seed}; the peak of memory grew by at most "
        f"{max(growth.values()) / 2**20:.1f} MiB in one of them"
    )
    failures = [failure.text() for tally in tallies.values() for failure in tally.failures]
    return "\n".join(("", *lines, *(f"\n{failure}" for failure in failures)))


def replay(target: Target, raw: bytes) -> bool:
    """Feed one input again, with the whole traceback if it fails."""
    print(f"{target.name}, {len(raw)} bytes: {raw.hex()}")
    fed = target.feed(raw)
    print(f"accepted {fed.accepted} of {fed.inputs}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other inputs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", nargs=2, metavar=("DECODER", "NUMBER"), help="one input again, by its number")
    parser.add_argument("--replay-hex", nargs=2, metavar=("DECODER", "HEX"), help="one input again, by its bytes")
    options = parser.parse_args()
    if options.replay is not None:
        target = BY_NAME[options.replay[0]]
        good = replay(target, hostile_input(target, options.seed, int(options.replay[1])))
    elif options.replay_hex is not None:
        good = replay(BY_NAME[options.replay_hex[0]], bytes.fromhex(options.replay_hex[1]))
    else:
        good = fuzz(options.inputs, options.seed, options.jobs)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
