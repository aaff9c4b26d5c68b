"""Consent in tests: kept in a folder of the tests' own, never in that of whoever runs them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from troth.network.manifest import consent


@contextmanager
def nobody_agreed(folder: Path) -> Iterator[Path]:
    """A person who has agreed to nothing yet; gives the file that would say so."""
    before, agreed = os.environ.get("XDG_CONFIG_HOME"), set(consent._agreed_here)
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    consent._agreed_here.clear()
    try:
        yield folder / "troth" / "trusted-code"
    finally:
        consent._agreed_here.clear()
        consent._agreed_here.update(agreed)
        os.environ.pop("XDG_CONFIG_HOME")
        os.environ.update({} if before is None else {"XDG_CONFIG_HOME": before})
