"""Snapshots of a run between two of its steps: taken, and given to a new simulation of the same scenario.

Everything else that a simulation holds follows from its scenario (identities, coins, batches, schedules), or only saves time
(digests that are remembered, gradients that are begun ahead) and is computed again.
"""

import platform
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import numpy as np
import torch

from troth.aggregation import Memory, UnwritableError, memory_of, recall_into
from troth.plugins import name_of
from troth.simulation.lockstep.protocol_run import ProtocolSimulation
from troth.simulation.lockstep.server import ServerSimulation
from troth.simulation.lockstep.snapshots.graph import Graph, Writer, graph_of, value_of
from troth.version import __version__

Simulation = ProtocolSimulation | ServerSimulation

# Attributes that change from step to step, and are written as they are.
PROTOCOL: Final = (
    "agreement",
    "absent",
    "attacked_steps",
    "attempts",
    "audits",
    "bans",
    "diverged_at",
    "evidence",
    "gone",
    "not_finite",
    "not_finite_since",
    "stalled",
    "steps_done",
    "tolerant_audits",
    "trace",
    "trials",
    "updates",
)
SERVER: Final = (
    "attacked_steps",
    "diverged_at",
    "gradients_computed",
    "optimizer_state",
    "momentum_PD",
    "parameters_D",
    "steps_done",
)
HISTORY: Final = ("changes", "last", "uncertified")
POOL: Final = ("attackers", "computed")  # losses are of the step that was reported already
EXCHANGE: Final = ("announced_bytes", "bulk_bytes")


class SnapshotError(Exception):
    """A snapshot that is not of this run, or damaged; the message says how. The run has to begin anew."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two steps. Its tensors are on the host, and nobody else's."""

    of: str  # names the run that it is of
    place: str  # machine, versions and founding data: with others, the bits of the next step might be others
    step: int  # steps that were made
    whole: Graph = field(repr=False)


class TooLargeError(UnwritableError):
    """A snapshot that would be larger than allowed."""


def take(simulation: Simulation, beside: Any, of: str, most_bytes: int | None = None) -> Snapshot:
    """Take a snapshot; `beside` is what the caller has to remember. Raises `UnwritableError` where that cannot be done."""
    writer = Writer()
    own = {"beside": beside, "coalition": simulation.coalition.memory()}
    if isinstance(simulation, ProtocolSimulation):
        shared = _of_protocol(simulation)
        own |= {"pool": _read(simulation.pool, POOL), "exchange": _read(simulation.exchange, EXCHANGE)}
    else:
        shared = {}
        own |= {"kept": _read(simulation, SERVER), "rule": _rule_memory(simulation)}
    with writer.equal_tensors_shared():
        writer.add(shared)
    writer.add({"own": own, "shared": shared})
    graph = writer.graph()
    if most_bytes is not None and graph.nbytes > most_bytes:
        has, may = graph.nbytes / 2**30, most_bytes / 2**30
        raise TooLargeError(f"a checkpoint of it has {has:.3g} GiB, and may have {may:.3g} (`checkpoint_most`)")
    # Copied: some tensors are changed in place, in the next step.
    on_host = tuple(tensor.to("cpu", copy=True) for tensor in graph.tensors)
    return Snapshot(of, place_of(simulation), simulation.steps_done, Graph(graph.nodes, on_host))


def give(simulation: Simulation, snapshot: Snapshot, of: str) -> Any:
    """Bring a new simulation to where the snapshot was taken, and return what the caller had to remember.

    Raises `SnapshotError` where the snapshot does not fit; the simulation may be spoilt then.
    """
    if snapshot.of != of:
        raise SnapshotError("it is of another run")
    if snapshot.place != place_of(simulation):
        raise SnapshotError(f"it was made with {snapshot.place}, and here is {place_of(simulation)}")
    try:
        whole = value_of(snapshot.whole, simulation.problem.device)
        own, shared = whole["own"], whole["shared"]
        simulation.coalition.recall(own["coalition"])
        if isinstance(simulation, ProtocolSimulation):
            _into_protocol(simulation, shared)
            _set(simulation.pool, POOL, own["pool"])
            _set(simulation.exchange, EXCHANGE, own["exchange"])
        else:
            _set(simulation, SERVER, own["kept"])
            recall_into(simulation.aggregator, own["rule"])
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"it is damaged: {error}") from error
    if simulation.steps_done != snapshot.step:
        raise SnapshotError("it is damaged: it is of another step than it says")
    return own["beside"]


def _of_protocol(simulation: ProtocolSimulation) -> dict[str, Any]:
    """Each peer's own state. A liar that was banned is never asked again, nor looked through: its last state is left out."""
    if simulation.door is not None:
        raise UnwritableError("strangers at the door have a memory that is not written down (`probation`)")
    for attack in simulation.attacks:
        if vars(attack.behaviour).get("forgetful") is not True:
            raise UnwritableError(f"attack {name_of(attack)}: its behaviour in the protocol has a memory of its own")
    banned = {ban.peer for ban in simulation.bans} & simulation.liars
    states = {peer: state for peer, state in simulation.states.items() if simulation.numbers[peer] not in banned}
    return {
        "states": states,
        "kept": _read(simulation, PROTOCOL),
        "history": _read(simulation.history, HISTORY),
        "board": dict(simulation.board),
    }


def _into_protocol(simulation: ProtocolSimulation, shared: Memory) -> None:
    if not shared["states"].keys() <= simulation.states.keys():
        raise ValueError("it has peers that the run has not")
    simulation.states = shared["states"]  # nobody keeps the first state: an error is better than a wrong one
    simulation.board |= shared["board"]
    _set(simulation, PROTOCOL, shared["kept"])
    _set(simulation.history, HISTORY, shared["history"])


def _rule_memory(simulation: ServerSimulation) -> Memory:
    try:
        return memory_of(simulation.aggregator)
    except UnwritableError as error:
        raise UnwritableError(f"defence {simulation.scenario.defence_name}: {error}") from error


def _read(thing: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _set(thing: object, names: tuple[str, ...], values: Memory) -> None:
    if set(names) != set(values):
        raise ValueError("it lacks something, or has too much")
    for name in names:
        setattr(thing, name, values[name])


def place_of(simulation: Simulation) -> str:
    """All that the bits of a step depend on beside the scenario, in words."""
    device = simulation.problem.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    founded = simulation.origin if isinstance(simulation, ServerSimulation) else f"run {simulation.run.id.hex()[:16]}"
    evidence = isinstance(simulation, ServerSimulation) or simulation.proves
    parts = (
        f"Troth {__version__}",
        f"PyTorch {torch.__version__}",
        f"NumPy {np.__version__}",
        f"{platform.machine()} {where}",
        f"{torch.get_num_threads()} threads",
        founded,
        "" if evidence else "no evidence",
    )
    return ", ".join(filter(None, parts))


def options_of(simulation: Simulation) -> bytes | None:
    """Everything that attacks, and a rule without memory, hold in attributes; None if that cannot be written down.

    They are options, which stay. A user's own class may count in them all the same: then they are a memory that nobody writes.
    """
    things: list[object] = [*simulation.attacks]
    if isinstance(simulation, ServerSimulation):
        things += _objects_in(getattr(getattr(simulation.aggregator, "entry", None), "function", None))
    try:
        graph = graph_of([dict(vars(thing)) if hasattr(thing, "__dict__") else None for thing in things])
    except UnwritableError:
        return None
    return graph.nodes + b"".join(bytes(tensor.cpu().reshape(-1).view(torch.uint8).numpy()) for tensor in graph.tensors)


def _objects_in(rule: object) -> list[object]:
    """The object that a rule is, if it is no plain function."""
    if isinstance(rule, partial):
        return _objects_in(rule.func)
    return [] if rule is None or isinstance(rule, FunctionType | BuiltinFunctionType) else [rule]
