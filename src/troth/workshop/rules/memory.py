"""Rules over a whole run: what a rule is told before the first step, and what it may remember from step to step.

A plain rule is a function of one step's rows. A rule with memory is a frozen dataclass of options whose `begin` makes an
`Aggregator` for one run: an object, so that `copy.deepcopy` gives a peek at the next step. `begin_rule` makes one of either.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

# P peers, D coordinates


class RowLayout(Protocol):
    """Where the model's parameters stand in a row: `vectors_PD[:, layout.slices["0.weight"]]`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def slices(self) -> Mapping[str, slice]: ...


@dataclass(frozen=True)
class Setting:
    """One run as a rule sees it. `byzantine` is the number of liars that it is to withstand."""

    peers: int
    byzantine: int
    tau: float
    seed: bytes
    layout: RowLayout | None = None  # of the model's parameters, where there is a model

    def left(self, rows: int) -> "Setting":
        """The setting among so many rows: rows that are missing were lies, so as many liars fewer are left."""
        return dataclasses.replace(self, peers=rows, byzantine=max(0, self.byzantine - (self.peers - rows)))


class Aggregator(Protocol):
    """One run's aggregation: at every step the rows that came, and the numbers of the peers that sent them."""

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int], /) -> Tensor: ...


class RuleWithMemory(ABC):
    """A rule that remembers. Subclasses are frozen dataclasses, and their fields are the rule's options.

    An aggregator that drops senders for good has `removed`, a dict of peers and the steps at which they were dropped.
    """

    @abstractmethod
    def begin(self, setting: Setting) -> Aggregator:
        """Make the aggregator of one run."""

    def most(self, peers: int) -> int | None:
        """The largest number of liars among so many peers that the guarantee covers; None where there is no such number."""
        return None


@dataclass(frozen=True)
class RuleEntry:
    """A rule, the names of its parameters, one line about it, and the most liars that its guarantee covers among P rows."""

    function: Callable[..., Tensor]
    needs: tuple[str, ...]
    summary: str
    most: Callable[[int], int] | None = None


AnyRule = RuleEntry | RuleWithMemory


def covered(rule: AnyRule, setting: Setting) -> Setting:
    """The setting, with no more liars than the rule's guarantee covers: beyond it most rules are not even defined."""
    most = None if rule.most is None else rule.most(setting.peers)
    if most is None or setting.byzantine <= most:
        return setting
    return dataclasses.replace(setting, byzantine=max(0, most))


def begin_rule(rule: AnyRule, setting: Setting) -> Aggregator:
    """One run's aggregation by a rule of either kind."""
    return _Memoryless(rule, setting) if isinstance(rule, RuleEntry) else rule.begin(setting)


@dataclass(frozen=True)
class _Memoryless:
    """A plain rule, applied at every step to the rows that came."""

    entry: RuleEntry
    setting: Setting

    def __call__(self, vectors_PD: Tensor, senders: Sequence[int]) -> Tensor:
        here = covered(self.entry, self.setting.left(len(senders)))
        given: dict[str, Any] = {"byzantine": here.byzantine, "tau": here.tau, "layout": here.layout}
        return self.entry.function(vectors_PD, **{name: given[name] for name in self.entry.needs})
