"""`troth audit`: what it says, and its exit codes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.audit.folders import witnessed
from tests.cli.conftest import Troth
from troth.crypto import Digest
from troth.network.disk.lock import lock_folder
from troth.protocol.history import FORMAT, next_digest
from troth.workshop.simulation import Scenario

SCENARIO = Scenario(
    task="quadratic:dimension=24", peers=6, byzantine=1, attack="sign-flip", attack_start=1, steps=8, seed=3
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    witnessed(folder / "peer", SCENARIO)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "peer"


@pytest.mark.usefixtures("folder")
def test_a_run_that_is_right(troth: Troth) -> None:
    done = troth("audit", "peer", "--run", "run.toml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].endswith(": steps 0 to 8, which closes the run")
    assert "checked steps retraced from their announcements: 9" in lines
    assert any(line.startswith("checked gradients computed again: ") for line in lines)
    assert lines[-1] == "everything that could be checked is right"


@pytest.mark.usefixtures("folder")
def test_a_report_for_programs(troth: Troth) -> None:
    done = troth("audit", "peer", "--run", "run.toml", "--json", "--sample", "3", "--no-recompute")
    report = json.loads(done.out)
    assert done.code == 0
    assert (report["format"], report["right"], len(report["run"])) == ("troth audit 1", True, 64)
    assert report["steps"] == {"first": 0, "last": 8, "retraced": 9, "closed": True}
    assert report["checked"]["records"] == 9
    assert report["checked"]["gradients"] == 0
    assert report["findings"] == []
    assert {"what", "why"} == report["not_checked"][0].keys()


@pytest.mark.parametrize("kept", ["nothing", "its first line", "lines of another file", "a folder"])
def test_a_journal_without_a_step_is_a_mistake(troth: Troth, folder: Path, kept: str) -> None:
    """It ended in a traceback, with the exit code of a folder in which something is wrong."""
    path = folder / "journal" / "steps-000000000.jsonl"
    raw = path.read_bytes()
    if kept == "a folder":
        path.unlink()
        path.mkdir()
    else:
        other = (folder / "journal" / "roster-changes.jsonl").read_bytes()
        path.write_bytes({"nothing": b"", "its first line": raw[: raw.index(b"\n") + 1]}.get(kept, other))
    done = troth("audit", "peer", "--run", "run.toml")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "tells of a step" in done.err
    assert ("steps-000000000.jsonl" in done.err) == (kept != "its first line"), "what is wrong, and where"


def test_a_journal_that_leads_nowhere_is_wrong(troth: Troth, folder: Path) -> None:
    """Its beginning is deleted, and the changes of members are not there: no roster is known, and no name."""
    path, changes = folder / "journal" / "steps-000000000.jsonl", folder / "journal" / "roster-changes.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    changed = json.loads(changes.read_bytes())["record"]
    at = 1 + next(
        number for number, line in enumerate(lines) if line["what"].get("record") == changed
    )  # its signatures
    chain = Digest(bytes.fromhex(lines[at]["chain"]))
    lines[at] = {"what": {**lines[0]["what"], "after": chain.hex()}}
    with path.open("wb") as file:
        for line in lines[at:]:
            content = json.dumps(line["what"], sort_keys=True).encode()
            chain = next_digest(chain, content)
            file.write(b'{"chain": "%s", "what": %s}\n' % (chain.hex().encode(), content))
    changes.unlink()
    done = troth("audit", "peer", "--run", "run.toml")
    assert done.code == 1
    assert ": no certified record" in done.out
    assert done.out.splitlines()[-1].endswith("things are wrong")


def test_a_wrong_byte_is_one_line_that_names_its_place(troth: Troth, folder: Path) -> None:
    path = folder / "journal" / "steps-000000000.jsonl"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"slot"', len(raw) // 2) + 9] ^= 1
    path.write_bytes(raw)
    number = raw[: len(raw) // 2].count(b"\n") + 1
    done = troth("audit", "peer", "--run", "run.toml", "--sample", "0")
    assert done.code == 1
    wrong = [line for line in done.out.splitlines() if line.startswith("wrong: ")]
    assert any(f"steps-000000000.jsonl, line {n}: " in wrong[0] for n in (number, number + 1))
    assert done.out.splitlines()[-1].endswith("wrong")
    report = json.loads(troth("audit", "peer", "--run", "run.toml", "--sample", "0", "--json").out)
    assert report["findings"][0]["check"] == "lines"


def test_names_in_a_folder_are_safe_to_print(troth: Troth, folder: Path) -> None:
    (folder / "evidence" / "ban-\x1b[2J.json").write_text("{}")
    done = troth("audit", "peer", "--run", "run.toml", "--sample", "0")
    assert done.code == 1
    assert "\x1b" not in done.out


def test_mistakes_name_the_way_out(troth: Troth, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "new" / "journal").mkdir(parents=True)
    other = tmp_path / "other"
    witnessed(other / "peer", Scenario(task="quadratic:dimension=24", peers=4, steps=2, seed=5))
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    path = old / "journal" / "steps-000000000.jsonl"
    path.write_text(path.read_text().replace(FORMAT, "troth journal 2", 1))
    for arguments, message in (
        (("none", "--run", "run.toml"), "none is no folder: name a peer's folder"),
        (("empty", "--run", "run.toml"), "empty holds no journal: name a peer's folder"),
        (("new", "--run", "run.toml"), "new/journal is empty"),
        (("peer", "--run", "none.toml"), "cannot read the manifest none.toml"),
        (("peer", "--run", "other/run.toml"), "peer is of run "),
        (("old", "--run", "run.toml"), "was written by another version of Troth (troth journal 2): use that one"),
        (("peer", "--run", "run.toml", "--sample", "-1"), "--sample must be from 0 to 1,000,000, got -1"),
    ):
        done = troth("audit", *arguments)
        assert (done.code, done.out) == (2, ""), done
        assert message in done.err, done.err
        assert done.err.count("\n") == 1
    held = lock_folder(folder)
    done = troth("audit", "peer", "--run", "run.toml")
    held.release()
    assert done.code == 2
    assert "peer is in use: stop the peer first, or audit a copy" in done.err
