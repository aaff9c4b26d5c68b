"""`make bench-newcomers`: strangers fetch a state of 200 MB; donors are killed, and a stranger is; peers that lag behind catch up.

    python -m benchmarks.newcomers_large [PART[=PARAMETERS] …]

Each part is a run of processes of `troth join`, over TLS on this machine, and rewrites its section of results-newcomers.md; without
a name, all of them, one after another. A smaller model makes quicker steps, so that more of them are measured in a given time.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.newcomers_peers import Setting, peers_of
from benchmarks.newcomers_resume import resume, sentences, small_run
from benchmarks.newcomers_steps import BOTH, DOWNLOAD, KILLED, QUIET, SIZE, measure, table

_RESULTS = Path(__file__).with_name("results-newcomers.md")
_HEAD = """# Newcomers and a large state

Written by `make bench-newcomers`, part by part; each part names its command and its size. All peers are processes of `troth join` on one machine, over TLS, and
share its cores: whatever a stranger computes itself (imports, tickets, TLS, hashes, updates, gradients) slows the others too. Models are float32, with SGD and
momentum, so a state is eight bytes for each parameter; gradients cost next to nothing, so that a step is the protocol's own work. Founders are four.
"""


def _steps(size: int) -> list[str]:
    measured = measure(size)
    alone, both = measured.ratio(KILLED, QUIET), measured.ratio(BOTH, QUIET)
    return [
        _state(size),
        "",
        "In one run, over and over, with quiet steps between: a stranger fetches the state; another one does, and a founder is killed with SIGKILL when half",
        "has come; a founder is killed at the same moment of a step while nobody fetches anything. Contents are named every four steps.",
        "",
        *table(measured),
        "",
        f"Plainly: steps beside a download are {measured.ratio(DOWNLOAD, QUIET):.2f} times as long as quiet ones. A step in which a founder is killed is {alone:.2f} times",
        f"as long, since a part of it is repeated without the dead (SPEC N1); with a download {both:.2f} times, which is {measured.ratio(BOTH, KILLED):.2f} times that of a kill alone.",
    ]


def _state(size: int) -> str:
    return f"{size:,} parameters: a state of {8 * size / 1e6:.0f} MB."


def _resume(size: int) -> list[str]:
    head = "A stranger is killed with SIGKILL when half of the state has come, and the same command is started again. Contents are named every 16 steps."
    return [f"{_state(size)} {head}", "", *sentences(resume(size))]


def _donor(size: int) -> list[str]:
    """A stranger loses a donor half-way, and becomes a member all the same."""
    setting = Setting.large(size, 44)
    with tempfile.TemporaryDirectory() as temporary, peers_of(setting, Path(temporary)) as peers:
        name = "stranger0"
        peers.let_steps_pass(2)
        peers.start(name)
        peers.until(lambda: peers.chunk_bytes(name) >= 4 * size)
        peers.kill("founder0")
        peers.wait_for_the_end()
        models = peers.models()
        joined = [line for line in peers.log(peers.watched) if "joined" in line]
        told = [line for line in peers.log(name) if "download" in line or "model is here" in line or "catching" in line]
    return [
        f"{_state(size)} A founder that hands out the state is killed when half of it has come; the run goes on to its end, {setting.steps} steps, with a probation of {setting.probation}.",
        "",
        f"- {'; '.join(joined) or 'The stranger did not become a member'}.",
        f"- Models at the end: {len(set(models.values()))} different among {len(models)} (of {', '.join(models)}).",
        "",
        "```text",
        *told,
        "```",
    ]


def _digits(_size: int) -> list[str]:
    head = "A founder of a run of digits (four founders, contents named every 16 steps) is killed, and started again some steps later."
    return [head, "", f"- It caught up: {small_run().sentence()}."]


_PARTS: Mapping[str, tuple[str, Callable[[int], list[str]]]] = {
    "steps": ("Founders' steps", _steps),
    "resume": ("A stranger that is killed half-way", _resume),
    "digits": ("Catching up with a small model", _digits),
    "donor": ("To the end of a run, with a donor that dies", _donor),
}


def main(*parts: str) -> None:
    for wanted in parts or _PARTS:
        part, _, size = wanted.partition("=")
        title, make = _PARTS[part]
        before = os.getloadavg()[2]
        lines = make(int(size or SIZE))
        load = f"{before:.0f} before, {os.getloadavg()[2]:.0f} after it"
        machine = f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"
        where = f"`python -m benchmarks.newcomers_large {wanted}`, on {machine}; load of the machine: {load}."
        _rewrite(part, [f"## {title}", "", where, "", *lines])


def _rewrite(part: str, lines: list[str]) -> None:
    """Put this section into the results; the others stay as they were."""
    text = _RESULTS.read_text(encoding="utf-8") if _RESULTS.exists() else ""
    sections = dict.fromkeys(_PARTS, "")
    for name in sections:
        begin, end = _marks(name)
        if begin in text:
            sections[name] = text.split(begin)[1].split(end)[0].strip("\n")
    sections[part] = "\n".join(lines)
    print(sections[part], flush=True)
    marked = ["\n".join([_marks(name)[0], said, _marks(name)[1]]) for name, said in sections.items() if said]
    _RESULTS.write_text("\n\n".join([_HEAD.strip("\n"), *marked]) + "\n", encoding="utf-8")


def _marks(part: str) -> tuple[str, str]:
    return f"<!-- {part} -->", f"<!-- end of {part} -->"


if __name__ == "__main__":
    main(*sys.argv[1:])
