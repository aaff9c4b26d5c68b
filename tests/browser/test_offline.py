"""No network but the page's own server; and then not even that."""

from pathlib import Path

import msgspec
import pytest

from tests.browser import synthetic
from tests.browser.conftest import Open, Serve, Window
from troth.events.kinds import Stepped
from troth.watch.bundle import bundle

pytestmark = pytest.mark.browser


def use_everything(page: Window) -> None:
    """Touch each view once."""
    for key in (
        "Home",
        "ArrowRight",
        " ",
        " ",
        "l",
        "d",
        "d",
        "d",
        "g",
        "+",
        "+",
        "ArrowDown",
        "ArrowRight",
        "Enter",
        "-",
        "0",
        "t",
        "ArrowDown",
    ):
        page.page.keyboard.press(key)
    page.page.locator("#who-table button").first.click()


def test_nothing_is_asked_of_any_other_machine(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    served = serve(*run)
    served.tell(synthetic.status(run, 16))
    page = window()
    page.open(served.url, 60)
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
    use_everything(page)
    assert page.elsewhere() == []
    assert len(page.requests) > 10


@pytest.mark.long
def test_a_server_that_dies_is_told_and_found_again(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(8, 30, ended=False))
    served = serve(*run[:22])
    page = window()
    page.open(served.url, 20)
    served.stop()
    page.wait("document.getElementById('state').dataset.state === 'lost'")
    assert "The page tries again by itself" in page.text("#trouble")
    assert "connection lost" in page.page.locator("#announce").inner_text()
    page.page.keyboard.press("Home")  # what is here can still be looked at
    page.wait("document.querySelector('#figures dd').textContent.trim() === '0'")
    page.page.keyboard.press("l")
    served.start()
    served.add(*run[22:])
    page.wait("document.getElementById('slider').max === '29'")
    page.wait("document.getElementById('state').dataset.state === 'live'")
    assert not page.page.locator("#trouble").is_visible()


@pytest.mark.long
def test_another_run_in_the_same_place_takes_over(serve: Serve, window: Open) -> None:
    served = serve(*synthetic.events(8, 30, ended=False))
    page = window()
    page.open(served.url, 30)
    served.stop()
    other = list(synthetic.events(6, 12, seed=5, ended=False))
    served.replace(*other)
    served.start()
    page.wait("document.getElementById('slider').max === '11'")
    assert "6 peers" in page.text("#grid-words")


def test_a_report_needs_nobody(window: Open, tmp_path: Path) -> None:
    """One file, opened from the disk, in a browser that may not ask for anything."""
    run = list(synthetic.events(16, 60))
    file = tmp_path / "report.html"
    file.write_text(bundle([msgspec.json.encode(event) for event in run]), encoding="utf-8")
    page = window(offline=True)
    page.open(f"{file.as_uri()}#step=20", 60)
    page.wait("document.querySelector('#figures dd').textContent.trim() === '20'")
    page.wait("document.getElementById('ring-words').textContent.startsWith('Step 20:')")
    step = next(event for event in run if isinstance(event, Stepped) and event.step == 20)
    assert page.page.locator("#phases .phase").count() == len(step.phases)
    assert page.page.locator("#trials-list a").count() == 0
    assert "troth verify ban-step" in page.text("#trials-list")
    use_everything(page)
    assert page.requests == [f"{file.as_uri()}#step=20"] or page.requests == [file.as_uri()]
