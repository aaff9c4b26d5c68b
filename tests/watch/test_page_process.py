"""The page's process: it starts quickly, says its address, and ends with whoever started it."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.watch.made_events import began, stepped, whole_run, write
from troth.events.kinds import Ended, How
from troth.watch.page_process import start_page
from troth.watch.server import AddressError

PATIENCE_S = 30.0


def until(what: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return what()


@pytest.mark.long
def test_it_serves_a_folder_until_the_end(tmp_path: Path) -> None:
    write(tmp_path, *whole_run(3))
    with start_page(tmp_path, port=0) as page:
        with urllib.request.urlopen(f"{page.address}events", timeout=PATIENCE_S) as stream:
            assert b'"how":"over"' in stream.read()
        assert page.process.poll() is None
    assert until(lambda: page.process.poll() is not None)


def test_it_lingers_for_viewers(tmp_path: Path) -> None:
    with start_page(tmp_path, port=0, linger_s=60.0) as page:
        pass
    with urllib.request.urlopen(page.address, timeout=PATIENCE_S) as answer:
        assert answer.status == 200
    page.process.terminate()
    assert page.process.wait(PATIENCE_S) != 0


@pytest.mark.long
@pytest.mark.parametrize(("how", "stay_s"), [("over", 1.0), ("stopped", 600.0)])
def test_it_stays_once_its_run_is_over(tmp_path: Path, how: How, stay_s: float) -> None:
    """The last picture can be loaded again; a run that only stopped may come back, and wants its address."""
    write(tmp_path, began(), stepped(0), Ended(how=how))
    with start_page(tmp_path, port=0, stay_s=stay_s) as page:
        with urllib.request.urlopen(f"{page.address}events", timeout=PATIENCE_S) as stream:
            assert any(how.encode() in line for line in stream)
        left = time.monotonic()
    assert until(lambda: page.process.poll() is not None)
    assert how == "stopped" or time.monotonic() >= left + stay_s


@pytest.mark.long
def test_it_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from troth.watch.page_process import start_page; "
        f"page = start_page(Path({str(tmp_path)!r}), port=0); print(page.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        page = int(parent.stdout.readline())
        parent.kill()

    def gone() -> bool:
        try:
            os.kill(page, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{page}/stat").read_text().split()[2] == "Z"  # nobody waits for orphans in some containers

    assert until(gone)


@pytest.mark.long
def test_ctrl_c_is_for_the_parent(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background shells ignore it
    try:
        page = start_page(tmp_path, port=0)
    finally:
        signal.signal(signal.SIGINT, before)
    with page:
        os.kill(page.process.pid, signal.SIGINT)
        time.sleep(0.3)  # for it to die, if it does
        with urllib.request.urlopen(page.address, timeout=PATIENCE_S) as answer:
            assert answer.status == 200


def test_of_a_run_that_is_about_to_begin_nothing_else_is_shown(tmp_path: Path) -> None:
    """The last run in the folder is over: a viewer that saw its end would not wait for the next one."""
    write(tmp_path, *whole_run(3))
    with start_page(tmp_path, port=0, new=True) as page:
        with urllib.request.urlopen(f"{page.address}events", timeout=PATIENCE_S) as stream:
            assert stream.readline() == b"retry: 2000\n"
            write(tmp_path, began(name="the new one"), Ended(how="over"))
            text = stream.read()
        assert b"the new one" in text
        assert b"friends" not in text


@pytest.mark.long
def test_an_address_in_use_is_an_error(tmp_path: Path) -> None:
    with start_page(tmp_path, port=0) as page:
        port = int(page.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(AddressError, match=f"`port` {port}.*in use"):
            start_page(tmp_path, port=port)


def test_a_token_is_not_among_the_arguments(tmp_path: Path) -> None:
    token = "0123456789abcdefghij"
    with start_page(tmp_path, port=0, token=token) as page:
        assert page.address.endswith(f"?token={token}")
        if sys.platform == "linux":
            assert token.encode() not in Path(f"/proc/{page.process.pid}/cmdline").read_bytes()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page.address.partition("?")[0], timeout=PATIENCE_S)


def test_a_token_of_the_environment_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROTH_PAGE_TOKEN", "0123456789abcdefghij")
    with start_page(tmp_path, port=0) as page:
        assert page.address.endswith("?token=0123456789abcdefghij")


def test_a_server_that_cannot_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(AddressError, match="did not start"):
        start_page(tmp_path, port=0)


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("msgspec", "select", "troth"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with start_page(tmp_path, port=0) as page:
        assert page.process.poll() is None
