"""Files that are written whole or not at all."""

import os
import re
from pathlib import Path

import pytest

from troth.files import safe_name, write_text


class TestWriteText:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "first, and longer\n")
        write_text(path, "τ\n")
        assert path.read_bytes() == "τ\n".encode()
        assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]

    def test_a_crash_while_writing_keeps_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "old")

        def crash(_descriptor: int) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", crash)
        with pytest.raises(OSError, match="disk full"):
            write_text(path, "new")
        assert path.read_text() == "old"

    def test_a_reader_who_has_the_old_file_open_keeps_reading_it_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "summary.json"
        write_text(path, "old" * 1000)
        with path.open() as reader:
            beginning = reader.read(3)
            write_text(path, "new" * 1000)
            assert beginning + reader.read() == "old" * 1000
        assert path.read_text() == "new" * 1000


class TestSafeName:
    @pytest.mark.parametrize(
        "text",
        [
            "../../x",
            "/etc/passwd",
            "..",
            ".",
            "",
            "~root",
            "a\x00b",
            "a\nb",
            "\x1b[2J",
            "$(x)",
            "`x`",
            "a b;c",
            "-rf",
            ".ssh",
            "ä" * 99,
        ],
    )
    def test_it_names_one_file_here_and_nothing_else(self, text: str) -> None:
        name = safe_name(text)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", name)
        assert Path("here", name).resolve().parent == Path("here").resolve()

    def test_plain_names_stay(self) -> None:
        for name in ("digits", "lines.py", "a-b_c.2"):
            assert safe_name(name) == name
