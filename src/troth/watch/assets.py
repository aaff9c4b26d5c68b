"""The page's own files, read once: a table from paths to contents, so that no path of a request ever meets the disk."""

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "woff2": "font/woff2",
}
_NOT_HERE = (
    b"<!doctype html><meta charset=utf-8><title>Troth</title><p>This installation of Troth lacks the page's files."
)


@dataclass(frozen=True)
class Asset:
    content: bytes
    kind: str


def assets() -> dict[str, Asset]:
    """All of them, by the path of a request."""
    root = files("troth.watch") / "page"
    found = _below(root, "/page/") if root.is_dir() else {}
    found["/"] = found.pop("/page/index.html", Asset(_NOT_HERE, _TYPES["html"]))
    return found


def _below(folder: Traversable, path: str) -> dict[str, Asset]:
    table: dict[str, Asset] = {}
    for one in folder.iterdir():
        kind = _TYPES.get(one.name.rpartition(".")[2])
        if one.is_dir():
            table |= _below(one, f"{path}{one.name}/")
        elif kind is not None:
            table[path + one.name] = Asset(one.read_bytes(), kind)
    return table
