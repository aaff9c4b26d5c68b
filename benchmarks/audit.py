"""How long `troth audit` takes: a thousand steps of sixteen peers, seven of them liars from step 900 on. `make bench-audit`."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.audit.folders import witnessed
from troth.workshop.simulation import Scenario

STEPS, PEERS = 1000, 16
PAGE = Path(__file__).parent / "results-audit.md"


def measured(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Seconds of the whole command, as typed, those of its processors, and its report."""
    command = [
        sys.executable,
        "-m",
        "troth",
        "audit",
        str(folder / "peer"),
        "--run",
        str(folder / "run.toml"),
        "--json",
    ]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, report["findings"]
    return f"{seconds:.0f} s, {busy:.0f} s of processor time", report


def page(whole: str, without: str, report: dict[str, Any], size: int) -> str:
    checked = report["checked"]
    return f"""# An audit's time

`make bench-audit`: {STEPS:,} steps of {PEERS} peers, seven of them liars from step 900 on, simulated; then `troth audit` of one peer's folder, as typed, on {os.cpu_count()} cores.

| what | |
| --- | --- |
| the journal | {size / 1e6:.0f} MB, {checked["lines"]:,} lines |
| signatures | {checked["signatures"]:,} |
| records followed; steps made again | {checked["records"]:,}; {checked["steps"]:,} |
| gradients and updates computed again | {checked["gradients"]:,} and {checked["updates"]:,} |
| all of it | {whole} |
| without running the task (`--no-recompute`) | {without} |
"""


def main() -> None:
    scenario = Scenario(
        task="quadratic:dimension=64", peers=PEERS, byzantine=7, attack="sign-flip", attack_start=900, steps=STEPS
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else name)
        if not folder.joinpath("run.toml").exists():  # a folder that is named is made once, and used again
            witnessed(folder / "peer", scenario)
        size = sum(path.stat().st_size for path in (folder / "peer" / "journal").iterdir())
        whole, report = measured(folder)
        without, _ = measured(folder, "--no-recompute")
    text = page(whole, without, report, size)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
