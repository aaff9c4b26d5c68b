"""Output folders: checked before hours of work, and never overwritten by another run's results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.evidence.bans import BanEvidence


class OutputError(OperatorError):
    """An output folder that cannot be used; the message says why."""


def claim(folder: Path, config: dict[str, Any], *, overwrite: bool) -> Path:
    """Make the folder, and check that it can be written to and holds no other run's summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write to --out {folder}: {error.strerror}; choose another folder") from error
    summary = folder / "summary.json"
    if summary.exists() and not overwrite and _config_in(summary) != config:
        raise OutputError(f"{folder} holds the results of another run: choose another --out, or add --overwrite")
    return folder


def _config_in(summary: Path) -> Any:
    try:
        return json.loads(summary.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_evidence(folder: Path, evidence: Mapping[str, "BanEvidence"]) -> None:
    """One file per ban, beside it what its recomputation starts from, and the run's id; in place of earlier ones."""
    from troth.evidence.companion_files import FILES, save_evidence
    from troth.evidence.verify import verify_ban
    from troth.files import write_text

    place = folder / "evidence"
    for old in (file for kind in (*FILES, "run") for file in place.glob(kind)):
        old.unlink()
    if evidence:
        place.mkdir(exist_ok=True)
    for name, ban in evidence.items():
        proof = verify_ban(ban.text)
        save_evidence(place / name, ban, proof)
        write_text(place / "run", proof.run.id.hex() + "\n")
