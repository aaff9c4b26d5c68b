"""Processes of `troth join` on this machine, as the benchmarks of newcomers need them: started, killed, and watched from outside.

    python -m benchmarks.newcomers_peers TOLD join …

is `troth join …`, and writes down when each chunk of a download came, and how long states and updates took.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from troth.crypto import Identity

_PATIENCE_S = 900.0
_STRAGGLING_S = 60.0
_LOOK_EVERY_S = 0.02
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Setting:
    """A run of founders, and strangers that may come."""

    task: str
    steps: int
    founders: int = 4
    strangers: int = 1
    probation: int = 16
    content_every: int = 4
    options: tuple[str, ...] = ()  # more, for `troth new`

    @classmethod
    def large(cls, size: int, steps: int, **more: Any) -> "Setting":
        """SGD with momentum: the state is two vectors of `size` float32 numbers."""
        optimizer, times = ("--optimizer", "sgd:momentum=0.9"), ("--delta", "10", "--compute", "120", "--bulk", "120")
        return cls(f"flat_task.py:dimension={size}", steps, options=(*optimizer, *times), **more)


@dataclass(frozen=True)
class Step:
    """A step as a founder's metrics tell of it."""

    seconds: float
    ended: float  # by the monotonic clock, as it was seen from outside
    joined: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def began(self) -> float:
        return self.ended - self.seconds


@dataclass
class _Lines:
    """JSON lines of a file that grows; each is read once, so that looking costs the others next to nothing."""

    path: Path
    read: int = 0
    rest: bytes = b""

    def new(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists() or self.path.stat().st_size <= self.read:
            return
        with self.path.open("rb") as file:
            file.seek(self.read)
            raw = file.read()
        self.read += len(raw)
        *whole, self.rest = (self.rest + raw).split(b"\n")
        for line in whole:
            yield json.loads(line)


@dataclass
class Peers:
    """The processes, by name: founder0 (which has the smallest key, and is asked for states first), …, stranger0, …"""

    folder: Path
    setting: Setting
    names: dict[str, Identity] = field(default_factory=dict)
    running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)  # of the founder that is watched
    watched: str = "founder1"
    _ports: dict[str, int] = field(default_factory=dict)
    _metrics: dict[str, _Lines] = field(default_factory=dict)
    _told: dict[str, _Lines] = field(default_factory=dict)
    _heard: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def found(self) -> None:
        keys = sorted((Identity.generate() for _ in range(self.setting.founders)), key=lambda identity: identity.peer)
        founders = {f"founder{number}": identity for number, identity in enumerate(keys)}
        strangers = {f"stranger{number}": Identity.generate() for number in range(self.setting.strangers)}
        self.names = {**founders, **strangers}
        self._ports = dict(zip(self.names, _free_ports(len(self.names)), strict=True))
        for name, identity in self.names.items():
            identity.save(self.folder / f"{name}.key")
            (self.folder / f"{name}.pub").write_text(identity.peer.hex() + "\n")
        shutil.copy(_HERE / "flat_task.py", self.folder)
        named = [f"{name}={name}.pub@127.0.0.1:{self._ports[name]}" for name in founders]
        setting = self.setting
        length = ["--steps", str(setting.steps), "--probation", str(setting.probation)]
        options = ["--task", setting.task, *length, *setting.options]
        command = ["-m", "troth", "new", "run.toml", *options, *(part for one in named for part in ("--founder", one))]
        subprocess.run([sys.executable, *command], cwd=self.folder, check=True, capture_output=True)
        manifest = self.folder / "run.toml"
        lines = manifest.read_text().splitlines()
        named_every = [line for line in lines if line.startswith("content_every")]
        assert len(named_every) <= 1
        wanted = f"content_every = {setting.content_every}"
        text = "\n".join(wanted if line in named_every else line for line in lines) + "\n"
        manifest.write_text(text if named_every else text.replace("[protocol]", f"[protocol]\n{wanted}"))

    def start(self, name: str) -> None:
        """Start a peer, or start it again with what is in its folder."""
        more = [] if name.startswith("founder") else ["--listen", f"127.0.0.1:{self._ports[name]}"]
        key, place = str(self.folder / f"{name}.key"), str(self.folder / name)
        command = ["join", "run.toml", "--identity", key, "--folder", place, "--quiet", *more]
        told = str(self.folder / f"{name}.told")
        log = (self.folder / f"{name}.out").open("ab")
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.newcomers_peers", told, *command],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE.parent), os.environ.get("PYTHONPATH", "")])},
        )

    def kill(self, name: str) -> float:
        """Kill a peer without a warning; return when."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        at = time.monotonic()
        process.wait()
        return at

    def look(self) -> None:
        """Read the watched founder's new steps."""
        self.steps += [
            Step(
                float(line["seconds"]),
                time.monotonic(),
                tuple(line.get("joined", ())),
                tuple(one["peer"] for one in line.get("returned", ())),
            )
            for line in self._metrics.setdefault(
                self.watched, _Lines(self.folder / self.watched / "events.jsonl")
            ).new()
            if line["event"] == "step"
        ]

    def told(self, name: str) -> list[dict[str, Any]]:
        """Everything that this peer has written down about its downloads, in all its lives."""
        heard = self._heard.setdefault(name, [])
        heard += self._told.setdefault(name, _Lines(self.folder / f"{name}.told")).new()
        return heard

    def chunk_bytes(self, name: str) -> int:
        """Bytes of the state's chunks that have come to it."""
        return sum(int(one["bytes"]) for one in self.told(name) if one["what"] == "chunk")

    def has_stepped(self, name: str) -> bool:
        """Whether it has taken part in a step, or observed one."""
        path = self.folder / name / "events.jsonl"
        return path.exists() and b'"event":"step"' in path.read_bytes()

    def until(self, what: Callable[[], object]) -> float:
        """Wait; return when it was so."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            self.look()
            if what():
                return time.monotonic()
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            assert not ended, (
                f"{ended} ended; see {self.folder}: {(self.folder / f'{ended[0]}.out').read_text()[-2000:]}"
            )
            assert time.monotonic() < end, f"the run does not get there; see {self.folder}"
            time.sleep(_LOOK_EVERY_S)

    def let_steps_pass(self, count: int) -> None:
        self.look()
        goal = len(self.steps) + count
        self.until(lambda: len(self.steps) >= goal)

    def wait_for_the_end(self) -> None:
        """Wait for the founders; a stranger that has lost its slot by then knocks for ever, and has no model."""
        for name, process in self.running.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE_S if name.startswith("founder") else _STRAGGLING_S)
        self.look()

    def models(self) -> dict[str, str]:
        """Digest of the model of each peer that is running, or ended by itself."""
        paths = {name: self.folder / name / "model.safetensors" for name in self.running}
        return {
            name: sha256(path.read_bytes()).hexdigest() if path.exists() else "none" for name, path in paths.items()
        }

    def log(self, name: str) -> list[str]:
        return [line.split(" ", 1)[1] for line in (self.folder / name / "log.txt").read_text().splitlines()]


@contextmanager
def peers_of(setting: Setting, folder: Path) -> Iterator[Peers]:
    """Founders of a run, started; everything is killed in the end."""
    peers = Peers(folder, setting)
    try:
        peers.found()
        for number in range(setting.founders):
            peers.start(f"founder{number}")
        yield peers
    finally:
        for process in peers.running.values():
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _write_down(path: Path) -> None:
    """Wrap the downloads of this process from outside."""
    from troth.protocol.recovery.download import Download
    from troth.protocol.recovery.models import Models

    file = path.open("ab", buffering=0)
    take, fetch, replay = Download._take, Models._fetch_state, Models._replay
    state: list[Any] = []  # the one that is being fetched

    def tell(what: str, **about: Any) -> None:
        file.write(json.dumps({"what": what, "at": time.monotonic(), **about}).encode() + b"\n")

    def taking(self: Any, sender: Any, frame: Any, now: float) -> bool:
        new = take(self, sender, frame, now)
        blob = getattr(frame, "blob", b"")
        if len(blob):
            kind = "chunk" if self.digest in state else "aggregate chunk"
            tell(kind, number=frame.number, bytes=len(blob), new=new, donor=sender.hex()[:8])
        return new

    async def fetching(self: Any, backers: Any, digest: Any) -> Any:
        state[:] = [digest]
        began, here = time.monotonic(), self._download(digest).missing
        tell("fetch", state=digest.hex()[:16], missing=here)
        found = await fetch(self, backers, digest)
        tell("fetched", state=digest.hex()[:16], seconds=time.monotonic() - began, whole=found is not None)
        return found

    async def replaying(self: Any, backers: Any, model: Any, training: Any, records: Any) -> Any:
        began = time.monotonic()
        found = await replay(self, backers, model, training, records)
        updates = sum(record.updated for record in records)
        tell("replayed", updates=updates, seconds=time.monotonic() - began, whole=found is not None)
        return found

    Download._take, Models._fetch_state, Models._replay = taking, fetching, replaying  # type: ignore[method-assign]


if __name__ == "__main__":
    _write_down(Path(sys.argv.pop(1)))
    from troth.cli import main

    main()
