"""Whether there is a browser to test with, and how to start it."""

import importlib.util
import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing but this machine: whatever a page, or the browser itself, would like to fetch.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def executable() -> str | None:
    """The one that CHROME names, or the first that is installed."""
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)


def why_not() -> str | None:
    """Why no browser test can run here, and the way out; None if they can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is missing; `pip install -e '.[dev]'` installs it."
    path = executable()
    if path is None:
        return (
            "no Chromium; install it (`apt install chromium`), or name one: CHROME=/path/to/chrome make test-browser."
        )
    if shutil.which(path) is None:
        return f"CHROME names {path}, which cannot be run; unset it, or name a Chromium."
    return None
