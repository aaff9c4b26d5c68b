"""Parameters as one flat vector and as views into it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from troth.training import Layout


def small_module() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))


def test_layout_follows_the_modules_own_order() -> None:
    module = small_module()
    layout = Layout.of(module)
    assert layout.names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert layout.shapes == ((3, 2, 2, 2), (3,), (3,), (3,), (5, 12), (5,))
    assert layout.size == sum(p.numel() for p in module.parameters()) == 98


def test_layouts_are_equal_when_modules_are_built_alike() -> None:
    assert Layout.of(small_module()) == Layout.of(small_module())
    assert Layout.of(nn.Linear(2, 3)) != Layout.of(nn.Linear(3, 2))


def test_writing_to_a_view_writes_to_the_vector() -> None:
    layout = Layout.of(small_module())
    flat_D = torch.zeros(layout.size)
    layout.views(flat_D)["3.weight"][4, 11] = 7.0
    assert flat_D.nonzero().flatten().tolist() == [layout.size - 5 - 1]


def test_writing_to_the_vector_writes_to_the_view() -> None:
    layout = Layout.of(small_module())
    flat_D = torch.zeros(layout.size)
    views = layout.views(flat_D)
    flat_D += 3.0
    assert all(bool((view == 3.0).all()) for view in views.values())
    assert all(view.untyped_storage().data_ptr() == flat_D.untyped_storage().data_ptr() for view in views.values())


@pytest.mark.long
@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=5))
def test_flatten_undoes_views(shapes: list[list[int]]) -> None:
    layout = Layout(tuple(f"p{k}" for k in range(len(shapes))), tuple(map(tuple, shapes)))
    flat_D = torch.arange(layout.size, dtype=torch.float32)
    views = layout.views(flat_D)
    assert [tuple(view.shape) for view in views.values()] == list(layout.shapes)
    assert torch.equal(layout.flatten(views), flat_D)


def test_flatten_copies() -> None:
    layout = Layout.of(small_module())
    flat_D = torch.zeros(layout.size)
    copy_D = layout.flatten(layout.views(flat_D))
    flat_D += 1
    assert not copy_D.any()


def test_flatten_goes_by_name_not_by_the_order_of_the_dictionary() -> None:
    layout = Layout(("a", "b"), ((2,), (1, 1)))
    assert layout.flatten({"b": torch.tensor([[3.0]]), "a": torch.tensor([1.0, 2.0])}).tolist() == [1.0, 2.0, 3.0]


def test_flatten_behind_a_leading_dimension_stacks_rows() -> None:
    layout = Layout.of(small_module())
    rows_PD = torch.arange(3.0 * layout.size).view(3, -1)
    views = [layout.views(row_D) for row_D in rows_PD]
    stacked = {name: torch.stack([view[name] for view in views]) for name in layout.names}
    assert torch.equal(layout.flatten(stacked, leading=1), rows_PD)


def test_tensors_moved_into_a_vector_are_what_flattening_gives() -> None:
    layout = Layout.of(small_module())
    tensors = {name: torch.randn(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    tensors["3.weight"] = torch.ones(()).expand(5, 12)  # as gradients may lie
    flat_D = layout.flatten(tensors)
    assert torch.equal(layout.moved(tensors), flat_D)
    assert tensors == {}
    one = Layout.of(nn.Linear(3, 2, bias=False))
    assert torch.equal(one.moved({"weight": torch.ones(()).expand(2, 3)}), torch.ones(6))
