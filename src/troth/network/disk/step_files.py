"""Files that are named after a step."""

from pathlib import Path


def step_files(folder: Path, suffix: str) -> dict[int, Path]:
    """All files `step-N.suffix` of a folder by N, the oldest first. Files with other names are somebody else's."""
    found = {path.stem.removeprefix("step-"): path for path in folder.glob(f"step-*.{suffix}")}
    return {int(step): path for step, path in sorted(found.items()) if step.isascii() and step.isdecimal()}
