"""The past of a run: slider, links, keys."""

import pytest

from tests.browser import synthetic
from tests.browser.conftest import Open, Serve, Window
from troth.events.kinds import Event, Stepped

pytestmark = pytest.mark.browser
STEPS = 60


@pytest.fixture
def run() -> list[Event]:
    return list(synthetic.events(16, STEPS, live=False))


def shown_step(page: Window) -> int:
    return int(page.page.locator("#figures dd").first.inner_text())


def move_to(page: Window, step: int) -> None:
    page.page.locator("#slider").evaluate(
        "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')); }", str(step)
    )
    page.wait(f"document.querySelector('#figures dd').textContent.trim() === '{step}'")


@pytest.mark.long
def test_all_views_show_the_run_as_of_the_chosen_step(serve: Serve, window: Open, run: list[Event]) -> None:
    first = next(event for event in run if isinstance(event, Stepped) and event.banned)
    page = window()
    page.open(serve(*run).url, STEPS)
    assert page.text("#state-word") == "over"
    move_to(page, first.step - 1)
    assert page.text("#state-word") == "the past"
    page.wait("document.getElementById('trials-list').textContent.startsWith('Nobody has been accused')")
    move_to(page, first.step)
    page.wait(f"document.querySelectorAll('#trials-list article').length === {len(first.trials)}")
    assert f"Step {first.step}:" in page.text("#chart-words")
    page.wait(f"document.getElementById('ring-words').textContent.startsWith('Step {first.step}:')")
    page.page.get_by_role("button", name="Newest").click()
    page.wait("document.getElementById('state-word').textContent === 'over'")
    assert shown_step(page) == STEPS - 1


@pytest.mark.long
def test_a_link_leads_to_its_moment(serve: Serve, window: Open, run: list[Event]) -> None:
    page = window(permissions=["clipboard-read", "clipboard-write"])
    served = serve(*run)
    page.open(f"{served.url}#step=17", STEPS)
    page.wait("document.querySelector('#figures dd').textContent.trim() === '17'")
    page.page.keyboard.press("ArrowRight")
    page.wait("location.hash === '#step=18'")
    page.page.locator("#link").click()
    page.wait(f"(await navigator.clipboard.readText()) === '{served.url}#step=18'")
    other = window()
    other.page.add_init_script(
        "const later = setTimeout;"
        "setTimeout = (act, ms) => { if (act.name === 'writeAddress') writeAddress = act; return later(act, ms); }"
    )
    other.open(f"{served.url}#step=18", STEPS)
    other.wait("document.querySelector('#figures dd').textContent.trim() === '18'")
    other.page.evaluate(
        "location.hash = '#step=3'; writeAddress()"
    )  # at the worst moment: it must not go over the reader's
    other.wait("document.querySelector('#figures dd').textContent.trim() === '3'")


@pytest.mark.long
def test_a_link_beyond_the_end_or_of_nonsense_shows_the_end(serve: Serve, window: Open, run: list[Event]) -> None:
    served = serve(*run)
    page = window()
    for link in ("#step=999", "#step=<img>", "#step=-1", "#step=1e3"):
        page.page.goto("about:blank")
        page.open(served.url + link, STEPS)
        page.wait("document.getElementById('state').dataset.state === 'over'")
        assert shown_step(page) == STEPS - 1


def test_it_plays(serve: Serve, window: Open, run: list[Event]) -> None:
    page = window()
    page.open(serve(*run).url, STEPS)
    page.page.locator("#speed").select_option("50")
    page.page.keyboard.press("Home")
    page.wait("document.querySelector('#figures dd').textContent.trim() === '0'")
    page.page.locator("body").press(" ")
    page.wait("document.getElementById('state-word').textContent === 'replay'")
    page.wait("Number(document.querySelector('#figures dd').textContent) > 5")
    page.page.get_by_role("button", name="Pause").click()
    page.page.wait_for_timeout(200)  # the frame that was under way
    stopped = shown_step(page)
    assert 5 < stopped < STEPS
    page.page.wait_for_timeout(200)
    assert shown_step(page) == stopped


def test_the_keyboard_does_everything(serve: Serve, window: Open, run: list[Event]) -> None:
    page = window()
    page.open(serve(*run).url, STEPS)
    press = page.page.keyboard.press
    step = "Number(document.querySelector('#figures dd').textContent)"
    press("Home")
    page.wait(f"{step} === 0")
    press("Shift+ArrowRight")
    page.wait(f"{step} === 10")
    press("ArrowLeft")
    page.wait(f"{step} === 9")
    press("l")
    page.wait(f"{step} === {STEPS - 1}")

    press("g")
    assert page.page.evaluate("document.activeElement.id") == "grid-box"
    for _ in range(3):
        press("ArrowDown")
    press("Home")
    press("ArrowRight")
    page.wait("document.getElementById('grid-cell').textContent.startsWith('peer-002, step 1: ')")
    press("Enter")
    page.wait(f"{step} === 1")
    press("End")
    press("Enter")
    page.wait(f"{step} === {STEPS - 1}")

    page.wait("document.querySelectorAll('#trials-list article').length > 0")
    press("t")
    press("ArrowDown")
    assert page.page.evaluate("document.activeElement.tagName") == "ARTICLE"
    press("Enter")
    page.wait("document.activeElement.querySelectorAll('tbody tr').length > 5")
    press("?")
    assert page.page.locator("#help").is_visible()
    press("Escape")
    assert not page.page.locator("#help").is_visible()


@pytest.mark.long
def test_every_control_is_reached_by_tab_and_shows_it(serve: Serve, window: Open, run: list[Event]) -> None:
    page = window()
    page.open(serve(*run).url, STEPS)
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
    reached: set[str] = set()
    for _ in range(120):
        page.page.keyboard.press("Tab")
        found = page.page.evaluate(
            "[document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle !== 'none']"
        )
        if found[0]:
            reached.add(found[0])
            assert found[1], f"#{found[0]} does not show that it has the focus"
    wanted = {"theme", "help-open", "trials-list", "grid-box", "zoom-in", "play", "speed", "slider", "live", "link"}
    assert wanted <= reached


@pytest.mark.long
def test_cells_say_what_happened(serve: Serve, window: Open, run: list[Event]) -> None:
    """The words about a cell agree with the events, for every peer in some steps."""
    steps = [event for event in run if isinstance(event, Stepped)]
    banned_in = {ban.peer: event.step for event in steps for ban in event.banned}
    page = window()
    page.open(serve(*run).url, STEPS)
    press = page.page.keyboard.press
    press("g")
    press("ArrowDown")
    words = page.page.locator("#grid-cell")
    for step in (0, 14, 31):
        audited = {audit.target for later in steps[step + 1 :] for audit in later.audits if audit.step == step}
        press("Home")
        for _ in range(step // 10):
            press("Shift+ArrowRight")
        for _ in range(step % 10):
            press("ArrowRight")
        for number in range(16):
            peer = synthetic.name(number)
            said = words.inner_text()
            assert said.startswith(f"{peer}"), said
            if banned_in.get(peer) == step:
                assert "was banned" in said
            elif banned_in.get(peer, STEPS) < step:
                assert "no longer a member" in said
            elif peer in steps[step].validators:
                assert "was a validator" in said
            elif peer in audited and not any(trial.target == peer for trial in steps[step].trials):
                assert "found clean" in said or peer in banned_in
            press("ArrowDown")
        press("PageUp")
        press("PageUp")
