"""Output folders of commands: as `lab.results` says, with its fields as options."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from troth.cli.fields import as_options
from troth.lab import results
from troth.lab.results import OutputError

__all__ = ["OutputError", "claim", "claimed"]

_OPTIONS = ("out", "overwrite")


def claim(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Path:
    """Make the folder, and check that it can be written to and holds no other run's summary."""
    with as_options(_OPTIONS):
        return results.claim(folder, config, overwrite=overwrite)


@contextmanager
def claimed(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Iterator[Path]:
    """Claim a folder for the work inside; if that fails, folders that were made for it and are still empty go again."""
    with as_options(_OPTIONS), results.claimed(folder, config, overwrite=overwrite) as made:
        yield made
