"""A clone to type commands in: in this process where that is quick, in a shell where it has to be the real thing."""

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from tests.docs.pages import ROOT
from troth.cli import main

_ALONE = re.compile(r"(?:\.venv/bin/)?(troth|python) ([^|;&>$]*)(?:> (\S+))?")


def make_clone(folder: Path) -> Path:
    """A folder that looks like a clone in which `make` has set everything up; results go there, the code is this one."""
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name, start in (("troth", f'"{sys.executable}" -m troth'), ("python", f'"{sys.executable}"')):
        (programs / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    for file in (ROOT / "examples").glob("*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    for name in ("installed", "installed-dev"):
        (folder / ".venv" / name).touch()
    return folder


def environment(clone: Path) -> dict[str, str]:
    paths = {
        "PATH": f"{clone / '.venv/bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **paths}


def run_in_shell(command: str, clone: Path, timeout_s: float = 900) -> str:
    """Type a command into a shell; its output, without what it says of its progress on standard error."""
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=clone,
        env=environment(clone),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def run_here(command: str, clone: Path) -> str:
    """The same in this process, where that can be: nothing has to be imported again."""
    alone = _ALONE.fullmatch(command)
    if alone is None:
        return run_in_shell(command, clone, timeout_s=60)
    program, arguments, file = alone[1], shlex.split(alone[2]), alone[3]
    said, progress = io.StringIO(), io.StringIO()
    with chdir(clone), redirect_stdout(said), redirect_stderr(progress):
        code = _troth(arguments) if program == "troth" else _python(arguments, clone)
    assert code == 0, f"{command}\nended with {code}:\n{said.getvalue()[-3000:]}{progress.getvalue()[-3000:]}"
    if file is not None:
        (clone / file).write_text(said.getvalue(), encoding="utf-8")
        return ""
    return said.getvalue()


def _troth(arguments: list[str]) -> int | str | None:
    try:
        main(arguments)
    except SystemExit as left:
        return left.code
    return 0


def _python(arguments: list[str], clone: Path) -> int:
    with importing_from(clone):
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let scripts import the files beside them, and forget these afterwards."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
        beside = {file.stem for file in folder.glob("*.py")}
        for name in set(sys.modules) - known:
            if name in beside:
                del sys.modules[name]
