"""Documents, read as a newcomer would: their blocks, commands and shown outputs.

Forms of blocks that a page may use:

- `sh`: commands, one a line. A block without a language right below it is the output of the last one.
- `console`: a terminal. `$ troth …` runs to its end, and the lines below it are its output. `alice$ troth join …` runs in
  Alice's terminal until it ends; the lines below it, and those in a block `console alice`, come in her terminal in this
  order, others between them left out. A line `^C` interrupts her, a line `Killed` kills her with `kill -9`, and
  `alice$ echo $?` shows how she ended.
- `python`: a file, if its first line is a comment with its name; otherwise a script.
- `…` in an output stands for anything. Times, numbers of steps, losses and the like may be shown as they were: see `_VARIES`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")])
LINKED = sorted(  # pages without commands of their own, whose links are checked all the same
    [
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").glob("*/*.md"),
        *(ROOT / "src/troth/protocol").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TEMPLATES = sorted((ROOT / "src/troth/cli/templates").glob("[a-z]*.py"))

_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES = re.compile(
    r"\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d|(?<=[Ss]tep )(?!(\d+)/\1 )\d+|(?<=step-)\d+|(?<=update )\d+|(?<=loss )[\d.]+"
    r"|(?<=accuracy )[\d.]+|[\d.]+(?= s a step)|[\d.]+(?= MB )|(?<=Δ )[\d.]+|(?<=pid )\d+|[\d.]+(?= m?s here)"
)
_PROMPT = re.compile(r"^(\w*)\$ (.+)$")


@dataclass(frozen=True)
class Block:
    kind: str
    person: str
    text: str
    after: str
    """The text between the block before and this one."""

    @property
    def file(self) -> str:
        """The file that a block of Python shows, or nothing."""
        named = re.match(r"# ([\w/]+\.py)\n", self.text)
        return named[1] if self.kind == "python" and named else ""


@dataclass(frozen=True)
class Command:
    text: str
    shown: tuple[str, ...] = ()
    person: str = ""


@dataclass(frozen=True)
class Seen:
    """Lines that are to come in somebody's terminal, and signals (`^C`, `Killed`) among them."""

    person: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    text: str
    file: str


Event = Command | Seen | Script


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text, end, found = page.read_text(encoding="utf-8"), 0, []
    for match in _BLOCK.finditer(text):
        kind, _, person = match[1].partition(" ")
        found.append(Block(kind, person, match[2], text[end : match.start()]))
        end = match.end()
    return found


def events(page: Path) -> list[Event]:
    """Everything on a page that happens, in order."""
    if page.suffix == ".py":
        return [Command(line) for line in _header(page)]
    story: list[Event] = []
    for block in blocks(page):
        if block.kind == "sh":
            story += [Command(line) for line in _logical_lines(block.text)]
        elif block.kind == "console":
            story += _terminal(block)
        elif block.kind == "python":
            story.append(Script(block.text, block.file))
        elif is_output(block) and isinstance(last := story[-1], Command):
            story[-1] = Command(last.text, tuple(block.text.splitlines()), last.person)
    return story


def is_output(block: Block) -> bool:
    return not block.kind and not block.after.strip()


def commands(page: Path) -> list[Command]:
    return [event for event in events(page) if isinstance(event, Command)]


def inline_commands(page: Path) -> list[str]:
    """Commands in the running text and in tables, which may be cut short."""
    return re.findall(r"`((?:troth|make) [^`\n]+)`", _BLOCK.sub("", page.read_text(encoding="utf-8")))


def plain(command: str) -> str:
    """A command without its comment."""
    return re.sub(r"\s+#\s.*$", "", command, flags=re.MULTILINE)


def _logical_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if plain(line).strip():
            yield plain(line).strip()


def _terminal(block: Block) -> Iterator[Event]:
    person, lines, command = block.person, [], ""
    for line in [*block.text.splitlines(), "$ "]:
        prompt = _PROMPT.match(line)
        if prompt is None and line != "$ ":
            lines.append(line)
            continue
        if command and not person:
            yield Command(command, tuple(lines))
        elif command:
            yield Command(command, person=person)
        if lines and person:
            yield Seen(person, tuple(lines))
        if prompt is not None:
            person, command, lines = prompt[1], prompt[2], []


def _header(page: Path) -> list[str]:
    text = ast.get_docstring(ast.parse(page.read_text(encoding="utf-8"))) or ""
    return [plain(line).strip() for line in text.splitlines() if re.match(r"\s*(troth|python) \S", line)]


def fits(shown: str, said: str) -> bool:
    """Whether a line, or a whole output, is the one that a page shows; `…` stands for anything."""
    expected, seen = (_VARIES.sub("#", text.strip()) for text in (shown, said))
    pattern = ".*".join(re.escape(piece) for piece in expected.split("…"))
    return re.fullmatch(pattern, seen, re.DOTALL) is not None
