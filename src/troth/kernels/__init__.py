"""Passes over large vectors: each reads its numbers once, on all cores given to this peer, without the interpreter's lock.

Compiled loops are for vectors of `LARGE` numbers or more on a CPU; numba is imported when the first of them comes. The readable
reference stands with the caller, which takes it for smaller vectors and where numba cannot be imported. Where peers agree on
bits, both give the same; where a tolerance decides, both are right to 10⁻¹², and bits do not depend on the number of threads.
`on_device` has the same passes in PyTorch's operations, for tensors that lie on an accelerator and stay there.

This package knows nothing of the rest of Troth.
"""

from troth.kernels.choice import LARGE, compiled, fits
from troth.kernels.clipping import combine, gram
from troth.kernels.differences import Differences, differences, squared_lengths
from troth.kernels.judging import pulls
from troth.kernels.numbers import exact_norm, flush, odd_numbers
from troth.kernels.prepare import prepare
from troth.kernels.updates import adamw, sgd

__all__ = [
    "LARGE",
    "Differences",
    "adamw",
    "combine",
    "compiled",
    "differences",
    "exact_norm",
    "fits",
    "flush",
    "gram",
    "odd_numbers",
    "prepare",
    "pulls",
    "sgd",
    "squared_lengths",
]
