"""`troth.read_events`: streams of simulations, torn lines, and folders that hold none."""

from pathlib import Path

import pytest

import troth


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "run"
    troth.simulate("quadratic", peers=7, byzantine=2, attack="sign-flip", attack_start=3, steps=12).run().save(folder)
    return folder


def test_a_saved_simulation_has_its_stream(run: Path) -> None:
    began, *steps, ended = troth.read_events(run)
    assert isinstance(began, troth.events.Began)
    assert isinstance(ended, troth.events.Ended)
    assert [step.step for step in steps if isinstance(step, troth.events.Stepped)] == list(range(13))
    bans = {ban.peer for step in steps if isinstance(step, troth.events.Stepped) for ban in step.banned}
    assert bans == {peer.name for peer in began.peers if peer.liar}
    assert all((run / "evidence" / f"{trial}").exists() for trial in _evidence(steps))


def _evidence(steps: list[troth.events.Event]) -> set[str]:
    return {trial.evidence for step in steps if isinstance(step, troth.events.Stepped) for trial in step.trials} - {""}


def test_a_rule_with_a_server_tells_what_there_is(tmp_path: Path) -> None:
    troth.simulate("quadratic", peers=4, defence="mean", steps=3).run().save(tmp_path / "run")
    began, *steps, _ = troth.read_events(tmp_path / "run" / "events.jsonl")
    assert isinstance(began, troth.events.Began)
    assert (began.withstands, began.run, began.defence) == (None, "", "mean")
    assert [step.updates for step in steps if isinstance(step, troth.events.Stepped)] == [1, 2, 3]


def test_torn_lines_are_passed_over(run: Path, tmp_path: Path) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"".join((*lines[:3], lines[3][:20] + b"\n", *lines[4:], b'{"event":')))
    whole = list(troth.read_events(run))
    assert list(troth.read_events(tmp_path)) == [*whole[:3], *whole[4:]]


def test_what_is_no_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(troth.EventsError, match=r"cannot read .*name the folder of a run"):
        next(troth.read_events(tmp_path))
    (tmp_path / "events.jsonl").write_text('{"event":"began","version":2,"source":"member","of":1,"peers":[]}\n')
    with pytest.raises(troth.EventsError, match="events of version 2"):
        next(troth.read_events(tmp_path))
