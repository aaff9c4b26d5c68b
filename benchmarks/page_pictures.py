"""The picture at the top of the README: a finished run, replayed on its page, as a short animation.

`python -m benchmarks.page_pictures runs/demo` writes docs/images/page.gif; it needs Chromium and Playwright.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import troth
from troth.watch.folder import RunFolder
from troth.watch.server import PageServer

_OUT = Path(__file__).resolve().parents[1] / "docs" / "images" / "page.gif"
_SIZE = 1280, 1000
_WIDTH = 960  # of the picture
_COLOURS = 256
_FRAME_MS, _NEWS_MS, _LAST_MS = 110, 900, 3500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a run that is over, for instance runs/demo")
    folder = parser.parse_args().folder
    steps = [event for event in troth.read_events(folder) if isinstance(event, troth.events.Stepped)]
    news = {event.step for event in steps if event.banned}
    first = min(news, default=steps[-1].step)
    # Step by step around the bans, and in larger strides elsewhere.
    near = range(first - 3, max(news, default=first) + 4)
    shown = sorted({*range(0, steps[-1].step + 1, 8), *near, steps[-1].step} & {event.step for event in steps})
    with PageServer(RunFolder(folder)) as server:
        frames = _frames(server.address, shown)
    waits = [_NEWS_MS if step in news else _LAST_MS if step == shown[-1] else _FRAME_MS for step in shown]
    # The most frequent colours would leave out the few pixels that matter.
    palette = frames[shown.index(first)].quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    small[0].save(_OUT, save_all=True, append_images=small[1:], duration=waits, loop=0, optimize=True)
    print(f"{_OUT.name}: {len(small)} frames, {_OUT.stat().st_size / 1e3:.0f} kB")


def _frames(address: str, steps: list[int]) -> list[Image.Image]:
    frames = []
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _SIZE[0], "height": _SIZE[1]}, color_scheme="light")
        page.goto(address)
        page.wait_for_timeout(2000)
        for step in steps:
            page.evaluate("step => { location.hash = `step=${step}`; }", step)
            page.wait_for_timeout(250)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            frames.append(picture.resize((_WIDTH, _WIDTH * _SIZE[1] // _SIZE[0]), Image.Resampling.LANCZOS))
        browser.close()
    return frames


if __name__ == "__main__":
    main()
