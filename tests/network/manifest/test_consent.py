"""Nothing from a manifest is run before a person was told: what is agreed to, what is run, and that they are the same bytes."""

import dataclasses
import hashlib
import inspect
import os
import py_compile
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.cli.test_lists import TASK
from tests.consented import nobody_agreed
from tests.network.manifest.plans import FOUNDERS, PLAN
from troth import plugins
from troth.crypto import Digest
from troth.errors import OperatorError
from troth.network.manifest import consent
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.consent import code_to_run, is_trusted, remember, require_consent
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.toml import ConsentError, ManifestError
from troth.training import TaskError, make_task

MARK = "\nimport pathlib\npathlib.Path({!r}).touch()\n"


@pytest.fixture(autouse=True)
def trust_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a person who has agreed to nothing."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with nobody_agreed(tmp_path / "config") as file:
        yield file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    return folder


def sha256(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).digest())


def received(folder: Path, source: str, spec: str = "mine.py", **beside: str) -> Manifest:
    """A manifest of somebody else's, and its code, as they come in one folder."""
    (folder / spec).parent.mkdir(parents=True, exist_ok=True)
    (folder / spec).write_text(source)
    for name, text in beside.items():
        (folder / f"{name}.py").write_text(text)
    files = tuple((f"{name}.py", sha256(text)) for name, text in beside.items())
    return dataclasses.replace(PLAN, task=spec, code=sha256(source), code_files=files, folder=folder)


def test_code_is_run_only_after_somebody_agreed_and_never_asked_about_again(folder: Path, trust_file: Path) -> None:
    mark = folder / "ran"
    manifest = received(folder, TASK + MARK.format(str(mark)))
    with pytest.raises(ConsentError, match=r"mine\.py \(\d+ bytes\)\. .* `trust` " + manifest.code.hex()):
        manifest.make_task()
    assert not mark.exists()
    with pytest.raises(ConsentError, match="`trust` names other code"):
        require_consent(manifest, "0" * 64)
    with pytest.raises(ConsentError, match="64 hexadecimal digits"):
        require_consent(manifest, "mine.py")
    assert not trust_file.exists()
    require_consent(manifest, manifest.code.hex().upper())
    manifest.make_task()
    assert mark.exists()
    assert trust_file.stat().st_mode & 0o777 == 0o600
    assert trust_file.parent.stat().st_mode & 0o777 == 0o700
    consent._agreed_here.clear()  # another process of the same person
    require_consent(manifest, None)
    other = received(folder, TASK + "# other bytes\n")
    with pytest.raises(ConsentError, match=other.code.hex()):
        require_consent(other, None)


def test_built_in_tasks_need_no_consent(trust_file: Path) -> None:
    require_consent(PLAN, None)
    PLAN.make_task()
    assert not trust_file.exists()


@pytest.mark.long
def test_whoever_wrote_the_manifest_has_agreed_to_their_own_file(folder: Path, trust_file: Path) -> None:
    (folder / "mine.py").write_text(TASK)
    manifest = build_manifest("mine.py", FOUNDERS[:2], folder=folder).manifest
    manifest.make_task()
    assert not trust_file.exists(), "kept by `troth new`; what is built in a process is that process's"


@pytest.mark.parametrize("mode", [0o606, 0o660])
def test_a_file_that_others_may_write_says_nothing(folder: Path, trust_file: Path, mode: int) -> None:
    manifest = received(folder, TASK)
    code = code_to_run(manifest)
    assert code is not None
    assert remember(code)
    consent._agreed_here.clear()
    assert is_trusted(code.digest)
    trust_file.chmod(mode)
    with pytest.raises(OperatorError, match="chmod 600"):
        manifest.make_task()


def test_consent_that_cannot_be_kept_is_this_processs(folder: Path, trust_file: Path) -> None:
    trust_file.parent.parent.mkdir()
    trust_file.parent.touch()  # no folder
    manifest = received(folder, TASK)
    code = code_to_run(manifest)
    assert code is not None
    assert not remember(code)
    manifest.make_task()


def test_a_link_is_not_followed_to_the_persons_trust(folder: Path, trust_file: Path) -> None:
    """Else a program that somebody has run once could point at a list of its own, which looks like an ordinary place."""
    manifest = received(folder, TASK)
    elsewhere = folder / "list"
    elsewhere.write_text(manifest.code.hex() + "\n")
    elsewhere.chmod(0o600)
    trust_file.parent.mkdir(parents=True)
    trust_file.symlink_to(elsewhere)
    with pytest.raises(ConsentError):
        manifest.make_task()


# What is hashed is what is run


def test_a_folder_of_ones_own_does_not_take_the_place_of_the_agreed_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`{data}` in the name of a file: the file in the folder of that name was hashed, and the one in TROTH_DATA run."""
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/task.py").write_text(TASK + MARK.format(str(tmp_path / "pwned")))
    monkeypatch.setenv("TROTH_DATA", str(tmp_path / "downloads"))
    manifest = received(folder, TASK + MARK.format(str(tmp_path / "agreed")), spec="{data}/task.py")
    require_consent(manifest, manifest.code.hex())
    manifest.make_task()
    assert (tmp_path / "agreed").exists()
    assert not (tmp_path / "pwned").exists()
    with pytest.raises(OperatorError, match=r"no task file at '\{data\}/task\.py'"):
        make_task("{data}/task.py")


def test_data_stands_in_options_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROTH_DATA", "/x.py:y=z")
    assert make_task("resnet18:data={data}/x").data == Path("/x.py:y=z/x")  # type: ignore[attr-defined]
    monkeypatch.delenv("TROTH_DATA")
    with pytest.raises(TaskError, match="TROTH_DATA"):
        make_task("resnet18:data={data}/x")


def test_a_file_that_changes_after_it_was_read_is_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there swaps the file the moment it was hashed, and again whenever it is opened."""
    manifest = received(folder, TASK + MARK.format(str(tmp_path / "agreed")))
    require_consent(manifest, manifest.code.hex())
    check = consent.check_consent

    def swap(code: consent.TaskCode) -> None:
        check(code)
        (folder / "mine.py").write_text(TASK + MARK.format(str(tmp_path / "pwned")))

    monkeypatch.setattr("troth.network.manifest.manifest.check_consent", swap)
    manifest.make_task()
    assert (tmp_path / "agreed").exists()
    assert not (tmp_path / "pwned").exists()


def test_the_text_that_is_compiled_again_is_that_which_was_run(folder: Path) -> None:
    """torch.jit and others ask for the source of a function, and would get the file as it is by then."""
    manifest = received(folder, TASK)
    require_consent(manifest, manifest.code.hex())
    task = manifest.make_task()
    (folder / "mine.py").write_text(TASK.replace("nn.Linear(1, 1)", "evil()"))
    assert "nn.Linear(1, 1)" in inspect.getsource(type(task).model)


HELPED = "from helper_of_theirs import FACTOR\n" + TASK.replace("3 * x", "FACTOR * x")


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Modules of tasks are forgotten afterwards: their names have one meaning in a process."""
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if "of_theirs" in name:
            del sys.modules[name]


@pytest.mark.usefixtures("forgotten")
def test_modules_beside_the_file_are_agreed_on_too(folder: Path, tmp_path: Path) -> None:
    manifest = received(folder, HELPED, helper_of_theirs="FACTOR = 3\n")
    code = code_to_run(manifest)
    assert code is not None
    assert [file.name for file in code.files] == ["mine.py", "helper_of_theirs.py"]
    assert code.digest != manifest.code.hex(), "agreeing to the file alone is no consent to other modules"
    listed = "".join(f"{file.digest.hex()}  {file.name}\n" for file in code.files)
    assert code.digest == hashlib.sha256(f"troth code\n{listed}".encode()).hexdigest(), "as sha256sum would help to say"
    with pytest.raises(ConsentError, match=f"in 2 files.*{code.digest}"):
        manifest.make_task()
    require_consent(manifest, code.digest)
    (folder / "helper_of_theirs.py").write_text(MARK.format(str(tmp_path / "pwned")) + "FACTOR = 3\n")
    with pytest.raises(ManifestError, match=r"helper_of_theirs\.py is not the one agreed on"):
        manifest.make_task()
    (folder / "helper_of_theirs.py").write_text("FACTOR = 3\n")
    manifest.make_task()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("forgotten")
def test_a_module_that_the_manifest_does_not_name_is_not_imported(folder: Path) -> None:
    manifest = received(folder, HELPED)
    (folder / "helper_of_theirs.py").write_text("FACTOR = 3\n")
    require_consent(manifest, manifest.code.hex())
    with pytest.raises(OperatorError, match=r"No module named 'helper_of_theirs'.*a manifest that names it"):
        manifest.make_task()


@pytest.mark.usefixtures("forgotten")
def test_a_module_is_run_as_it_was_read_when_it_is_imported_late(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder on the path too, as where the author's own program has run the file before."""
    monkeypatch.syspath_prepend(str(folder))
    source = TASK.replace(
        "        return nn.Linear(1, 1)", "        import late_of_theirs.deep\n        return nn.Linear(1, 1)"
    )
    manifest = received(folder, source, late_of_theirs="")
    (folder / "late_of_theirs.py").unlink()
    (folder / "late_of_theirs").mkdir()
    (folder / "late_of_theirs/deep.py").write_text(MARK.format(str(tmp_path / "agreed")))
    manifest = dataclasses.replace(
        manifest, code_files=(("late_of_theirs/deep.py", sha256(MARK.format(str(tmp_path / "agreed")))),)
    )
    code = code_to_run(manifest)
    assert code is not None
    require_consent(manifest, code.digest)
    task = manifest.make_task()
    (folder / "late_of_theirs/deep.py").write_text(MARK.format(str(tmp_path / "pwned")))
    task.model()
    assert (tmp_path / "agreed").exists()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.usefixtures("forgotten")
def test_a_name_has_one_meaning_in_a_process(folder: Path, tmp_path: Path) -> None:
    first = received(folder, HELPED, helper_of_theirs="FACTOR = 3\n")
    (tmp_path / "other").mkdir()
    second = received(tmp_path / "other", HELPED, helper_of_theirs="FACTOR = 4\n")
    for manifest in (first, second):
        code = code_to_run(manifest)
        assert code is not None
        require_consent(manifest, code.digest)
    first.make_task()
    with pytest.raises(OperatorError, match="another task of this process has another helper_of_theirs"):
        second.make_task()


@pytest.mark.usefixtures("forgotten")
def test_python_keeps_its_modules(folder: Path) -> None:
    """A file that is called as one of Python's does not take its place, for this task or for anybody else."""
    manifest = received(folder, "import colorsys\nassert colorsys.rgb_to_hls\n" + TASK, colorsys="")
    sys.modules.pop("colorsys", None)
    code = code_to_run(manifest)
    assert code is not None
    require_consent(manifest, code.digest)
    manifest.make_task()


@pytest.mark.usefixtures("forgotten")
def test_the_author_of_several_files_names_them_all(folder: Path) -> None:
    (folder / "mine.py").write_text(HELPED)
    (folder / "helper_of_theirs.py").write_text("FACTOR = 3\n")
    manifest = build_manifest("mine.py", FOUNDERS[:2], folder=folder).manifest
    assert manifest.code_files == (("helper_of_theirs.py", sha256("FACTOR = 3\n")),)
    again = Manifest.from_bytes(manifest.to_toml().encode(), folder)
    assert again == manifest
    assert again.run.id == manifest.run.id
    again.make_task()
    assert isinstance(sys.modules["helper_of_theirs"].__loader__, plugins._Beside), "what the author imported is not it"


def test_a_link_to_a_program_of_this_machine_is_not_run(folder: Path, tmp_path: Path) -> None:
    """The bytes are known to whoever chose the link, and so is what they do when they are run."""
    own = tmp_path / "own.py"
    own.write_text(TASK)
    (folder / "mine.py").symlink_to(own)
    manifest = dataclasses.replace(PLAN, task="mine.py", code=sha256(TASK), folder=folder)
    with pytest.raises(ManifestError, match=r"is a link to .* put the file itself there"):
        manifest.make_task()


def test_a_pipe_or_an_endless_file_is_no_code(folder: Path) -> None:
    manifest = received(folder, TASK)
    (folder / "mine.py").unlink()
    os.mkfifo(folder / "mine.py")
    with pytest.raises(ManifestError, match="no ordinary file"):
        manifest.make_task()
    (folder / "mine.py").unlink()
    with (folder / "mine.py").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ManifestError, match="longer than"):
        manifest.make_task()


def test_a_list_of_files_is_not_agreed_to_as_a_file(folder: Path) -> None:
    """Its SHA-256 would be consent to all files that it lists."""
    manifest = received(folder, "troth code\n" + f"{sha256(TASK).hex()}  mine.py\n")
    with pytest.raises(ManifestError, match="no Python"):
        manifest.make_task()


@pytest.mark.parametrize("name", ["../up.py", "/etc/x.py", "a\\b.py", "x.txt", "./x.py", "a//b.py", "a\n.py"])
def test_modules_lie_beside_the_manifest(name: str) -> None:
    with pytest.raises(ManifestError):
        dataclasses.replace(PLAN, task="mine.py", code_files=((name, Digest(bytes(32))),))


# Installed packages


@pytest.mark.usefixtures("forgotten")
def test_an_installed_package_is_asked_about_before_it_is_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mark = tmp_path / "site", tmp_path / "ran"
    (place / "pack_of_theirs").mkdir(parents=True)
    (place / "pack_of_theirs/__init__.py").write_text(MARK.format(str(mark)))
    (place / "pack_of_theirs/tasks.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(place))
    point = EntryPoint("lines", "pack_of_theirs.tasks:Lines", "troth.tasks")
    monkeypatch.setattr("troth.plugins.entry_points", lambda group: [point] if group == "troth.tasks" else [])
    manifest = dataclasses.replace(PLAN, task="lines", code=sha256(TASK), folder=folder)
    with pytest.raises(ConsentError, match=r"task 'lines' of the installed package pack_of_theirs .*in 2 files"):
        manifest.make_task()
    assert not mark.exists()
    code = code_to_run(manifest)
    assert code is not None
    assert [file.name for file in code.files] == ["pack_of_theirs/__init__.py", "pack_of_theirs/tasks.py"]
    require_consent(manifest, code.digest)
    assert type(manifest.make_task()).__name__ == "Lines"
    assert mark.exists()
    (place / "pack_of_theirs/tasks.py").write_text(TASK + "#\n")
    with pytest.raises(ConsentError):
        manifest.make_task()


def test_modules_lie_in_the_folder_of_the_tasks_file(folder: Path) -> None:
    """Nothing elsewhere could be imported; and to look for such a one beside a reader's own copy was a traceback."""
    manifest = received(folder, TASK, "net/mine.py")
    with pytest.raises(ManifestError, match=r"'other/x\.py', which does not lie in the folder of the task's file"):
        dataclasses.replace(manifest, code_files=(("other/x.py", sha256("")),))
    assert dataclasses.replace(manifest, code_files=(("net/sub/x.py", sha256("")),)).code_files


def test_all_that_python_imports_of_a_package_is_agreed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules without a source, those whose source Python does not look at, and what lies behind a link: a new version
    of the package, with the same *.py, could have anything in them."""
    package, elsewhere = tmp_path / "pieces", tmp_path / "elsewhere"
    for folder in (package / "__pycache__", elsewhere, tmp_path / "more/spread", tmp_path / "spread"):
        folder.mkdir(parents=True)
    for file in ("pieces/__init__.py", "elsewhere/far.py", "spread/one.py", "more/spread/two.py", "hidden.py"):
        (tmp_path / file).write_text("x = 1")
    (package / "beyond").symlink_to(elsewhere)
    (elsewhere / "around").symlink_to(package)
    compiled = str(tmp_path / "hidden.py")
    py_compile.compile(compiled, str(package / "hidden.pyc"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(compiled, str(package / "__pycache__/a.cpython-311.pyc"), invalidation_mode=unchecked)
    py_compile.compile(compiled, str(package / "__pycache__/b.cpython-311.pyc"))
    monkeypatch.syspath_prepend(tmp_path / "more")
    monkeypatch.syspath_prepend(tmp_path)

    def files(package: str) -> list[str]:
        return [
            file.name for file in consent._of_package("t", EntryPoint("t", f"{package}.one:T", "troth.tasks")).files
        ]

    unseen = "pieces/__pycache__/a.cpython-311.pyc"
    assert files("pieces") == ["pieces/__init__.py", unseen, "pieces/beyond/far.py", "pieces/hidden.pyc"]
    assert files("spread") == ["spread/one.py", "spread/two.py"]
