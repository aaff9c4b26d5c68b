"""Library errors name fields (`metrics_port`); a person at the command line knows options (`--metrics-port`)."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from troth.errors import OperatorError


@contextmanager
def as_options(fields: Collection[str]) -> Iterator[None]:
    """Rephrase errors that begin with the name of one of these fields."""
    try:
        yield
    except OperatorError as error:
        text = str(error)
        named = re.match(r"\w+", text)
        if named is None or named[0] not in fields:
            raise
        raise type(error)(f"--{named[0].replace('_', '-')}{text[named.end() :]}") from error
