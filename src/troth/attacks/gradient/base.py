"""The base of all attacks, and what an attack is told about a run."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from torch import Tensor

from troth.attacks.colluder import ColludingChannel
from troth.crypto import Seed
from troth.training import Batch, Task
from troth.training.layout import Layout

# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates

Forge = Callable[[Sequence[int], Tensor, Tensor], Tensor]  # (members, own_BD, honest_HD) → rows to send, B×D
Foresee = Callable[[Tensor], Tensor]  # rows_PD, B colluders' first → what the defence would make of them; a pure peek


class GradientAttack:
    """Base of all attacks, which behaves honestly; each overrides what it lies about."""

    behaviour: ClassVar[type["ColludingChannel"]] = ColludingChannel  # wraps its colluders' channels
    needs_protocol: ClassVar[bool] = False  # whether it has nothing to attack where there is a trusted server
    needs_honest: ClassVar[bool] = True  # whether `forge` looks at honest gradients
    covers: ClassVar[bool] = False  # whether colluders absorb an owner's lie in their reports (SPEC T7)

    _positive: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls,
        *,
        behaves: type[ColludingChannel] | None = None,
        needs_honest: bool | None = None,
        positive: tuple[str, ...] = (),
    ) -> None:
        """`behaves`: the behaviour of an attack on the protocol; `positive`: options that are to be."""
        if behaves is not None:
            cls.behaviour, cls.needs_protocol = behaves, True
        cls.needs_honest = cls.needs_honest if needs_honest is None else needs_honest
        cls._positive += positive

    def __post_init__(self) -> None:
        for name in self._positive:
            value = getattr(self, name)
            if not (value > 0 and isfinite(value)):
                raise ValueError(f"{name} must be a positive number, got {value}")

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        """Raise `AttackError` where the attack is not defined."""

    def poison(self, task: Task, batch: Batch) -> Batch:
        """Batch that a colluder computes its gradient on while it attacks."""
        return batch

    def begin_against(self, seed: Seed, foresee: Foresee) -> Forge:
        """The same as `begin`, for attacks that try their rows on the defence first."""
        return self.begin(seed)

    def begin(self, seed: Seed) -> Forge:
        """Forging function of one run, called at every step (also before the attack) with the contributing colluders."""
        if not asks_for_layout(self):
            return lambda _members, own_BD, honest_HD: self.forge(own_BD, honest_HD)
        forge: Callable[..., Tensor] = self.forge
        return lambda _members, own_BD, honest_HD: forge(own_BD, honest_HD, layout=_layout.get())

    def forge(self, own_BD: Tensor, honest_HD: Tensor) -> Tensor:
        """Rows that the colluders send. One that names a third parameter `layout` is given the order of the parameters."""
        return own_BD


_layout: ContextVar[Layout | None] = ContextVar("layout", default=None)


def asks_for_layout(attack: GradientAttack) -> bool:
    return "layout" in inspect.signature(attack.forge).parameters


@contextmanager
def forging(layout: Layout | None) -> Iterator[None]:
    """Forging functions that are called inside forge gradients of a model with this layout."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


@dataclass(frozen=True)
class Scene:
    """What goes on around a forging function in a step."""

    honest: Sequence[int]  # numbers of the honest contributors, in the order of their rows
    contributors: int  # the honest, and all colluders, those of other attacks too
    active: bool  # whether forged rows will be sent; else the honest ones are
    watched: bool = False  # whether an honest member audits a colluder's work of the last step in this one


class WatchingForge(ABC):
    """A forging function that is also told what goes on around it."""

    @abstractmethod
    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor: ...

    def before(self, scene: Scene) -> None:  # noqa: B027 – most need only one of the two
        """Called before it forges."""

    def after(self, sent_PD: Tensor) -> None:  # noqa: B027 – most need only one of the two
        """Called with the rows that its colluders, and then the honest peers, have sent."""
