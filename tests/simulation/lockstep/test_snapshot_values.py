"""Values on their way into a file and back: the same, the same objects where they were the same, and nothing else."""

import struct
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import torch

from troth.aggregation import UnwritableError
from troth.crypto import Digest, PeerId, Slot
from troth.protocol.core.errors import StalledError
from troth.protocol.core.roster import Away
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Accusation, Kind, Phase
from troth.simulation.lockstep.report import Ban
from troth.simulation.lockstep.snapshots.graph import Graph, Writer, graph_of, value_of

CPU = torch.device("cpu")


def there_and_back(value: Any) -> Any:
    return value_of(graph_of(value), CPU)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        1.0,
        -0.0,
        2**64 - 1,
        -(2**63),
        "τ",
        b"",
        (1, (True, 1.0), ()),
        [1, [2, []]],
        {b"a": {"b": 1}, 3: None, (1, 2): "x"},
        frozenset({b"a", b"b"}),
        {1, 2},
        Ban(3, 4, "why", "file"),
        Away(1, PeerId(b"peer"), 2),
        Slot(Digest(b"run"), 3, Phase.CLIP, 1, 0),
        Kind.COVER,
        Blob(b"bytes"),
    ],
)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = there_and_back(value)
    assert found == value
    assert type(found) is type(value)
    assert isinstance(value, frozenset | set) or repr(found) == repr(value)


def test_bits_of_numbers_come_back() -> None:
    strange = struct.unpack("<d", bytes.fromhex("010000000000fcff"))[0]
    for number in (float("nan"), strange, -0.0, 5e-324):
        assert struct.pack("<d", there_and_back(number)) == struct.pack("<d", number)
    tensor = torch.tensor([float("nan"), -0.0, 1e-45, float("inf")])
    tensor.view(torch.int32)[0] += 5
    assert there_and_back(tensor).view(torch.int32).equal(tensor.view(torch.int32))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_tensors_of_any_shape(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(6, dtype=torch.float64)[: max(0, int(torch.tensor(shape).prod()))].reshape(shape)
    found = there_and_back(tensor)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert found.equal(tensor)


def test_an_error_comes_back_with_its_message() -> None:
    found = there_and_back({"gone": StalledError("no quorum")})["gone"]
    assert (type(found), str(found)) == (StalledError, "no quorum")


def test_an_order_and_a_proxy_come_back() -> None:
    found = there_and_back(MappingProxyType({"b": 1, "a": 2}))
    assert isinstance(found, MappingProxyType)
    assert list(found) == ["b", "a"]


def test_one_object_stays_one_and_two_stay_two() -> None:
    """Two lists that are equal now may differ later; so may tensors, unless somebody says that they are never changed."""
    tensor, shared = torch.ones(3), [1]
    found = there_and_back([tensor, tensor, tensor.clone(), shared, shared, [1], [], []])
    assert found[0] is found[1]
    assert found[0] is not found[2]
    assert found[3] is found[4]
    assert found[3] is not found[5]
    assert found[6] is not found[7]


def test_equal_tensors_are_written_once_where_asked_for() -> None:
    """Equal bit for bit: a zero with a sign is another."""
    one, same, other = torch.zeros(3), torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])
    writer = Writer()
    with writer.equal_tensors_shared():
        writer.add([one, same, other, one.double()])
    graph = writer.graph()
    assert len(graph.tensors) == 3
    found = value_of(graph, CPU)
    assert found[0] is found[1]
    assert str(found[2]) == str(other)
    assert found[3].dtype == torch.float64


def test_what_comes_back_is_nobody_elses() -> None:
    graph = graph_of([torch.ones(3)])
    value_of(graph, CPU)[0].zero_()
    assert value_of(graph, CPU)[0].sum() == 3


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        object(),
        print,
        lambda: 0,
        1j,
        bytearray(b"a"),
        type("Mine", (dict,), {})(),
        type("Mine", (float,), {})(1.0),
        torch.ones(2, 2).T,
        torch.ones(3).expand(2, 3),
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.complex64),
        Accusation(bytes(32), Kind.GRADIENT, 1),
        StalledError("one", "two"),
    ],
)
def test_anything_else_cannot_be_written(value: Any) -> None:
    with pytest.raises(UnwritableError):
        graph_of([value])


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [["plain"]],
        [["what", 1]],
        [["list", [0]]],
        [["list", [7]]],
        [["tensor", 0, "cpu"]],
        [["record", "Path", []]],
        [["record", "Commit", []]],
        [["record", "Ban", []]],
        [["struct", "Ban", b""]],
        [["struct", "Commit", b"\xff"]],
        [["error", "Roster", "x"]],
        [["enum", "Kind", 99]],
    ],
)
def test_a_graph_that_nobody_wrote_is_refused(nodes: list[Any]) -> None:
    with pytest.raises(ValueError):  # whatever its words are
        value_of(Graph(msgspec.msgpack.encode(nodes), ()), CPU)
