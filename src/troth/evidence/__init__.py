"""What shows a run to an outsider: its summary; with the protocol also evidence files, offline checks and journals."""

from troth.evidence.summary import RunSummary, slug, sync_folder, write_bytes, write_text

__all__ = ["RunSummary", "slug", "sync_folder", "write_bytes", "write_text"]
