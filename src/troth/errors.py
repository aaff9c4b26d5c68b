"""The root of all errors that an operator can cause, text of strangers made safe to print, and how to install an extra.

Three kinds of failure are kept apart: a peer's fault is a value (evidence), an operator's mistake is one of these
errors and names its way out, and our own bug is an assertion. Imports nothing of ours, so that every package may use
it.
"""

import sys
from pathlib import Path


class OperatorError(ValueError):
    """Bad input from the operator. Its message is one line; the command line prints it and exits with 2."""


def printable(text: str) -> str:
    """Make text that a stranger wrote safe to print: nothing in it moves the cursor or breaks the line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def one_word(text: str) -> str:
    """A stranger's name of a file as one word of ASCII: spaces in it would make a line of a list look like two, of files with
    other digests, and letters that are written from right to left, or that nobody sees, like another name."""
    return printable(text).encode("ascii", "backslashreplace").decode().replace(" ", "␣")


# How to install an optional part of Troth (an extra), as it fits this installation: a clone, or a package.


def how_to_install(extra: str) -> str:
    """The command for this installation: `pip install 'troth[metrics]'`, or that of a clone."""
    clone = _clone_of(Path(__file__))
    return f"pip install 'troth[{extra}]'" if clone is None else _in_clone(clone, extra, Path.cwd(), Path(sys.prefix))


def _clone_of(module: Path) -> Path | None:
    """The clone in which this module of the package lies (CLONE/src/troth/module.py); None for an installed package."""
    source = module.resolve().parent.parent
    return source.parent if source.name == "src" and (source.parent / "pyproject.toml").is_file() else None


def _in_clone(clone: Path, extra: str, folder: Path, prefix: Path) -> str:
    """The command to type in `folder`, with the interpreter of `prefix`."""
    where = "." if folder.resolve() == clone else f"{clone}"
    if prefix.resolve() != clone / ".venv":
        return f"python -m pip install -e '{where}[{extra}]'"
    pip = ".venv/bin/pip" if where == "." else f"{clone}/.venv/bin/pip"
    return f"{pip} install -e '{where}[{extra}]'"
