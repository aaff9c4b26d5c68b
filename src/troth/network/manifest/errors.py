"""The error about manifests, and how it quotes text that a stranger wrote."""

from troth.errors import OperatorError, printable


class ManifestError(OperatorError):
    """A manifest that cannot be used, or does not fit this machine; the message names the field and the way out."""


class ConsentError(ManifestError):
    """Code that a manifest names, and that nobody here has agreed to run; the message names its SHA-256."""


def quoted(text: str) -> str:
    """Hostile text for a terminal: short, and without control characters."""
    return f"'{printable(text[:80])}'"
