"""Global generators (Python's, NumPy's, PyTorch's): noticing their use, and finding the line that uses them."""

import builtins
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from troth.training.errors import TaskError
from troth.training.user_code import is_users

T = TypeVar("T")


def without_chance(method: str, remedy: str, run: Callable[[], T]) -> T:
    """Run it, and raise a `TaskError` that names generator and line if it uses a global generator.

    Imports do not count: some libraries draw while they are imported, and nothing of that reaches the task.
    """
    before = _states()
    with _imports_left_out():
        result = run()
    after = _states()
    for name in before:
        if before[name] != after[name]:
            raise TaskError(f"{method} uses the global generator of {name}{_place(name, run)}: {remedy}")
    return result


def disturb() -> None:
    """Advance every global generator, so that what depends on one comes out differently."""
    random.random()
    np.random.random()
    torch.rand(())


def _torch_state() -> Any:
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *cards)]


def _numpy_state() -> Any:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]


_STATES: dict[str, Callable[[], Any]] = {"torch": _torch_state, "numpy.random": _numpy_state, "random": random.getstate}


def _states() -> dict[str, Any]:
    return {name: state() for name, state in _STATES.items()}


@contextmanager
def _imports_left_out() -> Iterator[None]:
    """Give generators back, after each import, the states that they had before it."""
    by_statement, by_name = builtins.__import__, importlib.import_module

    def restoring(importing: Callable[..., Any]) -> Callable[..., Any]:
        def restored(*args: Any, **named: Any) -> Any:
            before = random.getstate(), np.random.get_state(), torch.get_rng_state()
            try:
                return importing(*args, **named)
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])
                torch.set_rng_state(before[2])

        return restored

    builtins.__import__, importlib.import_module = restoring(by_statement), restoring(by_name)
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = by_statement, by_name


def _place(name: str, run: Callable[[], Any]) -> str:
    """Run it again, looking at the generator after every call, and describe the first place where it has changed."""
    state = _STATES[name]
    last = state()
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if not found and event in ("return", "c_return") and state() != last:
            found.append(_describe(frame))

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found[0] if found else ""


def _describe(frame: FrameType) -> str:
    """` in Block (model.py:12)`: the module whose `forward` it is, and the user's line that led there."""
    module, line = "", ""
    at: FrameType | None = frame
    while at is not None and not line:
        own = at.f_locals.get(at.f_code.co_varnames[0]) if at.f_code.co_argcount else None
        if isinstance(own, nn.Module) and at.f_code.co_name == "forward" and not module:
            module = f" in {type(own).__name__}"
        if is_users(at.f_code.co_filename):
            line = f" ({at.f_code.co_filename}:{at.f_lineno})"
        at = at.f_back
    return module + line
