"""`troth.join`: a member in one's own program, its steps, its end, and its errors."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import troth
from troth.api import member
from troth.api.steps import StepFeed
from troth.events.kinds import Ban, Stepped
from troth.network.mesh import StoppedError
from troth.network.node.node import Node

PATIENCE_S = 120.0


def step(number: int, *banned: str) -> troth.Step:
    bans = tuple(troth.Ban(name, number, "it lied", None) for name in banned)
    return troth.Step(number, of=9, loss=1.0, members=4, withstands=1, bans=bans)


# Steps on their way


def test_a_slow_reader_makes_nobody_wait_and_loses_no_ban() -> None:
    feed = StepFeed(most_waiting=2)
    for number, banned in ((1, ()), (2, ("eve",)), (3, ()), (4, ("mallory",)), (5, ())):
        feed.put(step(number, *banned))
    feed.end()
    first, rest = list(feed)
    assert (first.number, rest.number) == (1, 5)
    assert [(ban.peer, ban.step) for ban in rest.bans] == [("eve", 2), ("mallory", 4)]


def test_metrics_and_movement_of_steps_told_as_one_are_the_newest_there_are() -> None:
    earlier = troth.Step(1, of=9, loss=2.0, members=4, withstands=1, metrics={"accuracy": 0.5})
    later = troth.Step(2, of=9, loss=1.0, members=3, withstands=0, moved=False)
    both = later.after(earlier)
    assert (both.number, both.loss, both.members, both.metrics, both.moved) == (2, 1.0, 3, {"accuracy": 0.5}, True)


# A peer that does as told


class ScriptedNode:
    """Stands in for a node: says two steps, then what its script says."""

    script: Callable[["ScriptedNode"], None]

    def __init__(self, manifest: troth.Manifest, identity: troth.Identity, options: Any, events: Any) -> None:
        self.events = events
        self.stopped = threading.Event()
        self.left = False

    def live(self) -> None:
        try:
            for number in (1, 2):
                event = Stepped(
                    step=number - 1,
                    updates=number,
                    of=9,
                    members=4,
                    loss=1.0,
                    banned=(Ban(peer="eve", reason="it lied", evidence="ban-step0-eve.json"),),
                )
                self.events.stepped(event, None)
            self.events.note("a line for people")
            type(self).script(self)
        finally:
            self.left = True

    def stop(self) -> None:
        self.stopped.set()

    def until_stopped(self) -> None:
        assert self.stopped.wait(PATIENCE_S)
        raise StoppedError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> troth.MemberRun:
    monkeypatch.setattr(member, "Node", ScriptedNode)
    identity = troth.Identity.generate()
    founder = troth.Founder("me", identity.peer, "127.0.0.1:1")
    manifest = troth.new(tmp_path / "run.toml", "quadratic:dimension=40", [founder])
    return troth.join(manifest, identity, folder=tmp_path / "me")


def scripted(monkeypatch: pytest.MonkeyPatch, script: Callable[[ScriptedNode], None]) -> None:
    monkeypatch.setattr(ScriptedNode, "script", staticmethod(script), raising=False)


def fail(_node: ScriptedNode) -> None:
    raise troth.BannedError("this peer was banned in step 2")


def test_the_loop_ends_with_the_run(run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda _node: None)
    with run:
        steps = list(run)
    assert [one.number for one in steps] == [1, 2]
    assert steps[0].bans == (troth.Ban("eve", 0, "it lied", run.folder / "evidence" / "ban-step0-eve.json"),)
    assert (run.me, run.name) == ("me", "quadratic")


def test_an_error_of_the_peer_is_raised_in_the_loop_after_the_steps(
    run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, fail)
    with run:
        assert [next(run).number, next(run).number] == [1, 2]
        with pytest.raises(troth.BannedError, match="banned in step 2"):
            next(run)


def test_an_error_that_nobody_read_about_is_raised_at_the_end_of_the_block(
    run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, fail)
    with pytest.raises(troth.BannedError), run:
        next(run)


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_the_loop_stops_the_peer_politely_and_goes_on(
    run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    scripted(monkeypatch, ScriptedNode.until_stopped)
    with pytest.raises(kind), run:
        raise kind
    node: Any = run._node
    assert node.left


def test_another_thread_may_stop_it(run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ScriptedNode.until_stopped)
    with run:
        threading.Thread(target=run.stop).start()
        assert [one.number for one in run] == [1, 2]


def test_nothing_is_printed_and_notes_are_logged(
    run: troth.MemberRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripted(monkeypatch, lambda _node: None)
    with caplog.at_level(logging.INFO, logger="troth"), run:
        run.wait()
    assert capsys.readouterr() == ("", "")
    assert "a line for people" in caplog.messages
    assert "step 0: eve is banned: it lied" in caplog.messages


def test_a_run_is_joined_in_a_block_and_once(run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda _node: None)
    with pytest.raises(troth.JoinError, match="use `with troth"):
        next(run)
    with run:
        pass
    with pytest.raises(troth.JoinError, match=r"call troth\.join again"), run:
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluate_every": 0}, "`evaluate_every` must be at least 1, got 0"),
        ({"threads": -1}, "`threads` must be at least 0, got -1"),
        ({"addresses": {"eve": "h:1"}}, "`addresses` names 'eve', who is no founder: choose from me"),
        ({"identity": "no.key"}, "no key at no.key: make one with"),
        ({"manifest": "no.toml"}, "cannot read the manifest no.toml"),
    ],
)
def test_mistakes_name_the_field_before_anything_starts(
    run: troth.MemberRun, options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"manifest": run.manifest, "identity": run._identity, **options}
    with pytest.raises(troth.OperatorError, match=message):
        troth.join(**given)


def test_a_host_that_is_listened_on_is_where_others_dial(run: troth.MemberRun) -> None:
    def at(**options: Any) -> str:
        return troth.join(run.manifest, run._identity, **options)._options.at

    assert [at(listen=where) for where in ("", "0.0.0.0:7001", "[::]:7001", ":7001", "10.0.0.1:0")] == [""] * 5
    assert at(listen="10.0.0.1:7001") == "10.0.0.1:7001"
    assert at(listen="10.0.0.1:7001", at="example.org:1") == "example.org:1"
    with pytest.raises(troth.OperatorError, match="invitation"):
        troth.join(run.manifest, run._identity, invitation="nonsense")


def test_a_folder_of_another_run_is_refused(run: troth.MemberRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "Node", Node)
    run.folder.mkdir()
    (run.folder / "run").write_text("00" * 32 + "\n")
    (run.folder / "model.json").write_text("{}")
    with pytest.raises(troth.JoinError, match="belongs to another run: choose another with `folder`"), run:
        pass


# Real peers


@pytest.mark.long
def test_members_of_a_real_run_end_with_the_same_model(tmp_path: Path) -> None:
    with troth.testing.local_run("digits", peers=4, steps=5, folder=tmp_path) as members:
        steps = list(members[0])
        for one in members[1:]:
            one.wait()
        states = [one.state_dict() for one in members]
        assert members[0].members == ("peer0", "peer1", "peer2", "peer3")
        assert repr(members[0]) == f"<MemberRun peer0 of digits: 5 of 5 updates, folder {tmp_path / 'peer0'}>"
    assert [(one.number, one.moved) for one in steps[4:]] == [(5, True), (5, False)]  # the last one closes the run
    assert (steps[0].withstands, steps[0].members) == (1, 4)
    assert "accuracy" in steps[4].metrics
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in states[0])
    model = members[0].model()  # also after the block
    assert not model.training
    assert all(torch.equal(tensor, states[0][name]) for name, tensor in model.state_dict().items())
    assert (tmp_path / "peer0" / "model.json").exists()


@pytest.mark.long
def test_a_member_leaves_and_comes_back_and_the_others_go_on(tmp_path: Path) -> None:
    with troth.testing.local_run("digits", peers=4, steps=2_000, folder=tmp_path) as members:
        stayer, leaver = members[0], members[3]
        assert [next(leaver).number for _ in range(5)] == [1, 2, 3, 4, 5]
        leaver.stop()
        leaver.wait()
        assert any("peer3" in one.left for one in stayer)
        assert stayer.members == ("peer0", "peer1", "peer2")
        assert next(stayer).moved
        again = troth.join(leaver.manifest, leaver._identity, folder=leaver.folder, listen=leaver._options.listen)
        with again:
            assert any("peer3" in one.returned for one in stayer)
            assert any(one.members == 4 for one in again)


@pytest.mark.long
def test_a_member_that_leaves_early_goes_on_from_there(tmp_path: Path) -> None:
    """A run of one, since nobody else has to be waited for."""
    with troth.testing.local_run("quadratic:dimension=40", peers=1, steps=5_000, folder=tmp_path) as (left,):
        last = [next(left) for _ in range(3)][-1]
    again = troth.join(left.manifest, left._identity, folder=left.folder, listen=left._options.listen)
    with again:
        assert next(again).number >= last.number
