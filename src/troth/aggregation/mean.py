"""The plain average."""

from torch import Tensor

from troth.aggregation.checks import check_vectors


def mean(vectors_PD: Tensor) -> Tensor:
    """`Σ x_i / P`. Optimal without liars; a single liar moves it anywhere, so it is the baseline that must fail."""
    check_vectors(vectors_PD)
    return vectors_PD.mean(dim=0)
