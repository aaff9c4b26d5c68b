"""Values as a list of nodes, and tensors beside it: what is one object in memory is written once, and is one object again.

A node names nodes before it by their numbers. Values that cannot change and are equal share a node; so do, where asked for,
tensors with the same bits: the honest peers of a simulation hold the same state, each its own, and it is written once. A list, a
dict or a set is never shared with another that is merely equal, since it may be changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from troth.aggregation import UnwritableError
from troth.protocol.wire.blob import Blob
from troth.simulation.lockstep.snapshots.kinds import ENUMS, ERRORS, RECORDS, STRUCTS

_PLAIN: Final = (type(None), bool, int, float, str, bytes)
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (*RECORDS, *STRUCTS, *ENUMS, *ERRORS)}
_DTYPES: Final = (torch.float32, torch.float64, torch.int64, torch.uint8)


@dataclass(frozen=True)
class Graph:
    """A value: nodes, the last of which stands for it, and its tensors, wherever they lie."""

    nodes: bytes
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return len(self.nodes) + sum(tensor.nbytes for tensor in self.tensors)


class Writer:
    """Makes a graph, value by value."""

    def __init__(self) -> None:
        self._nodes: list[Sequence[Any]] = []
        self._by_bytes: dict[bytes, int] = {}
        self._by_identity: dict[int, int] = {}
        self._held: list[object] = []  # as long as numbers of objects are looked up, no other object may get them
        self._tensors: list[Tensor] = []
        self._same_bits = False

    @contextmanager
    def equal_tensors_shared(self) -> Iterator[None]:
        """For values whose tensors are never changed in place."""
        before, self._same_bits = self._same_bits, True
        try:
            yield
        finally:
            self._same_bits = before

    def graph(self) -> Graph:
        return Graph(msgspec.msgpack.encode(self._nodes), tuple(self._tensors))

    def add(self, value: Any) -> int:
        """The number of the node that stands for a value. Raises `UnwritableError` where there can be none."""
        known = self._by_identity.get(id(value))
        if known is not None:
            return known
        number = self._new(value)
        if type(value) not in _PLAIN:
            self._by_identity[id(value)] = number
            self._held.append(value)
        return number

    def _new(self, value: Any) -> int:
        kind = type(value)
        if kind in _PLAIN:
            return self._node("plain", self._fitting(value))
        if kind in (tuple, frozenset):
            items = [self.add(item) for item in value]
            return self._node(kind.__name__, items if kind is tuple else sorted(items))
        if kind in (list, set):
            return self._node(kind.__name__, [self.add(item) for item in value], shared=False)
        if kind in (dict, MappingProxyType):
            pairs = [(self.add(key), self.add(item)) for key, item in value.items()]
            return self._node("dict" if kind is dict else "proxy", pairs, shared=False)
        if isinstance(value, Tensor):
            return self._node("tensor", self._tensor(value), value.device.type, shared=self._same_bits)
        if kind is Blob:
            return self._node("blob", self._tensor(_bytes_of(value)))
        if kind in RECORDS:
            return self._node("record", kind.__name__, [self.add(item) for item in _parts(value)])
        if kind in STRUCTS:
            return self._node("struct", kind.__name__, msgspec.msgpack.encode(value))
        if kind in ENUMS:
            return self._node("enum", kind.__name__, int(value))
        if kind in ERRORS and len(value.args) == 1 and type(value.args[0]) is str:
            return self._node("error", kind.__name__, value.args[0])
        raise UnwritableError(f"there is a {kind.__module__}.{kind.__qualname__} in it, which cannot be written down")

    def _node(self, *node: Any, shared: bool = True) -> int:
        if shared:
            number = self._by_bytes.setdefault(msgspec.msgpack.encode(node), len(self._nodes))
            if number < len(self._nodes):
                return number
        self._nodes.append(node)
        return len(self._nodes) - 1

    @staticmethod
    def _fitting(value: Any) -> Any:
        if type(value) is int and not -(2**63) <= value < 2**64:
            raise UnwritableError("there is a number of more than 64 bits in it, which cannot be written down")
        return value

    def _tensor(self, tensor: Tensor) -> int:
        # Kernels are chosen by strides: a tensor must come back as it was laid out.
        if (
            type(tensor) is not Tensor
            or tensor.requires_grad
            or not tensor.is_contiguous()
            or tensor.dtype not in _DTYPES
        ):
            raise UnwritableError(f"there is a tensor of a kind that cannot be written down in it, {tensor.dtype}")
        alike = range(len(self._tensors)) if self._same_bits else ()
        for number in alike:
            if _same(self._tensors[number], tensor):
                return number
        self._tensors.append(tensor)
        return len(self._tensors) - 1


def graph_of(value: Any) -> Graph:
    """A graph of one value."""
    writer = Writer()
    writer.add(value)
    return writer.graph()


def value_of(graph: Graph, device: torch.device) -> Any:
    """The value again; tensors that were on an accelerator are on `device`. Raises ValueError for anything but a graph."""
    try:
        made: list[Any] = []
        for name, *rest in msgspec.msgpack.decode(graph.nodes, type=list[list[Any]]):
            made.append(_MAKE[name](_Reader(made, graph.tensors, device), *rest))
        return made[-1]
    except (KeyError, IndexError, TypeError, AssertionError, msgspec.MsgspecError) as error:
        raise ValueError(f"it holds something else than a run: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _Reader:
    """What a node may be made of: nodes before it, and tensors."""

    made: Sequence[Any]
    tensors: Sequence[Tensor]
    device: torch.device

    def all(self, numbers: Sequence[int]) -> list[Any]:
        return [self.made[number] for number in numbers]

    def pairs(self, numbers: Sequence[tuple[int, int]]) -> dict[Any, Any]:
        return {self.made[key]: self.made[item] for key, item in numbers}

    def tensor(self, number: int, device: str) -> Tensor:
        tensor = self.tensors[number]
        return tensor.clone() if device == "cpu" else tensor.to(self.device, copy=True)

    def struct(self, kind: str, raw: bytes) -> Any:
        assert _KINDS[kind] in STRUCTS
        return msgspec.msgpack.decode(raw, type=_KINDS[kind], strict=True)

    def record(self, kind: str, numbers: Sequence[int]) -> Any:
        assert _KINDS[kind] in RECORDS
        return _KINDS[kind](*self.all(numbers))

    def simple(self, kind: str, value: int | str) -> Any:
        assert _KINDS[kind] in (*ENUMS, *ERRORS)
        return _KINDS[kind](value)


_MAKE: Final[dict[str, Callable[..., Any]]] = {
    "plain": lambda _, value: value,
    "tuple": lambda read, numbers: tuple(read.all(numbers)),
    "frozenset": lambda read, numbers: frozenset(read.all(numbers)),
    "list": lambda read, numbers: read.all(numbers),
    "set": lambda read, numbers: set(read.all(numbers)),
    "dict": lambda read, numbers: read.pairs(numbers),
    "proxy": lambda read, numbers: MappingProxyType(read.pairs(numbers)),
    "tensor": lambda read, number, device: read.tensor(number, device),
    "blob": lambda read, number: Blob(read.tensors[number].numpy().tobytes()),
    "record": lambda read, kind, numbers: read.record(kind, numbers),
    "struct": lambda read, kind, raw: read.struct(kind, raw),
    "enum": lambda read, kind, value: read.simple(kind, value),
    "error": lambda read, kind, message: read.simple(kind, message),
}


def _parts(value: Any) -> Sequence[Any]:
    """All fields, in their order: none can be forgotten."""
    return [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else tuple(value)


def _bytes_of(blob: Blob) -> Tensor:
    return torch.frombuffer(bytearray(blob.view), dtype=torch.uint8) if len(blob) else torch.empty(0, dtype=torch.uint8)


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal bit for bit, on the same device."""
    if one is other:
        return True
    alike = (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
    return alike and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
