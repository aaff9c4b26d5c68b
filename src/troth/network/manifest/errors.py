"""The error about manifests, and how it quotes text that a stranger wrote."""

from troth.errors import OperatorError, printable


class ManifestError(OperatorError):
    """A manifest that cannot be used, or does not fit this machine; the message names the field and the way out."""


def quoted(text: str) -> str:
    """Hostile text for a terminal: short, and without control characters."""
    return f"'{printable(text[:80])}'"
