"""Strangers join a run of real processes, over TLS on loopback: some honest, one that lies once it is in, one that copies gradients.

    python -m benchmarks.newcomers [STEPS]

Eight founders train digits; four strangers come at different steps. Prints who became a member, who was banned, whether all honest
models are equal, and how long the founders' steps took while somebody fetched the state, against the time before.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from troth.crypto import Identity, PeerId, Seed
from troth.network.manifest.manifest import Manifest
from troth.network.node.ahead import GradientsAhead
from troth.network.node.node import Node, PeerFactory
from troth.network.node.options import NodeOptions
from troth.protocol.core.roles import gradient_seed
from troth.protocol.wire.primitives import Primitives
from troth.training import Problem
from troth.training.work import Training, TrainingWork

# D coordinates

FOUNDERS = 8
PROBATION = 16
ARRIVALS = {"first": ("honest", 40), "turncoat": ("turns", 60), "copyist": ("copies", 80), "second": ("honest", 100)}
_PORT = 7510


class _StrangeWork(TrainingWork):
    """Gradients of a stranger that cheats."""

    how = "honest"
    node: Node | None = None
    founder: bytes = b""
    me: PeerId | None = None

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        state = self.node.state if self.node is not None else None
        member = state is not None and self.me in state.roster.members
        if self.how == "copies" and state is not None:
            other = gradient_seed(state.earlier_randomness, Identity.from_secret(self.founder).peer)
            return await super().gradient(training, other, step)
        gradient_D = await super().gradient(training, seed, step)
        return -10.0 * gradient_D if self.how == "turns" and member else gradient_D


class _StrangeFactory(PeerFactory):
    def __init__(self, how: str) -> None:
        self.how = how
        self.made: _StrangeWork | None = None

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        plain = manifest.work(problem, tools)
        plain.__class__ = _StrangeWork
        assert isinstance(plain, _StrangeWork)
        plain.how, plain.founder = self.how, bytes(range(32))
        self.made = plain
        return plain

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work)  # nothing is begun: what it contributes is not what `gradient_now` computes


class _Quiet:
    def stepped(self, event: Any, record: Any) -> None:
        """Nothing: the log has it."""

    def note(self, text: str) -> None:
        print(text, flush=True)


def _be_stranger(how: str, folder: Path, name: str, port: int) -> None:
    """Run one stranger in this process."""
    factory = _StrangeFactory(how)
    here = f"127.0.0.1:{port}"
    options = NodeOptions(folder / name, listen=here, at=here, evaluate_every=1_000_000)
    node = Node(Manifest.load(folder / "run.toml"), Identity.load(folder / f"{name}.key"), options, _Quiet(), factory)
    assert factory.made is not None
    factory.made.node, factory.made.me = node, Identity.load(folder / f"{name}.key").peer
    node.live()


@contextmanager
def _all_ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    """Strangers are made by this module, which is in no package that is installed."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def main(steps: int = 260) -> None:
    with tempfile.TemporaryDirectory() as temporary, _all_ended() as processes:
        folder = Path(temporary)
        founders = [f"founder{number}" for number in range(FOUNDERS)]
        _found(folder, founders, steps)

        def start(*command: str, name: str) -> None:
            log = (folder / f"{name}.out").open("wb")
            command = sys.executable, *command
            processes.append(subprocess.Popen(command, cwd=folder, env=_environment(), stdout=log, stderr=log))

        for name in founders:
            key, place = str(folder / f"{name}.key"), str(folder / name)
            start("-m", "troth", "join", "run.toml", "--identity", key, "--folder", place, "--quiet", name=name)
        began: dict[str, int] = {}
        for number, (name, (how, at)) in enumerate(ARRIVALS.items()):
            _wait_for(folder / founders[0], at)
            began[name] = _steps(folder / founders[0])
            print(f"step {began[name]}: {name} ({how}) comes", flush=True)
            start(
                "-m",
                "benchmarks.newcomers",
                "--stranger",
                how,
                str(folder),
                name,
                str(_PORT + FOUNDERS + number),
                name=name,
            )
        for process in processes[:FOUNDERS]:
            process.wait(timeout=1800)
        _tell(folder, founders, began)


def _found(folder: Path, founders: list[str], steps: int) -> None:
    for name in (*founders, *ARRIVALS):
        identity = Identity.generate()
        identity.save(folder / f"{name}.key")
        (folder / f"{name}.pub").write_text(identity.peer.hex() + "\n")
    named = [f"{name}={name}.pub@127.0.0.1:{_PORT + number}" for number, name in enumerate(founders)]
    options = ["--task", "digits", "--steps", str(steps), "--probation", str(PROBATION)]
    command = ["-m", "troth", "new", "run.toml", *options, *(part for one in named for part in ("--founder", one))]
    subprocess.run([sys.executable, *command], cwd=folder, check=True, capture_output=True)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in told if event["event"] == "step"]


def _steps(folder: Path) -> int:
    return len(_metrics(folder))


def _wait_for(folder: Path, step: int) -> None:
    until = time.monotonic() + 600
    while _steps(folder) < step:
        assert time.monotonic() < until, "the run does not get there"
        time.sleep(0.2)


def _tell(folder: Path, founders: list[str], began: dict[str, int]) -> None:
    print("\n".join(line for line in _news(folder / founders[0]) if "joined" in line or "banned" in line))
    honest = [*founders, *(name for name, (how, _) in ARRIVALS.items() if how == "honest")]
    models = {name: folder / name / "model.safetensors" for name in honest}
    digests = {
        name: sha256(path.read_bytes()).hexdigest() if path.exists() else "none" for name, path in models.items()
    }
    print(f"honest models: {len(set(digests.values()))} different among {len(digests)}")
    seconds = [float(line["seconds"]) for line in _metrics(folder / founders[0])]
    before = statistics.median(seconds[10 : min(began.values())])
    for name, at in began.items():
        during = statistics.median(seconds[at : at + PROBATION])
        print(f"steps after {name} came: {during:.3f} s, {during / before:.2f} times as long as before")


def _news(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stranger"]:
        _be_stranger(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main(*map(int, sys.argv[1:]))
