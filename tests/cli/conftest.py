"""Commands run in this process, in a folder of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from troth.cli import main, progress


class Outcome(NamedTuple):
    code: int | str | None
    out: str
    err: str


Troth = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a slow machine would say on standard error what it is doing."""
    monkeypatch.setattr(progress, "_PATIENCE_S", 600.0)


@pytest.fixture
def troth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Troth:
    """`troth("simulate", "--json")` gives exit code, standard output and standard error; relative to `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(left.value.code, captured.out, captured.err)

    return run
