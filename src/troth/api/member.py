"""`troth.join`: a member of a real run inside one's own program."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import nan
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from troth.api.keys import load_identity, record_key_path
from troth.api.steps import Ban, Step, StepFeed, use_threads
from troth.crypto import Identity, PeerId
from troth.errors import OperatorError
from troth.events import phrases
from troth.events.kinds import Stepped
from troth.network.disk.lock import DiskError
from troth.network.manifest.consent import require_consent
from troth.network.manifest.manifest import Manifest
from troth.network.mesh import StoppedError
from troth.network.node.founding import PeerNames
from troth.network.node.node import Node
from troth.network.node.options import NodeOptions, default_folder
from troth.network.node.telling import EventSink
from troth.network.transport.base import TransportOptions
from troth.network.transport.registry import DEFAULT_TRANSPORT, TRANSPORTS
from troth.protocol.core.records import StepRecord
from troth.protocol.recovery.following import Invitation
from troth.specs import check_keywords
from troth.training import Problem

_log = logging.getLogger("troth.run")
logging.getLogger("troth").addHandler(logging.NullHandler())  # else Python prints warnings that nobody asked for


class JoinError(OperatorError):
    """A member that cannot take part as asked for; the message names the field and the way out."""


@check_keywords
def join(
    manifest: str | PathLike[str] | Manifest,
    identity: str | PathLike[str] | Identity,
    *,
    folder: str | PathLike[str] | None = None,
    listen: str = "",
    addresses: Mapping[str, str] | None = None,
    at: str = "",
    invitation: str = "",
    founding_s: float = 120.0,
    restart_with: int | None = None,
    evaluate_every: int = 10,
    bytes_per_second: float | None = None,
    keep_checkpoints: int = 3,
    metrics_port: int | None = None,
    tensorboard: bool = False,
    transport: TransportOptions | None = None,
    threads: int = 1,
    trust: str | None = None,
) -> "MemberRun":
    """Take part in a run: draw batches, commit, audit, agree, and keep what must last, as `troth join` does.

    with troth.join("run.toml", identity="me.key") as run:
        for step in run:
            print(step.number, step.loss, step.bans)
        model = run.model()

    `folder` keeps journal, checkpoints and evidence (default: runs/NAME-KEY): the same call with the same folder comes
    back after a crash. `listen` is host:port (default: the manifest's port on all interfaces), `addresses` says where
    others are now, by name, if not where the manifest says. A peer that is no founder says `at` which host:port others can
    dial it (default: what it listens on, if that names a host), and follows the history of its `invitation` alone.
    `founding_s` seconds after the beginning, or after everyone stopped, enough members go on without the rest; with
    `restart_with` that many are enough. `threads` is set for all of PyTorch in this process, since bits may depend on it
    (0: left alone).

    A task that is not part of Troth is a program of whoever wrote the manifest. It is run once you have agreed to those bytes:
    `trust` is their SHA-256, which the `ConsentError` names that is raised otherwise. They are asked for once.
    """
    agreed = manifest if isinstance(manifest, Manifest) else Manifest.load(Path(manifest))
    me = identity if isinstance(identity, Identity) else load_identity(Path(identity))
    if evaluate_every < 1:
        raise JoinError(f"`evaluate_every` must be at least 1, got {evaluate_every}")
    require_consent(agreed, trust)
    use_threads(threads)
    endpoint = founder.endpoint if (founder := agreed.founder(me.peer)) is not None else None
    way = transport or TRANSPORTS[DEFAULT_TRANSPORT]()
    options = NodeOptions(
        Path(folder) if folder is not None else default_folder(agreed, me.peer),
        listen=listen or way.listen_address(endpoint[1] if endpoint is not None else None),
        addresses=_by_key(addresses or {}, agreed),
        at=at or (listen if _names_a_host(listen) else ""),
        invitation=Invitation.read(invitation) if invitation else None,
        first_record_key=None if isinstance(identity, Identity) else record_key_path(Path(identity)),
        founding_s=founding_s,
        restart_with=restart_with,
        evaluate_every=evaluate_every,
        bytes_per_second=bytes_per_second,
        keep_checkpoints=keep_checkpoints,
        metrics_port=metrics_port,
        tensorboard=tensorboard,
        manifest_file="" if isinstance(manifest, Manifest) else str(manifest),
        transport=way,
    )
    return MemberRun(agreed, me, options)


class MemberRun:
    """A member of a run, which trains in a thread of its own while the `with` block lasts.

    Iterate over it for steps. Leaving the block early stops the peer politely, as Ctrl-C does: its state is saved, the
    others go on, and joining again with the same folder comes back. Errors of the peer (`BannedError`, `ForkedError`,
    an `OperatorError`) are raised where its steps are read, or at the end of the block. Every method and attribute may
    be used from any thread.
    """

    def __init__(self, manifest: Manifest, identity: Identity, options: NodeOptions) -> None:
        self.manifest = manifest
        self.name = manifest.name
        self.me = manifest.name_of(identity.peer)  # this member's own name
        self.is_founder = manifest.founder(identity.peer) is not None
        self.folder = options.folder
        self._identity = identity
        self._options = options
        self._feed = StepFeed()
        self._node: Node | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = None if self._node is None else self._node.state
        done = "not begun" if state is None else f"{state.scales.updates} of {self.manifest.steps} updates"
        return f"<MemberRun {self.me} of {self.name}: {done}, folder {self.folder}>"

    def node(self, sink: EventSink) -> Node:
        """The peer itself, for a program that runs it in a thread of its own and shows its events in its own way."""
        with naming_folder():
            return Node(self.manifest, self._identity, self._options, sink)

    # The block

    def __enter__(self) -> Self:
        if self._node is not None:
            raise JoinError("a run is joined once: call troth.join again, with the same folder, to come back")
        self._node = self.node(_Sink(self._feed, self.folder))
        self._thread = threading.Thread(target=self._live, args=(self._node,), name=f"troth {self.me}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()
        failure = self._feed.take_failure()
        if failure is None:
            return
        if error is None:
            raise failure
        _log.error("%s: %s", self.me, failure)  # the error of the block goes first

    def _live(self, node: Node) -> None:
        try:
            node.live()
        except StoppedError:
            self._feed.end()
        except BaseException as failure:
            self._feed.end(failure)
        else:
            self._feed.end()

    # Steps

    def __iter__(self) -> Iterator[Step]:
        self._running()
        return self._feed

    def __next__(self) -> Step:
        self._running()
        return next(self._feed)

    def wait(self) -> None:
        """Train to the end of the run, passing over the steps that nobody has read."""
        for _ in self:
            pass

    def stop(self) -> None:
        """Stop politely, as leaving the block does; the loop over the steps ends. May be called from any thread."""
        self._running().stop()

    # The run

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the present members, as far as this one knows."""
        state = self._running().state
        if state is None:
            return tuple(sorted(founder.name for founder in self.manifest.founders))
        names = PeerNames(self.manifest.name_of)
        names.learn(state.roster.successors)
        return tuple(sorted(map(names, state.roster.members)))

    def waits_for(self) -> str | None:
        """The reason why nothing happens, in words; None if this peer waits for nobody."""
        node = self._running()
        over = self._thread is None or not self._thread.is_alive()
        return None if over else node.waits_for()

    def model(self) -> nn.Module:
        """The task's own module with the newest weights, in evaluation mode; during the run and after it."""
        problem, parameters_D = self._newest()
        return problem.module(parameters_D)

    def state_dict(self) -> dict[str, Tensor]:
        """The newest weights and buffers: complete, so that they load strictly into the task's own module."""
        problem, parameters_D = self._newest()
        return problem.state_dict(parameters_D)

    def _newest(self) -> tuple[Problem, Tensor]:
        node = self._running()
        state = node.state
        if state is None:
            raise JoinError("this member is on its way back and has no model yet: wait for its next step")
        return node.work.problem, state.training.parameters_D

    def _running(self) -> Node:
        if self._node is None:
            raise JoinError("not joined yet: use `with troth.join(…) as run:`")
        return self._node


class _Sink:
    """Takes a node's events, in the node's thread: steps for the reader, notes for the log."""

    def __init__(self, feed: StepFeed, folder: Path) -> None:
        self._feed = feed
        self._folder = folder

    def stepped(self, event: Stepped, record: StepRecord) -> None:
        self._feed.put(step_of(event, self._folder))
        for sentence in phrases.sentences(event):
            _log.info(sentence)

    def note(self, text: str) -> None:
        _log.info(text)


def step_of(event: Stepped, folder: Path) -> Step:
    """A member's event as a step for users."""
    return Step(
        number=event.updates,
        of=event.of,
        loss=nan if event.loss is None else event.loss,
        members=event.members,
        withstands=event.withstands,
        metrics=event.metrics,
        bans=tuple(Ban(ban.peer, event.step, ban.reason, folder / "evidence" / ban.evidence) for ban in event.banned),
        left=event.left + event.expelled,
        returned=tuple(one.peer for one in event.returned),
        moved=event.moved,
        seconds=event.seconds,
    )


@contextmanager
def naming_folder() -> Iterator[None]:
    """Name the option that chooses another folder, where that is the way out."""
    try:
        yield
    except DiskError as error:
        raise (JoinError(f"{error} with `folder`") if error.wrong_folder else error) from error


def _names_a_host(listen: str) -> bool:
    """Whether others can dial what is listened on."""
    return bool(listen) and not listen.startswith(("0.0.0.0:", "[::]:", ":")) and not listen.endswith(":0")


def _by_key(addresses: Mapping[str, str], manifest: Manifest) -> dict[PeerId, str]:
    keys = {founder.name: founder.key for founder in manifest.founders}
    for name in addresses:
        if name not in keys:
            raise JoinError(f"`addresses` names '{name}', who is no founder: choose from {', '.join(sorted(keys))}")
    return {keys[name]: where for name, where in addresses.items()}
