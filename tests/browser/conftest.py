"""One Chromium for all browser tests of a process, and pages that may speak to their own server only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import ARGUMENTS, executable, why_not
from tests.browser.served import ServedRun
from troth.events.kinds import Event

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

WAIT = """async () => {
  for (const end = performance.now() + 15000; performance.now() < end; ) {
    if (CONDITION) return true;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return false;
}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason is not None and item.get_closest_marker("browser") is not None:
            item.add_marker(pytest.mark.skip(reason=f"browser tests: {reason}"))


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """For one file at a time: while Playwright is there, an event loop runs in this thread, and other tests need their own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Window:
    """A page in the browser, and everything that it did which a good page does not do."""

    page: "Page"
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of scripts, and of the content security policy
    dialogs: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page's language is true.

        Playwright's own `wait_for_function` has the page evaluate strings, which its policy rightly forbids.
        """
        assert self.page.evaluate(WAIT.replace("CONDITION", condition)), f"never came true: {condition}"

    def open(self, url: str, steps: int | None = None) -> None:
        """Open a page, and wait until it shows so many steps."""
        self.page.goto(url)
        if steps is not None:
            self.wait(f"document.getElementById('slider').max === '{steps - 1}'")

    def elsewhere(self) -> list[str]:
        """Requests that did not go to the page's own server."""
        own = urlsplit(self.page.url)
        return [url for url in self.requests if urlsplit(url)[:2] != own[:2] and not url.startswith("data:")]


Open: TypeAlias = Callable[..., Window]
Serve: TypeAlias = Callable[..., ServedRun]


@pytest.fixture
def window(chromium: "Browser") -> Iterator[Open]:
    """Opens windows: `window(width=400, color_scheme="dark")`. At the end none of them may have had an error."""
    windows: list[Window] = []
    contexts = []

    def new(*, width: int = 1280, height: int = 900, **options: Any) -> Window:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        made = Window(context.new_page())
        windows.append(made)

        def note_request(request: "Request") -> None:
            made.requests.append(request.url)

        def note_console(message: "ConsoleMessage") -> None:
            if message.type == "error" and "net::ERR" not in message.text:  # a server that died is part of a test
                made.errors.append(message.text)

        def note_dialog(dialog: "Dialog") -> None:
            made.dialogs.append(dialog.message)
            dialog.dismiss()

        made.page.on("request", note_request)
        made.page.on("console", note_console)
        made.page.on("pageerror", lambda error: made.errors.append(str(error)))
        made.page.on("dialog", note_dialog)
        return made

    yield new
    for context in contexts:
        context.close()
    for one in windows:
        assert one.errors == []
        assert one.dialogs == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves events: `serve(*events)`."""
    runs: list[ServedRun] = []

    def new(*events: Event) -> ServedRun:
        run = ServedRun(tmp_path / f"run{len(runs)}", events)
        runs.append(run)
        return run.__enter__()

    yield new
    for run in runs:
        run.__exit__(None, None, None)
