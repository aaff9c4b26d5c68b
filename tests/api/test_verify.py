"""Verdicts on files: one for each, with names, with the task that was agreed on, and safe to print."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from tests.evidence.closed_runs import NAMES, ClosedRun
from tests.evidence.forger import Forger
from troth.api.verify import Result, VerifyError, expand, verify, verify_paths
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.training import make_task
from troth.workshop.lab.results import write_evidence
from troth.workshop.simulation import ProtocolSimulation, Scenario
from troth.workshop.swarm_peers import SwarmPlan

TASK = """
from dataclasses import dataclass
import torch
from torch import nn
from troth.training import Task

@dataclass(frozen=True)
class Lines(Task):
    '''fit a line'''

    def model(self):
        return nn.Linear(7, 3)

    def batch(self, draw):
        return {"x": torch.from_numpy(draw.uniform(56)).float().view(8, 7)}

    def loss(self, model, batch):
        return (model(batch["x"]) - batch["x"][:, :3] - 1).square().mean()
"""


@dataclasses.dataclass(frozen=True)
class OwnTask:
    """A run of a task of its founders' own, its manifest, and evidence of a ban in it."""

    manifest: Manifest
    path: Path  # of the manifest
    evidence: Path

    def verdict(self, **options: object) -> tuple[Result, str]:
        found = verify(self.evidence, self.path, **options)  # type: ignore[arg-type]
        return found.result, found.line()


@pytest.fixture
def own(tmp_path: Path) -> OwnTask:
    (tmp_path / "lines.py").write_text(TASK)
    plan = SwarmPlan(peers=5, byzantine=1, seed=3)
    founders = tuple(Founder(NAMES[k], one.peer, "") for k, one in enumerate(plan.identities()))
    manifest = build_manifest("lines.py", founders, ManifestOptions(steps=12, byzantine=1), tmp_path).manifest
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    scenario = Scenario(
        task=str(tmp_path / "lines.py"), peers=5, byzantine=1, attack="sign-flip", attack_start=2, steps=12, seed=3
    )
    simulation = ProtocolSimulation(scenario, run=manifest.run)
    for _ in simulation.steps():
        if simulation.evidence:
            break
    write_evidence(tmp_path, {"ban-step3-liar.json": simulation.evidence[0]})
    return OwnTask(manifest, tmp_path / "run.toml", tmp_path / "evidence" / "ban-step3-liar.json")


def test_a_task_of_ones_own_is_found_beside_the_manifest(own: OwnTask) -> None:
    """One verdict, with names: the file there is byte for byte the one that was agreed on, so it is run, as joining does."""
    result, line = own.verdict()
    assert result is Result.PROVED
    assert line.count("roved") == 1
    assert line.endswith("Recomputed here: the ban is right, whatever anyone voted.")
    banned = verify(own.evidence, own.manifest).details["name"]
    assert banned in line
    assert banned.split(" ")[0] in NAMES
    assert own.verdict(recompute=False) == (Result.VOTED, line_with(line, "not recomputed, as asked"))


def line_with(line: str, reason: str) -> str:
    """The same claim, resting on votes for this reason."""
    claim = line.split(": proved: ")
    return f"{claim[0]}: rests on votes ({reason}): " + claim[1].split(" Recomputed here")[0]


def test_a_task_that_is_missing_or_another_is_never_run_and_takes_nothing_from_the_proof(own: OwnTask) -> None:
    task = own.manifest.folder / "lines.py"
    marker = own.manifest.folder / "executed"
    task.write_text(f"open({str(marker)!r}, 'w')\n" + TASK)
    result, line = own.verdict()
    assert result is Result.VOTED
    assert "lines.py is not the one agreed on" in line
    task.unlink()
    assert own.verdict()[0] is Result.VOTED
    found = verify(own.evidence, own.manifest.run.id.hex())
    assert found.result is Result.VOTED
    assert not found.proved, "a lying quorum can ban whom it likes"
    assert "`task`" in found.reason
    assert found.details["name"].split(" ")[0] in NAMES, "the run's id covers the names"
    assert not marker.exists()


def test_a_task_named_by_the_reader_is_compared_with_the_agreed_one(own: OwnTask, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = (own.manifest.folder / "lines.py").rename(elsewhere / "lines.py")
    assert own.verdict(task=str(copy))[0] is Result.PROVED
    assert verify(own.evidence, own.manifest.run.id.hex(), task=str(copy)).result is Result.PROVED
    marker = tmp_path / "executed"
    copy.write_text(f"open({str(marker)!r}, 'w')\n" + TASK)
    result, line = own.verdict(task=str(copy))
    assert result is Result.VOTED
    assert "not the one agreed on" in line
    assert not marker.exists()
    with pytest.raises(ValueError, match=r"none\.py"):
        own.verdict(task=str(tmp_path / "none.py"))


def test_a_task_that_fails_is_a_reason_and_no_traceback(own: OwnTask) -> None:
    broken = own.manifest.folder / "broken.py"
    broken.write_text(NEEDS_DATA)
    found = verify(own.evidence, own.manifest.run.id.hex(), task=str(broken))
    assert found.result is Result.VOTED
    assert "FileNotFoundError" in found.reason


def test_votes_alone_are_called_that(attacked: ProtocolSimulation, tmp_path: Path) -> None:
    """[E3] A lying quorum could leave out what refutes it."""
    evidence = attacked.evidence[0]
    write_evidence(tmp_path, {"ban-a.json": evidence})
    path = tmp_path / "evidence" / "ban-a.json"
    assert verify(path, attacked.run.id.hex()).result is Result.PROVED
    path.write_text(Forger(attacked, evidence).text(exhibit=None))
    found = verify(path, attacked.run.id.hex())
    assert found.result is Result.VOTED
    assert "rests on their votes" in found.reason


# Models


def test_a_model_is_proved_with_its_weights(tmp_path: Path) -> None:
    """[U4]"""
    closed = ClosedRun()
    path = closed.write(tmp_path)
    found = verify(path, closed.run.id.hex())
    assert found.result is Result.PROVED
    assert "6 of 6 members signed the state" in found.sentence
    assert "model.safetensors holds its weights" in found.sentence
    weights = closed.weights()
    next(iter(weights.values())).view(torch.int32)[0] ^= 1
    closed.write(tmp_path, weights=weights)
    found = verify(path, closed.run.id.hex())
    assert (found.result, found.sentence) == (Result.NOT_PROVED, "")
    assert "other weights than those that the members signed" in found.reason
    assert "The signatures are right" in found.reason


def test_a_model_whose_weights_were_not_checked_is_not_proved(tmp_path: Path) -> None:
    """Signatures about a state say nothing about a file."""
    closed = ClosedRun()
    path = closed.write(tmp_path)
    found = verify(path, closed.run.id.hex(), recompute=False)
    assert found.result is Result.NOT_PROVED
    assert "not checked, as asked" in found.reason
    (tmp_path / "model.safetensors").unlink()
    assert "not beside it" in verify(path, closed.run.id.hex()).reason
    assert verify(path, None).result is Result.UNKNOWN_RUN
    assert verify(path, "00" * 32).result is Result.NOT_PROVED
    path.write_text('{"run": "00", "step": 3, "state_digest": "00", "closed": true}')
    assert "earlier version" in verify(path, closed.run.id.hex()).reason


NEEDS_DATA = TASK.replace("        return {", "        open('/nowhere')\n        return {")


@pytest.mark.parametrize("normed", [False, True])
def test_weights_are_checked_without_the_data_as_far_as_that_goes(tmp_path: Path, normed: bool) -> None:
    """Statistics of BatchNorm follow from the data; everything else does not."""
    layers = "nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))" if normed else "nn.Linear(7, 3)"
    (tmp_path / "here.py").write_text(TASK.replace("nn.Linear(7, 3)", layers))
    (tmp_path / "there.py").write_text(NEEDS_DATA.replace("nn.Linear(7, 3)", layers))
    closed = ClosedRun(task=make_task(str(tmp_path / "here.py")))
    path = closed.write(tmp_path)
    assert verify(path, closed.run.id.hex(), task=str(tmp_path / "here.py")).result is Result.PROVED
    found = verify(path, closed.run.id.hex(), task=str(tmp_path / "there.py"))
    assert found.result is (Result.NOT_PROVED if normed else Result.PROVED)
    assert (
        not normed or "is what the members signed, but the rest of it cannot be checked: batch() fails" in found.reason
    )


def test_nothing_in_a_file_or_its_name_moves_the_cursor(tmp_path: Path) -> None:
    closed = ClosedRun(names=["\x1b[2J\n" + name for name in NAMES])
    folder = tmp_path / "a\x1b[2J\nproved"
    path = closed.write(folder)
    lines = [verify(path, run).line() for run in (closed.run.id.hex(), None, "00" * 32)]
    (folder / "ban-x.json").write_text('{"\\u001b[2J": 1}')
    (folder / "ban-y.json").write_bytes(b"\x1b[2J\xff")
    lines += [verify(file, closed.run.id.hex()).line() for file in expand([folder])]
    assert all(line.isprintable() for line in lines)
    text = closed.text(format="\x1b[2J", closed=False)
    assert verify(closed.write(folder, text), closed.run.id.hex()).line().isprintable()


# Files


def test_files_are_found_below_folders_in_the_order_of_steps(tmp_path: Path) -> None:
    for name in ("ban-step31-bob.json", "ban-step9-bob.json", "model.json", "other.json", "ban-step9-bob.blobs"):
        (tmp_path / "peer0" / "evidence").mkdir(parents=True, exist_ok=True)
        (tmp_path / "peer0" / "evidence" / name).touch()
    (tmp_path / "peer0" / "evidence" / "loop").symlink_to(tmp_path)
    found = expand([tmp_path, tmp_path / "peer0"])
    assert [path.name for path in found] == ["ban-step9-bob.json", "ban-step31-bob.json", "model.json"]
    for wrong in ([tmp_path / "none"], [tmp_path / "a\0b"], [tmp_path / "peer0" / "evidence" / "x"]):
        with pytest.raises(VerifyError, match="cannot read"):
            expand(wrong)


def test_too_many_files_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"ban-{number}.json").touch()
    monkeypatch.setattr("troth.api.verify.MOST_FILES", 29)
    with pytest.raises(VerifyError, match="more than 29 files"):
        expand([tmp_path])
    monkeypatch.setattr("troth.api.verify.MOST_ENTRIES", 10)
    with pytest.raises(VerifyError, match="more than 10 files"):
        expand([tmp_path])
    deep = tmp_path / "deep"
    monkeypatch.setattr("troth.api.verify.MOST_ENTRIES", 1000)
    (deep / "/".join("d" * 30)).mkdir(parents=True)
    (deep / "/".join("d" * 30) / "ban-a.json").touch()
    with pytest.raises(VerifyError, match="no evidence"):
        expand([deep])


def test_pipes_devices_and_files_of_others_cannot_be_read(tmp_path: Path) -> None:
    """A pipe would block for ever, and a device never ends."""
    os.mkfifo(tmp_path / "ban-pipe.json")
    (tmp_path / "ban-zero.json").symlink_to("/dev/zero")
    (tmp_path / "ban-loop.json").symlink_to("ban-loop.json")
    (tmp_path / "ban-gone.json").symlink_to("nothing")
    (tmp_path / "ban-folder.json").mkdir()
    verdicts = list(verify_paths(expand([tmp_path]), "00" * 32))
    assert [verdict.path.name for verdict in verdicts] == [
        "ban-gone.json",
        "ban-loop.json",
        "ban-pipe.json",
        "ban-zero.json",
    ]
    assert {verdict.result for verdict in verdicts} == {Result.UNREADABLE}


def test_a_folder_that_cannot_be_read_is_told_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "ban-a.json").write_text("{}")
    scandir = os.scandir

    def refuse(folder: Path) -> object:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    verdicts = list(verify_paths(expand([tmp_path]), "00" * 32))
    assert [(verdict.path.name, verdict.result) for verdict in verdicts] == [
        ("ban-a.json", Result.NOT_PROVED),
        ("closed", Result.UNREADABLE),
    ]


def test_nothing_is_run_if_nothing_is_to_be_recomputed(own: OwnTask, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n" + TASK)
    result, _ = own.verdict(task=str(tmp_path / "evil.py"), recompute=False)
    assert result is Result.VOTED
    assert not marker.exists()
