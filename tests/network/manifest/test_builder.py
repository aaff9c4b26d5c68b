"""A manifest from a few options, the task's suggestions, and times measured here."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cli.test_lists import TASK
from tests.network.manifest.plans import FOUNDERS, KEYS, SPEC
from troth.crypto import PeerId
from troth.errors import OperatorError
from troth.network.manifest.builder import build_manifest, task_beside
from troth.network.manifest.files import mismatches
from troth.network.manifest.manifest import Founder, Manifest, least_memory
from troth.network.manifest.options import ManifestOptions
from troth.network.manifest.toml import ManifestError
from troth.protocol.broadcast.timeouts import Timeouts
from troth.protocol.core.door import least_probation
from troth.protocol.core.run import Parameters
from troth.specs import SpecError
from troth.training.tasks.synthetic import Quadratic


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a colon, which separates options in a task's name and is an ordinary character in a folder's."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "mine.py").write_text(TASK)
    return folder


def test_a_manifest_fits_the_machine_that_wrote_it() -> None:
    manifest = build_manifest(SPEC, FOUNDERS).manifest
    task = manifest.make_task()
    assert mismatches(manifest, task, manifest.problem(task)) == []
    assert manifest.parameters == Parameters(size=40, tau=Quadratic.tau, byzantine=1)
    assert (manifest.steps, manifest.optimizer, manifest.rate) == (Quadratic.steps, "sgd", Quadratic.rate)
    assert build_manifest(SPEC, FOUNDERS).manifest.run.id != manifest.run.id, "a fresh nonce"


def test_what_takes_long_is_named_before_it_begins() -> None:
    stages = list[str]()
    build_manifest(SPEC, FOUNDERS, on_stage=stages.append)
    assert stages == [
        "loading the task and its data",
        "checking that the task gives the same bits twice",
        "measuring how long a gradient takes",
        "hashing the data",
    ]


@pytest.mark.parametrize(("probation", "slots"), [(0, 4), (32, 4), (64, 8), (128, 16)])
def test_a_longer_probation_has_more_slots(probation: int, slots: int) -> None:
    """[J3] Else whoever wins most of them has most of the seats: `make bench-door`."""
    built = build_manifest(SPEC, FOUNDERS, ManifestOptions(probation=probation))
    assert (built.manifest.parameters.probation, built.manifest.parameters.slots) == (probation, slots)


def test_how_a_manifest_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "sub").mkdir()
    (folder.parent / "sub" / "mine.py").write_text(TASK)
    assert task_beside("digits:hidden=8", folder) == "digits:hidden=8"
    assert task_beside("sub/mine.py:a=1", Path()) == "sub/mine.py:a=1"
    assert task_beside("sub/mine.py:a=1", Path("sub")) == "mine.py:a=1"
    with pytest.raises(ManifestError, match="put it beside the manifest"):
        task_beside("sub/mine.py", folder)
    with pytest.raises(SpecError, match=r"no task file at 'none\.py'"):
        task_beside("none.py", folder)


def test_times_are_generous_and_memory_grows_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = build_manifest(SPEC, FOUNDERS).manifest.timeouts
    assert (small.delta, small.compute, small.bulk, small.memory) == (2.0, 5.0, 5.0, 1 << 28)
    monkeypatch.setattr("troth.network.manifest.builder._SLOWEST_CONNECTION", 100.0)
    monkeypatch.setattr(Timeouts, "memory", 1)
    large = build_manifest("quadratic:dimension=1001", FOUNDERS).manifest.timeouts
    assert large.bulk == 81.0, "twice 4004 bytes"
    assert large.memory == 4 * least_memory(Parameters(size=1001, tau=1.0, byzantine=1)) == 4 * (16 * 1001 + (1 << 20))
    coded = build_manifest("quadratic:dimension=1001", FOUNDERS, ManifestOptions(code="int8")).manifest.timeouts
    assert coded.bulk == 31.0, "1005 bytes and 2006"
    assert coded.memory == 4 * (2 * 3011 + (1 << 20))
    assert build_manifest(SPEC, FOUNDERS, ManifestOptions(compute_s=0.5)).manifest.timeouts.compute == 0.5
    assert (
        small.stretch,
        build_manifest(SPEC, FOUNDERS, ManifestOptions(stretch=1)).manifest.timeouts.stretch,
    ) == (
        4.0,
        1.0,
    )


def test_local_steps_take_as_many_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R2, Q8]"""
    monkeypatch.setattr("troth.network.manifest.builder._gradient_s", lambda _problem: 1.0)
    built = build_manifest(SPEC, FOUNDERS, ManifestOptions(local_steps=8, outer=0.5))
    assert (built.gradient_s, built.manifest.timeouts.compute) == (8.0, 80.0)
    assert (built.manifest.parameters.local_steps, built.manifest.outer) == (8, 0.5)
    assert Manifest.from_bytes(built.manifest.to_toml().encode()) == built.manifest
    assert not {"local_steps", "outer"} & {*build_manifest(SPEC, FOUNDERS).manifest.to_toml().split()}
    with pytest.raises(ManifestError, match="`outer` needs `local_steps` above 1"):
        build_manifest(SPEC, FOUNDERS, ManifestOptions(outer=0.5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_here() -> None:
    with pytest.raises(ManifestError, match="`device` cuda: PyTorch sees no CUDA device here"):
        build_manifest(SPEC, FOUNDERS, ManifestOptions(device="cuda"))


def test_data_that_is_not_here(tmp_path: Path) -> None:
    absent = """
    def data_files(self):
        from pathlib import Path
        return [Path("none.bin")]
"""
    (tmp_path / "mine.py").write_text(TASK + absent)
    with pytest.raises(ManifestError, match=r"data: none\.bin is not there"):
        build_manifest("mine.py", FOUNDERS[:2], folder=tmp_path)


@pytest.mark.parametrize(("count", "most"), [(1, 0), (3, 0), (4, 1), (5, 1)])
def test_as_many_liars_as_can_be_withstood(count: int, most: int) -> None:
    founders = [Founder(f"n{k}", key, "") for k, key in enumerate(KEYS[:count])]
    assert build_manifest(SPEC, founders).manifest.parameters.byzantine == most


@pytest.mark.parametrize(
    "make",
    [
        lambda: build_manifest(SPEC, ()),
        lambda: build_manifest("quadratic:dimension=3", FOUNDERS),
        lambda: build_manifest(SPEC, FOUNDERS, ManifestOptions(tau=-1.0)),
        lambda: build_manifest(SPEC, FOUNDERS, ManifestOptions(byzantine=3)),
        lambda: build_manifest(SPEC, FOUNDERS, ManifestOptions(validators=-1)),
        lambda: build_manifest(SPEC, (FOUNDERS[0], FOUNDERS[0])),
        lambda: build_manifest(SPEC, (Founder("x", PeerId(KEYS[0]), "x:1"), Founder("x", PeerId(KEYS[1]), "x:2"))),
    ],
)
def test_options_that_cannot_be_met(make: Callable[[], object]) -> None:
    with pytest.raises(OperatorError):
        make()


@pytest.mark.long
def test_a_probation_leaves_time_to_fetch_a_large_model() -> None:
    """[J6, U5] Its content is named every 16 steps, and nobody takes a model by a chained digest."""
    large = "quadratic:dimension=5000000"
    with pytest.raises(ManifestError, match=r"^`probation` must be at least 32 for a model of 5,000,000 parameters"):
        build_manifest(large, FOUNDERS, ManifestOptions(byzantine=1, probation=31))


def test_the_least_probation_is_taken() -> None:
    """[J6] And one step less is refused, with the number that would be right."""
    least = least_probation(len(FOUNDERS), 1)
    made = build_manifest(SPEC, FOUNDERS, ManifestOptions(byzantine=1, probation=least)).manifest
    assert made.parameters.probation == least
    with pytest.raises(ManifestError, match=f"^`probation` must be at least {least} "):
        build_manifest(SPEC, FOUNDERS, ManifestOptions(byzantine=1, probation=least - 1))
