"""Reasons to refuse evidence: a file that proves nothing, and a computation that cannot be repeated."""


class UnprovedError(ValueError):
    """The file does not prove its claim; the message says where it breaks."""


class RecomputeError(ValueError):
    """The disputed computation cannot be repeated from the files at hand; the message says why."""
