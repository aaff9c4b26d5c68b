"""Pre-aggregation: something done to the rows before another rule, which an option names: `nnm:rule=krum`."""

import copy
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

from troth.aggregation.checks import AggregationError
from troth.aggregation.memory import Aggregator, AnyRule, RuleWithMemory, Setting, begin_rule


@dataclass(frozen=True)
class PreAggregation(RuleWithMemory):
    """A rule around another one. By itself it knows the names of the table; `around` gives it any rule."""

    rule: str
    _inner: AnyRule | None = field(default=None, init=False, repr=False, compare=False)

    @abstractmethod
    def begin(self, setting: Setting) -> Aggregator: ...

    def around(self, inner: AnyRule) -> Self:
        """The same with this rule inside, whatever its name."""
        made = copy.copy(self)
        object.__setattr__(made, "_inner", inner)
        return made

    @property
    def inner(self) -> AnyRule:
        if self._inner is not None:
            return self._inner
        from troth.aggregation.table import RULES  # not above: the table names the rules that extend this

        if self.rule not in RULES:
            raise AggregationError(f"the table of rules has no '{self.rule}'")
        row = RULES[self.rule]
        return row() if isinstance(row, type) else row

    def begin_inner(self, setting: Setting) -> Aggregator:
        """The inner aggregation of one run; its seed is its own."""
        return begin_rule(self.inner, replace(setting, seed=b"inner " + setting.seed))

    def most_inside(self, rows: int) -> int:
        """The most liars that the inner rule's guarantee covers among so many rows; fewer than half if it says nothing."""
        inner = self.inner
        most = None if inner.most is None else inner.most(rows)
        return (rows - 1) // 2 if most is None else most
