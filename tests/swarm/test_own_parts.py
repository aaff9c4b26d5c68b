"""A user's own task and attack in real processes: each of them finds the files, wherever it runs."""

import dataclasses
import sys
from pathlib import Path

import pytest

from troth.cli.templates import attack as attack_template
from troth.cli.templates import task as task_template
from troth.swarm.plan import SwarmError, SwarmPlan, rehearsal
from troth.swarm.run import Swarm

PATIENCE_S = 120.0
LEAVES_A_MARK = """

class Marked(Drag):
    def forge(self, own_BD, honest_HD):
        import os, pathlib
        pathlib.Path(__file__).with_name(f"forged-by-{os.getpid()}").touch()
        return super().forge(own_BD, honest_HD)
"""


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
