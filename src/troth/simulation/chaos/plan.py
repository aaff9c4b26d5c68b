"""Plan of a world: peers, liars, crashes and the network, all drawn from one seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import msgspec

from troth.simulation.chaos.faults import Network
from troth.simulation.lockstep.drop_outs import DropOut

TASKS = (  # that a world may train; the first unless its plan says otherwise
    "quadratic:dimension=24",
    "quadratic:dimension=48",
    "factors:dimension=24",
    "factors:dimension=48",
    "quadratic:dimension=24,noise=0.00001",
)
TAU = 0.1
HONEST = "honest"
LAZY = frozenset({"noise", "zeros", "old", "copy", "two"})  # strangers that commit to nothing that they computed
BEHAVIOURS = (HONEST, "noise", "zeros", "old", "copy", "two", "turns", "flood")  # of strangers


@dataclass(frozen=True)
class Leave:
    """A stranger's machine stops, whatever it is by then: at the door, on probation, or a member."""

    at: float  # seconds after its arrival
    down: float | None = None  # for so many seconds; None is for good
    journal: bool = True  # else it comes under another key: a successor key, or that of another stranger
    inside: bool = False  # seconds count from its admission


@dataclass(frozen=True)
class Plan:
    """Everything that determines a world. Peers are numbered from 0."""

    seed: int
    peers: int
    steps: int
    liars: Mapping[int, frozenset[str]]  # behaviours of each liar on the wire
    forge_from: Mapping[int, int]  # first step in which each of these liars sends a wrong gradient
    attacks: Mapping[int, str]  # attacks of liars on the protocol
    intensity: Mapping[int, tuple[float, int]]  # how often each liar lies on the wire, and from which step on
    crashes: Mapping[int, DropOut]
    network: Network
    blackout: Mapping[int, DropOut] = field(default_factory=dict)  # power cuts of all honest peers in one step
    confirmed: float = 60.0  # seconds until people confirm that the honest are enough to restart (SPEC B5)
    byzantine: int | None = None  # b, which the run promises to withstand; None: the number of liars
    task: str = TASKS[0]
    tau: float = TAU
    tau_auto: float | None = None
    waits: bool = False  # liars behave until somebody is gone
    liars_return: bool = False  # liars that were left out come back
    content_every: int = 1  # steps between records that name the content of the state (SPEC U5)
    probation: int = 0  # steps of work until a stranger is a member; 0: the door is closed (SPEC J3)
    strangers: Mapping[int, tuple[float, str]] = field(
        default_factory=dict
    )  # numbered after the peers: arrival, behaviour
    leaves: Mapping[int, Leave] = field(default_factory=dict)  # of strangers
    rekey_every: int = 0  # updates between changes of the keys that sign records; 0: nobody changes them (SPEC U6)
    spikes: float = 0.0  # wrong gradients are right but for one number of this size; 0: they are turned around

    @property
    def lying(self) -> frozenset[int]:
        return frozenset(self.liars) | frozenset(self.forge_from)

    @property
    def shaky(self) -> frozenset[int]:
        """Honest peers that power or network fails."""
        return (frozenset(self.crashes) | frozenset(self.blackout) | self.network.unreached) - self.lying

    @property
    def turncoats(self) -> frozenset[int]:
        """Strangers that lie once they are members. Those who are lazy before are never members."""
        return frozenset(number for number, (_, how) in self.strangers.items() if how == "turns")

    @property
    def promised(self) -> int:
        return len(self.lying) if self.byzantine is None else self.byzantine

    @property
    def within(self) -> bool:
        """Within the full guarantee: no more members are faulty, lying or gone at any time, than was promised. Strangers that
        come in count like founders, and b never shrinks with them (SPEC J7)."""
        return len(self.lying | self.shaky | self.turncoats | self.leaves.keys()) <= self.promised

    @property
    def fair(self) -> bool:
        """Whether the honest peers that stay outnumber the liars, and a peer that comes back still finds the run."""
        bad = len(self.lying | self.turncoats)
        shaky = len((self.shaky - self.blackout.keys()) | (self.leaves.keys() - self.turncoats))
        back = self.network.unreached or any(drop_out.down is not None for drop_out in self.crashes.values())
        if back and 2 * (bad + shaky) >= self.peers:
            return False
        return not bad + shaky or self.peers - bad - shaky >= bad + 2

    def __str__(self) -> str:
        """Everything that is unlike the plainest plan, in the same order in every process."""
        plain = {field.name: field.default for field in fields(self)}
        values = msgspec.to_builtins(self, str_keys=True, order="deterministic")
        return ", ".join(f"{name} {value}" for name, value in values.items() if value and value != plain[name])
