"""Evidence that shows a run to an outsider: its summary, its bans, and the offline checks of both.

A member makes evidence (`bans`, `make_exhibit`), a file carries it (`file_format`, `companion_files`), and a stranger checks it
(`verify`, `open_exhibit`) and repeats the disputed computation (`recompute`, `recompute_part`).
"""

from troth.evidence.file_format import RunSummary, slug

__all__ = ["RunSummary", "slug"]
