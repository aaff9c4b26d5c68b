"""Events of a timeline: packets that were sent, things that peers did or found, and headlines."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from troth.crypto import Slot
from troth.simulation.chaos.virtual_time import VirtualTime


@dataclass
class Burst:
    """Frames of one kind for one slot that a peer sent in one moment."""

    time: float
    sender: int
    kind: str
    slot: Slot
    others: frozenset[int]  # all members but the sender
    # By receiver, arrival times of every frame: none, one, or more.
    to: dict[int, list[Sequence[float]]] = field(default_factory=lambda: defaultdict(list))
    about: dict[tuple[str, str], dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    lies: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # receivers by behaviour


@dataclass
class Finding:
    """Something that peers did or found; those that did or found the same share it."""

    time: float
    text: str
    slot: Slot | None
    values: bytes  # digest of what was decided; empty where nothing was
    peers: dict[int, float] = field(default_factory=dict)  # with the time at which each did
    record: int | None = None  # step whose record was signed with it


@dataclass
class Headline:
    """Start of a step."""

    time: float
    text: str


Event = Burst | Finding | Headline


class Clock:
    """Virtual time, or the time of the latest packet until the virtual time is known."""

    def __init__(self) -> None:
        self.latest = 0.0
        self.time: VirtualTime[Any] | None = None

    @property
    def now(self) -> float:
        return self.latest if self.time is None else self.time.now
