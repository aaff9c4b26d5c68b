"""A stranger that is killed half-way through its download and started again, and how fast peers that lag behind catch up.

    python -m benchmarks.newcomers_resume [PARAMETERS]     a stranger, killed when half of a large state has come
    python -m benchmarks.newcomers_resume digits           a founder of a small run that was away for some steps

Contents are named seldom in both, so that the peer has to make several updates again, each from its aggregate. Their time is compared
with the time that the run takes for as many steps, meanwhile.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.newcomers_peers import Peers, Setting, peers_of

SIZE = 25_000_000
_FOUNDER_AWAY = 4  # steps for which a founder of the small run is away


@dataclass(frozen=True)
class CaughtUp:
    """Updates that a peer made again."""

    updates: int
    seconds: float  # that all of them took
    step_s: float  # median of the run's steps, around

    @property
    def rate(self) -> float:
        """Updates made again, in the time in which the run makes one step."""
        return self.updates * self.step_s / max(1e-9, self.seconds)

    def sentence(self) -> str:
        if not self.updates:
            return f"by a whole content, with no update to be made again (a step of the run took {self.step_s:.2f} s)"
        return (
            f"{self.updates} updates in {self.seconds:.2f} s, while a step of the run took {self.step_s:.2f} s (median): "
            f"{self.rate:.1f} times as fast as the run moves"
        )


@dataclass(frozen=True)
class Resumed:
    """A download that went on after its peer was killed."""

    state: int  # bytes of it
    away: int  # steps from the kill until it observed one
    before: int  # bytes of chunks that had come to the first process
    after: int  # … and to the second, of the same state
    same: bool  # both fetched the same state
    caught_up: CaughtUp
    models: dict[str, str]  # digests at the end of the run

    @property
    def again(self) -> int:
        """Bytes that came more than once."""
        return self.before + self.after - self.state


def caught_up(peers: Peers, name: str, since: float) -> CaughtUp:
    """What this peer has made again since then."""
    told = [one for one in peers.told(name) if one["what"] == "replayed" and one["at"] > since]
    replayed = [one for one in told if one["updates"] and one["whole"]]
    updates, seconds = sum(one["updates"] for one in replayed), sum(one["seconds"] for one in replayed)
    return CaughtUp(updates, seconds, statistics.median(step.seconds for step in peers.steps if step.ended > since))


def resume(size: int = SIZE) -> Resumed:
    # Small states have quick steps, and a stranger takes some seconds to start.
    setting = Setting.large(size, 36 if size >= SIZE else 44, probation=32, content_every=16)
    with tempfile.TemporaryDirectory() as temporary, peers_of(setting, Path(temporary)) as peers:
        name, state = "stranger0", 8 * size
        peers.start(name)
        peers.until(lambda: peers.chunk_bytes(name) >= state / 2)
        killed = peers.kill(name)
        before = peers.chunk_bytes(name)
        first = next(one["state"] for one in reversed(peers.told(name)) if one["what"] == "fetch")
        print(f"step {len(peers.steps)}: killed, {before:,} bytes had come", flush=True)
        lines, count = len(peers.told(name)), len(peers.steps)
        peers.start(name)
        peers.until(lambda: peers.has_stepped(name))
        print(f"step {len(peers.steps)}: it has caught up", flush=True)
        second = [one for one in peers.told(name)[lines:] if one["what"] == "fetch"]
        away = len(peers.steps) - count
        rate = caught_up(peers, name, killed)
        after = peers.chunk_bytes(name) - before
        peers.wait_for_the_end()
        return Resumed(state, away, before, after, [one["state"] for one in second] == [first], rate, peers.models())


def small_run() -> CaughtUp:
    """A founder of a run of digits is killed, and started again some steps later."""
    setting = Setting("digits", 100_000, strangers=0, content_every=16)
    with tempfile.TemporaryDirectory() as temporary, peers_of(setting, Path(temporary)) as peers:
        peers.let_steps_pass(20)
        killed = peers.kill("founder0")
        peers.let_steps_pass(_FOUNDER_AWAY)
        peers.start("founder0")
        peers.until(lambda: any(step.returned for step in peers.steps))
        return caught_up(peers, "founder0", killed)


def sentences(resumed: Resumed) -> list[str]:
    """For results-newcomers.md."""
    without = [name for name, model in resumed.models.items() if model == "none"]
    models = {model for model in resumed.models.values() if model != "none"}
    return [
        f"- {resumed.before / 1e6:.0f} MB had come when it was killed. It was started again at once, and fetched "
        f"{'the rest of the same state' if resumed.same else 'another state'}: {resumed.after / 1e6:.0f} MB. "
        f"{max(0, resumed.again) / 1e6:.1f} MB of {resumed.state / 1e6:.0f} MB came twice.",
        f"- It observed a step {resumed.away} steps after the kill. Before, it caught up: {resumed.caught_up.sentence()}.",
        f"- Models at the end: {len(models)} different among {len(resumed.models) - len(without)}; without one: "
        f"{', '.join(without) or 'nobody'}.",
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["digits"]:
        print(small_run().sentence())
    else:
        print("\n".join(sentences(resume(*map(int, sys.argv[1:])))))
