"""What shows a run to an outsider: its summary, evidence of bans, and the offline checks of both."""

from troth.evidence.summary import RunSummary, slug

__all__ = ["RunSummary", "slug"]
