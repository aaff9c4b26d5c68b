"""One real peer: a process that runs `troth join`, and what it leaves in its folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from troth.crypto import Identity
from troth.network.disk.journal import read_journal
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions

TROTH = Path(sys.executable).with_name("troth")
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # also when the tests themselves are killed


def found_run(home: Path, addresses: Mapping[str, str], task: str, options: ManifestOptions) -> Manifest:
    """Write keys (NAME.key) and a manifest (run.toml) for a run among these, in `home`."""
    founders = []
    for name, address in addresses.items():
        identity = Identity.generate()
        identity.save(home / f"{name}.key")
        founders.append(Founder(name, identity.peer, address))
    manifest = build_manifest(task, founders, options, home).manifest
    (home / "run.toml").write_text(manifest.to_toml(), encoding="utf-8")
    return manifest


@dataclass
class Peer:
    """A peer, known only by its files: a person who runs it would see the same."""

    name: str
    home: Path  # where keys and manifest lie
    inside: Sequence[str] = ()  # a command that runs others in a namespace
    manifest: str = "run.toml"
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    # Its process

    def start(self) -> None:
        """Start it, also again after it was killed: with the same folder, as a person would."""
        assert not self.alive
        command = [*self.inside, str(TROTH), "join", self.manifest]
        command += ["--identity", f"{self.name}.key", "--folder", self.name, *self.options]
        self.process = run_here(command, self.home, self.home / f"{self.name}.log", self.environment)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll() if self.process is not None else None

    def kill(self) -> None:
        """As `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    # Its files

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def log(self) -> str:
        path = self.home / f"{self.name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """A dictionary for each step that it saw, as in `events.kinds.Stepped`."""
        told = [json.loads(line) for line in _whole_lines(self.folder / "events.jsonl")]
        return [event for event in told if event["event"] == "step"]

    @property
    def step(self) -> int:
        """Updates that it has seen."""
        events = self.events()
        return int(events[-1]["step"]) + 1 if events else 0

    @property
    def takes_part(self) -> bool:
        """Whether it was a member in the last step, rather than an observer."""
        events = self.events()
        return bool(events) and not events[-1].get("observed", False)

    def records(self) -> dict[int, str]:
        """The records in its journal, by step."""
        records: dict[int, str] = {}
        for file in sorted((self.folder / "journal").glob("steps-*.jsonl")):
            for line in _whole_lines(file):
                entry = json.loads(line)["what"]
                if entry["kind"] == "record":
                    # A record begins with its step; what matters here is that equal steps have equal bytes.
                    records[_step_of(entry["record"])] = entry["record"]
        return records

    def check_journal(self) -> None:
        """Raises where its chain is broken; only when nobody writes it any more."""
        for file in sorted((self.folder / "journal").glob("steps-*.jsonl")):
            for _ in read_journal(file):
                pass

    @property
    def model(self) -> str:
        """The digest of model and optimizer at the end."""
        return str(json.loads((self.folder / "model.json").read_text())["state_digest"])


def run_here(
    command: Sequence[str], home: Path, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that Ctrl-C reaches only the tests, which then end it."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [*_DIES_WITH_US, *command],
            cwd=home,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _step_of(record: str) -> int:
    from troth.protocol.core.records import decode_record

    return decode_record(bytes.fromhex(record)).step


def _whole_lines(path: Path) -> list[str]:
    """All lines but the one that is being written."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()
