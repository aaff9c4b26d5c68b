"""A swarm's plan, and each of its processes: a peer that reports to its parent, and perhaps lies."""

import dataclasses
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from troth.crypto import Identity, PeerId, Seed, derive, stream
from troth.errors import OperatorError
from troth.events import kinds
from troth.files import write_bytes
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.consent import agree_here, code_to_run
from troth.network.manifest.files import data_files, initial_state_file, origin_file
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.node.ahead import GradientsAhead
from troth.network.node.log import LogFile
from troth.network.node.node import BannedError, Node, PeerFactory
from troth.network.node.options import NodeOptions
from troth.plugins import absolute, in_its_folder
from troth.protocol.broadcast.channel import BroadcastChannel
from troth.protocol.broadcast.link import PacketLink
from troth.protocol.core.channel import Channel
from troth.protocol.core.records import StepRecord, encode_record
from troth.protocol.core.roles import SeededEntropy
from troth.protocol.core.run import most_byzantine
from troth.protocol.recovery.builder import PeerBuilder
from troth.protocol.recovery.member import RemovedError
from troth.protocol.wire.primitives import Primitives
from troth.specs import pick
from troth.training import Problem
from troth.training.work import Training, TrainingWork, finite_or_zero
from troth.workshop.attacks import AttackSchedule, Coalition, Collusion, make_attack
from troth.workshop.attacks.broadcasts import WIRE_BEHAVIOURS, LateChannel
from troth.workshop.attacks.link import LyingLink

_STAND_INS = 4  # batches from which a liar guesses the honest gradients


class SwarmError(OperatorError):
    """A swarm that cannot be started; the message names the field and what it takes."""


@dataclass(frozen=True)
class SwarmPlan:
    """The peers of a swarm, the liars among them, and their attacks. Everything random follows from its seed."""

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

    @property
    def honest(self) -> list[int]:
        return [number for number in range(self.peers) if number not in self.liars]

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


class ChildNote(msgspec.Struct, frozen=True, tag=True):
    """A line for people."""

    peer: int
    text: str


class ChildStepped(msgspec.Struct, frozen=True, tag=True):
    """A step has ended."""

    peer: int
    event: kinds.Stepped
    record: bytes


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """The peer has ended."""

    peer: int
    how: str  # "done", "out", or the error
    step: int = 0
    state: bytes = b""  # digest of model and optimizer


Trace = ChildNote | ChildStepped | ChildEnded


class _Reporter:
    """Sends everything to the parent; the node itself keeps the log."""

    def __init__(self, peer: int, parent: Connection) -> None:
        self._peer = peer
        self._parent = parent
        self._lock = threading.Lock()  # notes come from several threads

    def send(self, trace: Trace) -> None:
        try:
            with self._lock:
                self._parent.send_bytes(msgspec.msgpack.encode(trace))
        except OSError:  # the parent is gone, and so is the swarm
            raise KeyboardInterrupt from None

    def stepped(self, event: kinds.Stepped, record: StepRecord) -> None:
        self.send(ChildStepped(self._peer, event, encode_record(record)))

    def note(self, text: str) -> None:
        self.send(ChildNote(self._peer, text))


def live(
    plan_raw: bytes,
    manifest_raw: bytes,
    manifest_folder: str,
    out: str,
    number: int,
    parent: Any,
    evaluate_every: int,
    threads: int,
    agreed: tuple[str, ...] = (),
) -> None:
    """The process's main function. Plans and manifests travel as bytes: nothing is unpickled but that. `agreed`: code that the
    person who started the swarm agreed to run."""
    agree_here(*agreed)
    folder = folder_of(Path(out), number)
    folder.mkdir(parents=True, exist_ok=True)
    _redirect_output(folder / "output.txt")
    log = LogFile(folder / "log.txt")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and asks us to stop
    reporter, stop = _Reporter(number, parent), _Stop()
    try:
        signal.signal(signal.SIGTERM, stop)
        torch.set_num_threads(threads)
        plan = msgspec.json.decode(plan_raw, type=SwarmPlan)
        try:
            manifest = Manifest.from_bytes(manifest_raw, Path(manifest_folder))
            _train(plan, manifest, folder, number, reporter, evaluate_every)
        except (BannedError, RemovedError) as why:
            log.write(str(why))
            reporter.send(ChildEnded(number, "out"))
        except OperatorError as error:
            log.write(f"ended: {error}")
            reporter.send(ChildEnded(number, str(error)))
        except Exception as error:
            log.write(f"ended by an error: {type(error).__name__}: {error} (see output.txt)")
            traceback.print_exc()
            reporter.send(ChildEnded(number, f"{type(error).__name__}: {error}"))
        stop.late = True
    except KeyboardInterrupt:
        stop.late = True
        log.write("stopped with the swarm")
        sys.exit(143)


def _redirect_output(file: Path) -> None:
    """Output of libraries, and tracebacks."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _train(
    plan: SwarmPlan, manifest: Manifest, folder: Path, number: int, reporter: _Reporter, evaluate_every: int
) -> None:
    identity = plan.identities()[number]
    factory = LiarFactory(plan, number) if number in plan.liars else RehearsalFactory(plan, number)
    founder = manifest.founder(identity.peer)
    assert founder is not None
    manifest_file = str(folder.parent / "run.toml")
    options = NodeOptions(folder, listen=founder.address, evaluate_every=evaluate_every, manifest_file=manifest_file)
    node = Node(manifest, identity, options, reporter, factory)
    state = node.live()
    reporter.send(ChildEnded(number, "done", state.step, node.work.digest(state.training)))


class _Stop:
    """SIGTERM from the parent. Once the peer has ended, or was stopped, there is nothing left to interrupt but the interpreter's
    way out, which would print a traceback."""

    def __init__(self) -> None:
        self.late = False

    def __call__(self, *_: Any) -> None:
        if not self.late:
            self.late = True
            raise KeyboardInterrupt


def copy_companions(manifest: Manifest, out: Path) -> None:
    """Copy what lies beside a manifest, so that everybody can check bans and the model: the task's code, its data files and the
    initial state."""
    code = code_to_run(manifest)
    if code is not None and code.pinned is not None:
        for file, content in zip(code.files, code.pinned.contents, strict=True):
            write_bytes(_place(out, Path(file.name)), content)
    for name in _beside(manifest):
        source, copy = manifest.folder / name, _place(out, name)
        if not (copy.exists() and copy.samefile(source)):
            copy.unlink(missing_ok=True)
            _copy(source, copy)


def _beside(manifest: Manifest) -> Iterator[Path]:
    """Names of files in the manifest's folder; what the task reads from elsewhere is found there again."""
    if manifest.task_file is not None:
        here = manifest.folder.resolve()
        places = [file.resolve() for file in data_files(manifest.make_task())]
        yield from (file.relative_to(here) for file in places if file.is_relative_to(here))
    if (digest := manifest.initial_state) is not None:
        yield initial_state_file(Path(), digest)
        if manifest.continues is not None:
            yield origin_file(Path(), digest)


def _place(out: Path, name: Path) -> Path:
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    return out / name


def _copy(source: Path, copy: Path) -> None:
    """A second name of the same file where the disk allows it: data may be large."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


# The parts of a rehearsal's peers: seeded coins, and for liars an attack around everything that the network gives them


class RehearsalFactory(PeerFactory):
    """Makes an honest peer whose coins can be repeated."""

    def __init__(self, plan: SwarmPlan, number: int) -> None:
        self._plan = plan
        self._number = number

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        return replace(ports, entropy=SeededEntropy(self._plan.seed, self._number))


class LiarFactory(RehearsalFactory):
    """Makes a liar, which knows the keys of the other liars."""

    def __init__(self, plan: SwarmPlan, number: int) -> None:
        super().__init__(plan, number)
        self._coalition = plan.coalition()
        identities = plan.identities()
        self._fellows = {identities[k].peer: identities[k] for k in plan.liars if k != number}
        self._colluders = frozenset(identities[k].peer for k in plan.liars)

    def work(self, manifest: Manifest, problem: Problem, tools: Primitives) -> TrainingWork:
        self._coalition.layout = problem.layout
        return manifest.work_like(_LyingWork, problem, tools).lie(self._coalition, self._number)

    def ahead(self, work: TrainingWork, allowed_s: Callable[[], float]) -> GradientsAhead:
        return GradientsAhead(work)  # nothing is begun: what it contributes is not what `gradient_now` computes

    def ports(self, ports: PeerBuilder[Training]) -> PeerBuilder[Training]:
        attack, board = self._coalition.attack_of(self._number), dict[Any, Any]()  # processes share no memory
        collusion = Collusion(attack, self._colluders, ports.run, self._coalition.active, board)
        links: list[LyingLink] = []

        def lying(key: Identity) -> PacketLink:
            plan, draw = self._plan, stream(self._plan.seed, "liar", self._number)
            behaviours = frozenset(plan.behaviours)
            links[:] = [LyingLink(ports.link(key), key, behaviours, 1.0, plan.attack_start, draw, self._fellows)]
            return links[0]

        def outside(channel: BroadcastChannel, key: Identity) -> Channel:
            for link in links:
                link.follow(channel)
            assert isinstance(channel, LateChannel)
            behaving: Channel = attack.behaviour(channel, key.peer, collusion)
            return behaving

        link = lying if self._plan.behaviours else ports.link
        return replace(super().ports(ports), link=link, channel=LateChannel, outside=outside)


class _LyingWork(TrainingWork):
    """Contributes the gradients that its coalition wants. Honest gradients are guessed from batches of its own."""

    def lie(self, coalition: Coalition, number: int) -> "_LyingWork":
        self._coalition, self._number = coalition, number
        return self

    async def gradient(self, training: Training, seed: Seed, step: int) -> Tensor:
        def own(parameters_D: Tensor, seed: Seed) -> Tensor:
            batch = self._coalition.batch(step, self.problem.task, self.problem.batch(seed), self._number)
            losses_P, gradients_PD = self.problem.gradients(parameters_D, [batch])
            self.loss = float(losses_P[0])
            return finite_or_zero(gradients_PD[0])

        own_BD = self.walk(training, seed, own, self._coalition.local_steps(step, self.local_steps, self._number))[None]
        honest_HD = own_BD
        if self._coalition.active(step) and self._coalition.attack_of(self._number).needs_honest:
            batches = [self.problem.batch(Seed(derive(seed, "stand-in", k))) for k in range(_STAND_INS)]
            honest_HD = self.problem.gradients(training.parameters_D, batches)[1]
        return self._coalition.gradients(step, own_BD, honest_HD, [self._number])[0]
