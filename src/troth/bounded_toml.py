"""TOML from somebody else, read within bounds: `tomllib` takes quadratic time for keys of many dots, and a frame of the stack for
each bracket."""

import re
import tomllib
from typing import Any

MOST_BYTES = 1 << 20
MOST_LINE = 4096  # bytes
MOST_DOTS = 16  # in a key
_KEY = re.compile(rb"\s*(?:\[[^\]\n]*|[^=\n]*)")  # of a header, or before the first `=`


def parse_toml(raw: bytes, what: str) -> dict[str, Any]:
    """Raises ValueError, and nothing else, for anything but a TOML file of ordinary size and depth; `what` such a file is."""
    if len(raw) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES:,} bytes: no {what} is")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if len(line) > MOST_LINE:
            raise ValueError(f"line {number} has more than {MOST_LINE:,} bytes: break it into several")
        if line.count(b".") > MOST_DOTS and (key := _KEY.match(line)) and key[0].count(b".") > MOST_DOTS:
            raise ValueError(f"line {number}: a key has more than {MOST_DOTS} dots: no {what} has such a key")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text in UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise ValueError(f"nested too deeply: no {what} is") from error
    except ValueError as error:  # also of a number that is too long
        raise ValueError(f"not TOML: {error}") from error
