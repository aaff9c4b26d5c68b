"""Rules as functions of the vectors alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from troth.clip.exact import check_shape
from troth.workshop.rules.memory import AnyRule, RuleEntry, RuleWithMemory, Setting

Rule = Callable[[Tensor], Tensor]


def bind_rule(rule: AnyRule | type[RuleWithMemory], *, byzantine: int, tau: float) -> Rule:
    """Make a rule a function of the vectors alone; one with memory is as at its first step."""
    if isinstance(rule, RuleEntry):
        known: dict[str, Any] = {"byzantine": byzantine, "tau": tau}
        return partial(rule.function, **{name: known[name] for name in rule.needs})
    remembering = rule() if isinstance(rule, type) else rule

    def first_step(vectors_PD: Tensor) -> Tensor:
        check_shape(vectors_PD)
        peers = len(vectors_PD)
        aggregator = remembering.begin(Setting(peers, byzantine, tau, seed=b""))
        return aggregator(vectors_PD, range(peers))

    return first_step
