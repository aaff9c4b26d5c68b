"""The page says nothing about a peer that its events do not say."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.browser.conftest import Open, Serve, Window
from troth.events.file import encode_event
from troth.events.kinds import (
    Audit,
    Ban,
    Began,
    Ended,
    Event,
    KnownPeer,
    Link,
    Noted,
    Returned,
    Status,
    Stepped,
    Trial,
    Work,
)
from troth.watch.bundle import bundle

pytestmark = pytest.mark.browser
NAMES = ("ann", "bob", "cid", "dan")


def began() -> Began:
    return Began(source="member", of=20, peers=tuple(KnownPeer(name=name) for name in NAMES), name="friends", quorum=3)


def stepped(step: int, *audits: Audit, **more: object) -> Stepped:
    fields: dict[str, object] = {"step": step, "updates": step + 1, "of": 20, "members": 4, "loss": 1.0}
    return Stepped(**(fields | {"audits": audits} | more))  # type: ignore[arg-type]


def cell(page: Window, row: int, column: int) -> str:
    """What a screen reader hears about a cell."""
    page.page.locator("#grid-box").focus()
    for key in ("Home", *["ArrowUp"] * 5, *["ArrowDown"] * row, *["ArrowRight"] * column):
        page.page.keyboard.press(key)
    page.wait(f"document.getElementById('grid-cell').textContent.startsWith('{NAMES[row]}, step {column}: ')")
    return page.text("#grid-cell")


def test_work_is_not_clean_where_its_audit_came_to_nothing(serve: Serve, window: Open) -> None:
    lost = stepped(1, Audit("ann", "bob", 0), Audit("ann", "cid", 0), unaudited=(Work("bob", 0),), left=("ann",))
    page = window()
    page.open(serve(began(), stepped(0), lost, stepped(2)).url, steps=3)
    assert "contributed a gradient." in cell(page, 1, 0)
    assert "found clean" in cell(page, 2, 0)


def test_work_that_a_later_audit_convicts_is_no_longer_clean(serve: Serve, window: Open) -> None:
    """Its first auditor was its fellow, and looked away."""
    trial = Trial(kind="gradient", target="bob", step=0, verdict="accused", accuser="cid", banned="bob", quorum=3)
    ban = Ban(peer="bob", reason="its gradient of step 0 does not follow from its seed")
    events: list[Event] = [began(), stepped(0), stepped(1, Audit("ann", "bob", 0))]
    page = window()
    run = serve(*events, stepped(2))
    page.open(run.url, steps=3)
    assert "found clean" in cell(page, 1, 0)
    run.add(stepped(3, Audit("cid", "bob", 0), trials=(trial,), banned=(ban,)))
    page.wait("document.getElementById('slider').max === '3'")
    assert "contributed a gradient." in cell(page, 1, 0)
    assert "banned" in cell(page, 1, 3)


def test_everyone_audits_in_the_closing_step_though_nobody_was_caught(serve: Serve, window: Open) -> None:
    audits = [Audit(one, other, 0) for one in NAMES for other in NAMES if one != other]
    page = window()
    page.open(serve(began(), stepped(0), stepped(1, *audits, validators=NAMES, moved=False, closing=True)).url, steps=2)
    page.page.keyboard.press("End")  # it opens on the step before, which shows more
    page.wait("document.getElementById('ring-words').textContent.includes('closing')")
    words = page.text("#ring-words")
    assert "Everyone audits. The closing step." in words
    assert "caught" not in words


def test_an_owner_whose_disputed_part_was_right_is_acquitted(serve: Serve, window: Open) -> None:
    """It has no accuser, so no vote says that an accuser lied."""
    trial = Trial(
        kind="aggregate", target="bob", step=0, verdict="accuser", part=1, votes=dict.fromkeys(NAMES, "accuser"), quorum=3,
        story=("bob is acquitted.",),
    )  # fmt: skip
    page = window()
    page.open(serve(began(), stepped(0, trials=(trial,))).url, steps=1)
    words = page.text("#trials-list")
    assert "bob acquitted" in words
    assert "4 found nothing wrong" in words
    assert "lied" not in words


def test_a_report_of_a_run_under_way_does_not_call_it_over(window: Open, tmp_path: Path) -> None:
    run: list[Event] = [began(), stepped(0), Ended(how="over")]
    for length, word in ((2, "not over"), (3, "over")):
        file = tmp_path / f"{length}.html"
        file.write_text(bundle([encode_event(event) for event in run[:length]]), encoding="utf-8")
        page = window()
        page.open(file.as_uri(), steps=1)
        page.wait("document.getElementById('state').dataset.state === 'over'")
        assert page.text("#state-word") == word


@pytest.mark.long
def test_a_peer_that_hangs_is_not_called_live(serve: Serve, window: Open) -> None:
    run = serve(began(), stepped(0))
    status = Status(doing="training", at=time.time() - 100.0, started_at=900.0, pid=os.getpid())
    run.tell(status)
    page = window()
    page.open(run.url, steps=1)
    page.wait("document.getElementById('state-word').textContent === 'gone silent'")
    run.tell(msgspec.structs.replace(status, at=time.time()))
    page.wait("document.getElementById('state-word').textContent === 'live'")


def test_the_command_that_checks_a_ban_names_the_file_where_it_lies(serve: Serve, window: Open) -> None:
    ban = Ban(peer="bob", reason="it lied", evidence="ban-step0-bob.json")
    start = msgspec.structs.replace(began(), manifest="runs/my run/run.toml", evidence="runs/my run/$(reboot)")
    page = window()
    page.open(serve(start, stepped(0, banned=(ban,))).url, steps=1)
    command = page.text("#trials-list code")
    assert command == "troth verify 'runs/my run/$(reboot)/ban-step0-bob.json' --run 'runs/my run/run.toml'"


def banner(page: Window) -> str:
    return page.text("#trouble").replace("\u00a0", " ").replace("\u202f", " ")


@pytest.mark.long
def test_a_run_that_stands_still_does_not_look_well(serve: Serve, window: Open) -> None:
    """One banner says what it waits for, whom, since when and what to do; nothing green is left."""
    run = serve(began(), stepped(0), stepped(1, left=("dan",)))
    link = Link(peer="cid", connected=False)
    now = time.time()
    status = Status(doing="training", at=now, started_at=900.0, pid=os.getpid(), links=(link,), left_s=5400.0)
    run.tell(status)
    page = window(width=400)
    page.open(run.url, steps=2)
    page.wait("document.getElementById('figures').textContent.includes('about 90')")
    assert (page.text("#state-word"), page.page.locator("#trouble").is_visible()) == ("live", False)
    assert "1 not connected" in page.text("#figures")
    still = msgspec.structs.replace(status, left_s=None, since=now - 240.0)
    for doing, word, more, told in (
        ("meeting", "not training", {"waits_for": "stopped: 2 of 4 are here"}, "Stopped: 2 of 4 are here."),
        ("waiting", "waiting", {"unheard": ("bob",), "waits_for": "step 2: waits for bob"}, "Waiting for bob since"),
        ("paused", "paused", {"waits_for": "paused: 2 of 4 are gone"}, "2 of 4 are gone."),
    ):
        run.tell(msgspec.structs.replace(still, doing=doing, **more))
        page.wait(f"document.getElementById('state-word').textContent === '{word}'")
        assert told in banner(page)
        assert "Not connected: cid; to come back, the same command as before is enough." in banner(page)
        assert "(4 min)" in banner(page)
        assert page.page.evaluate("document.documentElement.scrollWidth") == 400
    run.tell(msgspec.structs.replace(still, doing="waiting", unheard=("bob",)))
    page.wait("document.getElementById('state-word').textContent === 'waiting'")
    run.add(stepped(2, at=now + 1.0))
    page.wait("document.getElementById('state-word').textContent === 'live'")
    assert not page.page.locator("#trouble").is_visible(), "the step that was waited for has ended"
    run.add(Ended(how="stopped", at=now))
    page.wait("document.getElementById('state-word').textContent === 'stopped'")
    assert "start it again with the same command as before" in banner(page)


def test_a_run_that_diverged_says_so_above_everything(serve: Serve, window: Open) -> None:
    start = msgspec.structs.replace(began(), source="simulation")
    page = window()
    page.open(serve(start, stepped(0), Ended(how="stopped", text="diverged at step 0: the model is ruined")).url, 1)
    page.wait("!document.getElementById('trouble').hidden")
    assert banner(page).split("\n")[0] == "Ended before its last step"
    assert "Diverged at step 0: the model is ruined." in banner(page)


def test_losses_that_are_no_numbers_are_not_called_live(serve: Serve, window: Open) -> None:
    """A member's run has nobody who says that it diverged: its steps go on. One that observes has no loss either."""
    run = serve(began(), stepped(0), stepped(1, loss=None, observed=True), *(stepped(n, loss=None) for n in (2, 3, 4)))
    page = window()
    page.open(run.url, steps=5)
    page.wait("document.getElementById('state-word').textContent === 'live'")
    run.add(stepped(5), *(stepped(n, loss=None) for n in (6, 7, 8)))
    page.wait("document.getElementById('state-word').textContent === 'diverged'")
    assert "No batch loss has been a number since step 6" in banner(page)
    run.add(stepped(9))
    page.wait("document.getElementById('state-word').textContent === 'live'")


def test_who_went_and_came_back_is_noted(serve: Serve, window: Open) -> None:
    """And a wait that is told again and again with another time is one note."""
    waits = [Noted(text=f"2 of 4 are here; begins in {left} s", at=1000.0) for left in (30, 20, 10)]
    steps = [
        stepped(0),
        stepped(1, left=("dan",)),
        stepped(2, moved=False),
        stepped(3, returned=(Returned(peer="dan"),)),
    ]
    page = window()
    page.open(serve(began(), *waits, *steps).url, steps=4)
    notes = page.text("#notes-list")
    for told in ("dan is absent", "The model does not move, with 4 members", "The model moves again", "dan is back"):
        assert told in notes
    assert notes.count("2 of 4 are here") == 1
    assert "begins in 10 s" in notes


def test_a_run_opens_on_its_last_step_that_shows_something(window: Open, tmp_path: Path) -> None:
    """The closing step has no contributors, no loss and no owners."""
    run: list[Event] = [
        began(),
        stepped(0),
        stepped(1),
        stepped(2, closing=True, moved=False, loss=None),
        Ended(how="over"),
    ]
    file = tmp_path / "report.html"
    file.write_text(bundle([encode_event(event) for event in run]), encoding="utf-8")
    page = window()
    page.open(file.as_uri(), steps=3)
    page.wait("document.getElementById('state').dataset.state === 'over'")
    assert page.text("#slider-words") == "Step 1 of 2"
    assert "batch loss 1.000" in page.text("#chart-words")
    page.page.keyboard.press("End")
    page.wait("document.getElementById('slider-words').textContent === 'Step 2 of 2'")


def test_two_losses_have_two_names_and_one_axis(serve: Serve, window: Open) -> None:
    steps = [stepped(step, metrics={"loss": 0.5}) for step in range(3)]
    page = window()
    page.open(serve(began(), *steps).url, steps=3)
    page.wait("document.getElementById('chart-words').textContent === 'Step 2: batch loss 1.000, test loss 0.500.'")
    assert page.text("#chart-legend").startswith("batch loss\ntest loss")
    assert page.page.locator("#chart .u-axis").count() == 2, "steps, and one for both losses"


def test_a_page_that_is_not_laid_out_yet_draws_later(serve: Serve, window: Open) -> None:
    page = window()
    page.page.add_init_script(
        "addEventListener('DOMContentLoaded', () => document.body.style.setProperty('display', 'none'))"
    )
    page.open(serve(began(), stepped(0)).url, steps=1)
    page.page.evaluate("document.body.style.removeProperty('display')")
    page.wait("document.getElementById('grid-canvas').width > 0")


def test_bans_too_close_for_their_names_share_a_label_that_says_how_many(serve: Serve, window: Open) -> None:
    bans = (Ban(peer="bob", reason="it lied"), Ban(peer="cid", reason="it lied"))
    page = window()
    page.page.add_init_script(
        "const pen = CanvasRenderingContext2D.prototype, fill = pen.fillText; globalThis.written = new Set();"
        "pen.fillText = function (text, ...more) { written.add(text); fill.call(this, text, ...more); };"
    )
    page.open(serve(began(), stepped(0), stepped(1, banned=bans), stepped(2)).url, steps=3)
    page.wait("written.has('\u00d7 bob and 1 more')")
