"""The view in a terminal: it fits any size, tells by signs and not by colour alone, and no stranger steers it."""

import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.watch.made_events import banned, began, stepped, write
from troth.events.kinds import Audit, Candidate, Ended, Event, KnownPeer, Noted, Returned, Status, Trial, Work
from troth.watch.folder import RunFolder
from troth.watch.terminal import show
from troth.watch.terminal.picture import MOST_STEPS, Cell, Curve, Picture
from troth.watch.terminal.view import View, sparkline
from troth.watch.terminal.words import sentences

NOW = 2000.0


def status(**more: object) -> Status:
    fields: dict[str, object] = {"doing": "training", "at": NOW, "started_at": 0.0, "step": 9, "phase": "commit"}
    return Status(**(fields | more))  # type: ignore[arg-type]


def picture(*events: Event) -> Picture:
    made = Picture()
    made.take(events)
    return made


def story() -> list[Event]:
    steps = [stepped(step, metrics={"accuracy": 0.1 * step} if step % 3 == 0 else {}) for step in range(7)]
    after = [
        stepped(step, members=3, silent=("cid",), audits=(Audit("bob", "ann", step - 1),)) for step in range(8, 12)
    ]
    return [began(), *steps, banned(7), *after]


def drawn(view: View, width: int = 80, height: int = 30, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    Console(file=file, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False).print(
        view
    )
    return raw.getvalue().decode(encoding).splitlines()


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))


def test_the_essentials() -> None:
    unheard = status(unheard=("bob", "cid"))
    lines = drawn(View(picture(*story()), unheard, now=NOW))
    text = "\n".join(lines)
    assert lines[0].startswith("friends · digits · as ann")
    assert "step 12/20  60%  3 members  withstands 1  quorum 3" in lines[1]
    assert re.search(r"batch loss +0\.\d+ [▁-█]+", text)
    assert re.search(r"accuracy +60\.0% [▁-█]+", text)
    assert "training  commit of step 9  waits for bob, cid" in text
    assert "mallory is banned" in text
    assert "0.50 s a step" in text


def test_the_grid() -> None:
    lines = drawn(View(picture(*story()), now=NOW))
    # Everyone but the validator contributes; bob recomputes cid's work, then ann's; mallory is accused in 7 for what it did in 6.
    assert row(lines, "bob").split() == ["bob", "v" * 12]
    assert row(lines, "cid").split() == ["cid", "✓" * 7 + "·" + "----"]
    assert row(lines, "mallory").split() == ["mallory", "······!✗"]
    assert row(lines, "ann").split() == ["ann", "·······✓✓✓✓·"]
    legend = row(lines, "steps 0–11")
    for meaning in ("· contributed", "✓ clean", "v audits", "- silent", "! accused", "✗ banned"):
        assert meaning in legend + " "
    assert "on probation" not in legend


@pytest.mark.parametrize("width", [1, 10, 24, 40, 80, 200])
@pytest.mark.parametrize("height", [2, 6, 12, 24, 60])
@pytest.mark.parametrize("peers", [4, 200])
def test_it_fits(width: int, height: int, peers: int) -> None:
    names = tuple(KnownPeer(name=f"a-rather-long-name-{number}") for number in range(peers))
    made = picture(
        began(peers=names),
        *(stepped(step) for step in range(400)),
        banned(400),
        *(Noted(text="x" * 300) for _ in range(20)),
    )
    for one in (View(made, status(waits_for="y" * 300), now=NOW), View(made, news=False), View(Picture())):
        lines = drawn(one, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)


def test_peers_that_do_not_fit_are_counted() -> None:
    names = tuple(KnownPeer(name=f"peer{number}") for number in range(200))
    lines = drawn(View(picture(began(peers=names, me="peer150"), banned(0, "peer199")), now=NOW), height=24)
    rows = [line for line in lines if line.startswith("peer")]  # bob, who audits, is none of the 200
    assert rows[0].startswith("peer150"), "oneself is always shown"
    assert f"and {201 - len(rows)} more peers, of whom 1 banned" in "\n".join(lines)


def test_a_terminal_without_unicode() -> None:
    lines = drawn(View(picture(*story()), now=NOW), encoding="ascii")
    assert row(lines, "mallory").split() == ["mallory", "......!X"]
    assert "steps 0-11" in "\n".join(lines)


@pytest.mark.parametrize("doing", ["waiting", "paused", "meeting"])
def test_who_is_waited_for(doing: str) -> None:
    made = View(picture(began()), status(doing=doing, waits_for="step 9, commit: waits for bob"), now=NOW)
    assert any(line.startswith(doing) and "waits for bob" in line for line in drawn(made))


def test_how_long_nothing_has_moved_and_how_long_is_left() -> None:
    still = View(picture(began()), status(doing="waiting", unheard=("bob",), since=NOW - 30.0), now=NOW)
    assert any("waits for bob  no update for 30 s" in line for line in drawn(still))
    moves = View(picture(*story()), status(left_s=600.0), now=NOW)
    assert "about 10 min left" in drawn(moves, width=120)[1]


def test_a_member_that_says_nothing_any_more() -> None:
    text = "\n".join(drawn(View(picture(began()), status(), now=NOW + 200)))
    assert "last heard of 3 min ago: its process is gone, or hangs" in text


def test_hostile_names_and_notes_steer_nothing() -> None:
    bad = "\x1b[2J\x1b]0;owned\x07\r\n\u202e[bold red]x[/]"
    events: list[Event] = [
        began(name=bad, task=bad, me=bad, peers=(KnownPeer(name=bad), KnownPeer(name="bob"))),
        stepped(0, metrics={bad: 1.0}, left=(bad,), candidates=(Candidate(name=bad, worked=1),), news=(bad,)),
        banned(1, bad),
        Noted(text=bad),
        Ended(how="error", text=bad),
    ]
    shown = "\n".join(
        [
            *drawn(View(picture(*events), status(waits_for=bad, unheard=(bad,)), now=NOW)),
            *drawn(View(picture(*events[:3]), status(unheard=(bad,)), now=NOW)),
        ]
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "[bold red]" in shown, "markup is text"
    for event in events:
        assert all(sentence.isprintable() for sentence in sentences(event))


def test_who_came_and_went() -> None:
    made = picture(
        began(),
        stepped(0, left=("cid",)),
        stepped(1),
        stepped(2, returned=(Returned(peer="cid"),), joined=("eve",)),
        stepped(3),
    )
    cells = [column.cells.get("cid", Cell.NOTHING) for column in made.columns]
    assert cells[:2] == [Cell.GONE, Cell.NOTHING] or cells[1] is Cell.CLEAN
    assert made.columns[-1].cells["eve"] is Cell.CONTRIBUTED
    assert made.peers == {"ann": True, "bob": True, "cid": True, "mallory": True, "eve": True}


def test_only_work_that_was_done_and_audited_is_clean() -> None:
    """Not the work of a member that was silent, nor work whose audit came to nothing."""
    made = picture(
        began(),
        stepped(0, silent=("cid",)),
        stepped(1),
        stepped(2, unaudited=(Work("cid", 1),)),
        stepped(3, audits=(Audit("bob", "cid", 1),)),
    )
    assert [column.cells["cid"] for column in made.columns] == [
        Cell.SILENT,
        Cell.CLEAN,
        Cell.CONTRIBUTED,
        Cell.CONTRIBUTED,
    ]
    early = picture(began(), stepped(0), stepped(1), stepped(2, unaudited=(Work("cid", 1),)))
    assert early.columns[1].cells["cid"] is Cell.CONTRIBUTED


def test_trials_without_an_accuser_are_told_without_one() -> None:
    trial = Trial(kind="aggregate", target="cid", step=3, verdict="accuser", part=1)
    (told,) = sentences(stepped(3, trials=(trial,)))
    assert told == "step 3: a disputed part: cid (aggregate of step 3): acquitted"
    (told,) = sentences(stepped(3, trials=(replace(trial, verdict="withheld", accuser="bob"),)))
    assert told == "step 3: bob accused cid (aggregate of step 3): cid is out"


def test_a_long_run_takes_bounded_memory() -> None:
    made = picture(began(of=5000), *(stepped(step) for step in range(5000)))
    assert len(made.columns) == MOST_STEPS
    assert len(made.loss.points) <= 512
    assert len(made.news) <= 50


def test_a_curve_keeps_its_shape_with_fewer_points() -> None:
    curve = Curve()
    for value in range(10_000):
        curve.add(float(value))
    assert 200 < len(curve.points) <= 512
    assert curve.points == sorted(curve.points)
    assert curve.last == 9999.0


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0], 10) == "▁▃▅█" or sparkline([0.0, 1.0, 2.0, 3.0], 10)[-1] == "█"
    assert sparkline([1.0] * 100, 8) == "▁" * 8
    assert len(sparkline(list(range(1000)), 20)) == 20
    assert sparkline([], 5) == ""
    assert sparkline([float("nan")], 5) == ""
    assert sparkline([0.0, float("inf"), float("nan"), 1.0], 4) == "▁█ █"


def test_piped_it_is_plain_lines(tmp_path: Path) -> None:
    write(tmp_path, *story(), Ended(how="over", text="done"))
    file = io.StringIO()
    show.watch_here(RunFolder(tmp_path), Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    assert lines[0] == "friends: 20 steps with 4 peers, of whom 1 may lie"
    assert "\x1b" not in file.getvalue()
    assert "step 7: mallory is banned: its gradient of step 6 does not follow from its seed" in lines, "not wrapped"
    assert lines[-1] == "the end: done"
    assert any(line.startswith("step 1/20  batch loss 2.000") for line in lines)


def test_on_a_terminal_it_is_drawn_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, *story(), Ended(how="over", text="done"))
    file = io.StringIO()
    show.watch_here(
        RunFolder(tmp_path), Console(file=file, width=80, height=24, force_terminal=True, color_system=None)
    )
    text = file.getvalue()
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1  # the other screen
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor
    assert "mallory" in text[text.rindex("\x1b[?1049l") :], "the last picture stays"


def test_drawn_below_what_is_printed(tmp_path: Path) -> None:
    write(tmp_path, *story())
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, color_system=None)
    with show.drawn_below(RunFolder(tmp_path), console) as view:
        console.print("some news")
        view.draw()
    text = file.getvalue()
    assert "some news" in text
    assert "friends" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    Console(file=file, width=80, height=24, force_terminal=True).print(View(picture(*story()), now=NOW))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", file.getvalue())


@pytest.mark.parametrize(
    "values", [[1.7e308, -1.7e308, 0.0], [5e-324, 0.0], [float("inf"), float("-inf"), 1.0, float("nan")]]
)
def test_a_run_that_diverged_has_a_curve(values: list[float]) -> None:
    assert len(sparkline(values, 20)) == len(values)
    steps = [stepped(number, loss=value, metrics={"m": value}) for number, value in enumerate(values * 400)]
    assert drawn(View(picture(began(), *steps), now=NOW))


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an editor's shell: a picture there would be nothing at all."""
    monkeypatch.setenv("TERM", "dumb")
    write(tmp_path, *story(), Ended(how="over"))
    file = io.StringIO()
    show.watch_here(RunFolder(tmp_path), Console(file=file, width=80, height=24, force_terminal=True))
    lines = file.getvalue().splitlines()
    assert any(line.startswith("step 1/20  batch loss 2.000") for line in lines), (
        "told while it goes on, not at its end alone"
    )
    assert lines[-1] == "the end: over"
