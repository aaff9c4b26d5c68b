"""The C library's free memory: kept for the next step of a large model, given back to the system after a crowd of strangers."""

import ctypes
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = (
    -1,
    -3,
    -4,
    -8,
)  # options of glibc's mallopt; other libraries have none, and need it less


_LARGE, _LARGEST = 1 << 20, 1 << 25  # parameters


def _find(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


_MALLOPT, _TRIM = _find("mallopt"), _find("malloc_trim")


def manage_memory(parameters: int) -> None:
    """Treat freed memory as suits a model of this size."""
    if _LARGE <= parameters < _LARGEST:
        keep_memory()
    elif parameters >= _LARGEST:
        keep_no_memory()


def keep_memory() -> None:
    """Keep freed memory. Vectors as large as the model come and go in every step, and fresh pages for them are slow."""
    if _MALLOPT is not None:
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, (1 << 31) - 1)):
            _MALLOPT(option, value)


def keep_no_memory() -> None:
    """Return every vector's memory when it is freed. The largest models need room more than they need the time for fresh pages;
    the C library would keep blocks below a size that grows with use."""
    if _MALLOPT is not None:
        _MALLOPT(_MMAP_THRESHOLD, 1 << 20)


def give_back_memory() -> None:
    """Return freed memory to the system."""
    if _TRIM is not None:
        _TRIM(0)
