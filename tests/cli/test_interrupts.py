"""Ctrl-C at moments at which no command is running: it ends with 130, without a traceback."""

import subprocess
import sys

import pytest

from troth.version import __version__

# A shell lets its background jobs ignore SIGINT, and children inherit that. Nothing here imports PyTorch.
START = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class AtImportOf:
    def __init__(self, name):
        self.name = name
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            interrupt()

class Impatient:
    def write(self, text):
        sys.__stderr__.write(text)
        if "interrupted" in text:
            interrupt()
    def flush(self):
        sys.__stderr__.flush()

{moment}
import runpy
runpy.run_module("troth", run_name="__main__", alter_sys=True)
"""


def run(moment: str, *arguments: str, handler: str = "default_int_handler") -> "subprocess.CompletedProcess[str]":
    script = START.format(handler=handler, moment=moment)
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("moment", "arguments", "out", "err"),
    [
        ("sys.meta_path.insert(0, AtImportOf('typer'))", "--version", "", ""),
        ("atexit.register(interrupt)", "--version", f"troth {__version__}\n", ""),
        (
            "sys.meta_path.insert(0, AtImportOf('troth.training')); sys.stderr = Impatient()",
            "tasks",
            "",
            "troth: interrupted; nothing was written for the unfinished run",
        ),
    ],
    ids=["while it is imported", "while the interpreter ends", "again, amid the farewell"],
)
def test_no_traceback(moment: str, arguments: str, out: str, err: str) -> None:
    done = run(moment, arguments)
    assert (done.returncode, done.stdout, done.stderr.rstrip("\n")) == (130, out, err)


def test_a_background_job_goes_on_ignoring_it() -> None:
    done = run("sys.meta_path.insert(0, AtImportOf('typer'))", "--version", handler="SIG_IGN")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"troth {__version__}\n", "")
