"""The view in a terminal: it fits any size, tells by signs and not by colour alone, and no stranger steers it."""

import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.watch.made_events import banned, began, stepped, write
from troth.events.kinds import Audit, Candidate, Ended, Event, KnownPeer, Noted, Returned, Status, Trial, Work
from troth.watch import terminal
from troth.watch.folder import RunFolder
from troth.watch.terminal import MOST_STEPS, TerminalView, sentences, sparkline

NOW = 2000.0


def status(**more: object) -> Status:
    fields: dict[str, object] = {
        "doing": "training",
        "at": NOW,
        "started_at": 0.0,
        "me": "ann",
        "updates": 12,
        "of": 20,
    }
    return Status(**(fields | more))  # type: ignore[arg-type]


def view(*events: Event, present: Status | None = None, news: bool = True, now: float = NOW) -> TerminalView:
    made = TerminalView(news=news, now=now)
    made.status = present
    for event in events:
        made.take(event)
    return made


def story() -> list[Event]:
    steps = [stepped(step, metrics={"accuracy": 0.1 * step} if step % 3 == 0 else {}) for step in range(7)]
    after = [
        stepped(step, members=3, silent=("cid",), audits=(Audit("bob", "ann", step - 1),)) for step in range(8, 12)
    ]
    return [began(), *steps, banned(7), *after]


def drawn(view: TerminalView, width: int = 80, height: int = 30, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    Console(file=file, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False).print(
        view
    )
    return raw.getvalue().decode(encoding).splitlines()


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))


def test_the_essentials() -> None:
    present = status(
        unheard=("bob", "cid"), doing="waiting", members=3, withstands=1, loss=0.2, metrics={"accuracy": 0.6}
    )
    lines = drawn(view(*story(), present=present), width=200)
    text = "\n".join(lines)
    assert lines[0].startswith("friends · digits · as ann")
    assert "ann: waiting  step 12/20  3 members  withstands 1  batch loss 0.200  accuracy 60.0%" in lines[1]
    assert re.search(r"waits for\s+bob, cid", text)
    assert re.search(r"batch loss 0\.\d+ [▁-█]+", text)
    assert "mallory is banned" in text


def test_a_run_without_a_status_is_told_from_its_events() -> None:
    lines = drawn(view(*story()), width=200)
    assert lines[1] == "step 12/20  batch loss 0.167  accuracy 60.0%  peers 3  withstands 1  0.50 s a step"
    assert drawn(view(*story(), Ended(how="over", text="done")))[1].startswith("over  done  step 12/20")


def test_the_grid() -> None:
    lines = drawn(view(*story()))
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
    events: list[Event] = [
        began(peers=names),
        *(stepped(step) for step in range(400)),
        banned(400),
        *(Noted(text="x" * 300) for _ in range(20)),
    ]
    for one in (view(*events, present=status(waits_for="y" * 300)), view(*events, news=False), TerminalView()):
        lines = drawn(one, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)


def test_peers_that_do_not_fit_are_counted() -> None:
    names = tuple(KnownPeer(name=f"peer{number}") for number in range(200))
    lines = drawn(view(began(peers=names, me="peer150"), banned(0, "peer199")), height=24)
    rows = [line for line in lines if line.startswith("peer")]  # bob, who audits, is none of the 200
    assert rows[0].startswith("peer150"), "oneself is always shown"
    assert f"and {201 - len(rows)} more peers, of whom 1 banned" in "\n".join(lines)


def test_a_terminal_without_unicode() -> None:
    lines = drawn(view(*story()), encoding="ascii")
    assert row(lines, "mallory").split() == ["mallory", "......!X"]
    assert "steps 0-11" in "\n".join(lines)


@pytest.mark.parametrize("doing", ["waiting", "paused", "meeting"])
def test_who_is_waited_for(doing: str) -> None:
    lines = drawn(
        view(began(), present=status(doing=doing, waits_for="step 9, commit: waits for bob", phase="commit", step=9)),
        width=200,
    )
    assert lines[1].startswith(f"ann: {doing}")
    assert "waits for bob" in " ".join(lines)
    assert "commit of step 9" in " ".join(lines)


def test_how_long_nothing_has_moved_and_how_long_is_left() -> None:
    still = view(began(), present=status(doing="waiting", unheard=("bob",), since=NOW - 30.0))
    assert "no update for 30 s  waits for bob" in " ".join(drawn(still))
    assert "about 10 min left" in " ".join(drawn(view(*story(), present=status(left_s=600.0))))


def test_a_member_that_says_nothing_any_more() -> None:
    text = " ".join(drawn(view(began(), present=status(), now=NOW + 200)))
    assert "ann: stale" in text
    assert "last heard of 3 min ago" in text


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
            *drawn(view(*events, present=status(waits_for=bad, unheard=(bad,), phase=bad, text=bad))),
            *drawn(view(*events[:3], present=status(doing="waiting", unheard=(bad,)))),
            *drawn(view(*events[:3])),
        ]
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "[bold red]" in shown, "markup is text"
    for event in events:
        assert all(sentence.isprintable() for sentence in sentences(event))


def test_who_came_and_went() -> None:
    lines = drawn(
        view(
            began(),
            stepped(0, left=("cid",)),
            stepped(1, audits=()),
            stepped(2, audits=(), returned=(Returned(peer="cid"),), joined=("eve",)),
            stepped(3, audits=(), candidates=(Candidate(name="fay", worked=1),)),
        )
    )
    assert row(lines, "cid") == "cid     «  ·"
    assert row(lines, "eve") == "eve        ·"
    assert row(lines, "fay") == "fay        c"


def test_only_work_that_was_done_and_audited_is_clean() -> None:
    """Not the work of a member that was silent, nor work whose audit came to nothing."""
    steps = [
        stepped(0, silent=("cid",)),
        stepped(1),
        stepped(2, unaudited=(Work("cid", 1),)),
        stepped(3, audits=(Audit("bob", "cid", 1),)),
    ]
    assert row(drawn(view(began(), *steps)), "cid").split() == ["cid", "-✓··"]
    assert row(drawn(view(began(), *steps[:3])), "cid").split() == ["cid", "-··"]


def test_trials_without_an_accuser_are_told_without_one() -> None:
    trial = Trial(kind="aggregate", target="cid", step=3, verdict="accuser", part=1)
    (told,) = sentences(stepped(3, trials=(trial,)))
    assert told == "step 3: a disputed part: cid (aggregate of step 3): acquitted"
    (told,) = sentences(stepped(3, trials=(replace(trial, verdict="withheld", accuser="bob"),)))
    assert told == "step 3: bob accused cid (aggregate of step 3): cid is out"


def test_a_long_run_is_shown_by_its_last_steps() -> None:
    lines = drawn(view(began(of=5000), *(stepped(step) for step in range(5000))), width=1000)
    assert row(lines, "steps").startswith(f"steps {5000 - MOST_STEPS}–4999")
    assert len(row(lines, "ann")) <= len("mallory ") + MOST_STEPS


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
    terminal.watch_here(RunFolder(tmp_path), Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    assert lines[0] == "friends: 20 steps with 4 peers, of whom 1 may lie"
    assert "\x1b" not in file.getvalue()
    assert "step 7: mallory is banned: its gradient of step 6 does not follow from its seed" in lines, "not wrapped"
    assert lines[-1] == "the end: done"
    assert any(line.startswith("step 1/20  batch loss 2.000") for line in lines)


def test_on_a_terminal_it_is_drawn_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, *story(), Ended(how="over", text="done"))
    file = io.StringIO()
    terminal.watch_here(
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
    with terminal.drawn_below(RunFolder(tmp_path), console) as live:
        console.print("some news")
        live.refresh()
    text = file.getvalue()
    assert "some news" in text
    assert "friends" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    Console(file=file, width=80, height=24, force_terminal=True).print(view(*story()))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", file.getvalue())


@pytest.mark.parametrize(
    "values", [[1.7e308, -1.7e308, 0.0], [5e-324, 0.0], [float("inf"), float("-inf"), 1.0, float("nan")]]
)
def test_a_run_that_diverged_has_a_curve(values: list[float]) -> None:
    assert len(sparkline(values, 20)) == len(values)
    steps = [stepped(number, loss=value, metrics={"m": value}) for number, value in enumerate(values * 400)]
    assert drawn(view(began(), *steps))


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an editor's shell: a picture there would be nothing at all."""
    monkeypatch.setenv("TERM", "dumb")
    write(tmp_path, *story(), Ended(how="over"))
    file = io.StringIO()
    terminal.watch_here(RunFolder(tmp_path), Console(file=file, width=80, height=24, force_terminal=True))
    lines = file.getvalue().splitlines()
    assert any(line.startswith("step 1/20  batch loss 2.000") for line in lines), (
        "told while it goes on, not at its end alone"
    )
    assert lines[-1] == "the end: over"
