"""Checks of the input that all rules share."""

import torch
from torch import Tensor

# P peers, D coordinates


class AggregationError(ValueError):
    """The vectors, or a rule's parameters, cannot be aggregated; the message names the row or the parameter."""


def check_vectors(vectors_PD: Tensor) -> None:
    """Refuse anything but a finite P×D matrix of float32 or float64, naming the first bad row.

    A single NaN would otherwise spread silently through sorts and distances into the aggregate.
    """
    check_shape(vectors_PD)
    largest_P = torch.linalg.vector_norm(vectors_PD, ord=float("inf"), dim=1)  # one read; NaN and inf survive it
    bad_rows = torch.nonzero(~torch.isfinite(largest_P)).flatten().tolist()
    if bad_rows:
        raise AggregationError(f"row {bad_rows[0]} is not finite (bad rows: {bad_rows}); leave it out and try again")


def check_shape(vectors_PD: object) -> None:
    """Check shape and number format, without reading data. A matrix of another library, or a list, gets no guess."""
    if not isinstance(vectors_PD, Tensor):
        given = f"{type(vectors_PD).__module__}.{type(vectors_PD).__name__}".removeprefix("builtins.")
        way = (
            "torch.from_numpy(…)"
            if given.startswith("numpy")
            else "torch.stack(…) of tensors, torch.tensor(…) of numbers"
        )
        raise AggregationError(f"expected a tensor with a row for each peer, got {given}: use {way}")
    if vectors_PD.ndim != 2 or 0 in vectors_PD.shape:
        raise AggregationError(f"expected a P×D matrix with at least one row and column, got {tuple(vectors_PD.shape)}")
    if vectors_PD.dtype not in (torch.float32, torch.float64):
        raise AggregationError(f"expected float32 or float64, got {vectors_PD.dtype}")


def check_byzantine(byzantine: int, peers: int, most: int, rule: str) -> None:
    """Refuse more liars than a rule tolerates among so many rows."""
    if not 0 <= byzantine <= most:
        raise AggregationError(
            f"{rule} over {peers} rows takes byzantine from 0 to {max(most, 0)}, got {byzantine}"
            if most >= 0
            else f"{rule} needs more than {peers} rows"
        )
