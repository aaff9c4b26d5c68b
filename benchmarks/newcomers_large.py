"""`make bench-newcomers`: a stranger joins a run with a state of 200 MB, and one of its donors is killed half-way.

    python -m benchmarks.newcomers_large [PARAMETERS [stranger | nobody]]

Four founders and one stranger, each a process of `troth join`, over TLS on this machine; SGD with momentum, so the state is two
vectors. When half of the state has come, one founder is killed, or the stranger itself, which is started again at once, or
nobody. Rewrites benchmarks/results-newcomers.md, if it is a founder of a run of the usual size.
"""

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from troth.crypto import Identity

FOUNDERS, SIZE = 4, 25_000_000
WATCHED = "founder1"  # whose steps are measured
BEFORE = 8  # steps before the stranger comes
_FIRST = 2  # steps that are not counted: memory is taken for the first time
_PORT = 7560
_PATIENCE_S = 3000.0


@dataclass(frozen=True)
class Setting:
    """The run, and who is killed in it."""

    size: int
    victim: str
    steps: int = 44
    probation: int = 16
    content_every: int = 4

    @classmethod
    def of(cls, size: int, victim: str) -> "Setting":
        """A stranger that is killed takes some steps to start again, and must not have lost its slot by then."""
        if victim == "nobody":
            return cls(size, victim, 27)  # what a download costs alone
        return cls(size, victim, 70, 32, 16) if victim == "stranger" else cls(size, victim)


@dataclass(frozen=True)
class Moments:
    """Steps that the founders had made."""

    came: int  # when the stranger came
    download: int  # when its first chunk had come
    killed: int  # when a donor was killed
    whole: int  # when the state was whole
    caught_up: int  # when it observed its first step
    seconds: float  # from the first chunk to the last


@contextmanager
def _all_ended() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def main(size: int = SIZE, victim: str = "founder") -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temporary, _all_ended() as processes:
        folder = Path(temporary)
        keys = sorted((Identity.generate() for _ in range(FOUNDERS)), key=lambda identity: identity.peer)
        founders = {f"founder{number}": identity for number, identity in enumerate(keys)}
        # Who lacks a state asks the members with the smallest keys first, so the first founder hands it out.
        setting = Setting.of(size, victim if victim in ("stranger", "nobody") else "founder0")
        _found(folder, founders, setting)
        for name in founders:
            processes[name] = _join(folder, name)
        moments = _let_a_stranger_in(folder, processes, setting)
        for process in processes.values():
            process.wait(timeout=_PATIENCE_S)
        report = _report(folder, sorted(processes), moments, setting)
    print(report)
    if size == SIZE and setting.victim in founders:
        Path(__file__).with_name("results-newcomers.md").write_text(report, encoding="utf-8")


def _found(folder: Path, founders: dict[str, Identity], setting: Setting) -> None:
    for name, identity in {**founders, "stranger": Identity.generate()}.items():
        identity.save(folder / f"{name}.key")
        (folder / f"{name}.pub").write_text(identity.peer.hex() + "\n")
    shutil.copy(Path(__file__).with_name("flat_task.py"), folder)
    named = [f"{name}={name}.pub@127.0.0.1:{_PORT + number}" for number, name in enumerate(founders)]
    task = ["--task", f"flat_task.py:dimension={setting.size}", "--optimizer", "sgd:momentum=0.9"]
    length = ["--steps", str(setting.steps), "--probation", str(setting.probation)]
    times = ["--delta", "10", "--compute", "120", "--bulk", "120"]
    command = [
        "-m",
        "troth",
        "new",
        "run.toml",
        *task,
        *length,
        *times,
        *(part for one in named for part in ("--founder", one)),
    ]
    subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)
    manifest = folder / "run.toml"
    text = manifest.read_text()
    assert "content_every = 16" in text, "a large model"
    manifest.write_text(text.replace("content_every = 16", f"content_every = {setting.content_every}"))


def _join(folder: Path, name: str, *more: str) -> "subprocess.Popen[bytes]":
    key, place = str(folder / f"{name}.key"), str(folder / name)
    command = ["-m", "troth", "join", "run.toml", "--identity", key, "--folder", place, "--quiet", *more]
    log = (folder / f"{name}.out").open("wb")
    return subprocess.Popen([sys.executable, *command], cwd=folder, stdout=log, stderr=log)


def _let_a_stranger_in(folder: Path, processes: "dict[str, subprocess.Popen[bytes]]", setting: Setting) -> Moments:
    """Start a stranger in the midst of the run, and kill the victim when half of the state has come."""

    def now() -> int:
        return len(_metrics(folder / WATCHED))

    def until(what: Callable[[], object]) -> int:
        end = time.monotonic() + _PATIENCE_S
        while not what():
            assert time.monotonic() < end, "the run does not get there"
            assert all(process.poll() is None for process in processes.values()), "a process ended"
            time.sleep(0.02)
        print(f"step {now()}", flush=True)
        return now()

    def join() -> None:
        processes["stranger"] = _join(folder, "stranger", "--listen", f"127.0.0.1:{_PORT + FOUNDERS}")

    state, place = 8 * setting.size, folder / "stranger"
    came = until(lambda: now() >= BEFORE)
    join()
    download = until(lambda: _on_disk(place))
    began = time.monotonic()
    until(lambda: _on_disk(place) >= state / 2)
    killed = now()
    if setting.victim in processes:
        processes.pop(setting.victim).send_signal(signal.SIGKILL)
    if setting.victim == "stranger":
        print(f"{_on_disk(place):,} bytes are on disk when it is started again", flush=True)
        join()
    whole = until(lambda: _on_disk(place) >= state or _metrics(place))
    seconds = time.monotonic() - began
    caught_up = until(lambda: _metrics(place))
    return Moments(came, download, killed, whole, caught_up, seconds)


def _on_disk(place: Path) -> int:
    """Bytes of chunks that a stranger has kept."""
    try:
        return sum(path.stat().st_blocks * 512 for path in place.glob("download/*.chunks"))
    except FileNotFoundError:
        return 0


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _digest(folder: Path) -> str:
    path = folder / "model.safetensors"
    return sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def _report(folder: Path, ended: list[str], moments: Moments, setting: Setting) -> str:
    """`ended`: the peers that saw the end of the run."""
    size, victim = setting.size, setting.victim
    seconds = [float(line["seconds"]) for line in _metrics(folder / WATCHED)]
    news = (folder / WATCHED / "log.txt").read_text().splitlines()
    told = (folder / "stranger" / "log.txt").read_text().splitlines()
    before = statistics.median(seconds[_FIRST : moments.came])
    during = seconds[moments.download : moments.caught_up + 1]
    digests = {_digest(folder / name) for name in ended}
    joined = [line.split(" ", 1)[1] for line in news if "joined" in line]
    arrival = [
        line.split(" ", 1)[1] for line in told if "download" in line or "model is here" in line or "catching" in line
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"
    periods = {
        "before the stranger came": seconds[_FIRST : moments.came],
        "while it knocked": seconds[moments.came : moments.download],
        "from its first chunk until it had caught up": during,
        "on probation": seconds[moments.caught_up + 1 : moments.caught_up + 1 + setting.probation],
    }
    rows = [
        f"| {what} | {len(some)} | {statistics.median(some):.2f} | {max(some):.2f} | {statistics.median(some) / before:.2f} |"
        for what, some in periods.items()
        if some
    ]
    return "\n".join(
        [
            "# A stranger, a large state, and a donor that dies",
            "",
            f"Written by `make bench-newcomers` on {machine}. {FOUNDERS} founders, as many as two cores bear, and one stranger; "
            f"{size:,} float32 parameters, SGD with momentum: a state of {8 * size / 1e6:.0f} MB. Each is a process of "
            f"`troth join`, over TLS on this machine; probation {setting.probation}, contents named every {setting.content_every} "
            "steps. All share the two cores, so whatever the stranger computes (TLS, hashes, updates, gradients) slows the others too.",
            "",
            f"When {moments.killed} steps were made and half of the state had come, {victim} was killed"
            + ("." if victim == "stranger" else ", one of those that handed it out."),
            "",
            "| steps of a founder | number | median, s | longest, s | median, in times of before |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"- Steps from the first chunk on: {', '.join(f'{one:.1f}' for one in during)} s.",
            f"- The state came in {moments.seconds:.1f} s; {moments.whole - moments.download} steps were made meanwhile, and "
            f"{moments.caught_up - moments.whole} more until it had caught up.",
            f"- {'; '.join(joined) if joined else 'It did not become a member'}.",
            f"- Models at the end: {len(digests)} different among {len(ended)} (of {', '.join(ended)}).",
            "- What the stranger was told:",
            "",
            "```text",
            *arrival,
            "```",
            "",
        ]
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE, *sys.argv[2:3])
