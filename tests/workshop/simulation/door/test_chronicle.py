"""Reports about the door: who knocked, got a slot, worked, was admitted, lost it, was banned, in words and in the summary."""

import json

import pytest

from troth.workshop.simulation import Scenario, StepReport, simulate


def told(strangers: str, **options: int) -> tuple[list[str], list[StepReport], dict[str, object]]:
    """Everything that is said about the door and the bans, the reports, and the summary's part about the door."""
    lines: list[str] = []
    reports: list[StepReport] = []

    def hear(report: StepReport) -> None:
        reports.append(report)
        lines.extend(f"{report.step - 1}: {note}" for note in report.notes)
        lines.extend(f"{ban.step}: peer{ban.peer} is banned" for ban in report.bans)

    scenario = Scenario(
        **{"task": "quadratic:dimension=40", "peers": 5, "probation": 4, "evaluate_every": 99, "strangers": strangers}
        | options  # type: ignore[arg-type]  # by name
    )
    summary = json.loads(simulate(scenario, hear).summary.to_json())
    return lines, reports, summary["door"]


def test_an_honest_strangers_way_in() -> None:
    """[J4–J7] Step by step: a ticket for the draw in step 3, work from two steps later on, since records are certified a step
    later, and a seat after four steps of it."""
    lines, reports, door = told("honest:at=2", steps=12)
    assert lines == [
        "2: peer5 knocks at the door (honest:at=2)",
        "3: peer5 has a slot: 4 steps on probation",
        "6: peer5 is on probation: 2 of 4 steps",
        "8: peer5 has worked through its probation, and is a member",
    ]
    assert [report.probation for report in reports[3:8]] == [((5, 0),), ((5, 0),), ((5, 1),), ((5, 2),), ((5, 3),)]
    assert [report.alive for report in reports[7:10]] == [5, 6, 6]
    assert door["came"] == [
        {"strangers": "honest:at=2", "names": 1, "seated": 1, "admitted": 1, "banned": 0, "members": 1}
    ]
    assert door["strangers"] == [
        {
            "peer": 5,
            "strangers": "honest:at=2",
            "knocked": 2,
            "seated": [3],
            "worked": 4,
            "missed": 0,
            "lost": [],
            "admitted": 8,
            "left": [],
            "returned": [],
            "banned": None,
            "member": True,
        }
    ]


def test_one_waits_while_another_comes_in_and_idle_names_lose_their_slots() -> None:
    lines, _, door = told("honest:count=2 + names:count=9,machines=0", steps=12)
    assert "0: peer5 to peer6 knock at the door (honest:count=2)" in lines
    assert any("has worked for 4 steps, and waits for a seat" in line for line in lines)
    assert any("did not begin on probation, and loses its slot" in line for line in lines)
    assert {one["peer"] for one in door["strangers"]} >= {5, 6}  # type: ignore[attr-defined]
    assert all(one["seated"] or one["peer"] < 7 for one in door["strangers"]), "of a crowd, those that had a slot"  # type: ignore[attr-defined]


@pytest.mark.long
def test_bans_of_strangers_and_returns_are_told() -> None:
    lines, _, _ = told("zeros", steps=6)
    assert lines[-1].endswith("peer5 is banned")
    lines, reports, door = told("leaves:stay=3", steps=20, seed=3)
    assert "12: peer5 is back, and a member again" in lines
    assert [report.step - 1 for report in reports if report.absent == (5,)] == [10]
    assert reports[9].attacked
    assert not reports[8].attacked
    assert door["strangers"][0]["banned"] == 16  # type: ignore[index]


def test_a_closed_door_is_not_mentioned() -> None:
    summary = simulate(Scenario(task="quadratic:dimension=40", peers=4, steps=2)).summary
    assert "door" not in summary.details
