"""A user's own task and attack in real processes: each of them finds the files, wherever it runs."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from troth.cli.swarm import _beyond
from troth.cli.templates import attack as attack_template
from troth.cli.templates import task as task_template
from troth.crypto import Digest, Identity
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.files import initial_state_file, mismatches
from troth.network.manifest.manifest import Founder, Manifest
from troth.workshop.swarm import Swarm
from troth.workshop.swarm_peers import SwarmError, SwarmPlan, copy_companions, rehearsal

PATIENCE_S = 120.0
LEAVES_A_MARK = """

class Marked(Drag):
    def forge(self, own_BD, honest_HD):
        import os, pathlib
        pathlib.Path(__file__).with_name(f"forged-by-{os.getpid()}").touch()
        return super().forge(own_BD, honest_HD)
"""


@pytest.mark.long
def test_files_outside_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, template in (("my_attack.py", attack_template), ("my_task.py", task_template)):
        (tmp_path / name).write_bytes(Path(str(template.__file__)).read_bytes())
    with (tmp_path / "my_attack.py").open("a") as file:
        file.write(LEAVES_A_MARK)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    plan = SwarmPlan(peers=4, byzantine=1, attacks=("../my_attack.py:Marked:strength=50",), attack_start=0)
    manifest = rehearsal(plan, "../my_task.py:Waves:hidden=4", steps=3, delta_s=1.0)
    with Swarm(plan, manifest, tmp_path / "out") as swarm:
        liar = swarm.pid(plan.liars[0])
        assert swarm.follow(most_s=PATIENCE_S), swarm.seen.notes
    assert {swarm.seen.ended[number].how for number in swarm.honest} == {"done"}
    assert swarm.agreement
    summary = swarm.summary({})
    assert summary.attack == f"{tmp_path / 'my_attack.py'}:Marked:strength=50"
    assert {ban["peer"] for ban in summary.details["banned"]} <= set(plan.liars)
    assert [mark.name for mark in tmp_path.glob("forged-by-*")] == [f"forged-by-{liar}"]
    assert (tmp_path / "out/my_task.py").read_bytes() == (tmp_path / "my_task.py").read_bytes()


def test_an_object_cannot_travel() -> None:
    with pytest.raises(SwarmError, match=r"^`attacks` are names or files"):
        SwarmPlan(peers=4, byzantine=1, attacks=(attack_template.Drag(),))  # type: ignore[arg-type]


def test_a_plan_stays_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(Path(str(attack_template.__file__)).read_bytes())
    plan = SwarmPlan(peers=4, byzantine=1, attacks=(str(tmp_path / "mine.py"),))
    assert dataclasses.replace(plan) == plan


TASK_WITH_DATA = """
from pathlib import Path
import torch
from torch import nn
from troth.training import Task

DATA = Path(__file__).parent / "data" / "lines.txt"

class Lines(Task):
    def __init__(self):
        self.slope = float(DATA.read_text())

    def data_files(self):
        return [DATA]

    def model(self):
        return nn.Linear(1, 1)

    def batch(self, draw):
        x = torch.from_numpy(draw.uniform(8)).float()[:, None]
        return {"x": x, "y": self.slope * x}

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])
"""


@pytest.mark.long
def test_whoever_checks_a_swarm_finds_the_tasks_data_beside_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the state that it began from; though the rehearsed manifest's folder is gone. A second swarm replaces the copies."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    old, out = tmp_path / "old", tmp_path / "out"
    (old / "data").mkdir(parents=True)
    (old / "lines.py").write_text(TASK_WITH_DATA)
    (old / "data/lines.txt").write_text("3\n")
    built = build_manifest("lines.py", [Founder("a", Identity.generate().peer, "")], folder=old)
    digest = Digest(bytes(32))
    initial_state_file(old, digest).write_text("a state")
    manifest = dataclasses.replace(built.manifest, initial_state=digest)
    for _ in range(2):
        copy_companions(manifest, out)
    copy_companions(dataclasses.replace(manifest, folder=out), out)
    shutil.rmtree(old)
    (out / "run.toml").write_text(manifest.to_toml())
    there = Manifest.load(out / "run.toml")
    assert initial_state_file(out, digest).read_text() == "a state"
    task = there.make_task()
    assert [Path(file) for file in task.data_files()] == [out / "data/lines.txt"]
    assert mismatches(there, task, there.problem(task)) == []


def test_more_liars_than_the_manifest_withstands_are_warned_about() -> None:
    plan = SwarmPlan(peers=7, byzantine=2)
    keys = [Identity.generate().peer for _ in range(4)]
    base = build_manifest("quadratic:dimension=40", [Founder(f"p{k}", key, "") for k, key in enumerate(keys)]).manifest
    run = rehearsal(plan, base=base)
    assert str(_beyond(plan, run)).startswith(
        "2 liars, and the manifest withstands 1 (protocol.byzantine): nothing is promised"
    )
    assert _beyond(dataclasses.replace(plan, byzantine=1), run) is None
