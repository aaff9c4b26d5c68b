"""A stranger on its way in: its machine is checked first, and people read how far it is."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.network.manifest.plans import KEYS, PLAN
from troth.crypto import PeerId
from troth.network.disk.lock import DiskError
from troth.network.node import way_in
from troth.network.node.options import NodeOptions
from troth.network.node.way_in import WayIn, check_machine
from troth.protocol.core.door import Door
from troth.protocol.core.records import Candidate
from troth.protocol.core.roster import Roster
from troth.training import Problem, TaskError, make_task
from troth.training.work import Training

ME = PeerId(bytes(32))


def test_a_machine_is_checked_before_anybody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("quadratic:dimension=40")
    problem = Problem(task)
    first, options = Training(problem.initial(0), {}), NodeOptions(tmp_path / "eve", "")
    check_machine(task, problem, first, options)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskError, match="too little room"):
        check_machine(task, problem, first, options)

    def impure(*_: object) -> None:
        raise TaskError("the loss is another the second time")

    monkeypatch.setattr(way_in, "check_pure", impure)
    with pytest.raises(TaskError, match="the second time"):
        check_machine(task, problem, first, options)
    assert not (tmp_path / "eve").exists()


def test_people_read_how_far_a_stranger_is() -> None:
    said: list[str] = []
    run = replace(PLAN.run, parameters=replace(PLAN.run.parameters, probation=16))
    way = WayIn(run, ME, said.append)
    way.begins()

    def at(step: int, members: tuple[PeerId, ...] = tuple(KEYS), missed: int = 0) -> Any:
        mine = Candidate(ME, "", 90, max(0, step - 100 - missed), missed)
        door = Door(probation=16, slots=4, candidates=() if ME in members else (mine,))
        return SimpleNamespace(step=step, roster=replace(Roster(members), door=door))

    for step in range(99, 121):
        way.stepped(at(step, missed=2 if step > 110 else 0), ME)
    way.stepped(at(121, (*KEYS, ME)), ME)
    assert said == [
        "following the run from its founders on, to ask for a place on probation (16 steps of audited work)",
        "on probation: 0 of 16 steps",
        "on probation: 4 of 16 steps",
        "on probation: 8 of 16 steps",
        "on probation: 12 of 16 steps, 2 missed",
        "probation is over: waits for a seat, as others came before (at most one seat in eight is new)",
        "a member",
    ]
