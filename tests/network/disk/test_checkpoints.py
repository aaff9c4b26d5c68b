"""Checkpoints: read back as they were, or passed over."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import torch

from tests.network.disk.slots import RUN
from troth.crypto import Digest, PeerId
from troth.files import write_by
from troth.network.disk.checkpoints import Checkpoints, Marks
from troth.network.disk.lock import DiskError
from troth.protocol.core.run import Parameters, Run
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Malformed
from troth.protocol.wire.primitives import Primitives
from troth.training import OPTIMIZERS, SCHEDULES, Problem, make_task
from troth.training.work import Training, TrainingWork


@pytest.fixture
def work() -> TrainingWork:
    problem = Problem(make_task("quadratic:dimension=24"))
    return TrainingWork(problem, OPTIMIZERS["adamw"](), SCHEDULES["constant"](0.1, 10), Primitives())


def state_at(work: TrainingWork, step: int) -> State[Training]:
    keys = tuple(sorted(PeerId(bytes([k]) * 32) for k in range(4)))
    run = Run(keys, b"test", Parameters(size=24, tau=1.0, byzantine=1), bytes(32))
    training = work.first(step)
    return dataclasses.replace(State.first(run, training, work.digest(training)), step=step)


def test_a_checkpoint_is_read_back_as_it_was(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    for step in range(6):
        checkpoints.save(state_at(work, step))
    assert len(list(tmp_path.iterdir())) == 6  # three of two files each
    found = Checkpoints(tmp_path, RUN, work).last(state_at(work, 99))
    wanted = state_at(work, 5)
    assert dataclasses.replace(found.state, training=wanted.training) == wanted
    assert work.digest(found.state.training) == work.digest(wanted.training)
    assert found.lacks is None


class _SlowDisk:
    """On which a model takes two seconds to write. Every model is large."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("troth.network.disk.checkpoints._SMALL", 0)
        monkeypatch.setattr("troth.network.disk.checkpoints.write_by", self._write)

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        self.now += 2.0 if path.suffix == ".safetensors" else 0.0
        write_by(path, write)


def test_a_large_model_is_saved_now_and_then_and_when_the_peer_stops(
    tmp_path: Path, work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[B5] In between it is known which one is lacking; if all stop, somebody must have it."""
    disk = _SlowDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path, RUN, work, every=4, clock=lambda: disk.now)
    for step, whole in ((1, False), (2, False), (3, False), (4, False), (5, False), (6, False), (6, True), (7, False)):
        stopped = dataclasses.replace(state_at(work, step), incarnation=step)
        checkpoints.save(stopped, whole=whole)
        found = checkpoints.last(state_at(work, 0))
        assert (found.state.step, found.state.incarnation) == (step, step)
        saved = step in (1, 5) or whole  # the first, its turn, and when the peer stops
        assert found.lacks == (None if saved else work.digest(stopped.training))


def test_a_large_model_is_saved_with_every_step_if_steps_take_long(
    tmp_path: Path, work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = _SlowDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path, RUN, work, every=1000, keep=100, clock=lambda: disk.now)
    for step in range(1, 11):
        checkpoints.save(state_at(work, step))
        disk.now += 60.0 if step < 5 else 101.0
    saved = [int(path.stem.removeprefix("step-")) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert saved == [1, 3, 5, 6, 7, 8, 9, 10], "for less than a fiftieth of the time"


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    checkpoints.save(state_at(work, 1))
    (tmp_path / "step-000000002.json").write_bytes(b'{"format": "troth ch')
    found = checkpoints.last(state_at(work, 99))
    assert found.state.step == 1


def test_a_damaged_model_is_not_taken(tmp_path: Path, work: TrainingWork) -> None:
    """A peer that comes back gets the model from the others; the rest of the state is still worth having."""
    checkpoints = Checkpoints(tmp_path, RUN, work)
    checkpoints.save(state_at(work, 1))
    model = tmp_path / "step-000000001.safetensors"
    raw = bytearray(model.read_bytes())
    raw[-1] ^= 1
    model.write_bytes(raw)
    first = state_at(work, 99)
    found = checkpoints.last(first)
    assert torch.equal(found.state.training.parameters_D, first.training.parameters_D)
    assert found.lacks == work.digest(state_at(work, 1).training)


def test_a_checkpoint_knows_how_far_the_other_files_had_come(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    assert checkpoints.marks() == Marks()
    for step in (1, 2):
        checkpoints.save(state_at(work, step), Marks(Digest(bytes([step]) * 32), (step, 0, 0, 1)))
    assert Checkpoints(tmp_path, RUN, work).marks() == Marks(Digest(bytes([2]) * 32), (2, 0, 0, 1))


@pytest.mark.long
def test_a_flipped_byte_of_a_checkpoint_is_noticed(tmp_path: Path, work: TrainingWork) -> None:
    """Nothing is guessed: the checkpoint before counts, or another version of Troth is named."""
    checkpoints, random = Checkpoints(tmp_path, RUN, work), Random(0)
    checkpoints.save(state_at(work, 1))
    checkpoints.save(state_at(work, 2))
    file = tmp_path / "step-000000002.json"
    good = file.read_bytes()
    for index in range(0, len(good), 3):
        byte = random.choice([value for value in range(256) if value != good[index]])
        file.write_bytes(good[:index] + bytes([byte]) + good[index + 1 :])
        if (good[index : index + 1] + bytes([byte])).isspace():
            continue
        with suppress(DiskError):
            assert checkpoints.last(state_at(work, 99)).state.step == 1


def test_a_model_on_disk_is_the_packed_one(tmp_path: Path, work: TrainingWork) -> None:
    """Written tensor by tensor, and read back through a map of the file."""
    training = work.first(1)
    work.write(training, tmp_path / "model")
    packed = work.pack(training)
    assert (tmp_path / "model").read_bytes() == packed
    again = work.read(tmp_path / "model")
    assert isinstance(again, Training)
    assert work.digest(again) == work.digest(training)
    (tmp_path / "model").write_bytes(packed[:-1])
    assert isinstance(work.read(tmp_path / "model"), Malformed)


def test_a_disk_that_fails_is_an_error_with_a_way_out(tmp_path: Path, work: TrainingWork) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, work)
    (tmp_path / "step-000000001.safetensors.partial").mkdir()  # nothing can be written there
    with pytest.raises(DiskError, match="make room"):
        checkpoints.save(state_at(work, 1))


def test_another_runs_checkpoint_is_refused(tmp_path: Path, work: TrainingWork) -> None:
    Checkpoints(tmp_path, RUN, work).save(state_at(work, 1))
    with pytest.raises(DiskError, match="another run"):
        Checkpoints(tmp_path, Digest(bytes(32)), work).last(state_at(work, 0))
