"""Windows of all sizes, light and dark, and what a screen reader needs."""

import pytest

from tests.browser import synthetic
from tests.browser.conftest import Open, Serve

pytestmark = pytest.mark.browser

# Contrast of every text with what is painted behind it, as WCAG computes it; returns those below AA.
PALE = """() => {
  const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((one) => (one /= 255) <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, dialog, :disabled")) continue;
    const [one, other] = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) pale.push(element.textContent.trim().slice(0, 30) + " " + contrast.toFixed(2));
  }
  return pale;
}"""

NAMELESS = """() => [...document.querySelectorAll("button, select, input, a, [tabindex='0'], [role=img], progress")]
  .filter((one) => one.checkVisibility())
  .filter((one) => !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.textContent.trim()
    || one.labels?.length))
  .map((one) => one.outerHTML.slice(0, 80))"""

# Pixels of the grid that have the colour of a ban.
RED = """() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--cell-9)";
  document.body.append(probe);
  const [red, green, blue] = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
  probe.remove();
  const canvas = document.getElementById("grid-canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) found += data[at] === red && data[at + 1] === green && data[at + 2] === blue;
  return found;
}"""

MOVING = """() => [...document.querySelectorAll("*")].map((one) => getComputedStyle(one))
  .filter((style) => parseFloat(style.transitionDuration) > 0 || style.animationName !== "none").length"""


@pytest.mark.parametrize("peers", [4, 64, 200])
def test_no_window_scrolls_sideways(serve: Serve, window: Open, peers: int) -> None:
    run = list(synthetic.events(peers, 60, ended=False))
    served = serve(*run)
    served.tell(synthetic.status(run, peers))
    page = window(width=400)
    page.open(served.url, 60)
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
    page.wait("!document.getElementById('now').hidden")
    for width in (400, 800, 1280):
        page.page.set_viewport_size({"width": width, "height": 900})
        page.wait(f"document.documentElement.scrollWidth === {width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(serve: Serve, window: Open, scheme: str) -> None:
    run = list(synthetic.events(16, 60, live=True, ended=False))
    served = serve(*run)
    served.tell(synthetic.status(run, 16))
    page = window(color_scheme=scheme)
    page.open(served.url, 60)
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
    page.wait("!document.getElementById('now').hidden")
    assert page.page.evaluate(PALE) == []


def test_the_theme_follows_the_system_until_told_otherwise(serve: Serve, window: Open) -> None:
    served = serve(*synthetic.events(4, 10))
    page = window(color_scheme="dark")
    page.open(served.url, 10)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.page.evaluate(paper)
    page.page.emulate_media(color_scheme="light")
    light = page.page.evaluate(paper)
    assert dark != light
    page.page.keyboard.press("d")  # light
    page.page.keyboard.press("d")  # dark
    assert page.page.evaluate(paper) == dark
    page.page.reload()
    page.wait("document.getElementById('slider').max === '9'")
    assert page.page.evaluate(paper) == dark, "the choice is kept"


def test_everything_has_a_name_and_a_place(serve: Serve, window: Open) -> None:
    run = list(synthetic.events(16, 60, ended=False))
    served = serve(*run)
    served.tell(synthetic.status(run, 16))
    page = window()
    page.open(served.url, 60)
    page.wait("document.querySelectorAll('#who-table tbody tr').length > 0")
    look = page.page
    assert look.evaluate(NAMELESS) == []
    assert look.get_by_role("main").count() == look.get_by_role("banner").count() == 1
    assert look.get_by_role("navigation", name="Replay").count() == 1
    for name in (
        "Learning",
        "Trials and bans",
        "Peers and steps",
        "The step",
        "Who does what",
        "Where the time goes",
        "Network",
    ):
        assert look.get_by_role("heading", name=name, exact=True).count() == 1
    assert look.evaluate("new Set([...document.querySelectorAll('[id]')].map((one) => one.id)).size") == look.evaluate(
        "document.querySelectorAll('[id]').length"
    )
    assert "Bans: " in str(look.locator("#chart").get_attribute("aria-label"))
    assert look.locator("#slider").get_attribute("aria-valuetext") == "Step 59 of 59"
    live = look.evaluate("[...document.querySelectorAll('[aria-live]')].map((one) => one.id)")
    assert live == ["announce", "grid-cell"]


@pytest.mark.long
def test_a_ban_is_seen_from_any_distance(serve: Serve, window: Open) -> None:
    """However far away: the colour of a ban is on the canvas, for each ban."""
    run = list(synthetic.events(64, 400))
    page = window()
    page.open(serve(*run).url, 400)
    for _ in range(8):
        assert page.page.evaluate(RED) > 300
        page.page.get_by_role("button", name="Zoom out").click()
        page.page.wait_for_timeout(50)


def test_reduced_motion_has_none(serve: Serve, window: Open) -> None:
    page = window(reduced_motion="reduce")
    page.open(serve(*synthetic.events(4, 10)).url, 10)
    assert page.page.evaluate(MOVING) == 0
