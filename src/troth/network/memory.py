"""Memory that is free goes back to the system: the C library keeps it for the next crowd, which may never come."""

import ctypes
from collections.abc import Callable


def _find_trim() -> Callable[[int], int] | None:
    """glibc has it, others need it less."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Callable[[int], int] = trim
    return found


_TRIM = _find_trim()


def give_back_memory() -> None:
    if _TRIM is not None:
        _TRIM(0)
