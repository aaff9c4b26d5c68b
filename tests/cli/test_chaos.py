"""`troth chaos` from the command line."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from tests.workshop.chaos.planted import planted
from troth.workshop.chaos import judge as workers
from troth.workshop.chaos.draws import DRAWS
from troth.workshop.chaos.judge import WorldVerdict, judge
from troth.workshop.chaos.plan import Network, Plan
from troth.workshop.chaos.plan_file import FORMAT, PlanFile, load, to_text

FILES = {"plan.json", "trace.txt", "verdict.txt"}


def in_this_process(plans: Iterator[Plan], _processes: int, _until: float | None) -> Iterator[WorldVerdict]:
    yield from map(judge, plans)


def test_one_world_is_told(troth: Troth) -> None:
    done = troth("chaos", "--seed", "1", "--steps", "2", "--peers", "4")
    assert done.code == 0
    assert done.out.startswith("seed 1: peers 4, steps 2")
    assert "step 1: " in done.out
    assert done.out.endswith("no promise was broken\n")


def test_a_trace_says_who_sent_what_when_and_who_decided_what(troth: Troth) -> None:
    done = troth("chaos", "--seed", "1", "--steps", "1", "--peers", "4", "--trace")
    lines = [line for line in done.out.splitlines() if " sent " in line]
    assert len(lines) > 20
    assert "Value" in lines[0]
    assert "0.0.commit" in lines[0]
    assert "decided  0.0.commit " in done.out
    assert "StepRecord(step=0 " in done.out


def test_many_worlds_and_what_was_tried(troth: Troth) -> None:
    done = troth("chaos", "--seeds", "0..3", "--steps", "2", "--peers", "4..5")
    assert done.code == 0
    assert "no promise was broken in 3 worlds\n" in done.out
    assert "3  worlds" in done.out
    assert "3 of 3 worlds, 0 broken, " in done.err


def test_a_terminal_gets_a_bar(troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(workers, "judge_all", in_this_process)
    done = troth("chaos", "--seeds", "0..3", "--steps", "1", "--peers", "4")
    assert done.code == 0
    assert "━" in done.err
    assert "3 of 3 worlds, 0 broken, " in done.err
    assert " left" in done.err
    assert "━" not in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--seeds", "3"), "--seeds is A..B"),
        (("--seeds", "9..3"), "--seeds is A..B"),
        (("--peers", "0"), "--peers must be from 1 to 24"),
        (("--peers", "4..25"), "--peers must be from 1 to 24"),
        (("--peers", "²"), "--peers is a number, or A..B"),
        (("--draw", "wild"), "unknown draw 'wild': did you mean wide"),
        (("--steps", "0"), "Invalid value for '--steps'"),
        (("--minutes", "0"), "--minutes must be above 0"),
        (("--minutes", "nan"), "--minutes must be above 0"),
        (("--trace",), "--trace needs --seed or --plan"),
        (("--drawn",), "--drawn needs --plan"),
        (("--plan", "plan.json", "--seed", "1"), "leave one of them out"),
        (("--plan", "nowhere.json"), "cannot read nowhere.json"),
        (("--plan", "."), "cannot read ."),
    ],
)
def test_what_cannot_be_drawn(troth: Troth, arguments: tuple[str, ...], says: str) -> None:
    done = troth("chaos", *arguments)
    assert done.code == 2
    assert says in done.err


@pytest.mark.parametrize("text", ["", "{}", "troth", '{"format": "troth/chaos/1"}', "[" * 5000])
def test_a_plan_that_is_none(troth: Troth, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    done = troth("chaos", "--plan", "plan.json")
    assert done.code == 2
    assert done.err.startswith("troth: plan.json is not a plan of troth chaos: ")
    assert done.err.count("\n") == 1


# Worlds that break a promise


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every seed draws a world that breaks a promise, because of a bug."""

    def draw(seed: int, **_: int) -> Plan:
        liar = frozenset({"equivocate", "garbage"})
        return Plan(seed, 5, 2, {2: liar}, {}, {}, {2: (1.0, 0)}, {}, Network(latency=0.3))

    monkeypatch.setitem(DRAWS, "classic", draw)
    monkeypatch.setattr(workers, "judge_all", in_this_process)
    with planted("the first of two equivocating values taken"):
        yield


@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_what_broke_is_made_smaller_and_saved(troth: Troth, tmp_path: Path) -> None:
    done = troth("chaos", "--seed", "17")
    assert done.code == 1
    assert "BROKEN " in done.out
    assert "  smaller: " in done.out
    folder = tmp_path / "chaos-17"
    assert {path.name for path in folder.iterdir()} == FILES
    file = load(folder / "plan.json")
    assert file.shrunk is not None
    assert file.shrunk.steps < file.drawn.steps
    trace = (folder / "trace.txt").read_text()
    assert f"seed 17: {file.shrunk}" in trace
    assert "BROKEN " in trace
    assert "replay: troth chaos --plan chaos-17/plan.json --trace" in (folder / "verdict.txt").read_text()

    again = troth("chaos", "--plan", "chaos-17/plan.json", "--trace")
    assert again.code == 1
    assert again.out == trace
    drawn = troth("chaos", "--plan", "chaos-17/plan.json", "--drawn")
    assert drawn.code == 1
    assert drawn.out.startswith(f"seed 17: {file.drawn}")
    assert {path.name for path in tmp_path.iterdir()} == {"chaos-17"}


@pytest.mark.usefixtures("broken")
def test_without_shrinking(troth: Troth, tmp_path: Path) -> None:
    done = troth("chaos", "--seed", "17", "--no-shrink", "--out", "here/there")
    assert done.code == 1
    file = load(tmp_path / "here/there/plan.json")
    assert file.shrunk is None
    assert f"seed 17: {file.drawn}" in (tmp_path / "here/there/trace.txt").read_text()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("taken", "arguments"),
    [("chaos-17", ("--seed", "17")), ("out", ("--seed", "17", "--out", "out")), ("out", ("--out", "out"))],
)
def test_a_file_is_not_overwritten_with_a_folder(
    troth: Troth, tmp_path: Path, taken: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / taken).write_text("mine")
    done = troth("chaos", *arguments)
    assert done.code == 2
    assert "is a file" in done.err
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.usefixtures("broken")
def test_of_many_that_broke_the_first_are_looked_at(troth: Troth, tmp_path: Path) -> None:
    """After all were played; one that cannot be written does not stop the others."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/chaos-18").write_text("mine")
    done = troth("chaos", "--seeds", "17..22", "--no-shrink", "--out", "out")
    assert done.code == 1
    assert "seed 21 broke a promise" in done.out
    assert "replay: troth chaos --seed 21 --peers 4..16 --steps 20 --trace" in done.out
    assert "5 of 5 worlds broke a promise\n" in done.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"chaos-17", "chaos-18", "chaos-19"}
    assert {path.name for path in (tmp_path / "out/chaos-19").iterdir()} == FILES
    assert "out/chaos-18" in done.err


@pytest.mark.usefixtures("broken")
def test_a_world_that_falls_over_is_saved_with_the_reason(
    troth: Troth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: object) -> None:
        raise RuntimeError("over this")

    monkeypatch.setattr("troth.workshop.chaos.peers.run_step", fall)
    done = troth("chaos", "--seed", "17", "--no-shrink")
    assert done.code == 1
    assert "BROKEN crash: RuntimeError: over this" in done.out
    assert "Traceback" in (tmp_path / "chaos-17/trace.txt").read_text()


@pytest.mark.usefixtures("broken")
def test_whoever_interrupts_the_shrinking_keeps_what_there_is(
    troth: Troth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Plan] = []

    def interrupted(plan: Plan) -> bool:
        tried.append(plan)
        if len(tried) > 3:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr("troth.workshop.chaos.shrink.breaks_like", lambda _verdict: interrupted)
    done = troth("chaos", "--seed", "17")
    assert done.code == 130
    assert done.err.endswith("troth: interrupted\n")
    assert load(tmp_path / "chaos-17/plan.json").shrunk == tried[2]


@pytest.mark.usefixtures("broken")
def test_whoever_interrupts_many_worlds_is_told_what_was_found(
    troth: Troth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdicts(plans: Iterator[Plan], _processes: int, _until: float | None) -> Iterator[WorldVerdict]:
        yield judge(next(plans))
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "judge_all", verdicts)
    done = troth("chaos", "--seeds", "17..99")
    assert done.code == 130
    assert "1 of 1 worlds broke a promise, of 82: interrupted\n" in done.out
    assert load(tmp_path / "chaos-17/plan.json").shrunk is None
    assert done.err.endswith("troth: interrupted\n")


def test_a_plan_that_keeps_its_promises(troth: Troth, tmp_path: Path) -> None:
    plan = Plan(1, 4, 1, {}, {}, {}, {}, {}, Network())
    (tmp_path / "plan.json").write_text(to_text(PlanFile(FORMAT, (), plan)))
    done = troth("chaos", "--plan", "plan.json")
    assert done.code == 0
    assert done.out.endswith("no promise was broken\n")


# Ends


def test_the_time_is_up_whatever_is_running(troth: Troth) -> None:
    start = time.monotonic()
    done = troth("chaos", "--seeds", "0..100000", "--minutes", "0.02")
    assert done.code == 0
    assert ", of 100000: the time is up\n" in done.out
    assert time.monotonic() - start < 60


# A shell lets its background jobs ignore SIGINT, and children inherit that.
AS_IN_A_TERMINAL = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import runpy; runpy.run_module('troth', run_name='__main__', alter_sys=True)"
)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_ctrl_c_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    """As a terminal sends it: to every process of the group; also where the suite runs in the background and ignores it."""
    arguments = [
        sys.executable,
        "-c",
        AS_IN_A_TERMINAL,
        "chaos",
        "--seeds",
        "0..100000",
        "--steps",
        "1",
        "--peers",
        "4",
    ]
    running = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with running:
        assert running.stderr is not None
        first = next(line for line in running.stderr if not line.startswith("0 of"))  # a slow machine's first
        os.killpg(running.pid, signal.SIGINT)
        start = time.monotonic()
        out, err = running.communicate(timeout=60)  # which waits for everyone who could still write
    assert " of 100000 worlds, 0 broken, " in first
    assert running.returncode == 130
    assert time.monotonic() - start < 20
    assert ", of 100000: interrupted\n" in out
    assert "  worlds\n" in out
    assert err.endswith("troth: interrupted\n")
    assert "Traceback" not in err
