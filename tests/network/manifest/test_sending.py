"""The files that have to be sent: the task's own, what it imports from beside it, and nothing of a library."""

import sys
from pathlib import Path
from types import ModuleType

import troth
from tests.network.manifest.test_fit import Filed
from troth.network.manifest.files import code_files, data_digests, data_files, short_names


def module(place: Path | str | None) -> ModuleType:
    made = ModuleType("one")
    made.__file__ = None if place is None else str(place)
    return made


def test_modules_beside_the_task_go_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    loaded = [
        module(folder / "mine.py"),
        module(folder / "helper.py"),
        module(folder / "net" / "layers.py"),
        module(folder / ".venv" / "lib" / "site-packages" / "numpy" / "__init__.py"),
        module(tmp_path / "elsewhere.py"),
        module(troth.__file__),
        module("_ops.py"),
        module(None),
    ]
    assert code_files("mine.py:size=3", folder, loaded) == (Path("mine.py"), Path("helper.py"), Path("net/layers.py"))
    assert code_files("digits", folder, loaded) == ()


def test_in_a_clone_troth_itself_is_not_sent() -> None:
    clone = Path(troth.__file__).parent.parent.parent
    assert code_files("mine.py", clone, [module(troth.__file__), module(Path(sys.prefix) / "x.py")]) == (
        Path("mine.py"),
    )


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    assert short_names([Path("/x/train/0.bin"), Path("/x/test/0.bin")]) == ["train/0.bin", "test/0.bin"]
    assert short_names([Path("a.bin")]) == ["a.bin"]
    assert short_names([Path("a.bin"), Path("a.bin")]) == ["1 a.bin", "2 a.bin"]
    assert short_names([]) == []


def test_a_file_that_is_named_twice_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    task = Filed(files=(tmp_path / "a.bin", tmp_path / "a.bin"))
    assert data_files(task) == (tmp_path / "a.bin",)
    assert [name for name, _ in data_digests(task)] == ["a.bin"], "and not the folders of the machine that wrote it"
