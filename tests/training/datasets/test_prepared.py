"""What is prepared is kept, named by the content of its files, and written whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from troth.training import TaskError
from troth.training import datasets as module
from troth.training.datasets import PreparationProgress, array, prepared


def source(folder: Path, content: bytes = b"one") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "source").write_bytes(content)
    return folder / "source"


def write(folder: Path, _progress: PreparationProgress) -> None:
    np.save(folder / "numbers.npy", np.arange(5))


def never(_folder: Path, _progress: PreparationProgress) -> None:
    raise AssertionError("made a second time")


def test_made_once_and_mapped(tmp_path: Path, own_cache: Path) -> None:
    folder = prepared("numbers", [source(tmp_path / "a")], write)
    assert folder.parent == own_cache
    mapped = array(folder, "numbers")
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert mapped.tolist() == [0, 1, 2, 3, 4]
    assert prepared("numbers", [source(tmp_path / "b")], never) == folder, "equal content in another folder"
    assert [path.name for path in own_cache.iterdir()] == [folder.name]


def test_other_content_or_another_name_is_something_else(tmp_path: Path) -> None:
    first = prepared("numbers", [source(tmp_path, b"one")], write)
    assert prepared("numbers", [source(tmp_path, b"other")], write) != first
    assert prepared("digits", [source(tmp_path, b"one")], write) != first


def test_an_error_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    def fail(folder: Path, progress: PreparationProgress) -> None:
        write(folder, progress)
        raise TaskError("half of it")

    with pytest.raises(TaskError, match="half of it"):
        prepared("numbers", [source(tmp_path)], fail)
    assert list(own_cache.iterdir()) == []


def test_another_process_was_faster(tmp_path: Path) -> None:
    def overtaken(folder: Path, _progress: PreparationProgress) -> None:
        prepared("numbers", [source(tmp_path)], write)
        (folder / "mine").write_text("late")

    folder = prepared("numbers", [source(tmp_path)], overtaken)
    assert [path.name for path in folder.iterdir()] == ["numbers.npy"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        TaskError, match=r"cannot prepare data in .*: .*folder that can be written to with XDG_CACHE_HOME"
    ):
        prepared("numbers", [source(tmp_path)], write)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot read .*nowhere: No such file"):
        prepared("numbers", [tmp_path / "nowhere"], write)


def test_progress_is_told_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.9, 2.1, 2.1, 3.0, 4.2, 4.2])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    progress = PreparationProgress("numbers")
    for share in (0.1, 0.5, 0.7, 0.9):
        progress.at(share)
    assert capsys.readouterr().err.splitlines() == ["preparing numbers: 50%", "preparing numbers: 90%"]
