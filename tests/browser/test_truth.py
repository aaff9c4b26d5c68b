"""The page says nothing about a peer that its events do not say."""

import pytest

from tests.browser.conftest import Open, Serve, Window
from troth.events.kinds import Audit, Ban, Began, Event, KnownPeer, Stepped, Trial, Work

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
