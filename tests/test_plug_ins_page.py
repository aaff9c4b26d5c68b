"""docs/plug-ins.md: every file on it is written, every command and every script on it is run, in the page's order."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from troth.cli import main

PAGE = (Path(__file__).parents[1] / "docs/plug-ins.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_everything_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    kinds = [kind for kind, _ in BLOCK.findall(PAGE)]
    assert {kind: kinds.count(kind) for kind in kinds} == {"sh": 7, "python": 6, "toml": 1}
    for kind, text in BLOCK.findall(PAGE):
        if kind == "sh":
            for line in text.splitlines():
                _run(line, capsys)
        elif named := re.match(r"# (\w+\.py)\n", text):
            Path(named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, "docs/plug-ins.md", "exec"), {"__name__": "snippet"})
        else:
            groups = tomllib.loads(text)["project"]["entry-points"]
            assert set(groups) == {"troth.attacks", "troth.rules", "troth.tasks", "troth.metrics"}
    for name in ("curve", "layers", "shift", "shortest"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def _run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, file = line.partition(" > ")
    program, *arguments = shlex.split(command)
    assert program == "troth"
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(arguments)
    shown = capsys.readouterr()
    assert left.value.code == 0, f"{line}: {shown.err}"
    if file:
        Path(file).write_text(shown.out, encoding="utf-8")
