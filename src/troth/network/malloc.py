"""The C library's free memory: kept for the next step of a large model, given back to the system after a crowd of strangers."""

import ctypes
from typing import Any

# Options of glibc's mallopt; other libraries have none, and need it less.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_LARGE, _LARGEST = 1 << 20, 1 << 25  # parameters


def _find(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


_MALLOPT, _TRIM = _find("mallopt"), _find("malloc_trim")


def manage_memory(parameters: int) -> None:
    """Treat freed memory as suits a model of this size.

    Of a large one it is kept: vectors as large as the model come and go in every step, and fresh pages for them are slow. The
    largest need room more than time, so every vector's memory is returned when it is freed; the C library would keep blocks
    below a size that grows with use."""
    if _MALLOPT is None or parameters < _LARGE:
        return
    kept = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1))
    for option, value in kept if parameters < _LARGEST else ((_MMAP_THRESHOLD, 1 << 20),):
        _MALLOPT(option, value)


def give_back_memory() -> None:
    """Return freed memory to the system."""
    if _TRIM is not None:
        _TRIM(0)
