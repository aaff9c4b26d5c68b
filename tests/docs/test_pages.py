"""README, docs and examples: every command exists, every link leads somewhere, and every quick command is executed here.

The slow ones (a swarm, four friends, hundreds of steps) are executed by `make test-docs`, with the quick ones before them.
"""

import re
import shlex
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import typer

import troth
from tests.docs.pages import (
    EXAMPLES,
    LINKED,
    PAGES,
    ROOT,
    TEMPLATES,
    Command,
    Script,
    Seen,
    blocks,
    commands,
    events,
    fits,
    inline_commands,
    is_output,
    name_of,
)
from tests.docs.plan import NO_OUTPUT, NOT_RUN, OWN_TESTS, SLOW, is_slow
from tests.docs.shell import importing_from, make_clone, run_here, run_in_shell
from tests.docs.terminals import Terminals
from troth.cli import app

TROTH = re.compile(r"(?:^|[\s(])(?:\.venv/bin/)?troth ([^|;&>`)]*)")
MAKE = re.compile(r"(?:^|`)make ([a-z-]+)")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TOLD = [page for page in [*PAGES, *EXAMPLES] if name_of(page) not in OWN_TESTS and events(page)]


def subcommand(words: list[str]) -> tuple[Any, list[str]]:
    """The command that is meant, and the words that are left for it."""
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        assert words[0] in found.commands, f"troth has no command {words[0]}"
        _, found, words = found.resolve_command(typer.Context(found), words)
    return found, words


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES, *TEMPLATES], ids=name_of)
def test_commands_parse(page: Path) -> None:
    """Commands in blocks are parsed whole, without being run."""
    for command in commands(page):
        for words in TROTH.findall(command.text):
            meant, left = subcommand(shlex.split(words))
            meant.make_context(meant.name, left)
        for target in MAKE.findall(command.text):
            assert target in TARGETS, command.text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_have_these_options(page: Path) -> None:
    """Commands in the running text may be cut short, so only their names and options are looked up."""
    for command in inline_commands(page):
        if command.startswith("make "):
            assert command.split()[1] in TARGETS, command
            continue
        words = command.split()[1:]
        if not words or not words[0].isidentifier():
            continue
        meant, left = subcommand(words)
        known = {option for parameter in meant.params for option in parameter.opts} | {"--help"}
        unknown = {word for word in left if re.fullmatch(r"--[a-z-]+", word)} - known
        assert not unknown, command


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as links to them are written."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *LINKED], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if not link.startswith("http"):
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{link}#{anchor}"
    for named in re.findall(r"`((?:src|docs|tests|examples|benchmarks)/[\w/.-]+)`", text):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_known_kinds_and_python_compiles(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in {"sh", "console", "python", "toml", ""}, block.kind
        if not block.kind:
            assert is_output(block) or name_of(page) in NO_OUTPUT, f"an output of which command?\n{block.text}"
        if block.kind == "python":
            compile(block.text, name_of(page), "exec")


def test_plan_names_nothing_that_is_gone() -> None:
    """An entry of the plan that fits no command would hide that a command was dropped, or is misspelt."""
    written = {name_of(page): events(page) for page in [*PAGES, *EXAMPLES]}
    for page, beginnings in SLOW.items():
        for beginning in beginnings:
            assert any(_text(event).startswith(beginning) for event in written[page]), f"{page}: {beginning}"
    everything = {_text(event) for story in written.values() for event in story}
    assert set(NOT_RUN) <= everything
    assert all(NOT_RUN.values())
    for page, test in OWN_TESTS.items():
        assert page in (ROOT / test).read_text(encoding="utf-8"), f"{test} is not about {page}"


def _text(event: Command | Seen | Script) -> str:
    return "" if isinstance(event, Seen) else event.text


@pytest.mark.parametrize("page", TOLD, ids=name_of)
def test_quick_commands_do_what_is_shown(page: Path, tmp_path: Path) -> None:
    clone = make_clone(tmp_path)
    for event in events(page):
        if isinstance(event, Seen) or _is_elsewhere(page, event) or is_slow(name_of(page), event.text):
            continue
        if isinstance(event, Command):
            _compare(event, run_here(event.text, clone))
        else:
            _execute(event, clone)


@pytest.mark.slow_docs
@pytest.mark.parametrize("page", [page for page in TOLD if name_of(page) in SLOW], ids=name_of)
def test_all_commands_do_what_is_shown(page: Path, tmp_path: Path) -> None:
    clone = make_clone(tmp_path)
    with Terminals(clone) as terminals:
        for event in events(page):
            if isinstance(event, Seen):
                terminals.of(event.person).see(event)
            elif _is_elsewhere(page, event):
                continue
            elif isinstance(event, Script):
                _execute(event, clone)
            elif event.person:
                terminals.of(event.person).type(event.text)
            else:
                began = time.monotonic()
                _compare(event, run_in_shell(event.text, clone))
                print(f"{time.monotonic() - began:6.1f} s  {event.text}", flush=True)


@pytest.mark.slow_docs
def test_script_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that it joins has Alice alone in it: how four of them do, `test_examples.py` shows."""
    monkeypatch.chdir(tmp_path)
    (script,) = [event for event in events(ROOT / "README.md") if isinstance(event, Script) and not event.file]
    alice = troth.Identity.generate()
    alice.save("alice.key")
    troth.new("run.toml", "digits", [troth.Founder("alice", alice.peer, "127.0.0.1:7009")], steps=5)
    names: dict[str, Any] = {}
    exec(compile(script.text, "README.md", "exec"), names)
    assert names["result"].metrics["accuracy"] > 0.8
    assert sum(weights.numel() for weights in names["model"].parameters()) > 1000


def _is_elsewhere(page: Path, event: Command | Script) -> bool:
    """Whether a command is not run, for a reason, or a script has a test of its own."""
    if isinstance(event, Script):
        return page.name == "README.md" and not event.file
    return event.text in NOT_RUN or (page in EXAMPLES and event.text.startswith("python "))


def _compare(command: Command, said: str) -> None:
    shown = "\n".join(command.shown)
    assert not shown or fits(shown, said), f"{command.text}\nshown:\n{shown}\nseen:\n{said}"


def _execute(script: Script, clone: Path) -> None:
    if script.file:
        (clone / script.file).write_text(script.text, encoding="utf-8")
        return
    with importing_from(clone), chdir(clone):
        exec(compile(script.text, "snippet", "exec"), {"__name__": "snippet"})
