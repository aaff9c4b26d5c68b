"""Imports for the fork server before it forks: they take seconds, and every peer would otherwise make them for itself."""

import sklearn.datasets  # noqa: F401  # the digits, and with them SciPy
import torch

from troth.workshop import swarm_peers  # noqa: F401

if torch.version.cuda is None:  # with devices, differentiating starts threads, and forks would lack them
    torch.set_num_threads(1)
    torch.func.grad(torch.sum)(torch.zeros(1))  # imports half of PyTorch
