"""The root of all errors that an operator can cause.

Three kinds of failure are kept apart: a peer's fault is a value (evidence), an operator's mistake is one of these
errors and names its way out, and our own bug is an assertion. Imports nothing of ours, so that every package may use
it.
"""


class OperatorError(ValueError):
    """Bad input from the operator. Its message is one line; the command line prints it and exits with 2."""


def printable(text: str) -> str:
    """Make text that a stranger wrote safe to print: nothing in it moves the cursor or breaks the line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def one_word(text: str) -> str:
    """A stranger's name of a file as one word of ASCII: spaces in it would make a line of a list look like two, of files with
    other digests, and letters that are written from right to left, or that nobody sees, like another name."""
    return printable(text).encode("ascii", "backslashreplace").decode().replace(" ", "␣")
