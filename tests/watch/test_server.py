"""What the page's server gives to those who may ask."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.watch.clients import answer, request
from tests.watch.conftest import Serve
from tests.watch.made_events import banned, began, stepped, whole_run, write
from troth.events.file import EVENTS, STATUS, encode_event, write_status
from troth.events.kinds import Ended, Event, KnownPeer, Noted, Status
from troth.watch.folder import RunFolder
from troth.watch.health import healths
from troth.watch.live import LiveRun
from troth.watch.server import HEADERS, PORT, AddressError, PageServer

NOW = Status(doing="training", at=1000.0, started_at=900.0, me="ann", step=3)


def test_the_page_and_its_files(serve: Serve) -> None:
    page = serve()
    assert page.ask("/").content == b"<!doctype html>the page"
    script = page.ask("/page/app/main.js")
    assert (script.status, script.content, script.headers["content-type"]) == (
        200,
        b"go()",
        "text/javascript; charset=utf-8",
    )
    head = page.ask("/page/app/main.js", "HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", "4")
    assert page.ask("/page/app/other.js").status == 404


def test_every_answer_has_the_strict_headers(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, *whole_run())
    page = serve()
    answers = [
        page.ask("/"),
        page.ask("/none"),
        page.ask("/", "POST"),
        page.ask("/", host="evil.example"),
        page.ask("/step?n=1"),
    ]
    answers += [page.ask("/events"), page.ask("/step?n=x"), answer(page.raw(b"nonsense\r\n\r\n"))]
    assert [one.status for one in answers] == [200, 404, 405, 421, 200, 200, 400, 400]
    for one in answers:
        assert {name: one.headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_history_then_the_end(serve: Serve, tmp_path: Path) -> None:
    run = whole_run(1200)
    write(tmp_path, *run)
    messages = list(serve().stream().messages())
    batches = [one for one in messages if not one.event]
    assert [one.event for one in messages] == ["", "", "", "end"]
    assert all(len(one.data["events"]) <= 500 for one in batches)
    assert [one.data["from"] for one in batches] == [0, 500, 1000]
    assert [one.id.partition("-")[0] for one in batches] == ["500", "1000", "1202"]
    assert messages[-1].data == {"how": "over"}
    told = [event for one in batches for event in one.data["events"]]
    full = [json.loads(encode_event(event)) for event in run]
    assert [event["event"] for event in told] == [event["event"] for event in full]
    assert told[0] == full[0]
    for light, whole in zip(told, full, strict=True):
        assert light == {name: value for name, value in whole.items() if name not in ("owners", "phases")}


def test_only_known_fields_go_out(serve: Serve, tmp_path: Path) -> None:
    line = encode_event(began()).replace(b'{"event"', b'{"secret":"key","event"')
    (tmp_path / "events.jsonl").write_bytes(line)
    page = serve()
    viewer = page.stream()
    assert "secret" not in viewer.events(1)[0]
    viewer.close()


@pytest.mark.long
def test_live_events_come_as_they_are_written(serve: Serve, tmp_path: Path) -> None:
    page = serve()
    viewer = page.stream()
    write(tmp_path, began())
    assert viewer.events(1)[0]["event"] == "began"
    for step in range(5):
        write(tmp_path, stepped(step), fresh=False)
        assert [one["step"] for one in viewer.events(1)] == [step]
    write(tmp_path, Ended(how="out", text="banned"), fresh=False)
    assert viewer.next("end").data == {"how": "out"}
    assert list(viewer.messages()) == []


def test_a_viewer_comes_back_and_loses_nothing(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began(), *(stepped(step) for step in range(4)))
    page = serve()
    viewer = page.stream()
    last = viewer.next().id
    viewer.close()
    write(tmp_path, stepped(4), stepped(5), fresh=False)
    for again in (page.stream(Last_Event_ID=last), page.stream("/events?from=5"), page.stream(f"/events?from={last}")):
        message = again.next()
        assert [one["step"] for one in message.data["events"]] == [4, 5]
        assert message.data["from"] == 5
        again.close()


def test_a_viewer_of_another_run_is_told_to_begin_anew(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began(), *(stepped(step) for step in range(4)))
    page = serve()
    viewer = page.stream()
    last = viewer.next().id
    other: list[Event] = [began(name="other"), *(stepped(step) for step in range(9))]
    write(tmp_path, *other)
    kinds = [next(viewer.messages()).event for _ in range(2)]
    assert kinds == ["reset", ""]
    back = page.stream(Last_Event_ID=last)
    assert next(back.messages()).event == "reset"
    assert back.events(10)[0]["name"] == "other"
    beyond = page.stream("/events?from=99")
    assert next(beyond.messages()).event == "reset"
    for one in (viewer, back, beyond):
        one.close()


def test_a_viewer_who_has_seen_all_of_a_run_need_not_come_back(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, *whole_run(3))
    page = serve()
    last = page.stream().next().id
    assert page.ask("/events", Last_Event_ID=last).status == 204


@pytest.mark.parametrize("how", ["stopped", "error"])
def test_a_member_that_stopped_may_come_back(serve: Serve, tmp_path: Path, how: str) -> None:
    write(tmp_path, began(), stepped(0), Ended(how=how))  # type: ignore[arg-type]
    viewer = serve().stream()
    assert viewer.next("end").data == {"how": how}
    write(tmp_path, began(at=2000.0), stepped(1), fresh=False)
    assert [one["event"] for one in viewer.events(2)] == ["began", "step"]
    viewer.close()


@pytest.mark.long
def test_the_status_is_told_when_it_changes(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    write_status(tmp_path, NOW)
    viewer = serve().stream()
    assert viewer.next("status").data["step"] == 3
    (tmp_path / STATUS).write_bytes(b"garbage")
    write_status(tmp_path, Status(doing="waiting", at=1001.0, started_at=900.0, step=4, waits_for="bob"))
    assert viewer.next("status").data["waits_for"] == "bob"
    viewer.close()


def test_the_status_of_a_swarm_is_its_first_honest_peers(serve: Serve, tmp_path: Path) -> None:
    peers = (KnownPeer(name="peer0", liar=True), KnownPeer(name="peer1"), KnownPeer(name="peer2"))
    write(tmp_path, began(source="swarm", me="", peers=peers))
    for number in range(3):
        (tmp_path / f"peer{number}").mkdir()
        write_status(tmp_path / f"peer{number}", Status(doing="training", at=1.0, started_at=0.0, me=f"peer{number}"))
    viewer = serve().stream()
    assert viewer.next("status").data["me"] == "peer1"
    viewer.close()


def test_a_process_that_is_gone_without_a_word(serve: Serve, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(tmp_path, began())
    write_status(tmp_path, Status(doing="training", at=1000.0, started_at=900.0, pid=gone.pid))
    viewer = serve().stream()
    assert viewer.next("end").data == {"how": "lost"}
    viewer.close()


def test_a_process_that_hangs_is_silent_until_it_goes_on(serve: Serve, tmp_path: Path) -> None:
    """It is there, so its number says nothing."""
    status = Status(doing="training", at=time.time() - 100.0, started_at=900.0, pid=os.getpid())
    write(tmp_path, began(), stepped(0))
    write_status(tmp_path, status)
    viewer = serve().stream()
    assert viewer.next("end").data == {"how": "lost"}
    write_status(tmp_path, msgspec.structs.replace(status, at=time.time()))
    assert viewer.next("again").data == {}
    viewer.close()


def test_a_simulation_that_is_gone_without_a_word(tmp_path: Path) -> None:
    """It keeps no status: its events should have gone on. One with long steps has longer."""
    for place, seconds, ago in (("gone", 0.5, 100.0), ("slow", 10.0, 100.0)):
        write(tmp_path / place, began(source="simulation"), stepped(0, seconds=seconds))
        os.utime(tmp_path / place / EVENTS, (0.0, time.time() - ago))
    with LiveRun(RunFolder(tmp_path / "gone")) as gone, LiveRun(RunFolder(tmp_path / "slow")) as slow:
        deadline = time.monotonic() + 20.0
        while (gone.how_it_ended is None or slow.tail.position.count < 2) and time.monotonic() < deadline:
            gone.look()
            slow.look()
        assert (gone.how_it_ended, slow.how_it_ended) == ("lost", None)


@pytest.mark.parametrize("first", [100.0, -86400.0], ids=["long ago", "while its clock was ahead"])
def test_a_swarm_whose_witness_was_killed_goes_on(tmp_path: Path, first: float) -> None:
    peers = tuple(KnownPeer(name=f"peer{number}") for number in range(3))
    write(tmp_path, began(source="swarm", me="peer0", peers=peers), stepped(0))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ages = {0: first, 1: 90.0, 2: 0.0}
    for number, age in ages.items():
        (tmp_path / f"peer{number}").mkdir()
        pid = os.getpid() if number == 2 else gone.pid
        status = Status(doing="training", at=time.time() - age, started_at=0.0, me=f"peer{number}", pid=pid)
        write_status(tmp_path / f"peer{number}", status)
    with LiveRun(RunFolder(tmp_path)) as run:
        run.look()
        assert run.status is not None
        assert (run.status.me, run.how_it_ended) == ("peer2", None)


def test_a_simulation_that_died_while_the_clock_was_ahead_is_lost(tmp_path: Path) -> None:
    """Its file's time is ahead too, so no waiting would show that nothing is written any more."""
    write(tmp_path, began(), stepped(0))
    with LiveRun(RunFolder(tmp_path)) as run:
        run.look()
        assert run.tail.position.count == 2
        assert run.how_it_ended is None
        os.utime(tmp_path / EVENTS, (time.time() + 86400,) * 2)
        assert run.how_it_ended == "lost"


def test_one_step_in_full(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began(), *(stepped(step) for step in range(4)), Noted(text="n"))
    page = serve()
    viewer = page.stream()
    viewer.events(6)
    assert json.loads(page.ask("/step?n=2").content) == json.loads(encode_event(stepped(2)))
    assert page.ask("/step?n=4").status == 404
    for wrong in ("", "-1", "1.5", "x", "²", "9" * 40, "../2"):
        assert page.ask(f"/step?n={wrong}".encode().decode("latin-1")).status == 400, wrong
    assert page.ask("/step").status == 400
    viewer.close()


def test_evidence_is_a_file_to_keep(serve: Serve, tmp_path: Path) -> None:
    name = "ban-step7-mallory.json"
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / name).write_bytes(b'{"a":1}' * 100_000)
    write(tmp_path, began(), banned(7))
    page = serve()
    found = page.ask(f"/evidence/{name}")
    assert (found.status, found.content) == (200, b'{"a":1}' * 100_000)
    assert found.headers["content-disposition"] == f'attachment; filename="{name}"'
    head = page.ask(f"/evidence/{name}", "HEAD")
    assert (head.status, head.content, head.headers["content-length"]) == (200, b"", "700000")


def test_evidence_of_a_swarm_is_in_its_peers_folders(serve: Serve, tmp_path: Path) -> None:
    for peer in ("peer10", "peer2", "peer0"):
        (tmp_path / peer / "evidence").mkdir(parents=True)
    for peer in ("peer10", "peer2"):
        (tmp_path / peer / "evidence" / "ban-step7-peer1.json").write_text(peer)
    assert serve().ask("/evidence/ban-step7-peer1.json").content == b"peer2"


@pytest.mark.parametrize(
    "name",
    ["run", "x.json", "ban-step7-mallory.json.partial", "../events.jsonl", "ban-step7-..%2F..%2Fkey.json", "ban-step7-.json",
     "ban-step7-a/b.json", "ban-step-mallory.json", f"ban-step7-{'x' * 41}.json", "ban-step7-mallory.json%00", ""],
)  # fmt: skip
def test_nothing_else_is_handed_out(serve: Serve, tmp_path: Path, name: str) -> None:
    (tmp_path / "evidence").mkdir()
    for file in ("run", "x.json", "ban-step7-mallory.json.partial", f"ban-step7-{'x' * 41}.json"):
        (tmp_path / "evidence" / file).write_text("secret")
    write(tmp_path, began())
    assert serve().ask(f"/evidence/{name}").status == 404


def test_no_links_no_pipes_and_no_giants_as_evidence(serve: Serve, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("secret")
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "ban-step1-a.json").symlink_to(secret)
    os.mkfifo(folder / "ban-step2-a.json")
    (folder / "ban-step3-a.json").mkdir()
    with (folder / "ban-step4-a.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "ban-step5-a.json").write_text("secret")
    (tmp_path / "peer0").mkdir()
    (tmp_path / "peer0" / "evidence").symlink_to(tmp_path / "elsewhere")
    page = serve()
    assert [page.ask(f"/evidence/ban-step{number}-a.json").status for number in range(1, 6)] == [404] * 5


def test_a_run_folder_may_be_a_link_and_what_is_in_it_may_not(tmp_path: Path) -> None:
    """Else a run on another disk looks lost, since its events are read and its status is not; and the owner of a swarm's folder
    could have this user's other folders shown as its peers'."""
    disk, swarm = tmp_path / "disk" / "run", tmp_path / "swarm"
    write(disk, began(), stepped(0))
    os.utime(disk / EVENTS, (0.0, time.time() - 86400.0))
    write_status(disk, Status(doing="training", at=time.time(), started_at=0.0, me="a", pid=os.getpid()))
    (disk / "evidence").mkdir()
    (disk / "evidence" / "ban-step1-a.json").write_text("{}")
    link = tmp_path / "link"
    link.symlink_to(disk)
    with LiveRun(RunFolder(link)) as run:
        run.look()
        assert (run.status is not None, run.how_it_ended) == (True, None)
    with RunFolder(link).evidence("ban-step1-a.json") or nullcontext() as file:
        assert file is not None
    assert [(one.folder, one.status.me, one.stale) for one in healths(RunFolder(link))] == [(link, "a", False)]

    peers = (KnownPeer(name="peer0"),)
    write(swarm, began(source="swarm", me="peer0", peers=peers), stepped(0))
    (swarm / "peer0").symlink_to(disk)
    assert RunFolder(swarm).status(began(source="swarm", me="peer0", peers=peers)) is None
    assert RunFolder(swarm).evidence("ban-step1-a.json") is None


def test_no_path_leads_out(serve: Serve, tmp_path: Path) -> None:
    write(tmp_path, began())
    page = serve()
    for path in (
        "/../events.jsonl", "/page/../../server.py", "/page/%2e%2e/server.py", "/page//app/main.js", "//etc/passwd",
        "/events.jsonl", "/status.json", "/page/", "/page/app/", "/page/app/main.js/", "/./", "/%00", "/page/app/..\\main.js",
    ):  # fmt: skip
        assert page.ask(path).status in (400, 404), path
    assert answer(page.raw(request("http://127.0.0.1/", host=page.host))).status == 400


def test_a_port_that_is_in_use(tmp_path: Path, free_port: int) -> None:
    with PageServer(RunFolder(tmp_path), port=free_port) as server:
        assert server.address == f"http://127.0.0.1:{free_port}/"
        with pytest.raises(AddressError, match=f"`port` {free_port}.*in use"):
            PageServer(RunFolder(tmp_path), port=free_port)
        with PageServer(RunFolder(tmp_path)) as first, PageServer(RunFolder(tmp_path)) as second:
            assert PORT <= first.port < second.port


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="`host`"):
        PageServer(RunFolder(tmp_path), host="192.0.2.7", port=0)


def test_the_server_does_without_pytorch(tmp_path: Path) -> None:
    code = (
        "import sys, time; start = time.monotonic(); import troth.watch.__main__, troth.watch.page_process; "
        "assert not {'torch', 'numpy', 'cryptography', 'matplotlib'} & set(sys.modules), sys.modules; "
        "from troth.watch.server import PageServer; from troth.watch.folder import RunFolder; from pathlib import Path; "
        f"PageServer(RunFolder(Path({str(tmp_path)!r})), port=0); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
