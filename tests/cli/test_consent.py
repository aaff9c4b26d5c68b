"""A stranger's manifest at the command line: the question before its code is run, and where its name leads."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from tests.cli.test_lists import TASK
from tests.consented import nobody_agreed
from troth.cli.fields import _show
from troth.crypto import Identity
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.consent import code_to_run
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions

MARKS = TASK + '\nopen("ran", "w").close()\n'
_PATIENCE_S = 120.0


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manifest]:
    """theirs/run.toml, of one founder whose key is me.key, with a task of its own; nobody has agreed to run it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    identity = Identity.generate()
    identity.save(Path("me.key"))
    Path("theirs").mkdir()
    Path("theirs/lines.py").write_text(MARKS)
    options = ManifestOptions(steps=1)
    with nobody_agreed(tmp_path / "config"):
        made = build_manifest(
            "lines.py", [Founder("me", identity.peer, "127.0.0.1:1")], options, Path("theirs")
        ).manifest
        Path("theirs/run.toml").write_text(made.to_toml())
    Path("ran").unlink()
    with nobody_agreed(tmp_path / "config"):
        yield made


COMMANDS = {
    "join": ("join", "theirs/run.toml", "--identity", "me.key"),
    "verify": ("verify", "theirs", "--run", "theirs/run.toml"),
    "audit": ("audit", "theirs", "--run", "theirs/run.toml"),
    "export": ("export", "theirs", "--run", "theirs/run.toml"),
    "swarm": ("swarm", "theirs/run.toml", "--peers", "2"),
}
LOOK_ONLY = {
    "status": ("status", "theirs/run.toml"),
    "report": ("report", "theirs/run.toml"),
    "invite": ("invite", "theirs"),
    "verify": ("verify", "theirs", "--run", "theirs/run.toml", "--no-recompute"),
    "audit": ("audit", "theirs", "--run", "theirs/run.toml", "--no-recompute"),
    "new": ("new", "n.toml", "--founder", "a=me.pub", "--from", "theirs", "--continues", "theirs/run.toml"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_without_a_terminal_nothing_is_run_and_the_way_out_is_named(
    troth: Troth, theirs: Manifest, command: tuple[str, ...]
) -> None:
    done = troth(*command)
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("troth: the manifest's task is a program that you have not agreed to run: lines.py (")
    assert last.endswith(f"; to run it, say --trust {theirs.code.hex()}")
    assert not Path("ran").exists()
    assert troth(*command, "--trust", "0" * 64).err.splitlines()[-1].startswith("troth: --trust names other code")
    assert not Path("ran").exists()


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("command", LOOK_ONLY.values(), ids=LOOK_ONLY)
def test_what_only_looks_runs_nothing(troth: Troth, command: tuple[str, ...]) -> None:
    done = troth(*command)
    assert "agreed to run" not in done.err
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "name", ["../../TRAVERSED/x", "{tmp}/ABSOLUTE/.config/autostart/y", "$(touch pwned)", "..", "-rf"]
)
def test_a_runs_name_leads_nowhere(troth: Troth, theirs: Manifest, tmp_path: Path, name: str) -> None:
    """Agreed to by --trust, and trained to its end: all that is written lies below runs/, in one folder."""
    named = replace(theirs, name=name.format(tmp=str(tmp_path))[:64])
    Path("theirs/run.toml").write_text(named.to_toml())
    before = {path for path in tmp_path.parent.rglob("*") if tmp_path / "config" not in path.parents}
    joined = troth(*COMMANDS["join"], "--listen", "127.0.0.1:0", "--trust", theirs.code.hex())
    assert joined.code == 0, joined.err
    made = {path for path in tmp_path.parent.rglob("*") if tmp_path / "config" not in path.parents} - before
    (place,) = (tmp_path / "runs").iterdir()
    assert place.name.removesuffix(place.name[-9:]).strip("._-"), "a plain name"
    allowed = {tmp_path / "ran", tmp_path / "runs", place, tmp_path / "config"}
    assert {path for path in made if place not in path.parents} <= allowed
    assert {path.name for path in (tmp_path / "theirs").iterdir()} <= {"run.toml", "lines.py"}


class Pty:
    """A person at a real terminal."""

    def __init__(self, *arguments: str) -> None:
        self._screen, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "troth", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"},
        )
        os.close(theirs)
        self.seen = ""

    def read_to(self, text: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while text not in self.seen:
            assert select.select([self._screen], [], [], until - time.monotonic())[0], self.seen
            self.seen += self._more() or pytest.fail(f"ended without {text!r}: {self.seen}")

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self) -> int:
        while more := self._more():
            self.seen += more
        os.close(self._screen)
        return self._process.wait(_PATIENCE_S)

    def _more(self) -> str:
        try:
            return os.read(self._screen, 1 << 16).decode(errors="replace")
        except OSError:  # everybody has hung up
            return ""


def test_a_person_at_a_terminal_is_asked_once(theirs: Manifest, tmp_path: Path) -> None:
    join = (*COMMANDS["join"], "--listen", "127.0.0.1:0", "--folder", "peer")
    one = Pty(*join)
    one.read_to("Run it? [y/N]:")
    size = len(MARKS.encode())
    assert f"lines.py        {size} bytes  SHA-256 {theirs.code.hex()}" in one.seen
    assert "It can read, change and delete files" in one.seen
    assert "the key that is in memory" in one.seen
    one.type("\n")
    assert one.end() == 2
    assert not Path("ran").exists()
    assert not Path("peer").exists()
    two = Pty(*join)
    two.read_to("Run it? [y/N]:")
    assert not Path("ran").exists()
    two.type("y\n")
    assert two.end() == 0, two.seen
    assert f"Noted in {tmp_path / 'config/troth/trusted-code'}" in two.seen
    assert Path("ran").exists()
    three = Pty(*join)
    assert three.end() == 0, three.seen
    assert "Run it?" not in three.seen


def test_one_file_does_not_look_like_two(theirs: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name would have a terminal show the SHA-256 of a file that everybody has read, and a harmless name below."""
    known = "5e" * 32
    name = f"lines.py      2,140 bytes  SHA-256 {known}{' ' * 40}    \u05d0conf.py"
    (tmp_path / "theirs" / name).write_text(MARKS)
    hostile = replace(theirs, task=name)
    code = code_to_run(hostile)
    assert code is not None
    _show(hostile, code)
    (shown,) = [line for line in capsys.readouterr().err.splitlines() if theirs.code.hex() in line]
    word, _, rest = shown.strip().partition(" ")
    assert word.startswith(f"lines.py␣␣␣␣␣␣2,140␣bytes␣␣SHA-256␣{known}␣")
    assert word.endswith("\\u05d0conf.py")
    assert rest.split() == [f"{len(MARKS.encode())}", "bytes", "SHA-256", theirs.code.hex()]


def test_whoever_writes_the_manifest_is_not_asked_about_their_own_file(
    troth: Troth, theirs: Manifest, tmp_path: Path
) -> None:
    """And can tell the others what they are asked about."""
    Path("lines.py").write_text(TASK + "# mine\n")
    done = troth("new", "mine.toml", "--task", "lines.py", "--founder", f"me={theirs.founders[0].key.hex()}")
    assert done.code == 0, done.err
    written = Manifest.load("mine.toml").code.hex()
    assert done.out.splitlines()[-1].endswith(f"SHA-256, for those who ask you: {written}")
    assert (tmp_path / "config/troth/trusted-code").read_text().startswith(f"{written}  lines.py, ")
    joined = troth("join", "mine.toml", *COMMANDS["join"][2:], "--address", "eve=h:1")
    assert joined.err.splitlines()[-1].startswith("troth: --address eve=h:1"), "no question, and no refusal"
