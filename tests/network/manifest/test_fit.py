"""Whether this machine trains what was agreed on: code, data and size, each with the way out."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_lists import TASK
from tests.network.manifest.plans import FOUNDERS, PLAN, SPEC
from troth.crypto import Digest
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.files import data_digests, mismatches
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.manifest.toml import ManifestError
from troth.training import Problem, Task, TaskError, make_task
from troth.training.fingerprint import code_digest, code_file, data_digest
from troth.training.tasks.synthetic import Quadratic


def test_other_code_size_and_data_are_named_with_the_way_out() -> None:
    right = build_manifest(SPEC, FOUNDERS, ManifestOptions(data_where="ask alice")).manifest
    task = right.make_task()
    problem = right.problem(task)

    def only(manifest: Manifest) -> str:
        (line,) = mismatches(manifest, task, problem)
        assert "\n" not in line
        return line

    code = only(dataclasses.replace(right, code=Digest(bytes(32))))
    assert code.startswith("task code: ")
    assert "synthetic.py is not the one agreed on" in code
    assert "install the version of Troth" in code
    size = only(dataclasses.replace(right, parameters=dataclasses.replace(right.parameters, size=41)))
    assert size.startswith("model size: 40 parameters here, 41 agreed on; compare")
    data = only(dataclasses.replace(right, data=Digest(bytes(32))))
    assert data.startswith("data: not the one agreed on")
    assert data.endswith("where to get it: ask alice")


def test_all_that_differs_is_said_at_once() -> None:
    wrong = dataclasses.replace(PLAN, parameters=dataclasses.replace(PLAN.parameters, size=41))
    task = wrong.make_task()
    assert [line.split(":")[0] for line in mismatches(wrong, task, wrong.problem(task))] == [
        "task code",
        "model size",
        "data",
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a colon, which separates options in a task's name and is an ordinary character in a folder's."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "mine.py").write_text(TASK)
    return folder


@pytest.mark.long
def test_a_file_beside_the_manifest_is_found_from_anywhere(folder: Path) -> None:
    manifest = build_manifest("mine.py", FOUNDERS[:2], folder=folder).manifest
    (folder / "run.toml").write_text(manifest.to_toml())
    again = Manifest.load(folder / "run.toml")
    assert again.run.id == manifest.run.id
    task = again.make_task()
    assert mismatches(again, task, again.problem(task)) == []


@pytest.mark.long
def test_another_file_than_agreed_on_is_not_even_run(folder: Path) -> None:
    manifest = build_manifest("mine.py", FOUNDERS[:2], folder=folder).manifest
    (folder / "mine.py").write_text("raise SystemExit('run!')")
    with pytest.raises(ManifestError, match=r"mine\.py is not the one agreed on .* ask for the file"):
        manifest.make_task()
    (folder / "mine.py").unlink()
    with pytest.raises(ManifestError, match=r"task code: cannot read .* ask for the file"):
        manifest.make_task()


def test_the_digest_is_the_one_that_sha256sum_shows(folder: Path) -> None:
    assert code_digest(folder / "mine.py") == hashlib.sha256(TASK.encode()).digest()
    assert code_file("digits", make_task("digits")).name == "small_images.py"
    assert code_file("digits-cnn", make_task("digits-cnn")).name == "small_images.py"


@dataclasses.dataclass(frozen=True)
class Filed(Quadratic):
    """With files, which its batches may ignore."""

    files: tuple[Path, ...] = ()
    shift: float = 0.0

    def data_files(self) -> tuple[Path, ...]:
        return self.files

    def batch(self, draw: Any) -> dict[str, torch.Tensor]:
        return {"noise": super().batch(draw)["noise"] + self.shift}


def test_the_digest_sees_files_their_order_and_batches(tmp_path: Path) -> None:
    one, two, copy = tmp_path / "one", tmp_path / "two", tmp_path / "copy"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    copy.write_bytes(b"1")
    tasks: list[Task] = [
        Filed(),
        Filed(files=(one,)),
        Filed(files=(two,)),
        Filed(files=(one, two)),
        Filed(files=(two, one)),
        Filed(shift=1.0),
    ]
    assert len({data_digest(task) for task in tasks}) == len(tasks)
    assert data_digest(Filed(files=(copy,))) == data_digest(Filed(files=(one,))), "names do not count"
    one.write_bytes(b"1 ")
    assert data_digest(Filed(files=(copy,))) != data_digest(Filed(files=(one,)))


def test_the_file_that_differs_is_named(tmp_path: Path) -> None:
    """Among many, by its place on this machine and by its name in the manifest."""
    files = tuple(tmp_path / name for name in ("a.bin", "b.bin", "c.bin"))
    for file in files:
        file.write_bytes(file.name.encode())
    task = Filed(dimension=40, files=files)
    problem = Problem(task)
    agreed = dataclasses.replace(
        PLAN,
        code=code_digest(code_file(SPEC, task)),
        data=data_digest(task),
        data_files=data_digests(task),
        data_where="ask alice",
    )
    assert [name for name, _ in agreed.data_files] == ["a.bin", "b.bin", "c.bin"]
    assert mismatches(agreed, task, problem) == []
    files[1].write_bytes(b"other")
    (line,) = mismatches(agreed, task, problem)
    assert line.startswith(f"data: {files[1]} is not b.bin as agreed on (SHA-256 ")
    assert line.endswith("; the manifest says where to get it: ask alice")
    assert "a.bin" not in line
    fewer = Filed(dimension=40, files=files[:1])
    assert "data: 1 data files here, 3 agreed on (a.bin, b.bin, c.bin)" in mismatches(agreed, fewer, problem)[-1]
    files[1].write_bytes(b"b.bin")
    shifted = Filed(dimension=40, files=files, shift=1.0)
    assert "but not the batches made from them" in mismatches(agreed, shifted, problem)[-1]


def test_a_missing_file_is_named_before_the_task_trips_over_it(tmp_path: Path) -> None:
    task = Filed(dimension=40, files=(tmp_path / "train.bin",))
    there = dataclasses.replace(PLAN, data_where="https://example.org/train.bin")
    with pytest.raises(ManifestError, match=r"train\.bin is not there; .* https://example\.org/train\.bin"):
        there.problem(task)
    assert mismatches(there, task, Problem(task))[-1].startswith("data: cannot read data file")
    with pytest.raises(TaskError, match="cannot read data file"):
        data_digest(task)
