"""Room on a disk, asked for before anything is fetched."""

from collections import namedtuple
from pathlib import Path

import pytest
import torch

from troth.network.disk.lock import DiskError, check_room, least_room
from troth.training.work import Training

_Usage = namedtuple("_Usage", ["total", "used", "free"])


def test_a_larger_model_more_checkpoints_and_optimizer_vectors_need_more() -> None:
    plain = Training(torch.zeros(1000), {})
    with_momentum = Training(torch.zeros(1000), {"momentum": torch.zeros(1000)})
    assert (
        least_room(with_momentum, 3) - least_room(plain, 3) == 4 * 4000
    )  # three checkpoints, and one that is being written
    assert least_room(plain, 5) - least_room(plain, 3) == 2 * 4000
    assert least_room(Training(torch.zeros(2000), {}), 3) > least_room(plain, 3)


def test_a_disk_that_is_too_small_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs" / "eve"  # does not exist yet
    asked: list[Path] = []

    def usage(place: Path) -> _Usage:
        asked.append(place)
        return _Usage(10, 0, 1_000_000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    check_room(folder, 1_000_000)
    with pytest.raises(
        DiskError, match=r"too little room for .*eve: .* make room there, or choose a folder on another disk"
    ) as told:
        check_room(folder, 1_000_001)
    assert told.value.wrong_folder
    assert set(asked) == {tmp_path}
    folder.mkdir(parents=True)
    (folder / "checkpoint").write_bytes(bytes(10))
    check_room(folder, 1_000_010)  # it is part of what the run needs
