"""Distances between all rows, and rows sorted coordinate by coordinate: what several rules begin with."""

import numpy as np
import torch
from torch import Tensor

# P peers, D coordinates


def pairwise_distances(vectors_PD: Tensor) -> Tensor:
    """`‖x_i − x_j‖` in float64, symmetric to the last bit.

    From differences and not through a Gram matrix: with rows 1000 times the others, that loses the small distances.
    """
    peers = len(vectors_PD)
    distance_PP = vectors_PD.new_zeros(peers, peers, dtype=torch.float64)
    above = torch.triu_indices(peers, peers, offset=1, device=vectors_PD.device)
    distance_PP[above[0], above[1]] = torch.pdist(vectors_PD.double())
    return distance_PP + distance_PP.T


def sorted_coordinates(vectors_PD: Tensor) -> Tensor:
    """Every column sorted, the smallest value first. On a CPU by NumPy, which takes a quarter of the time."""
    if vectors_PD.device.type == "cpu":
        return torch.from_numpy(np.sort(vectors_PD.detach().numpy(), axis=0))
    return vectors_PD.sort(dim=0).values


def nearest_to_median(sorted_PD: Tensor, keep: int) -> Tensor:
    """The mean of the `keep` values of each column that are nearest to its median.

    In a sorted column they stand side by side, so only the place where they begin is looked for. Of two such places, the one with
    the smaller values is taken.
    """
    peers = len(sorted_PD)
    # Halved before adding: the sum of two finite numbers may overflow.
    median_D = sorted_PD[(peers - 1) // 2] / 2 + sorted_PD[peers // 2] / 2
    mean_D, farthest_D = sorted_PD[:keep].mean(dim=0), torch.full_like(median_D, float("inf"))
    for start in range(peers - keep + 1):
        last = start + keep - 1
        far_D = torch.maximum(median_D - sorted_PD[start], sorted_PD[last] - median_D)
        nearer_D = far_D < farthest_D
        mean_D = torch.where(nearer_D, sorted_PD[start : last + 1].mean(dim=0), mean_D)
        farthest_D = torch.where(nearer_D, far_D, farthest_D)
    return mean_D
