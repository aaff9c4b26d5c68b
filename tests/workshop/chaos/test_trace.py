"""A trace shows who sent what to whom, what came of it, and the lies; and tracing changes nothing."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.workshop.chaos.planted import planted
from troth.crypto import PeerId
from troth.protocol.core.records import encode_record
from troth.protocol.wire.frames import Packet
from troth.workshop.chaos.draws import draw_plan
from troth.workshop.chaos.judge import play
from troth.workshop.chaos.plan import Cut, Network, Plan
from troth.workshop.chaos.trace import TraceLog
from troth.workshop.simulation.exchange import DropOut


def events_of(plan: Plan) -> list[list[str]]:
    """Time, peer, event, slot and the rest of every event."""
    log = TraceLog(plan)
    log.play()
    return [line.split(maxsplit=4) for line in list(log.lines())[2:]]


def lying(*behaviours: str) -> Plan:
    """Peer 2 of five lies whenever it can, from the second step on."""
    return Plan(3, 5, 2, {2: frozenset(behaviours)}, {}, {}, {2: (1.0, 1)}, {}, Network())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_tracing_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = draw_plan(seed, most_peers=7, steps=3)
    seen: list[object] = []
    seen_too: list[object] = []
    watch = TraceLog.watch

    def noted(log: TraceLog, now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        seen_too.append((now, sender, to, packet, delays))
        watch(log, now, sender, to, packet, delays)

    monkeypatch.setattr(TraceLog, "watch", noted)
    world = play(plan, lambda *event: seen.append(event))
    log = TraceLog(plan)
    other = log.play()
    assert seen == seen_too
    assert [encode_record(record) for record in world.records] == [encode_record(record) for record in other.records]
    lines = list(log.lines())
    assert lines == list(log.lines())
    assert sum(line.split()[2] == "sent" for line in lines[2:]) == len(seen)


def test_a_quiet_step() -> None:
    events = events_of(Plan(0, 4, 1, {}, {}, {}, {}, {}, Network()))
    assert [event[1:3] for event in events if event[2] == "opened"] == [[str(peer), "opened"] for peer in range(4)]
    sent = next(event for event in events if event[2] == "sent")
    assert sent[:2] == ["0.000", "0"]
    assert re.fullmatch(r"to=[123] at=0\.001 Value\(\w{8}\(\d+B\)\) Commit\(root=\w{8} .*\)", sent[4])
    decided = [event for event in events if event[2] == "decided"]
    phases = ["commit", "clip", "reveal", "report", "accuse"]
    assert [event[3] for event in decided if event[1] == "0"] == [f"0.0.{phase}" for phase in phases]
    assert all(event[4].startswith("said=[0 1 2 3] silent=[] equivocated=[]") for event in decided)
    assert sum("Scatter {" in event[4] for event in events if event[2] == "received") == 4
    wrote = [event for event in events if event[2] == "wrote"]
    assert [event[1] for event in wrote] == ["0,1,2,3"]
    assert wrote[0][4].startswith("StepRecord(step=0 members=[0 1 2 3] contributors=[0 1 2 3]")
    assert events[-1][2] == "end"


def test_times_go_forward() -> None:
    times = [float(event[0]) for event in events_of(draw_plan(1, most_peers=6, steps=3))]
    assert len(times) > 100
    assert times == sorted(times)


def test_equivocation_is_a_lie_that_everyone_finds() -> None:
    events = events_of(lying("equivocate"))
    lies = [event for event in events if event[2:] == ["lied", "-", "equivocate"]]
    assert {event[1] for event in lies} == {"2"}
    commits = {
        event[4].split()[2] for event in events if event[1:4] == ["2", "sent", "1.0.commit"] and "Value" in event[4]
    }
    assert len(commits) == 2, "two values for one slot"
    found = [event[1] for event in events if event[2:4] == ["decided", "1.0.commit"] and "equivocated=[2]" in event[4]]
    assert {"0", "1", "3", "4"} <= set(found)
    assert any("Judgement(target=2 kind=equivocation" in event[-1] for event in events)


def test_what_is_not_sent_is_a_lie_too() -> None:
    events = events_of(lying("hide-views", "selective"))
    assert {event[4] for event in events if event[2] == "lied"} == {"hide-views", "selective"}


def test_silence_is_shown_with_what_follows() -> None:
    events = events_of(Plan(1, 5, 2, {}, {}, {}, {}, {3: DropOut(1, 2)}, Network(latency=0.3)))
    shown = [
        ["3", "stopped", "1.0.clip", "stopped in step 1"],
        ["0", "decided", "1.0.clip", "said=[0 1 2 4] silent=[3] equivocated=[]"],
        ["0", "received", "1.1.clip", "Scatter "],
    ]
    slots = [
        next(k for k, event in enumerate(events) if event[1:4] == one[:3] and event[4].startswith(one[3]))
        for one in shown
    ]
    assert slots == sorted(slots)
    assert any("absent=[3]" in event[-1] for event in events)


@pytest.mark.long
def test_a_peer_that_comes_back_is_traced_again() -> None:
    plan = Plan(1, 5, 16, {}, {}, {}, {}, {3: DropOut(1, 2, 5.0, journal=False)}, Network(latency=0.1))
    events = events_of(plan)
    keys = [event[4] for event in events if event[1:3] == ["3", "opened"]]
    assert len(keys) > 1
    assert keys[0] != keys[-1], "its journal was lost, so it has a new key"
    assert any(event[1:3] == ["3", "decided"] and event[3].startswith("15.") for event in events)


@pytest.mark.long
def test_accusations_votes_and_bans() -> None:
    events = events_of(Plan(3, 5, 12, {2: frozenset()}, {2: 0}, {}, {2: (1.0, 0)}, {}, Network()))
    assert any("Accuse(accusations=[Accusation(target=2 kind=gradient" in event[-1] for event in events)
    assert any(
        "Ballot(accuser=0 target=2 kind=gradient" in event[-1] and "verdict=accused" in event[-1] for event in events
    )
    assert any("Judgement(accuser=0 target=2 kind=gradient" in event[-1] for event in events)


def test_losses_and_doubles_are_marked() -> None:
    network = Network(latency=0.2, duplicated=0.2, cuts=(Cut(frozenset({1}), 0.0, 1.0),))
    events = events_of(Plan(2, 5, 1, {4: frozenset({"late"})}, {}, {}, {4: (1.0, 0)}, {}, network))
    sent = [event for event in events if event[2] == "sent"]
    assert {"1"} == {event[1] for event in sent if " at=never " in event[4] and "to=1" not in event[4]}
    assert any(re.search(r" at=[0-9.]+,[0-9.]+ ", event[4]) for event in sent)
    assert any(event[1:3] == ["4", "lied"] and event[4] == "late" for event in events)


def test_peers_that_decide_differently_are_told_apart() -> None:
    plan = Plan(17, 4, 1, {2: frozenset({"equivocate"})}, {}, {}, {2: (1.0, 0)}, {}, Network())
    with planted("the first of two equivocating values taken"):
        commits = [event for event in events_of(plan) if event[2:4] == ["decided", "0.0.commit"]]
    assert len({event[4].split("values=")[1] for event in commits}) > 1


def test_a_world_that_fell_over_is_traced_as_far_as_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    left, decided = iter(range(6)), TraceLog.decided

    def falls(log: TraceLog, *about: Any) -> None:
        if next(left, None) is None:
            raise RuntimeError("here")
        decided(log, *about)

    monkeypatch.setattr(TraceLog, "decided", falls)
    log = TraceLog(Plan(0, 4, 2, {}, {}, {}, {}, {}, Network()))
    with pytest.raises(RuntimeError, match="here"):
        log.play()
    lines = list(log.lines())
    assert sum(" decided " in line for line in lines) == 6
    assert "0.0.clip" in lines[-2]
