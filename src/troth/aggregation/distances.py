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
    peers, spare = len(sorted_PD), len(sorted_PD) - keep
    # Halved before adding: the sum of two finite numbers may overflow.
    median_D = sorted_PD[(peers - 1) // 2] / 2 + sorted_PD[peers // 2] / 2
    farthest_SD = torch.maximum(median_D - sorted_PD[: spare + 1], sorted_PD[keep - 1 :] - median_D)
    rank_KD = farthest_SD.argmin(dim=0) + torch.arange(keep, device=sorted_PD.device)[:, None]
    return sorted_PD.gather(0, rank_KD).mean(dim=0)
