"""Defences: rules that a trusted server applies, checked before a run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from troth.aggregation import Aggregator, AnyRule, Setting, begin_rule
from troth.crypto import stream
from troth.plugins import blamed, in_one_line
from troth.simulation.lockstep.rule_specs import RULE, RULE_PLUGINS, TROTH, DefenceError, make_rule, specs_in

__all__ = ["RULE", "RULE_PLUGINS", "TROTH", "DefenceError", "apply_rule", "check_rule", "make_rule", "specs_in"]

# P peers, D coordinates

_PROBE_WIDTH = 5


class _AnyLayout:
    """Of made-up vectors: whatever parameter a rule asks for, it is the whole row."""

    names, shapes = ("parameters",), ((_PROBE_WIDTH,),)
    slices: Mapping[str, slice] = defaultdict(lambda: slice(0, _PROBE_WIDTH), parameters=slice(0, _PROBE_WIDTH))


def check_rule(rule: AnyRule, name: str, setting: Setting) -> None:
    """Try a rule on made-up vectors: it must give one finite vector of their length."""
    peers, setting = setting.peers, replace(setting, layout=_AnyLayout())
    probe_PD = torch.from_numpy(stream(0, "rule probe").normal(peers * _PROBE_WIDTH)).float().view(peers, -1)
    try:
        found_D = apply_rule(begin_rule(rule, setting), probe_PD, range(peers), name)
    except DefenceError:
        raise
    except Exception as error:
        why = blamed(error) or (str(error) if isinstance(error, ValueError) else in_one_line(error))
        raise DefenceError(f"`defence` {name} cannot be used here: {why}") from error
    if not bool(torch.isfinite(found_D).all()):
        raise DefenceError(f"`defence` {name} gives something that is not finite for ordinary vectors")


def apply_rule(aggregator: Aggregator, vectors_PD: Tensor, senders: Sequence[int], name: str) -> Tensor:
    """Aggregate one step's rows, and refuse anything but one vector as long as those that went in."""
    found_D: Any = aggregator(vectors_PD, senders)
    width = vectors_PD.shape[1]
    if not isinstance(found_D, Tensor) or found_D.shape != (width,) or not found_D.is_floating_point():
        got = (
            f"a tensor {tuple(found_D.shape)} of {found_D.dtype}"
            if isinstance(found_D, Tensor)
            else type(found_D).__name__
        )
        raise DefenceError(f"`defence` {name} must give one vector of {width} numbers for each matrix, and gave {got}")
    return found_D.to(vectors_PD)
