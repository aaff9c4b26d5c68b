"""The plan of a rehearsal: peers on one machine, some of them liars. Everything random follows from its seed."""

import dataclasses
import shutil
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from troth.attacks import AttackSchedule, Coalition, make_attack
from troth.attacks.wire.behaviours import WIRE_BEHAVIOURS
from troth.crypto import Identity, PeerId, derive, stream
from troth.errors import OperatorError
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.founder import Founder
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions
from troth.plugins import absolute, in_its_folder
from troth.protocol.core.run import most_byzantine
from troth.specs import pick


class SwarmError(OperatorError):
    """A swarm that cannot be started; the message names the field and what it takes."""


@dataclass(frozen=True)
class SwarmPlan:
    """The peers of a swarm, the liars among them, and their attacks."""

    peers: int
    byzantine: int = 0
    attacks: tuple[str, ...] = ("sign-flip",)  # shared out among the liars
    behaviours: tuple[str, ...] = ()  # of all liars on the wire
    attack_start: int = 10
    attack_every: int = 1
    attack_probability: float = 1.0
    attack_stop: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.peers <= 64:
            raise SwarmError(f"`peers` must be from 1 to 64 on one machine, got {self.peers}")
        most = most_byzantine(self.peers, 1)
        if not 0 <= self.byzantine <= most:
            raise SwarmError(f"`byzantine`: {self.peers} peers withstand at most {most} liars, got {self.byzantine}")
        for name in self.behaviours:
            pick(WIRE_BEHAVIOURS, name, "behaviour on the wire")
        # Liars are processes of their own: their attacks travel by name, and their files by their whole path.
        if not all(isinstance(spec, str) for spec in self.attacks):
            raise SwarmError("`attacks` are names or files: an object cannot travel to another process")
        object.__setattr__(self, "attacks", tuple(absolute(spec) for spec in self.attacks))
        for spec in self.attacks:
            make_attack(spec)
        self.schedule()

    @property
    def liars(self) -> list[int]:
        """Numbers of the liars, drawn as a simulation draws them."""
        return sorted(stream(self.seed, "byzantine").sample(self.peers, self.byzantine).tolist())

    def identities(self) -> list[Identity]:
        """Keys of a simulation with this seed. Everybody who knows the seed knows these keys: for rehearsals only."""
        return [Identity.from_secret(derive(self.seed, "identity", number)) for number in range(self.peers)]

    def numbers(self) -> dict[PeerId, int]:
        return {identity.peer: number for number, identity in enumerate(self.identities())}

    def schedule(self) -> AttackSchedule:
        return AttackSchedule(self.attack_start, self.attack_every, self.attack_probability, self.attack_stop)

    def coalition(self) -> Coalition:
        attacks = [make_attack(spec) for spec in self.attacks]
        return Coalition(attacks, self.schedule(), self.liars, derive(self.seed, "coalition"))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def founders_of(plan: SwarmPlan) -> tuple[Founder, ...]:
    """The plan's peers as founders, on ports of this machine that are free now."""
    with ExitStack() as stack:
        ports = [_free_port(stack) for _ in range(plan.peers)]
    return tuple(
        Founder(f"peer{number}", identity.peer, f"127.0.0.1:{port}")
        for number, (identity, port) in enumerate(zip(plan.identities(), ports, strict=True))
    )


def rehearsal(
    plan: SwarmPlan,
    task: str = "digits",
    *,
    base: Manifest | None = None,
    steps: int | None = None,
    optimizer: str | None = None,
    rate: float | None = None,
    tau: float | None = None,
    delta_s: float = 2.0,
) -> Manifest:
    """The manifest of a run of the plan's peers: with a task's defaults, or as another manifest with other founders.

    None: as the task or that manifest has it. The run's name follows from the seed and the ports.
    """
    training: dict[str, Any] = {"steps": steps, "optimizer": optimizer, "rate": rate}
    if base is not None:
        changes = {name: value for name, value in training.items() if value is not None}
        parameters = base.parameters if tau is None else dataclasses.replace(base.parameters, tau=tau)
        return dataclasses.replace(base, founders=founders_of(plan), parameters=parameters, **changes)
    options = ManifestOptions(**training, tau=tau, seed=plan.seed, byzantine=plan.byzantine, delta_s=delta_s)
    folder, task = in_its_folder(task)
    manifest = build_manifest(task, founders_of(plan), options, folder).manifest
    return dataclasses.replace(manifest, nonce=derive(plan.seed, "run"))


def clear(out: Path, peers: int) -> None:
    """Remove the folders of an earlier swarm: its peers would go on where it ended."""
    for folder in (folder_of(out, number) for number in range(peers)):
        if folder.is_dir():
            shutil.rmtree(folder)


def _free_port(stack: ExitStack) -> int:
    """A free port, held until all are found, so that they differ."""
    try:
        held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        held.bind(("127.0.0.1", 0))
    except OSError as error:
        raise SwarmError(f"no free port on this machine: {error.strerror}") from error
    port: int = held.getsockname()[1]
    return port


def folder_of(out: Path, number: int) -> Path:
    return out / f"peer{number}"
