"""ALBERT (Lan et al. 2020) pretrained on a text: masked words and the order of two segments (extra `huggingface`)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from troth.crypto import Stream, stream
from troth.errors import how_to_install
from troth.training.datasets import (
    END,
    FIRST_BYTE,
    FIRST_WORD,
    MASK,
    MOST_WORDS,
    PAD,
    START,
    Table,
    read_text,
    read_words,
)
from troth.training.task import Batch, Model, Task, TaskError, check_choices, check_counts

# What tasks on text share: a file that the user names, of which the last tenth is held out.


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class TextTask(Task):
    """A text file, plain or compressed."""

    data: Path
    batch_size: int = 8
    length: int = 128  # of a sequence

    def __post_init__(self) -> None:
        check_counts(self)

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


# B sequences of a batch, W words of a sequence, M of them masked, L places of a sequence: W and three marks

_SIZES = {  # width, layers, heads, inner width
    "tiny": (64, 2, 2, 128),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
_MASKED = 0.15
_HELD_OUT_SENTENCES = 4


@dataclass(frozen=True)
class Albert(TextTask):
    """masked words and sentence order of a text file, transformers' ALBERT (size=tiny, base or large)"""

    batch_size: int = 16
    size: str = "base"
    vocabulary: int = 30_000

    clip_norm = 1.0
    steps = 5000
    optimizer = "lamb"
    rate = 0.00176
    tau = 0.125

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, size=_SIZES)
        if not FIRST_WORD <= self.vocabulary <= MOST_WORDS:
            raise ValueError(f"vocabulary must be from {FIRST_WORD} to {MOST_WORDS:,}, got {self.vocabulary:,}")
        if self.length < 16:
            raise ValueError(f"length must be at least 16, got {self.length}")
        object.__setattr__(self, "classes", self.vocabulary)

    def text(self) -> Table:
        return words_of(self.data, self.vocabulary)

    def model(self) -> nn.Module:
        return _model(self.size, self.vocabulary, self.length)

    def sequences(self, device: torch.device, draw: Stream, first: int, last: int) -> Batch:
        """Two segments that follow each other, in half of the sequences the second one first; 15 % of the words are to be found.

        Of those, eight of ten are masked, one is another word, and one is left as it is (Devlin et al. 2019).
        """
        half = (self.length - 3) // 2
        count, size, masked = self.batch_size, 2 * half, max(1, round(_MASKED * 2 * half))
        starts_B, swapped_B = self.starts(draw, first, last, size), draw.integers(2, count)
        places_BW = starts_B[:, None] + (np.arange(size) + half * swapped_B[:, None]) % size
        chosen_BM = np.argsort(draw.words(count * size).reshape(count, size), axis=1, kind="stable")[:, :masked]
        instead_BM = _instead(draw, chosen_BM.shape, self.vocabulary)
        instead_BW = np.full(places_BW.shape, -1)
        np.put_along_axis(instead_BW, chosen_BM, instead_BM, axis=1)
        replaced_BW = torch.from_numpy(instead_BW).to(device)
        words_BW = torch.where(replaced_BW < 0, self.text().rows(places_BW, device).long(), replaced_BW)
        return {
            "words": _marked(words_BW, half),
            "places": torch.from_numpy(chosen_BM + 1 + (chosen_BM >= half)).to(device),
            "labels": self.text().rows(np.take_along_axis(places_BW, chosen_BM, axis=1), device).long(),
            "swapped": torch.from_numpy(swapped_B).to(device),
        }

    def loss(self, model: Model, batch: Batch) -> Tensor:
        words, order = model(batch["words"], batch["places"])
        masked_loss, order_loss = self._losses(words, order, batch)
        return masked_loss + order_loss

    def _losses(self, words: Tensor, order: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        masked_loss = F.cross_entropy(words.flatten(0, 1), batch["labels"].flatten())
        return masked_loss, F.cross_entropy(order, batch["swapped"])

    def mislabelled(self, batch: Batch) -> Batch:
        """Every word that is to be found becomes the next one of the vocabulary, and the order of segments is turned round."""
        return {**batch, "labels": (batch["labels"] + 1) % self.vocabulary, "swapped": 1 - batch["swapped"]}

    def evaluate(self, model: Model) -> dict[str, float]:
        totals, right = np.zeros(2), 0.0
        for k in range(_HELD_OUT_SENTENCES):
            batch = self.held_out_batch(stream(0, "held out", k))
            words, order = model(batch["words"], batch["places"])
            totals += [float(loss) for loss in self._losses(words, order, batch)]
            right += float((order.argmax(dim=1) == batch["swapped"]).double().mean())
        masked, of_order = (totals / _HELD_OUT_SENTENCES).tolist()
        return {
            "loss": masked + of_order,
            "masked_words_loss": masked,
            "order_accuracy": right / _HELD_OUT_SENTENCES,
        }


def _instead(draw: Stream, shape: tuple[int, ...], vocabulary: int) -> NDArray[np.int64]:
    """What stands in the place of words that are to be found; -1 where they stay."""
    count = shape[0] * shape[1]
    fates, others = draw.integers(10, count), FIRST_BYTE + draw.integers(vocabulary - FIRST_BYTE, count)
    return np.where(fates < 8, MASK, np.where(fates == 8, others, -1)).reshape(shape)


def _marked(words_BW: Tensor, half: int) -> Tensor:
    start, end = (words_BW.new_full((len(words_BW), 1), mark) for mark in (START, END))
    return torch.cat([start, words_BW[:, :half], end, words_BW[:, half:], end], dim=1)


def _model(size: str, vocabulary: int, length: int) -> nn.Module:
    """`AlbertForPreTraining`, whose head looks at the words that are to be found and at no others."""
    try:
        from transformers import AlbertConfig, AlbertForPreTraining
    except ImportError as error:
        raise TaskError(f"albert needs Hugging Face's transformers: {how_to_install('huggingface')}") from error
    base: Any = AlbertForPreTraining

    class Pretraining(base):  # type: ignore[misc]
        def forward(self, words: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
            second = (torch.arange(words.shape[-1], device=words.device) > (words.shape[-1] - 1) // 2).long()
            # Past `self.albert`, which makes a mask on the host, though nothing is padded: a gradient can be recorded so.
            embedded = self.albert.embeddings(words, token_type_ids=second.expand(words.shape))
            seen = self.albert.encoder(embedded)[0]
            pooled = self.albert.pooler_activation(self.albert.pooler(seen[:, 0]))
            rows = torch.arange(len(places), device=places.device)[:, None]
            found: Tensor = self.predictions(seen[rows, places])
            return found, self.sop_classifier(pooled)

    width, layers, heads, inner = _SIZES[size]
    return Pretraining(
        AlbertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            hidden_act="gelu_pytorch_tanh",  # the same function as ALBERT's "gelu_new", in one operation
            max_position_embeddings=length,
            classifier_dropout_prob=0.0,
            pad_token_id=PAD,
            bos_token_id=START,
            eos_token_id=END,
            attn_implementation="eager",  # fused attention has other bits on every machine
        )
    )


# A transformer that predicts the next byte of a text.


# B sequences of a batch, L places in a sequence, H heads, W width

_BYTES = 256
_HELD_OUT_CHARACTERS = 8


@dataclass(frozen=True)
class CharTransformer(TextTask):
    """the next byte of a text file (plain, .gz or .xz), a transformer with 10.9M parameters"""

    layers: int = 6
    width: int = 384
    heads: int = 6

    classes = _BYTES
    steps = 5000
    optimizer = "adamw:beta2=0.99,weight_decay=0.1"
    rate = 0.001
    tau = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")

    def text(self) -> Table:
        return bytes_of(self.data)

    def model(self) -> nn.Module:
        return _Transformer(self.layers, self.width, self.heads, self.length)

    def sequences(self, device: torch.device, draw: Stream, first: int, last: int) -> Batch:
        starts_B = self.starts(draw, first, last, self.length)
        windows = self.text().rows(starts_B[:, None] + np.arange(self.length + 1), device)
        return {"text": windows[:, :-1], "labels": windows[:, 1:]}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["text"]).flatten(0, 1), batch["labels"].flatten().long())

    def evaluate(self, model: Model) -> dict[str, float]:
        batches = [self.held_out_batch(stream(0, "held out", k)) for k in range(_HELD_OUT_CHARACTERS)]
        loss = sum(float(self.loss(model, batch)) for batch in batches) / len(batches)
        return {"loss": loss, "bits_per_byte": loss / log(2)}


class _Transformer(nn.Module):
    """Blocks of attention and a feed-forward layer, each on a normalised input and added to it (as in GPT-2)."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads, length) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _BYTES, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / (sqrt(2 * layers) if name.endswith("out.weight") else 1))

    def forward(self, text: Tensor) -> Tensor:
        features = self.bytes(text.long()) + self.places.weight[: text.shape[-1]]
        logits: Tensor = self.head(self.norm(self.blocks(features)))
        return logits


class _Block(nn.Module):
    later: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.inner_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        later_LL = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later_LL, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        features = features + self._attention(self.norm1(features))
        added: Tensor = features + self.inner_out(F.gelu(self.inner(self.norm2(features))))
        return added

    def _attention(self, features_BLW: Tensor) -> Tensor:
        """Spelled out: fused kernels differ in their bits from machine to machine, and some from call to call."""
        count, length, width = features_BLW.shape
        split = self.attention_in(features_BLW).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores_BHLL = query @ key.transpose(-2, -1) * (1 / sqrt(width // self.heads))
        weights_BHLL = scores_BHLL.masked_fill(self.later[:length, :length], float("-inf")).softmax(dim=-1)
        mixed = (weights_BHLL @ value).transpose(1, 2).reshape(count, length, width)
        out: Tensor = self.attention_out(mixed)
        return out
