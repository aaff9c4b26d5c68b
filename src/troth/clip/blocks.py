"""Vectors in few bytes: blocks of 255 numbers that share a power of two.

A block is one byte for the exponent and 255 codes, so that a leaf of 64 KiB holds 256 blocks of int8. A number is its code times
`2^(exponent − 126)`, exactly: what a vector means is the same float32 everywhere, and nothing is lost on the way from numbers to
bytes and back. Numbers are *rounded* once, to such as blocks can hold, and *packed* as often as somebody needs their bytes.

Each such vector has one form: the least exponent that its largest number allows. What comes from a peer in another form is
malformed, or an owner could choose its own rounding by writing large exponents.

The functions here are the readable definition. Large vectors go through compiled loops with the same bits (`block_loops`), and
those of a device stay there (`block_tensors`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from troth.clip import kernels

# D coordinates, B blocks, C codes of a block

BLOCK = 255
NOT_FINITE = "a gradient that is not finite is none, and is zeros before it comes here"
NOT_ROUNDED = "only rounded numbers are packed: others would be changed"
BIAS = 126  # of exponents: the least is 2⁻¹²⁶, since no vector holds a smaller number (SPEC C3)
FACTORS, SPACING = (0x7FEB352D, 0x846CA68B), 0x9E3779B9


class Form(Protocol):
    """A way to write float32 numbers down."""

    @property
    def name(self) -> str: ...

    def length(self, count: int) -> int:
        """Bytes of so many numbers."""
        ...

    def count(self, length: int) -> int:
        """Numbers in so many bytes, if that is what they are."""
        ...

    def round(self, numbers_D: Tensor, key: bytes = b"") -> Tensor:
        """Numbers that this form can hold: the nearest, or with a key of 8 public bytes such that their mean stays."""
        ...

    def round_and_pack(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, memoryview]:
        """The same, and their bytes, in one pass."""
        ...

    def pack(self, numbers_D: Tensor) -> memoryview:
        """The bytes of numbers that this form can hold."""
        ...

    def begin(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, Tensor]:
        """`round_and_pack` of finite numbers of a device, where they lie: nothing waits for it."""
        ...

    def unpack(self, view: memoryview, into_D: NDArray[np.float32] | None = None) -> NDArray[np.float32] | None:
        """The numbers, in this place if there is one, if that is their one form; else None. Not to be written to."""
        ...

    def unpack_to(self, view: memoryview, device: torch.device) -> Tensor | None:
        """The same on a device; what crosses are the bytes."""
        ...

    def rounding(self, view: memoryview) -> float:
        """Most that rounding moves a vector that came out as these bytes."""
        ...

    def stored(self, numbers_D: Tensor) -> Tensor:
        """A vector to keep or hand on whose bytes are those of `pack`."""
        ...

    def read(self, stored: Tensor) -> Tensor | None:
        """The numbers of such a vector, if that is their one form."""
        ...

    def place(self, number: int) -> int:
        """Where a number is in such a vector; with blocks, one that begins a block."""
        ...


@dataclass(frozen=True)
class Plain:
    """Little-endian float32. On the host nothing is copied."""

    name: str = "float32"

    def length(self, count: int) -> int:
        return 4 * count

    def count(self, length: int) -> int:
        return length // 4

    def round(self, numbers_D: Tensor, key: bytes = b"") -> Tensor:
        return numbers_D

    def round_and_pack(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, memoryview]:
        return numbers_D, self.pack(numbers_D)

    def pack(self, numbers_D: Tensor) -> memoryview:
        array: NDArray[np.float32] = numbers_D.detach().cpu().contiguous().numpy()
        return array.astype("<f4", copy=False).reshape(-1).view(np.uint8).data

    def begin(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, Tensor]:
        return numbers_D, numbers_D.detach().contiguous().view(torch.uint8)

    def unpack(self, view: memoryview, into_D: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        array_D = np.frombuffer(view, "<f4")
        if into_D is not None:
            into_D[:] = array_D
            return into_D
        return array_D if array_D.flags.aligned else array_D.copy()  # a sender may choose a place between two numbers

    def unpack_to(self, view: memoryview, device: torch.device) -> Tensor:
        return torch.tensor(self.unpack(view), device=device)

    def rounding(self, view: memoryview) -> float:
        return 0.0

    def stored(self, numbers_D: Tensor) -> Tensor:
        return numbers_D

    def read(self, stored: Tensor) -> Tensor:
        return stored

    def place(self, number: int) -> int:
        return number


@dataclass(frozen=True)
class Blocks:
    """Blocks of codes."""

    name: str
    bits: int  # of a code, with its sign

    @property
    def most(self) -> int:
        """The largest code; its negative is the least."""
        return (1 << self.bits - 1) - 1

    @property
    def highest(self) -> int:
        """The largest exponent: `most` times that is a float32, with room to spare."""
        return 253 - (self.bits - 1)

    @property
    def _width(self) -> int:
        return self.bits // 8

    @property
    def _dtype(self) -> str:
        return f"<i{self._width}"

    def length(self, count: int) -> int:
        return self._width * count + -(-count // BLOCK)

    def count(self, length: int) -> int:
        whole, rest = divmod(length, self._width * BLOCK + 1)
        return whole * BLOCK + max(0, rest - 1) // self._width

    def exponents(self, numbers_D: NDArray[np.float32] | Tensor) -> NDArray[np.int64]:
        """The least exponent for each block, from the bits of its largest number."""
        if isinstance(numbers_D, Tensor):
            if elsewhere(numbers_D.device):
                from troth.clip import block_tensors

                return block_tensors.exponents(self, numbers_D).cpu().numpy().astype(np.int64)
            numbers_D = numbers_D.detach().numpy()
        if _compiled(len(numbers_D)):
            from troth.clip import block_kernels

            return block_kernels.exponents(self, numbers_D)
        bits_D = np.abs(numbers_D).view(np.uint32).astype(np.int64)
        largest_B = np.maximum.reduceat(bits_D, np.arange(0, len(bits_D), BLOCK)) if len(bits_D) else bits_D
        exponent_B, mantissa_B = largest_B >> 23, largest_B & 0x7FFFFF
        fits = mantissa_B <= (1 << 23) - (1 << 25 - self.bits)  # below `most` in the units of the next power of two
        found: NDArray[np.int64] = np.clip(exponent_B - (self.bits - 1) + ~fits, 0, self.highest)
        return found

    def quanta(self, numbers_D: NDArray[np.float32] | Tensor) -> NDArray[np.float64]:
        """The step from one code to the next, number by number."""
        return np.repeat(self.quanta_of_blocks(numbers_D), BLOCK)[: len(numbers_D)]

    def quanta_of_blocks(self, numbers_D: NDArray[np.float32] | Tensor) -> NDArray[np.float64]:
        """The same, block by block."""
        found_B: NDArray[np.float64] = np.ldexp(1.0, self.exponents(numbers_D) - BIAS)
        return found_B

    def round(self, numbers_D: Tensor, key: bytes = b"") -> Tensor:
        if elsewhere(numbers_D.device):
            from troth.clip import block_tensors

            return block_tensors.coded(self, numbers_D, key)[0]
        array_D = numbers_D.detach().numpy()
        if _compiled(len(array_D)):
            from troth.clip import block_kernels

            return torch.from_numpy(block_kernels.rounded(self, array_D, key))
        return torch.from_numpy(self.rounded(array_D, uniforms(key, 0, len(array_D)) if key else None))

    def round_and_pack(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, memoryview]:
        if elsewhere(numbers_D.device):
            from troth.clip import block_tensors

            rounded_D, raw = block_tensors.coded(self, numbers_D, key)
            return rounded_D, raw.cpu().numpy().data
        if _compiled(len(numbers_D)):
            from troth.clip import block_kernels

            array_D, packed = block_kernels.rounded_and_packed(self, numbers_D.detach().numpy(), key)
            return torch.from_numpy(array_D), packed
        rounded_D = self.round(numbers_D, key)
        return rounded_D, self.pack(rounded_D)

    def rounded(
        self, numbers_D: NDArray[np.float32], uniform_D: NDArray[np.float64] | None = None
    ) -> NDArray[np.float32]:
        """Finite numbers as multiples of their quantum: to the nearest, to even ones from between two; or, with uniform numbers
        from [0, 1), away from zero with a probability that leaves their mean as it is. Those beyond the largest code become that.

        What lies below 2⁻²⁴ of a quantum becomes zero, whichever sign it has, and on a machine that flushes such numbers too."""
        assert np.isfinite(numbers_D).all(), NOT_FINITE
        quanta_D = self.quanta(numbers_D)
        in_quanta_D = numbers_D / quanta_D  # float64, and a power of two: exact
        codes_D = np.rint(in_quanta_D) if uniform_D is None else _away(in_quanta_D, uniform_D)
        found: NDArray[np.float64] = np.clip(codes_D, -self.most, self.most) * quanta_D
        return (found + 0.0).astype(np.float32)  # no negative zero

    def pack(self, numbers_D: Tensor) -> memoryview:
        if elsewhere(numbers_D.device):
            from troth.clip import block_tensors

            return block_tensors.pack(self, numbers_D).cpu().numpy().data
        array_D = numbers_D.detach().numpy()
        if _compiled(len(array_D)):
            from troth.clip import block_kernels

            return block_kernels.pack(self, array_D)
        exponent_B = self.exponents(array_D)
        in_quanta_D = array_D / self.quanta(array_D)
        codes_D = in_quanta_D.astype(self._dtype)
        assert np.array_equal(codes_D, in_quanta_D), NOT_ROUNDED
        packed = np.zeros((len(exponent_B), 1 + self._width * BLOCK), np.uint8)
        packed[:, 0] = exponent_B
        codes = np.zeros(len(exponent_B) * BLOCK, self._dtype)
        codes[: len(codes_D)] = codes_D
        packed[:, 1:] = codes.view(np.uint8).reshape(-1, self._width * BLOCK)
        return packed.reshape(-1)[: self.length(len(array_D))].data

    def begin(self, numbers_D: Tensor, key: bytes = b"") -> tuple[Tensor, Tensor]:
        from troth.clip import block_tensors

        return block_tensors.begin(self, numbers_D, key)

    def unpack(self, view: memoryview, into_D: NDArray[np.float32] | None = None) -> NDArray[np.float32] | None:
        count = self.count(len(view))
        if self.length(count) != len(view):
            return None
        if _compiled(count):
            from troth.clip import block_kernels

            return block_kernels.unpack(self, np.frombuffer(view, np.uint8), into_D)
        blocks, row = -(-count // BLOCK), 1 + self._width * BLOCK
        packed = np.zeros(blocks * row, np.uint8)
        packed[: len(view)] = np.frombuffer(view, np.uint8)
        exponent_B = packed.reshape(blocks, row)[:, 0].astype(np.int64)
        codes_BC = np.ascontiguousarray(packed.reshape(blocks, row)[:, 1:]).view(self._dtype).astype(np.int64)
        largest_B = np.abs(codes_BC).max(axis=1, initial=0)
        least = (exponent_B == 0) | (largest_B > self.most // 2)
        if not ((exponent_B <= self.highest) & (largest_B <= self.most) & least).all():
            return None
        numbers_BC = np.ldexp(codes_BC.astype(np.float64), (exponent_B - BIAS)[:, None])
        found_D: NDArray[np.float32] = numbers_BC.astype(np.float32).reshape(-1)[:count]
        if into_D is None:
            return found_D
        into_D[:] = found_D
        return into_D

    def unpack_to(self, view: memoryview, device: torch.device) -> Tensor | None:
        if elsewhere(device) and self.length(self.count(len(view))) == len(view):
            from troth.clip import block_tensors

            return block_tensors.unpack(self, torch.tensor(np.frombuffer(view, np.uint8), device=device))
        found_D = self.unpack(view)
        return None if found_D is None else torch.from_numpy(found_D)

    def rounding(self, view: memoryview) -> float:
        exponents = np.frombuffer(view, np.uint8)[:: 1 + self._width * BLOCK]
        return self.worst(exponents.astype(np.int64), self.count(len(view)))

    def worst(self, exponent_B: NDArray[np.int64], count: int) -> float:
        """Length of half a quantum in each of so many numbers."""
        count_B = np.full(len(exponent_B), BLOCK)
        count_B[-1:] = count - BLOCK * (len(exponent_B) - 1)
        count_E = np.bincount(exponent_B, weights=count_B)
        return math.sqrt(math.fsum(count_E * np.ldexp(0.25, 2 * (np.arange(len(count_E)) - BIAS))))

    def stored(self, numbers_D: Tensor) -> Tensor:
        return torch.frombuffer(self.pack(numbers_D), dtype=torch.uint8) if len(numbers_D) else torch.empty(0).byte()

    def read(self, stored: Tensor) -> Tensor | None:
        numbers_D = self.unpack(stored.numpy().data)
        return None if numbers_D is None else torch.from_numpy(numbers_D)

    def place(self, number: int) -> int:
        return self.length(number)


FLOAT32, INT8, INT16 = Plain(), Blocks("int8", 8), Blocks("int16", 16)


@dataclass(frozen=True)
class Code:
    """How a run's gradients and aggregates are written down, and rounded before."""

    rows: Form
    centers: Form
    grain: int  # parts begin at multiples of so many numbers

    known: ClassVar[dict[str, "Code"]] = {}

    def round_row(self, gradient_D: Tensor, key: bytes) -> Tensor:
        """A finite gradient without subnormals as it is committed to; `key` are 8 public random bytes."""
        return self.rows.round(gradient_D, key)

    def round_center(self, center_D: Tensor) -> Tensor:
        """An aggregate as it is handed out."""
        return self.centers.round(center_D)

    def prepare(self, count: int) -> None:
        """Load the loops that vectors of so many numbers go through, before a run begins."""
        if isinstance(self.rows, Blocks) and _compiled(count):
            from troth.clip import block_kernels

            with kernels.one_at_a_time():
                block_kernels.load((INT8, INT16))

    @property
    def rounds_centers(self) -> bool:
        """Whether an aggregate is rounded but as float32 is."""
        return isinstance(self.centers, Blocks)

    def quanta_of_blocks(self, center_D: Tensor) -> NDArray[np.float64]:
        """Of an aggregate that is rounded to blocks."""
        assert isinstance(self.centers, Blocks), "float32 has no blocks"
        return self.centers.quanta_of_blocks(center_D)

    def rounding(self, center_D: Tensor) -> float:
        """Most that rounding moves an aggregate that came out like this."""
        if not isinstance(self.centers, Blocks):
            return 0.0
        return self.centers.worst(self.centers.exponents(center_D), len(center_D))


PLAIN = Code(FLOAT32, FLOAT32, 1)
Code.known.update(float32=PLAIN, int8=Code(INT8, INT16, BLOCK))


def _compiled(count: int) -> bool:
    """Whether so many numbers are enough for compiled loops: by the definition, one takes as long as several do elsewhere."""
    return kernels.compiled(8 * count)  # the leaves of a step too [V4]


def elsewhere(device: torch.device) -> bool:
    """Whether numbers are better coded where they lie."""
    return device.type != "cpu"


def uniforms(key: bytes, start: int, stop: int) -> NDArray[np.float64]:
    """Public uniform numbers from [0, 1), multiples of 2⁻²⁴, for the coordinates from `start` to `stop`.

    Two rounds of a mixing function of 32 bits, keyed before each: everybody knows the key, so all that counts is that rounding
    leaves means as they are."""
    first, second = np.frombuffer(key[:8], "<u4").astype(np.uint32)
    place_D = np.arange(start, stop, dtype=np.uint64)
    low_D, high_D = place_D.astype(np.uint32), (place_D >> np.uint64(32)).astype(np.uint32)
    mixed_D = _mixed(_mixed(low_D ^ first) + high_D * np.uint32(SPACING) + second)
    return (mixed_D >> np.uint32(8)).astype(np.float64) * 2.0**-24


def _away(numbers_D: NDArray[np.float64], uniform_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers, away from zero as often as their means ask for. Below 256, a float32 and a uniform number have an exact sum
    in float64, or one of less than 1."""
    found: NDArray[np.float64] = np.trunc(numbers_D + np.copysign(uniform_D, numbers_D))
    return found


def _mixed(word_D: NDArray[np.uint32]) -> NDArray[np.uint32]:
    word_D = (word_D ^ word_D >> np.uint32(16)) * np.uint32(FACTORS[0])
    word_D = (word_D ^ word_D >> np.uint32(15)) * np.uint32(FACTORS[1])
    return word_D ^ word_D >> np.uint32(16)
