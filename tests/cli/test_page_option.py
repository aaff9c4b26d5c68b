"""`--page`: the run that a command makes, on a page while it lasts; and what is asked of whoever sits at the terminal."""

import fcntl
import os
import re
import subprocess
import sys
import termios
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from tests.watch.made_events import whole_run, write

PATIENCE_S = 60.0
ADDRESS = re.compile(r"^Page: (http://127\.0\.0\.1:\d+/)$", re.MULTILINE)


@pytest.mark.long
def test_a_simulation_is_shown_while_it_lasts_and_after_it_only_this_one(tmp_path: Path) -> None:
    write(tmp_path / "out", *whole_run(3))  # an earlier run's
    command = [sys.executable, "-m", "troth", "simulate", "--task", "quadratic", "--peers", "4", "--steps", "30"]
    command += ["--page", "--page-port", "0", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[1] for line in process.stderr if (found := ADDRESS.match(line)))
        with urllib.request.urlopen(f"{address}events", timeout=PATIENCE_S) as stream:
            text = stream.read().decode()
        process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
    assert text.count('"event":"step"') == 31  # the last one closes the run
    assert '"how":"over"' in text
    assert "friends" not in text


def test_an_address_that_cannot_be_had_ends_the_command_before_the_work(troth: Troth) -> None:
    outcome = troth("simulate", "--task", "quadratic", "--page", "--page-host", "192.0.2.7", "--page-port", "0")
    assert outcome.code == 2
    assert "--page-host 192.0.2.7, --page-port 0" in outcome.err


def at_a_terminal(code: str, keys: bytes) -> tuple[str, float]:
    """What a program says at a terminal of its own, on which these keys are pressed; and how long it took."""
    ours, theirs = os.openpty()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    said = b""
    pressed = False
    try:
        while piece := os.read(ours, 4096):
            said += piece
            if b"?" in said and not pressed:
                os.write(ours, keys)
                pressed = True
    except OSError:  # how Linux says that the other side is closed
        pass
    process.wait(PATIENCE_S)
    os.close(ours)
    return said.decode(), time.monotonic() - began


ASK = "from troth.cli.watch import key_within; print('key', repr(key_within({seconds}, 'Well? ')))"


def test_a_key_is_an_answer_without_the_return_key() -> None:
    said, seconds = at_a_terminal(ASK.format(seconds=50.0), b"y")
    assert "key 'y'" in said
    assert seconds < 50.0


def test_without_an_answer_it_goes_on() -> None:
    said, _ = at_a_terminal(ASK.format(seconds=0.2), b"")
    assert "key None" in said


def test_ctrl_c_is_no_answer_and_no_error() -> None:
    said, _ = at_a_terminal(ASK.format(seconds=15.0), b"\x03")
    assert "key None" in said
    assert "Traceback" not in said


def test_the_terminal_is_left_as_it_was() -> None:
    code = (
        "import termios; before = termios.tcgetattr(0); "
        + ASK.format(seconds=50.0)
        + "; print('same', termios.tcgetattr(0) == before)"
    )
    said, _ = at_a_terminal(code, b"y")
    assert "same True" in said


def test_where_nobody_is_nothing_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(seconds=50.0)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.stdout == "key None\n"
    assert done.stderr == ""
