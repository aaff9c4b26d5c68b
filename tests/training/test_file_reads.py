"""Files that a task reads must be declared."""

from pathlib import Path

import pytest

import troth
from troth.crypto import Digest
from troth.training import TaskError, check_pure, make_task, user_code
from troth.training.determinism import files_read, watching
from troth.training.fingerprint import code_digest, file_digests

FILE = """
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import numpy as np
import torch
from torch import nn
from troth.training import Task

HERE = Path(__file__).parent
AT_IMPORT

@cache
def data():
    return torch.from_numpy(np.loadtxt(HERE / "x.csv")).float()

@dataclass(frozen=True)
class Own(Task):
    declares: str = ""
    def data_files(self):
        return [HERE / name for name in self.declares.split()]
    def model(self):
        return nn.Linear(1, 1)
    def batch(self, draw):
        return {"x": data()[torch.from_numpy(draw.integers(9, 4))][:, None]}
    def loss(self, model, batch):
        return model(batch["x"]).square().mean()
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "x.csv").write_text("\n".join(map(str, range(9))))
    (tmp_path / "y.csv").write_text("1")
    (tmp_path / "own.py").write_text(FILE.replace("AT_IMPORT", ""))
    return tmp_path / "own.py"


def test_a_read_that_is_cached_is_noticed(own: Path) -> None:
    with pytest.raises(
        TaskError, match=r"batch\(\) reads .*x.csv, which data_files\(\) does not name: .* return its path"
    ):
        check_pure(make_task(str(own)))


def test_a_read_while_the_file_is_loaded_is_noticed(own: Path) -> None:
    own.write_text(FILE.replace("AT_IMPORT", "START = float((HERE / 'y.csv').read_text())"))
    with pytest.raises(TaskError, match=r"the task reads .*y.csv, which data_files\(\) does not name"):
        check_pure(make_task(f"{own}:declares=x.csv"))


def test_declared_files_are_fine_and_have_digests(own: Path) -> None:
    task = make_task(f"{own}:declares=x.csv y.csv")
    check_pure(task)
    assert [Path(path).name for path in files_read(task)] == ["x.csv"]
    right = {name: code_digest(own.parent / name) for name in ("x.csv", "y.csv")}
    assert file_digests(task) == right
    assert all(isinstance(digest, bytes) and len(digest) == 32 for digest in right.values())


def test_files_elsewhere_keep_their_whole_path(own: Path, tmp_path: Path) -> None:
    task = make_task(f"{own}:declares=x.csv")
    digests: dict[str, Digest] = file_digests(task, folder=tmp_path / "other")
    assert list(digests) == [str(tmp_path / "x.csv")]


def test_a_library_that_reads_while_it_is_imported_does_not_count(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own.parent / "site"
    folder.mkdir()
    (folder / "fonts.json").write_text("{}")
    (folder / "lettering.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('fonts.json').read_text()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(user_code, "LIBRARIES", (*user_code.LIBRARIES, f"{folder}/"))
    own.write_text(FILE.replace("AT_IMPORT", "import lettering"))
    task = make_task(f"{own}:declares=x.csv")
    check_pure(task)
    assert [Path(path).name for path in files_read(task)] == ["x.csv"]


@pytest.mark.parametrize("name", ["digits", "quadratic"])
def test_libraries_own_files_do_not_count(name: str) -> None:
    task = make_task(name)
    check_pure(task)
    assert files_read(task) == {}


def test_our_own_compiled_loops_do_not_count(tmp_path: Path) -> None:
    """They are loaded when the first vector needs them, which may be inside of a gradient."""
    task = make_task("digits")
    recipe, data = Path(troth.__file__).parent / "workshop/lab/recipes/matrix.toml", tmp_path / "data.bin"
    data.write_bytes(b"1")
    with watching(task):
        recipe.read_bytes()
        data.read_bytes()
    assert list(files_read(task)) == [str(data.resolve())]
