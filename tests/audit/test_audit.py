"""Folders of honest peers: everything is checked, and nothing is found [E5]."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.audit.conftest import SCENARIO, Audit
from tests.audit.folders import witnessed
from tests.audit.forger import Forger
from troth.audit import journal
from troth.audit.folder import AuditOptions, audit
from troth.audit.report import AuditReport, Check
from troth.audit.retrace import Updates
from troth.audit.walk import Walked
from troth.evidence.recompute import Gradients
from troth.network.disk import checkpoints
from troth.network.disk.journal import Journal
from troth.protocol.core.state import State
from troth.workshop.simulation import Scenario


def assert_right(report: AuditReport) -> None:
    assert report.right, report.lines()


def test_everything_in_an_honest_folder_is_checked_and_right(audited: Audit) -> None:
    """[E5, U2, R1] Every step is made again, the ban and the closing step among them."""
    report = audited(AuditOptions(sample=12))
    assert_right(report)
    assert (report.first, report.last, report.retraced, report.closed) == (0, 10, 11, True)
    assert report.unchecked == []
    assert all(report.counts[check] for check in Check)
    assert report.counts[Check.GRADIENTS] == 12
    assert report.counts[Check.RECORDS] == report.counts[Check.STEPS] == 11


@pytest.mark.parametrize("attack", ["sign-flip", "wrong-aggregate"])
def test_a_folder_of_a_run_with_codes_is_right(tmp_path: Path, attack: str) -> None:
    """[C4, E5, T6] Codes in its files and evidence mean the same to whoever looks later."""
    coded = replace(SCENARIO, code="int8", task="quadratic:dimension=1600", attack=attack)
    manifest = witnessed(tmp_path / "peer", coded)
    assert manifest.parameters.code == "int8"
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=12))
    assert_right(report)
    assert report.unchecked == []
    assert report.retraced == 11
    assert report.counts[Check.UPDATES]
    assert report.counts[Check.BANS] == 1


def test_a_class_that_one_member_names_alone_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[E6] It computes rightly, and names the class of a machine on which no gradient of the run comes out."""
    coded = replace(SCENARIO, code="int8", task="quadratic:dimension=1600")
    manifest = witnessed(tmp_path / "peer", coded)
    own, keep, alone = bytes(range(32)), Walked.keep, manifest.run.founders[0]

    def named(walked: Walked, state: State[Updates]) -> None:
        keep(walked, state)
        walked.classes[state.step - 1, alone] = own

    monkeypatch.setattr(Walked, "keep", named)
    monkeypatch.setattr(Gradients, "hardware_class", lambda _: own)
    monkeypatch.setattr(Gradients, "root", lambda *_: bytes(32))
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=1000))
    assert_right(report)
    assert any("other bits" in one.why for one in report.unchecked)


def test_without_running_the_task_the_rest_is_checked(audited: Audit) -> None:
    report = audited(AuditOptions(recompute=False))
    assert_right(report)
    assert report.counts[Check.GRADIENTS] == report.counts[Check.UPDATES] == report.counts[Check.MODEL] == 0
    assert report.retraced == 11
    skipped = " ".join(one.line() for one in report.unchecked)
    assert "gradients and updates" in skipped
    assert "model.safetensors" in skipped
    assert "more than the votes behind" in skipped, "the ban's evidence"


@pytest.mark.long
@pytest.mark.parametrize(
    "attack",
    [
        "wrong-aggregate",
        "wrong-report",
        "false-accusation",
        "covered-aggregate",
        "withheld-aggregate",
        "lying-jury",
        "grind",
        "reroll",
        "complain",
        "vanish:after=reveal",
    ],
)
def test_steps_of_all_kinds_are_made_again(attack: str, tmp_path: Path) -> None:
    """[N1, N3, T4, T6] New attempts, trials, strikes, absences: each record follows from the announcements."""
    scenario = Scenario(task="quadratic:dimension=30", peers=7, byzantine=2, attack=attack, attack_start=2, steps=12)
    manifest = witnessed(tmp_path / "peer", scenario)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=4))
    assert_right(report)
    assert report.retraced == report.counts[Check.RECORDS] > 3


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_walks_of_local_steps_are_made_again(optimizer: str, tmp_path: Path) -> None:
    """[R2, E5] From states in the folder, which hold the rate, and updates with that of all steps."""
    scenario = Scenario(
        task="quadratic:dimension=30",
        optimizer=optimizer,
        local_steps=4,
        outer=0.5,
        peers=5,
        byzantine=1,
        attack_start=2,
        steps=8,
    )
    manifest = witnessed(tmp_path / "peer", scenario)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=6))
    assert_right(report)
    assert report.counts[Check.GRADIENTS] == 6
    assert report.counts[Check.UPDATES]
    assert report.counts[Check.BANS] == 1


@pytest.mark.long
def test_probation_is_made_again_with_its_misses(tmp_path: Path) -> None:
    """[J5, J7] Who worked, who missed and who came in follows from what members listed, also in attempts that were repeated. A
    record that counts otherwise is named, though all members signed it."""
    strangers = "honest:misses=5 + honest:misses=2"
    scenario = Scenario(
        task="quadratic:dimension=30",
        peers=7,
        byzantine=2,
        attack="reroll",
        attack_start=2,
        steps=18,
        probation=6,
        strangers=strangers,
    )
    manifest = witnessed(tmp_path / "peer", scenario)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=4))
    assert_right(report)
    forger = Forger(tmp_path / "peer", manifest, scenario.seed)
    records = {step: forger.record(step) for step in range(report.retraced - 1)}
    assert sum(len(record.admitted) for record in records.values()) == 1
    step, record = next((k, one) for k, one in records.items() if any(c.missed for c in one.candidates))
    assert len(record.members) <= len(manifest.founders), "founders alone, whose keys the forger has"
    wrong = tuple(msgspec.structs.replace(candidate, missed=0) for candidate in record.candidates)
    forger.sign(step, msgspec.structs.replace(record, candidates=wrong))
    forger.write()
    found = [one.line() for one in audit(tmp_path / "peer", manifest, AuditOptions(sample=0)).findings]
    assert any(f"step {step}" in line and "candidates" in line for line in found), found


@pytest.mark.long
def test_honest_members_that_stop_are_absent_and_no_more(tmp_path: Path) -> None:
    scenario = Scenario(
        task="quadratic:dimension=30", peers=7, byzantine=2, attack="alie", attack_start=2, drop_outs=2, steps=12
    )
    report = audit(tmp_path / "peer", witnessed(tmp_path / "peer", scenario), AuditOptions(sample=4))
    assert_right(report)
    assert report.retraced == report.counts[Check.RECORDS]


@pytest.mark.long
def test_chained_states_are_followed(tmp_path: Path) -> None:
    """[U5] Contents are named seldom, the chain in every step."""
    manifest = witnessed(tmp_path / "peer", SCENARIO, content_every=4)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=8))
    assert_right(report)
    assert report.retraced == 11


@pytest.mark.long
def test_updates_of_a_large_model_are_made_again_from_their_aggregates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U1, U5] Its states are saved seldom, and its aggregates lie in files of their own."""
    monkeypatch.setattr(checkpoints, "_SMALL", 0)
    monkeypatch.setattr(checkpoints, "_SELDOM", 1e9)
    manifest = witnessed(tmp_path / "peer", replace(SCENARIO, byzantine=0, attack_start=0), content_every=4)
    files = sorted((tmp_path / "peer" / "checkpoints").glob("*.aggregate"))
    assert len(files) > 2
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=50))
    assert_right(report)
    assert report.counts[Check.UPDATES] >= 2
    assert report.counts[Check.GRADIENTS] >= 10
    raw = bytearray(files[0].read_bytes())
    raw[0] ^= 1
    files[0].write_bytes(raw)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=0))
    assert [finding.where for finding in report.findings] == [str(files[0])]


@pytest.mark.long
def test_a_journal_without_its_beginning_is_bridged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are deleted; members follow from the records that changed them."""
    monkeypatch.setattr(journal, "STEPS_PER_FILE", 3)
    monkeypatch.setattr(journal, "KEPT_FILES", 2)
    kept: Any = Journal.__init__.__kwdefaults__
    monkeypatch.setitem(kept, "steps_per_file", 3)
    monkeypatch.setitem(kept, "keep_files", 2)
    early = Scenario(
        task="quadratic:dimension=24", peers=6, byzantine=1, attack="sign-flip", attack_start=1, steps=14, seed=4
    )
    manifest = witnessed(tmp_path / "peer", early)
    report = audit(tmp_path / "peer", manifest, AuditOptions(sample=4))
    assert_right(report)
    assert report.first is not None
    assert report.first > 5
    assert report.retraced == report.counts[Check.RECORDS] - 1, "the first is in a deleted file"
    assert any("roster-changes.jsonl" in one.why for one in report.unchecked)
