"""A module on an accelerator that a task's `evaluate` may call as if it were on the host."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


class Placed:
    """A module in evaluation whose inputs are moved to its device and number format, and whose outputs come back."""

    def __init__(self, module: nn.Module, place: Callable[[Any], Any]) -> None:
        self._module, self._place_one = module, place

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(self._module, arguments, named)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if not inspect.ismethod(value):
            return value
        return lambda *arguments, **named: self._call(value, arguments, named)

    def _call(self, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        arguments, named = tree_map_only(Tensor, self._place_one, (arguments, named))
        return tree_map_only(Tensor, Tensor.cpu, function(*arguments, **named))
