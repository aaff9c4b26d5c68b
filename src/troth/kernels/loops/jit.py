"""How loops are compiled: without the interpreter's lock, kept on disk, and rounded as written unless said otherwise."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

_POINTER: Any = numba.types.CPointer(numba.float32)

# Sums may be regrouped and products fused, so that they fill a vector unit. NaN and infinity stay what they are.
REGROUPED = {"reassoc", "contract"}


def exact(function: F) -> F:
    """Compile a loop whose every operation is rounded once, in the order written: the same bits on every machine.

    LLVM fuses a product and a sum only where both carry the flag `contract`, and none is set here.
    """
    return _compile(function, fastmath=False)


def regrouped(function: F) -> F:
    """Compile a loop whose sums are right to a tolerance: their order depends on the processor, not on threads."""
    return _compile(function, fastmath=REGROUPED)


def _compile(function: F, fastmath: bool | set[str]) -> F:
    # NumPy's way to divide: by zero it gives an infinity, where Python would raise.
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in can be written: every process compiles for itself
        return cast(F, numba.njit(**options)(function))


def _forget_outdated() -> None:
    """Remove compiled loops that are older than any source here: a loop is built into others, which numba does not track."""
    here = Path(__file__).parent
    newest = max(source.stat().st_mtime for source in here.glob("*.py"))
    for kept in here.glob("__pycache__/*.nbi"):
        with suppress(OSError):  # another process was faster, or the folder is not ours
            if kept.stat().st_mtime < newest:
                kept.unlink()


_forget_outdated()


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _float32_at(_typing: Any, _address: Any) -> Any:
    """A pointer to float32 from an address."""

    def build(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(_POINTER))

    return _POINTER(numba.uintp), build


@exact
def numbers_at(address: int, size: int) -> NDArray[np.float32]:
    """The float32 numbers at an address. All input comes this way: rows may lie anywhere, be read-only or many, and one
    compiled loop takes them all."""
    numbers_D: NDArray[np.float32] = numba.carray(_float32_at(np.uintp(address)), (size,), np.float32)
    return numbers_D
