"""The base of all attacks, and what an attack is told about a run.

An attack forges gradients (`GradientAttack`), or has its colluders say and send other things in the protocol (its `behaviour`, a
`ColludingChannel`), or both.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from torch import Tensor

from troth.crypto import PeerId, Seed, Slot
from troth.errors import OperatorError
from troth.protocol.core.channel import AttemptView, Channel, ForwardingChannel, Said
from troth.protocol.core.run import Run
from troth.protocol.core.state import State
from troth.protocol.wire.messages import Accuse, Announced, Ballot, GuiltySide, Message, Phase, Vote
from troth.training import Batch, Problem, Task
from troth.training.weights import Layout

T = TypeVar("T")


class AttackError(OperatorError):
    """An attack that makes no sense for this task, these numbers of peers or this schedule."""


# A colluder's behaviour in the protocol

Choose = Callable[[Said], Message | None]


class LiarsChannel(Channel, Protocol):
    """What a liar can do beyond an honest member: speak last, or not at all."""

    async def announce_last(self, slot: Slot, choose: Choose, view: AttemptView) -> Said:
        """Choose what to say knowing what the honest have said; None is silence."""
        ...


@dataclass(frozen=True)
class Collusion:
    """What colluders know and share."""

    attack: Any  # the options of this member's attack
    colluders: frozenset[PeerId]
    run: Run
    active: Callable[[int], bool]  # whether the coalition attacks in this step
    board: dict[Any, Any] = field(default_factory=dict)  # what they tell each other
    state: Callable[[], State[Any]] | None = None  # what this member's own code holds at the start of the step
    problem: Problem | None = None  # what is trained

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """What is on the board under this key; the first member that asks makes it."""
        if key not in self.board:
            self.board[key] = make()
        found: T = self.board[key]
        return found


class ColludingChannel(ForwardingChannel):
    """Wraps a member's channel: drops accusations of fellow colluders, and votes against whoever accuses them.

    It follows the phases. A behaviour says what it says while the coalition attacks in `_instead`, or in `_at_last`, when it has
    heard the honest.
    """

    _members: frozenset[PeerId] = frozenset()  # of the attempt
    _commits: Mapping[PeerId, Announced] = MappingProxyType({})  # of the attempt

    def __init__(self, honest: LiarsChannel, me: PeerId, collusion: Collusion) -> None:
        super().__init__(honest)
        self._honest = honest
        self._me = me
        self._collusion = collusion
        self._colluders = collusion.colluders
        self._run = collusion.run
        self._active = collusion.active

    async def announce(self, slot: Slot, message: Message, view: AttemptView) -> Said:
        self._members = view.members
        said, choose = self._shielding(message), None
        if self._active(slot.step):
            choose = self._at_last(slot, said)
            said = said if choose else self._instead(slot, said)
        if choose:
            return await self._honest.announce_last(slot, choose, view)
        return self._noted(slot, await self._honest.announce(slot, said, view))

    async def announce_last(self, slot: Slot, choose: Choose, view: AttemptView) -> Said:
        """For a behaviour around this one that speaks last where this one would not."""
        self._members = view.members
        return self._noted(slot, await self._honest.announce_last(slot, choose, view))

    def _noted(self, slot: Slot, announced: Said) -> Said:
        if slot.phase == Phase.COMMIT:
            self._commits = announced
        self._heard(slot, announced)
        return announced

    def _at_last(self, slot: Slot, message: Message) -> Choose | None:
        """Choice of what to say in place of this when the honest have spoken; None: it speaks when all do."""
        return None

    def _instead(self, slot: Slot, message: Message) -> Message:
        """What to say in place of this while the coalition attacks."""
        return message

    def _heard(self, slot: Slot, announced: Said) -> None:
        """Take note of what all have announced."""

    def _shielding(self, message: Message) -> Message:
        if isinstance(message, Accuse):
            others = tuple(a for a in message.accusations if a.target not in self._colluders)
            return msgspec.structs.replace(message, accusations=others)
        if isinstance(message, Vote):
            return Vote(tuple(self._shielding_ballot(ballot) for ballot in message.ballots))
        return message

    def _shielding_ballot(self, ballot: Ballot) -> Ballot:
        return cast_as(ballot, GuiltySide.ACCUSER) if ballot.target in self._colluders else ballot


def cast_as(ballot: Ballot, verdict: GuiltySide) -> Ballot:
    return msgspec.structs.replace(ballot, verdict=verdict)


# B colluders, H honest peers, P contributors (colluders, then honest peers), D coordinates

Forge = Callable[[Sequence[int], Tensor, Tensor], Tensor]  # (members, own_BD, honest_HD) → rows to send, B×D
Foresee = Callable[[Tensor], Tensor]  # rows_PD, B colluders' first → what the defence would make of them; a pure peek


class GradientAttack:
    """Base of all attacks, which behaves honestly; each overrides what it lies about."""

    behaviour: ClassVar[type["ColludingChannel"]] = ColludingChannel  # wraps its colluders' channels
    needs_protocol: ClassVar[bool] = False  # whether it has nothing to attack where there is a trusted server
    needs_code: ClassVar[bool] = False  # whether it has nothing to attack where gradients travel as they are
    needs_honest: ClassVar[bool] = True  # whether `forge` looks at honest gradients
    covers: ClassVar[bool] = False  # whether colluders absorb an owner's lie in their reports (SPEC T7)

    _checks: ClassVar[tuple[tuple[str, Callable[[Any], bool], str], ...]] = ()  # of options

    def __init_subclass__(
        cls,
        *,
        behaves: type[ColludingChannel] | None = None,
        needs_honest: bool | None = None,
        needs_code: bool = False,
        positive: tuple[str, ...] = (),
        shares: tuple[str, ...] = (),
        counts: tuple[str, ...] = (),
        choices: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """`behaves`: the behaviour of an attack on the protocol. The rest names options, and says what they have to be."""
        if behaves is not None:
            cls.behaviour, cls.needs_protocol = behaves, True
        if needs_code:
            cls.needs_code = cls.needs_protocol = True
        cls.needs_honest = cls.needs_honest if needs_honest is None else needs_honest
        cls._checks += (
            *((name, lambda value: value > 0 and isfinite(value), "must be a positive number") for name in positive),
            *((name, lambda value: 0 < value <= 1, "must be above 0 and at most 1") for name in shares),
            *((name, lambda value: value >= 1, "must be at least 1") for name in counts),
            *((name, words.__contains__, f"is one of {', '.join(words)}") for name, words in choices.items()),
        )

    def __post_init__(self) -> None:
        for name, fits, wanted in self._checks:
            if not fits(value := getattr(self, name)):
                raise ValueError(f"{name} {wanted}, got {value!r}")

    def check(self, task: Task, *, honest: int, colluders: int) -> None:
        """Raise `AttackError` where the attack is not defined."""

    def poison(self, task: Task, batch: Batch) -> Batch:
        """Batch that a colluder computes its gradient on while it attacks."""
        return batch

    def local_steps(self, steps: int) -> int:
        """How many of a run's local steps a colluder makes while it attacks."""
        return steps

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
    """A forging function that is also told what goes on around it; most need only one of `before` and `after`."""

    @abstractmethod
    def __call__(self, members: Sequence[int], own_BD: Tensor, honest_HD: Tensor) -> Tensor: ...

    def before(self, scene: Scene) -> None:  # noqa: B027
        """Called before it forges."""

    def after(self, sent_PD: Tensor) -> None:  # noqa: B027
        """Called with the rows that its colluders, and then the honest peers, have sent."""
