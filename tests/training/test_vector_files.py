"""Vectors in a file, read into memory: as the library that maps the file reads them, or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from troth.training.weights import read_vectors, write_tensors

_MOST = 1 << 20
_VECTORS = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(st.integers(0, 9), st.sampled_from([torch.float32, torch.float64])),
    max_size=5,
)


def _bits(named: dict[str, Tensor]) -> dict[str, tuple[torch.dtype, bytes]]:
    return {name: (vector_D.dtype, vector_D.numpy().tobytes()) for name, vector_D in named.items()}


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        return read_vectors(path, _MOST)
    except ValueError:
        return None


def _written(path: Path, shapes: dict[str, tuple[int, torch.dtype]]) -> bytes:
    write_tensors({name: torch.randn(count, dtype=dtype) for name, (count, dtype) in shapes.items()}, path)
    return path.read_bytes()


@pytest.mark.long
@given(_VECTORS)
def test_the_same_vectors_as_the_library_reads(shapes: dict[str, tuple[int, torch.dtype]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        _written(path, shapes)
        assert _bits(read_vectors(path, _MOST)) == _bits(load_file(path))


@given(_VECTORS, st.data())
def test_a_damaged_file_is_read_as_the_library_reads_it_or_refused(
    shapes: dict[str, tuple[int, torch.dtype]], data: st.DataObject
) -> None:
    """Nothing is read that others would read otherwise."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        raw = _written(path, shapes)
        at = data.draw(st.integers(0, len(raw) - 1))
        path.write_bytes(raw[:at] + data.draw(st.binary(min_size=1, max_size=3)) + raw[at + 1 :])
        found = _read(path)
        if found is not None:
            assert _bits(found) == _bits(load_file(path))


@given(_VECTORS, st.data())
def test_a_file_that_is_cut_or_too_long_is_refused(
    shapes: dict[str, tuple[int, torch.dtype]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vectors"
        raw = _written(path, shapes)
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
        assert _read(path) is None
        path.write_bytes(raw + b"\0")
        assert _read(path) is None


def test_no_memory_is_taken_for_more_than_such_a_file_has(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    length = len(_written(path, {"parameters": (1000, torch.float32)}))
    assert len(read_vectors(path, length)["parameters"]) == 1000
    with pytest.raises(ValueError, match="more than such a file has"):
        read_vectors(path, length - 1)
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ValueError, match="header is cut, or too long"):
        read_vectors(path, length)


@pytest.mark.parametrize("other", [torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64)], ids=["matrix", "integers"])
def test_other_tensors_are_no_vectors_of_numbers(tmp_path: Path, other: Tensor) -> None:
    save_file({"parameters": torch.zeros(3), "other": other}, tmp_path / "tensors")
    with pytest.raises(ValueError, match="something else than vectors"):
        read_vectors(tmp_path / "tensors", _MOST)
