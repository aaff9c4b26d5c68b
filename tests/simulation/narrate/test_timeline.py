"""A timeline says who sent what to whom, who decided what and why; and listening changes nothing."""

import re
from collections.abc import Sequence

import pytest

from tests.simulation.chaos.planted import planted
from troth.crypto import PeerId
from troth.protocol.core.records import encode_record
from troth.protocol.wire.frames import Packet
from troth.simulation.chaos.draws import draw_plan
from troth.simulation.chaos.faults import Cut, Network
from troth.simulation.chaos.plan import Plan
from troth.simulation.chaos.play import play
from troth.simulation.lockstep.drop_outs import DropOut
from troth.simulation.narrate.timeline import Timeline


def lines_of(plan: Plan) -> list[str]:
    timeline = Timeline(plan)
    return list(timeline.lines(play(plan, timeline.watch, timeline.wrap)))


def lying(*behaviours: str) -> Plan:
    """Peer 2 of five lies whenever it can, from the second step on."""
    return Plan(3, 5, 2, {2: frozenset(behaviours)}, {}, {}, {2: (1.0, 1)}, {}, Network())


@pytest.mark.parametrize("seed", range(4))
def test_listening_changes_nothing(seed: int) -> None:
    plan = draw_plan(seed, most_peers=7, steps=3)
    timeline = Timeline(plan)
    seen: list[object] = []
    seen_too: list[object] = []

    def watch(now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        seen_too.append((now, sender, to, packet, delays))
        timeline.watch(now, sender, to, packet, delays)

    world = play(plan, lambda *event: seen.append(event))
    other = play(plan, watch, timeline.wrap)
    assert seen == seen_too
    assert [encode_record(record) for record in world.records] == [encode_record(record) for record in other.records]
    assert list(timeline.lines(other)) == list(timeline.lines(other))


def test_a_quiet_step() -> None:
    """Those who send the same at the same time share a line, and so do those who decide the same."""
    lines = lines_of(Plan(0, 4, 1, {}, {}, {}, {}, {}, Network()))
    assert lines[0].startswith("seed 0: 4 peers, 1 steps")
    assert lines[2:6] == [
        "",
        "── step 0, members 0 1 2 3",
        "    0.000    0 1 2 3 → all      Value        step 0 attempt 0 commit  arrives by 0.001",
        "    0.001    0 1 2 3 → all      View         step 0 attempt 0 commit  arrives by 0.002",
    ]
    decided = [line for line in lines if "decided" in line]
    assert [line.split("attempt 0 ")[1] for line in decided] == [
        f"{phase}: all 4 said something (certificate)" for phase in ("commit", "clip", "reveal", "report", "accuse")
    ]
    assert lines[-2] == "           = record of step 0: 4 of 4 contributed, the model moved"
    assert len(lines) < 40


def test_a_record_is_told_where_it_is_signed() -> None:
    """With the Commits of the next step."""
    lines = lines_of(Plan(0, 4, 2, {}, {}, {}, {}, {}, Network()))
    signed = lines.index("    0.014  • 0 1 2 3 had 4 signatures of the record of step 0")
    assert "decided step 1 attempt 0 commit" in lines[signed - 1]
    assert lines[signed + 1] == "           = record of step 0: 4 of 4 contributed, the model moved"
    assert [line for line in lines if "record of step 1" in line] == lines[-2:-1]


def test_times_go_forward() -> None:
    lines = [line[:9].strip() for line in lines_of(draw_plan(1, most_peers=6, steps=3))]
    times = [float(line) for line in lines if re.fullmatch(r"[0-9]+\.[0-9]{3}", line)]
    assert len(times) > 100
    assert times == sorted(times)


def test_equivocation_is_a_lie_that_everyone_finds() -> None:
    lines = lines_of(lying("equivocate"))
    assert any("! 2 → " in line and "another value" in line and "! equivocate" in line for line in lines)
    assert any("decided" in line and "by chains after 3 rounds: 2 said two things" in line for line in lines)
    assert any("2 is out (said two things in commit)" in line for line in lines)
    assert any("2 is banned for equivocation (step 1)" in line for line in lines)
    assert not any(
        "!" in line and "→ sent" not in line for line in lines[: lines.index("── step 1, members 0 1 2 3 4")]
    )


def test_what_is_not_sent_is_told_too() -> None:
    lines = lines_of(lying("hide-views", "selective"))
    assert any("! 2 → " in line and "Value" in line and "! selective (" in line for line in lines)
    assert any("View" in line and "! hide-views (" in line for line in lines)
    assert any("View" in line and "without 2" in line for line in lines)


def test_silence_is_told_with_what_follows() -> None:
    plan = Plan(1, 5, 2, {}, {}, {}, {}, {3: DropOut(1, 2)}, Network(latency=0.3))
    lines = lines_of(plan)
    story = [
        "• 3 stopped: in step 1",
        "• 0 1 2 4 decided step 1 attempt 0 clip: 3 said nothing that counts (certificate)",
        "• 0 1 2 4 began attempt 1 of step 1: 3 is out (said nothing that counts in clip)",
        "= record of step 1: ",
        "=   absent: 3",
    ]
    slots = [next(slot for slot, line in enumerate(lines) if what in line) for what in story]
    assert slots == sorted(slots)


def test_whoever_comes_back_is_heard_again() -> None:
    plan = Plan(1, 5, 16, {}, {}, {}, {}, {3: DropOut(1, 2, 5.0, journal=False)}, Network(latency=0.1))
    lines = lines_of(plan)
    assert any("• 3 started again" in line for line in lines)
    assert any("• 3 observed, to come back" in line for line in lines)
    assert any("returned: 3 (under a new key)" in line for line in lines)
    assert any("• 0 1 2 3 4 decided step 15" in line for line in lines)


def test_accusations_votes_and_bans() -> None:
    lines = lines_of(Plan(3, 5, 12, {2: frozenset()}, {2: 0}, {}, {2: (1.0, 0)}, {}, Network()))
    assert any("step 0, members 0 1 2 3 4; wrong gradients: 2" in line for line in lines)
    assert any("Value" in line and "accuses 2 of gradient (step " in line for line in lines)
    assert any("Value" in line and "2 guilty of gradient (step " in line for line in lines)
    assert any("2 is banned for gradient (step " in line and ", accused by " in line for line in lines)


def test_losses_doubles_and_late_arrivals_are_marked() -> None:
    network = Network(latency=0.2, duplicated=0.2, cuts=(Cut(frozenset({1}), 0.0, 1.0),))
    lines = lines_of(Plan(2, 5, 1, {4: frozenset({"late"})}, {}, {}, {4: (1.0, 0)}, {}, network))
    assert "LOST to 0 2 3 4" in next(line for line in lines if " 1 → all" in line)
    assert any("LOST to 1" in line for line in lines if " 0 → all" in line)
    assert any("twice to " in line for line in lines)
    assert any("LATE to " in line for line in lines if " 4 → " in line)
    assert not any("LATE to " in line for line in lines if " 0 → " in line)


def test_peers_that_decide_differently_are_told_apart() -> None:
    """With a bug that lets honest peers disagree, the same words have different values behind them."""
    plan = Plan(17, 4, 1, {2: frozenset({"equivocate"})}, {}, {}, {2: (1.0, 0)}, {}, Network())
    with planted("the first of two equivocating values taken"):
        commits = [line for line in lines_of(plan) if "decided step 0 attempt 0 commit" in line]
    assert len(commits) > 1
    assert len({line.split("[values ")[1] for line in commits}) == len(commits)


def test_a_world_that_fell_over_is_told_as_far_as_it_went() -> None:
    plan = Plan(0, 4, 2, {}, {}, {}, {}, {}, Network())
    timeline = Timeline(plan)
    left = iter(range(30))

    def watch(now: float, sender: PeerId, to: PeerId, packet: Packet, delays: Sequence[float]) -> None:
        if next(left, None) is None:
            raise RuntimeError("here")
        timeline.watch(now, sender, to, packet, delays)

    with pytest.raises(RuntimeError, match="here"):
        play(plan, watch, timeline.wrap)
    lines = list(timeline.lines(None))
    assert "attempt 0 commit" in lines[-2]
    assert "the end" not in lines[-1]
