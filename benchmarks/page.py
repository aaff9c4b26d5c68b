"""The page in Chromium: when the first paint comes, how long a frame takes while the slider moves, how much memory it needs.

    python -m benchmarks.page

Runs are made up (`tests/browser/synthetic.py`), the server is the page's own, in a process of its own. Rewrites
`benchmarks/results-page.md`. Needs Chromium and Playwright, as the browser tests do.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser import synthetic
from tests.browser.chromium import ARGUMENTS, executable, why_not
from troth.events.file import EVENTS, EventFile

RESULTS = Path(__file__).parent / "results-page.md"
SIZES = ((16, 120), (64, 500), (200, 2_000), (200, 10_000))
MOVES = 120
LOADS = 5  # medians of so many, each with an empty cache

WATCH = """
window.paints = [];
new PerformanceObserver((list) => { for (const mark of list.getEntries()) paints.push([mark.startTime, mark.detail]); })
  .observe({type: "mark", buffered: true});
"""
PAGE_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
FIRST_PAINT = "paints.find(([, detail]) => detail.column >= 0)?.[0] ?? null"
ALL_THERE = "(steps) => paints.find(([, detail]) => detail.steps === steps)?.[0] ?? null"
# As a hand moves it: each value as soon as the frame before is on the screen. A frame's time is from the input to the next one.
SCRUB = """async (moves) => {
  const slider = document.getElementById("slider");
  const last = Number(slider.max);
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const times = [];
  await frame();
  for (let move = 0; move < moves; move++) {
    slider.value = String(Math.round(last * (0.5 + 0.5 * Math.sin(move / 9))));
    const began = performance.now();
    slider.dispatchEvent(new Event("input"));
    await frame();
    times.push(performance.now() - began);
  }
  return times;
}"""


@dataclass(frozen=True)
class Result:
    peers: int
    steps: int
    file_bytes: int
    blank_ms: float  # of the page, without the run
    first_ms: float  # of steps
    all_ms: float
    frame_ms: float  # median
    frame_most_ms: float
    busy_ms: float  # processor time of the page's main thread, mean
    memory_bytes: int  # of the browser's process for the page, resident


def measure(peers: int, steps: int) -> Result:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = EventFile(folder / EVENTS)
        for event in synthetic.events(peers, steps):
            file.add(event)
        file.close()
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.page", "serve", name], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
                loads = []
                for _ in range(LOADS):
                    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
                    page.add_init_script(WATCH)
                    page.goto(url)
                    everything = wait(page, ALL_THERE, steps)
                    loads.append((page.evaluate(PAGE_PAINT), page.evaluate(FIRST_PAINT), everything))
                    page.wait_for_timeout(1000)
                    if len(loads) < LOADS:
                        page.context.close()
                blank, first, everything = (statistics.median(times) for times in zip(*loads, strict=True))
                browser.start_tracing(page=page, categories=["toplevel"])
                times = page.evaluate(SCRUB, MOVES)
                busy = main_thread_ms(browser.stop_tracing()) / MOVES
                memory = renderer_bytes(browser)
                browser.close()
        finally:
            server.terminate()
            server.wait()
        return Result(
            peers, steps, (folder / EVENTS).stat().st_size, blank, first, everything,
            statistics.median(times), max(times), busy, memory,
        )  # fmt: skip


def wait(page: Any, expression: str, argument: object) -> float:
    deadline = time.monotonic() + 120
    while (found := page.evaluate(expression, argument)) is None:
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)
    return float(found)


def main_thread_ms(trace: bytes) -> float:
    """Processor time of the page's main thread: unlike a clock's, it does not grow when others use the machine."""
    events = json.loads(trace)["traceEvents"]
    threads = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    spans: dict[tuple[int, int], float] = {}
    for one in events:
        thread = (one["pid"], one["tid"])
        if one["name"] == "ThreadControllerImpl::RunTask" and threads.get(thread) == "CrRendererMain":
            spans[thread] = spans.get(thread, 0.0) + one.get("tdur", 0) / 1000
    return max(spans.values(), default=float("nan"))


def renderer_bytes(browser: Any) -> int:
    """Resident memory of the process that holds the page."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            status = Path(f"/proc/{process['id']}/status").read_text(encoding="utf-8")
            sizes.append(int(status.split("VmRSS:")[1].split()[0]) * 1024)
    return max(sizes)


def serve(folder: str) -> None:
    """A server in a process of its own, as `troth watch` has it."""
    from troth.watch.folder import RunFolder
    from troth.watch.server import PageServer

    with PageServer(RunFolder(Path(folder)), port=0) as server:
        print(server.address, flush=True)
        time.sleep(600)


def table(results: list[Result]) -> str:
    head = (
        "| peers | steps | events | first paint | first steps painted | all of them painted | a move of the slider (median) | slowest move | processor time of a move | memory |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    )
    rows = (
        f"| {one.peers} | {one.steps:,} | {one.file_bytes / 1e6:.1f} MB | {one.blank_ms:,.0f} ms | {one.first_ms:,.0f} ms | {one.all_ms:,.0f} ms "
        f"| {one.frame_ms:.1f} ms | {one.frame_most_ms:.0f} ms | {one.busy_ms:.1f} ms | {one.memory_bytes / 1e6:.0f} MB |"
        for one in results
    )
    return head + "\n".join(rows)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
        return
    if (reason := why_not()) is not None:
        sys.exit(f"cannot measure: {reason}")
    results = []
    load = os.getloadavg()[0]
    for peers, steps in SIZES:
        results.append(measure(peers, steps))
        print(results[-1], flush=True)
    text = f"""# The page, measured

`make bench-page` made this, on {os.cpu_count()} cores ({platform.machine()}), in Chromium without a screen or a graphics card, 1280 × 900 pixels.
The load of the machine when it began was {load:.1f}: above {os.cpu_count()}, times by the clock are longer than the page needs.
Runs are made up, with bans, absences, newcomers and trials; the server is the page's own, in a process of its own on the same machine.

{table(results)}

Times of painting are from the beginning of the navigation, medians of {LOADS} with an empty cache. A move of the slider is one step of a scrub over the whole run, from the input to the
frame that shows it, all views together; a screen of 60 frames a second waits up to 17 ms for it in any case. Its processor time is that of the
page's main thread, whatever else the machine does. Memory is what the browser's process for the page holds (resident).
"""
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
