"""Datasets from files of the user's own: read once, kept in a cache as arrays, and memory-mapped from there."""

from troth.training.datasets.images import Images, ImageSet, cifar10, cifar10_files, mnist, mnist_files
from troth.training.datasets.shards import dirichlet
from troth.training.datasets.table import Table
from troth.training.datasets.text import read_text
from troth.training.datasets.words import read_words

__all__ = [
    "ImageSet",
    "Images",
    "Table",
    "cifar10",
    "cifar10_files",
    "dirichlet",
    "mnist",
    "mnist_files",
    "read_text",
    "read_words",
]
