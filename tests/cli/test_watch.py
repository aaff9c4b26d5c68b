"""`troth watch`, `troth status` and `troth report`: which folder, which exit code, and which mistakes are named."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import Troth
from tests.watch.made_events import began, stepped, whole_run, write
from troth.cli.watch import run_folder
from troth.errors import OperatorError
from troth.events.file import EVENTS, write_status
from troth.events.kinds import Ended, Status

PATIENCE_S = 60.0


def status(folder: Path, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {
        "doing": "training", "at": time.time(), "started_at": 0.0, "me": "ann", "pid": os.getpid(), "updates": 37, "of": 200,
        "members": 4, "withstands": 1, "loss": 0.3214, "metrics": {"accuracy": 0.881}, "seconds": 0.53,
    }  # fmt: skip
    write_status(folder, Status(**(fields | more)))  # type: ignore[arg-type]
    return folder


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# Which folder


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert run_folder(tmp_path).path == tmp_path  # it may have no events yet


def test_a_folder_of_several_runs_is_a_mistake(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, began())
    with pytest.raises(OperatorError, match=r"several runs: name .*one, .*two"):
        run_folder(tmp_path)


def test_a_swarms_folder_is_one_run(tmp_path: Path) -> None:
    write(tmp_path / "peer0", began())
    (tmp_path / "run.toml").write_text("")
    assert run_folder(tmp_path).path == tmp_path


def test_a_manifest_beside_events(tmp_path: Path) -> None:
    write(tmp_path, began())
    (tmp_path / "run.toml").write_text("not read")
    assert run_folder(tmp_path / "run.toml").path == tmp_path


def test_a_manifest_finds_its_members_folder(troth: Troth, tmp_path: Path) -> None:
    for name in ("ann", "bob", "cid", "dan"):
        assert troth("key", "new", f"{name}.key").code == 0
    founders = [
        f"--founder={name}={name}.pub@127.0.0.1:{port}" for port, name in enumerate(("ann", "bob", "cid", "dan"), 7001)
    ]
    assert troth("new", "run.toml", *founders).code == 0
    from troth.network.manifest.manifest import Manifest

    run = Manifest.load(tmp_path / "run.toml").run.id.hex()
    missing = troth("status", "run.toml")
    assert missing.code == 2
    assert f"no folder in runs/ belongs to this run {run[:16]}" in missing.err
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/run").write_text("ff" * 32 + "\n")
    status(tmp_path / "runs/b")
    (tmp_path / "runs/b/run").write_text(run + "\n")
    found = troth("status", "run.toml")
    assert (found.code, found.err.strip()) == (0, "run.toml is the run in runs/b")
    write(tmp_path / "runs/c", began(run=run))
    several = troth("status", "run.toml")
    assert (several.code, "several folders" in several.err) == (2, True)


def test_what_is_not_there(troth: Troth) -> None:
    for command in ("watch", "report", "status"):
        outcome = troth(command, "nowhere")
        assert (outcome.code, outcome.err) == (2, "troth: nowhere: there is no such folder or manifest\n")


def test_a_journal_without_events_is_a_mistake(troth: Troth, tmp_path: Path) -> None:
    """A run that has begun tells its events: a page that waits for them would wait for ever."""
    (tmp_path / "a/journal").mkdir(parents=True)
    (tmp_path / "a/journal/steps-0000000000.jsonl").touch()
    for command in (("watch", "a"), ("watch", "a", "--terminal"), ("report", "a")):
        outcome = troth(*command)
        assert outcome.code == 2
        assert "a has a journal, and events.jsonl is gone" in outcome.err
        assert "'troth audit'" in outcome.err


# Watching


def test_watch_serves_until_ctrl_c(tmp_path: Path) -> None:
    write(tmp_path, *whole_run(3))
    command = [sys.executable, "-m", "troth", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().removeprefix("Page: ").strip()
        with urllib.request.urlopen(f"{address}events", timeout=PATIENCE_S) as stream:
            assert b'"how":"over"' in stream.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert "Traceback" not in process.stderr.read()


def test_watch_names_options_in_its_errors(troth: Troth, tmp_path: Path) -> None:
    assert re.match(
        r"troth: --token \(TROTH_PAGE_TOKEN\): at least 16", troth("watch", str(tmp_path), "--token", "short").err
    )
    assert "--host 192.0.2.7" in troth("watch", str(tmp_path), "--host", "192.0.2.7", "--port", "0").err


def test_watch_in_a_pipe_writes_lines(troth: Troth, tmp_path: Path) -> None:
    write(tmp_path, *whole_run(3))
    outcome = troth("watch", str(tmp_path), "--terminal")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "the end: over"
    assert "\x1b" not in outcome.out


# Status


def test_status_of_one_that_trains(troth: Troth, tmp_path: Path) -> None:
    outcome = troth("status", str(status(tmp_path / "a")))
    assert outcome.code == 0
    assert (
        outcome.out
        == "ann: training  step 37/200  4 members  withstands 1  batch loss 0.321  accuracy 88.1%  0.53 s a step  0 s ago\n"
    )


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"doing": "over", "at": 1.0, "pid": 0}, 0, "ann: over"),
        ({"doing": "waiting", "waits_for": "step 3: waits for bob"}, 1, "waits for bob"),
        ({"doing": "meeting", "unheard": ("bob", "cid")}, 1, "waits for bob, cid"),
        ({"doing": "paused"}, 1, "ann: paused"),
        ({"doing": "meeting", "since": time.time() - 240.0}, 1, "no update for "),
        ({"left_s": 5400.0}, 0, "about 90 min left"),
        ({"doing": "stopped", "at": 1.0}, 1, "ann: stopped"),
        ({"doing": "out", "text": "banned"}, 1, "banned"),
        ({"doing": "error", "text": "no space left"}, 1, "no space left"),
        ({"at": time.time() - 3600}, 1, "ann: stale"),
        ({"at": time.time() - 3600}, 1, " min ago, training then"),
        ({"at": time.time() + 86400}, 1, "ann: stale"),
        ({"at": time.time() + 864000}, 1, "last heard of at a time that is 10 days ahead of this machine's clock, training then"),
        ({"at": time.time() + 86400, "doing": "over"}, 0, "ann: over"),
    ],
)  # fmt: skip
def test_exit_codes(troth: Troth, tmp_path: Path, more: dict[str, object], code: int, text: str) -> None:
    outcome = troth("status", str(status(tmp_path / "a", **more)))
    assert outcome.code == code
    assert text in outcome.out


def test_a_process_that_is_gone_makes_a_status_stale_sooner(troth: Troth, tmp_path: Path) -> None:
    status(tmp_path / "a", at=time.time() - 20, pid=gone())
    outcome = troth("status", "a")
    assert outcome.code == 1
    assert re.search(r"stale .*last heard of 2\d s ago, training then, and process \d+ is gone", outcome.out)
    status(tmp_path / "a", at=time.time() - 20)
    assert troth("status", "a").code == 0, "its process is there"
    status(tmp_path / "a", at=time.time() - 2, pid=gone())
    assert troth("status", "a").code == 0, "it may just have ended"


def test_a_simulation_whose_events_are_of_a_time_to_come_is_not_well(troth: Troth, tmp_path: Path) -> None:
    """It died while the clock was ahead; nobody can tell when."""
    later = time.time() + 86400
    write(tmp_path / "a", began(at=later), stepped(0, at=later))
    assert troth("status", "a").code == 1
    write(tmp_path / "a", began(at=time.time()), stepped(0, at=time.time()))
    assert troth("status", "a").code == 0


def test_status_for_scripts(troth: Troth, tmp_path: Path) -> None:
    status(tmp_path / "runs/a")
    status(tmp_path / "runs/b", at=1.0)
    (tmp_path / "runs/empty").mkdir()
    outcome = troth("status", "--json")
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert outcome.code == 1
    assert [(one["folder"], one["stale"], one["doing"], one["updates"]) for one in found] == [
        ("runs/a", False, "training", 37),
        ("runs/b", True, "training", 37),
    ]


def test_status_of_a_swarm_and_of_a_simulation(troth: Troth, tmp_path: Path) -> None:
    for number in range(3):
        status(tmp_path / f"swarm/peer{number}", me=f"peer{number}")
    write(tmp_path / "swarm", began(source="swarm", me=""))
    assert [line.split(":")[0] for line in troth("status", "swarm").out.splitlines()] == ["peer0", "peer1", "peer2"]
    write(tmp_path / "sim", began(source="simulation", me="", of=3), stepped(0), stepped(1, at=time.time()), fresh=True)
    assert troth("status", "sim").out.startswith("sim: training  step 2/3  4 members")
    write(tmp_path / "sim", Ended(how="over", at=1.0), fresh=False)
    ended = troth("status", "sim")
    assert (ended.code, ended.out.startswith("sim: over")) == (0, True)


def test_status_without_anything_to_say(troth: Troth, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert troth("status", "a").code == 2
    assert troth("status").code == 2
    (tmp_path / "a/status.json").write_bytes(b"{" * 100)
    assert troth("status", "a").code == 2


def test_a_hostile_status_steers_nothing(troth: Troth, tmp_path: Path) -> None:
    status(tmp_path / "a", me="\x1b[2Jx", waits_for="\r\n\x07", doing="waiting")
    assert re.search(r"[\x00-\x09\x0b-\x1f]", troth("status", "a").out) is None


# Reports


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """What was put into reports; the bundler itself has tests of its own."""
    given: list[list[bytes]] = []
    module = types.ModuleType("troth.watch.bundle")

    def bundle(lines: list[bytes]) -> str:
        given.append(lines)
        return "<!doctype html>" + "x" * 200_000

    module.bundle = bundle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "troth.watch.bundle", module)
    return given


def test_a_report_of_all_events(troth: Troth, tmp_path: Path, bundled: list[list[bytes]]) -> None:
    write(tmp_path / "a", *whole_run(3))
    with (tmp_path / "a" / EVENTS).open("ab") as file:
        file.write(b"garbage\n")
    outcome = troth("report", "a")
    assert outcome.code == 0
    assert outcome.out == "a/report.html (0.2 MB, 5 events): open it in a browser, or send it\n"
    assert "1 lines of a/events.jsonl are no events" in outcome.err
    assert [json.loads(line)["event"] for line in bundled[0]] == ["began", "step", "step", "step", "ended"]
    again = troth("report", "a")
    assert (again.code, "--overwrite" in again.err) == (2, True)
    assert troth("report", "a", "--overwrite").code == 0
    assert troth("report", "a", "--out", "b.html").code == 0
    assert (tmp_path / "b.html").exists()


def test_a_report_does_not_say_where_files_lie_here(troth: Troth, tmp_path: Path, bundled: list[list[bytes]]) -> None:
    first, *rest = whole_run(3)
    home = "/home/alice/secret project"
    write(
        tmp_path / "a", msgspec.structs.replace(first, manifest=f"{home}/run.toml", evidence=f"{home}/evidence"), *rest
    )
    assert troth("report", "a").code == 0
    assert b"alice" not in b"".join(bundled[0])
    assert json.loads(bundled[0][0])["manifest"] == "run.toml"


@pytest.mark.usefixtures("bundled")
def test_reports_that_cannot_be(troth: Troth, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert "no events yet" in troth("report", "a").err
    write(tmp_path / "a", *whole_run(1))
    assert "is a folder" in troth("report", "a", "--out", "a").err
    refused = "cannot write nowhere/x.html: No such file or directory; choose another --out"
    assert refused in troth("report", "a", "--out", "nowhere/x.html").err
