"""What the C library does with memory that is free: kept for the next step of a large model, given back after a crowd."""

import ctypes
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's mallopt; others have no such thing, and need it less


def _find(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


_MALLOPT, _TRIM = _find("mallopt"), _find("malloc_trim")


def keep_memory() -> None:
    """Vectors as large as the model come and go in every step, and fresh pages for them cost more than what is done to them."""
    if _MALLOPT is not None:
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1)):
            _MALLOPT(option, value)


def give_back_memory() -> None:
    if _TRIM is not None:
        _TRIM(0)
