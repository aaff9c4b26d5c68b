"""The page's own files, read once: a table from paths to contents, so that no path of a request ever meets the disk."""

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "page"
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".txt": "text/plain"}


@dataclass(frozen=True)
class Asset:
    content: bytes
    kind: str


def assets() -> dict[str, Asset]:
    """All of them, by the path of a request."""
    files = [path for path in PAGE.rglob("*") if path.suffix in _TYPES]
    found = {
        f"/page/{path.relative_to(PAGE).as_posix()}": Asset(path.read_bytes(), _TYPES[path.suffix]) for path in files
    }
    return found | {"/": found.pop("/page/index.html")}
