"""Library errors name fields (`metrics_port`); a person at the command line knows options (`--metrics-port`).

Also options that several commands have.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from troth.errors import OperatorError


@contextmanager
def as_options(fields: Collection[str], named: Mapping[str, str] | None = None) -> Iterator[None]:
    """Rephrase errors that begin with one of these fields, or have them in backticks. `named`: options of another name."""
    try:
        yield
    except OperatorError as error:
        text = rephrased(str(error), {field: field.replace("_", "-") for field in fields} | dict(named or {}))
        if text == str(error):
            raise
        raise type(error)(text) from error


def rephrased(text: str, options: Mapping[str, str]) -> str:
    text = re.sub(r"`(\w+)`", lambda found: f"--{options[found[1]]}" if found[1] in options else found[0], text)
    first = re.match(r"\w+", text)
    return text if first is None or first[0] not in options else f"--{options[first[0]]}{text[first.end() :]}"


class OptionError(OperatorError):
    """An option out of its range; the message names it."""


def use_threads(threads: int) -> None:
    """Compute with so many threads from now on; 0 leaves it to PyTorch. Bits depend on the number."""
    import torch

    if threads < 0:
        raise OptionError(f"--threads must be at least 0, got {threads}")
    if threads:
        torch.set_num_threads(threads)
