"""The same passes in PyTorch's operations: tensors stay on the device where they lie, a few sums come back. Where Triton is there
and takes them, its loops make one pass of several operations.

Elementwise operations in float64 are rounded once, alone, on every device, so what is added up in a fixed order has the same bits
there as here. Matrix products are right to a tolerance.
"""

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip.kernels import Differences

# P rows, D coordinates, C coordinates of a block, K projections, B bytes of signs for each coordinate

Wide = TypeVar("Wide", NDArray[np.float64], Tensor)  # of float64

_BLOCK = 1 << 20  # coordinates at a time, over all rows: float64 copies of everything would take too much memory
_MOST_ROWS = 32  # of a Gram matrix in one tile
_RUN = 1 << 12  # coordinates of one matrix product among many
_EXPONENT = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF
_LEAST_NORMAL = 0x00800000


def odd_numbers(numbers_D: Tensor) -> tuple[bool, bool]:
    """Whether there is a subnormal, and whether there is an infinity or a NaN; by their bits."""
    if numbers_D.is_cuda and (loops := in_triton()) is not None:
        found = int(loops.odd_numbers(numbers_D.detach().contiguous().view(torch.int32)))
        return bool(found & 1), bool(found & 2)
    magnitude_D = numbers_D.detach().contiguous().view(torch.int32) & _MAGNITUDE
    subnormal = ((magnitude_D > 0) & (magnitude_D < _LEAST_NORMAL)).any()
    subnormal_here, endless_here = torch.stack([subnormal, (magnitude_D >= _EXPONENT).any()]).tolist()
    return subnormal_here, endless_here


def flush(numbers_D: Tensor) -> None:
    """Replace every float32 below 2⁻¹²⁶ by 0, in place."""
    bits_D = numbers_D.detach().view(torch.int32)
    bits_D.masked_fill_((bits_D & _EXPONENT) == 0, 0)


def finite_or_zero(numbers_D: Tensor) -> Tensor:
    """Numbers without subnormals; all zeros unless all are finite. Nothing waits for the device."""
    if _in_triton(numbers_D[None]) and (loops := in_triton()) is not None:
        clean_D: Tensor = loops.finite_or_zero(numbers_D.detach().view(torch.int32)).view(torch.float32)
        return clean_D
    bits_D = numbers_D.detach().contiguous().view(torch.int32)
    flushed_D = torch.where((bits_D & _EXPONENT) == 0, 0, bits_D).view(torch.float32)
    return torch.where(torch.isfinite(numbers_D).all(), flushed_D, numbers_D.new_zeros(()))


def tree_sum(terms: Wide) -> Wide:
    """Sums along the last axis, the second half added to the first until one is left; `terms`, of NumPy or a tensor, is used up.

    Off by at most log₂(D)·2⁻⁵³ of the sum of magnitudes, whatever the numbers are.
    """
    width = terms.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        terms[..., : width - half] += terms[..., half:width]
        width = half
    sums: Wide = terms[..., 0]
    return sums


def exact_norm(numbers_D: Tensor, lanes: int, depth: int) -> float:
    """Length of a vector: squares in lanes side by side, the lanes as a tree, the trees' sums at once, on the host."""
    block, sums = lanes * depth, []
    whole = len(numbers_D) // block
    for first in range(0, whole, max(1, _BLOCK // block)):
        some_D = numbers_D[first * block : min(first + max(1, _BLOCK // block), whole) * block]
        squares_NDL = _wide(some_D).square_().view(-1, depth, lanes)
        sums.append(_lanes(squares_NDL.unbind(1)))
    if len(numbers_D) % block:
        squares_D = _wide(numbers_D[whole * block :]).square_()
        sums.append(_lanes(torch.split(squares_D, lanes)))
    return math.sqrt(math.fsum(torch.cat([some.view(-1) for some in sums]).tolist())) if sums else 0.0


def _wide(numbers: Tensor) -> Tensor:
    """A copy in float64 that may be overwritten; `double()` gives the numbers themselves where they are float64 already."""
    return numbers.detach().to(torch.float64, copy=True)


def _lanes(squares: Sequence[Tensor]) -> Tensor:
    """Add up what stands in each lane, then the lanes; the last of the squares may be short."""
    sums = squares[0].clone()
    for more in squares[1:]:
        sums[..., : more.shape[-1]] += more
    return tree_sum(sums)


def differences(rows_PD: Tensor, center_D: Tensor, bounds: Sequence[int], signs_DB: Tensor) -> Differences:
    """Compare rows with a centre, span by span; `signs_DB` are the bytes of their signs, there too."""
    if rows_PD.is_cuda and signs_DB.shape[1] == 2 and (loops := in_triton()) is not None:
        rows_PD = rows_PD if rows_PD.stride(1) == 1 else rows_PD.contiguous()
        bounds_S, longest = _spans(tuple(bounds), rows_PD.device)
        words_D = signs_DB.view(torch.int16).view(-1)
        sums_SPK = loops.differences(rows_PD.detach(), center_D.detach(), words_D, bounds_S, longest).cpu().numpy()
        return Differences(sums_SPK[..., -2], sums_SPK[..., -1], sums_SPK[..., :-2])
    found = [
        _span(rows_PD[:, start:stop], center_D[start:stop], signs_DB[start:stop]) for start, stop in pairwise(bounds)
    ]
    squares_SP, lengths_SP, products_SPK = (torch.stack(some).cpu().numpy() for some in zip(*found, strict=True))
    return Differences(squares_SP, lengths_SP, products_SPK)


@lru_cache(maxsize=64)
def _spans(bounds: tuple[int, ...], device: torch.device) -> tuple[Tensor, int]:
    """Bounds of spans on the device, and the length of the longest."""
    longest = max((stop - start for start, stop in pairwise(bounds)), default=0)
    return torch.tensor(bounds, dtype=torch.int64).to(device), longest


@cache
def in_triton(name: str = "triton_loops") -> Any:
    """Loops in Triton, if it is there: it comes with PyTorch for CUDA."""
    try:
        return import_module(f"troth.clip.{name}")
    except ImportError:
        return None


def _span(rows_PD: Tensor, center_D: Tensor, signs_DB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances, squared lengths and P×8B products; bit k of a coordinate's bytes is row k, and a set bit is −1."""
    peers, count = len(rows_PD), 8 * signs_DB.shape[1]
    shifts_8 = torch.arange(8, dtype=torch.uint8, device=rows_PD.device)
    squares_P = torch.zeros(peers, dtype=torch.float64, device=rows_PD.device)
    lengths_P, products_PK = torch.zeros_like(squares_P), squares_P.new_zeros(peers, count)
    for block in _blocks(rows_PD, at_least=count):
        wide_PC = _wide(rows_PD[:, block])
        lengths_P += wide_PC.square().sum(dim=1)
        wide_PC -= center_D[block].detach()
        squares_P += wide_PC.square().sum(dim=1)
        bits_CK = ((signs_DB[block, :, None] >> shifts_8) & 1).reshape(-1, count)
        products_PK += _long_products(wide_PC, (1 - 2 * bits_CK.double()).T)
    return squares_P, lengths_P, products_PK


def squared_parts(vector_D: Tensor, bounds: Sequence[int]) -> NDArray[np.float64]:
    """Squared lengths of a vector's parts, in float64."""
    if _in_triton(vector_D[None]) and (loops := in_triton()) is not None:
        exact: NDArray[np.float64] = (
            loops.squared_parts(vector_D.detach(), *_spans(tuple(bounds), vector_D.device)).cpu().numpy()
        )
        return exact
    sums = [_wide(vector_D[start:stop]).square_().sum() for start, stop in pairwise(bounds)]
    found: NDArray[np.float64] = torch.stack(sums).cpu().numpy()
    return found


def gram(vectors_PD: Tensor, reference_D: Tensor) -> NDArray[np.float64]:
    """`⟨x_i − r, x_j − r⟩` in float64."""
    if _in_triton(vectors_PD, reference_D) and (loops := in_triton()) is not None:
        exact_PP: NDArray[np.float64] = loops.gram(vectors_PD.detach(), reference_D.detach()).cpu().numpy()
        return exact_PP
    gram_PP = torch.zeros(len(vectors_PD), len(vectors_PD), dtype=torch.float64, device=vectors_PD.device)
    for block in _blocks(vectors_PD):
        around_PC = torch.sub(vectors_PD[:, block].detach(), reference_D[block].detach().double())
        gram_PP += _long_products(around_PC, around_PC)
    found_PP: NDArray[np.float64] = gram_PP.cpu().numpy()
    return (found_PP + found_PP.T) / 2


def _in_triton(*vectors: Tensor) -> bool:
    """Whether loops in Triton take these: few rows of float32 on a GPU, one number after the other."""
    ready = all(v.is_cuda and v.dtype == torch.float32 and v.stride(-1) == 1 for v in vectors)
    return ready and len(vectors[0]) <= _MOST_ROWS


def _long_products(left_PC: Tensor, right_KC: Tensor) -> Tensor:
    """`left @ right.T` for few long rows, cut into many short products: a matrix of sixteen by sixteen alone would keep a single
    processor of a GPU busy."""
    whole = left_PC.shape[1] // _RUN * _RUN
    left_NPR, right_NKR = (
        rows[:, :whole].view(len(rows), whole // _RUN, _RUN).transpose(0, 1) for rows in (left_PC, right_KC)
    )
    return torch.bmm(left_NPR, right_NKR.transpose(1, 2)).sum(dim=0) + left_PC[:, whole:] @ right_KC[:, whole:].T


def combine(
    vectors_PD: Tensor, coefficients_P: Tensor, reference_D: Tensor, rest: float
) -> tuple[Tensor, float, float, float]:
    """`Σ c_i x_i + rest·r` in the rows' format, flushed; with the squares of what rounding lost, of the value and of r."""
    if _in_triton(vectors_PD, reference_D) and (loops := in_triton()) is not None:
        value_D, sums_3 = loops.combine(vectors_PD.detach(), coefficients_P, reference_D.detach(), rest)
        lost, length, reach = sums_3.tolist()
        return value_D, lost, length, reach
    value_D = torch.empty_like(reference_D)
    sums_3 = torch.zeros(3, dtype=torch.float64, device=vectors_PD.device)
    for block in _blocks(vectors_PD):
        center_C = reference_D[block].detach().double()
        exact_C = torch.mv(vectors_PD[:, block].detach().double().T, coefficients_P).add_(center_C, alpha=rest)
        value_D[block] = exact_C
        if value_D.dtype == torch.float32:
            flush(value_D[block])
        rounded_C = value_D[block].double()
        sums_3 += torch.stack(
            [(exact_C - rounded_C).square_().sum(), rounded_C.square_().sum(), center_C.square_().sum()]
        )
    lost, length, reach = sums_3.tolist()
    return value_D, lost, length, reach


def hashes_there(vector_D: Tensor) -> bool:
    """Whether `begin_hashes` takes the bytes of this vector."""
    fits = vector_D.is_cuda and vector_D.dtype == torch.float32 and vector_D.is_contiguous()
    return fits and in_triton("triton_sha256") is not None


def leaf_places(vectors: Sequence[Tensor], bounds: Sequence[int], width: int) -> Tensor:
    """2×N: places and lengths of all leaves, for `begin_hashes`, on their way to the device. Bounds and width are in bytes."""
    starts_L, lengths_L = _leaves(tuple(bounds), width)
    first = vectors[0].data_ptr()
    away_V = np.array([vector_D.data_ptr() - first for vector_D in vectors], dtype=np.int64) // 4
    places_2N = np.stack([(away_V[:, None] + starts_L // 4).reshape(-1), np.tile(lengths_L, len(vectors))])
    return torch.from_numpy(places_2N).pin_memory().to(vectors[0].device, non_blocking=True)


def begin_hashes(vectors: Sequence[Tensor], places_2N: Tensor) -> Tensor:
    """N×8 int32, the eight words of SHA-256: of one vector of bytes after the other, span by span, every `width` bytes.

    Nothing waits for the device, on which they are computed: all together take as long as one. Spans begin with a word of the
    vectors; their memory, to the end of its last word, has to stay until then."""
    first = vectors[0].detach()
    assert first.dtype == torch.uint8, "bytes, whatever they stand for"
    words = torch.empty(0, dtype=torch.int32, device=first.device)  # of the same memory
    words.set_(first.untyped_storage(), first.storage_offset() // 4, (-(-len(first) // 4),), (1,))
    hashes_N8: Tensor = in_triton("triton_sha256").sha256(words, *places_2N)
    return hashes_N8


@lru_cache(maxsize=64)
def _leaves(bounds: tuple[int, ...], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places and lengths of the leaves of every span."""
    starts = [first for start, stop in pairwise(bounds) for first in range(start, stop, width)]
    stops = [min(first + width, stop) for start, stop in pairwise(bounds) for first in range(start, stop, width)]
    return np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64) - np.array(starts, dtype=np.int64)


def _blocks(rows_PD: Tensor, at_least: int = 0) -> list[slice]:
    """Slices of coordinates, of a size that depends on nothing but the rows' number."""
    width = max(1, 16 * _BLOCK // max(len(rows_PD), at_least))
    return [slice(start, start + width) for start in range(0, rows_PD.shape[1], width)]
