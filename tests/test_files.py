"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from troth.files import write_text


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
