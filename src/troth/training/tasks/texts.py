"""What tasks on text share: a file that the user names, of which the last tenth is held out."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from troth.crypto import Stream
from troth.training.datasets import Table, read_text, read_words
from troth.training.errors import TaskError
from troth.training.task import Batch, Task

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TextTask(Task):
    """A text file, plain or compressed."""

    data: Path
    batch_size: int = 8
    length: int = 128  # of a sequence

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is int and not 1 <= value <= 65536:
                raise ValueError(f"{name} must be at least 1 and at most 65536, got {value}")

    @abstractmethod
    def text(self) -> Table:
        """The text as numbers."""

    @abstractmethod
    def sequences(self, device: torch.device, draw: Stream, first: int, last: int) -> Batch:
        """Sequences out of the text from one place to another."""

    def data_files(self) -> Sequence[Path]:
        return [self.data]

    def batch(self, draw: Stream) -> Batch:
        return self.batch_on(_CPU, draw)

    def batch_on(self, device: torch.device, draw: Stream) -> Batch:
        return self.sequences(device, draw, 0, self._held_out)

    def held_out_batch(self, draw: Stream) -> Batch:
        return self.sequences(_CPU, draw, self._held_out, len(self.text()))

    @property
    def _held_out(self) -> int:
        return len(self.text()) - len(self.text()) // 10

    def starts(self, draw: Stream, first: int, last: int, size: int) -> NDArray[np.int64]:
        """Places where sequences of this size begin."""
        if last - first <= size:
            raise TaskError(f"{self.data} is too short for sequences of {self.length}: take a longer text, or length=…")
        return first + draw.integers(last - first - size, self.batch_size)


@cache
def bytes_of(file: Path) -> Table:
    return Table(read_text(file))


@cache
def words_of(file: Path, vocabulary: int) -> Table:
    return Table(read_words(file, vocabulary))
