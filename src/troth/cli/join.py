"""`troth join`: one peer of a run, from the first step to the last, or from where it was stopped."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from troth.errors import OperatorError

if TYPE_CHECKING:
    from troth.crypto import PeerId
    from troth.network.node.events import StepEvent
    from troth.network.node.node import Node
    from troth.protocol.core.records import StepRecord

_QUIET_S = 5.0  # without a step: then say for whom this peer waits


def join(
    manifest: Annotated[Path, typer.Argument(help="The run's manifest (run.toml), the same file for everyone.")],
    identity: Annotated[Path, typer.Option(help="Your key file, made with 'troth key new'. Never send it to anyone.")],
    listen: Annotated[
        str,
        typer.Option(
            help="host:port to listen on; by default the port of your address in the manifest, on all interfaces."
        ),
    ] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(help="name=host:port: where somebody is now, if not where the manifest says. Repeatable."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For journal, checkpoints, evidence and the model; default: runs/NAME-KEY.")
    ] = None,
    founding_s: Annotated[
        float, typer.Option(help="Seconds after which enough members begin, or restart, without the rest.")
    ] = 120.0,
    restart_with: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Begin, or restart, with so many members, if you all agree that the rest is gone; never fewer than a quorum.",
        ),
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Send at most so many megabytes a second.")] = None,
    libp2p: Annotated[
        bool,
        typer.Option(
            "--libp2p", help="Find and reach the others through libp2p (pip install 'troth[libp2p]'); all have to."
        ),
    ] = False,
    initial_peer: Annotated[
        list[str] | None,
        typer.Option(help="libp2p: address of a peer that anyone can dial, to find the others by. Repeatable."),
    ] = None,
    relay: Annotated[
        list[str] | None, typer.Option(help="libp2p: address of a relay, if nobody can dial you. Repeatable.")
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option(help="libp2p: address that others can dial, if it is not the one listened on. Repeatable."),
    ] = None,
    serve_relay: Annotated[
        bool, typer.Option("--serve-relay", help="libp2p: be a relay for peers that nobody can dial.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve metrics for Prometheus on this port of this machine.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard files into the folder.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads to compute with; 0: as many as PyTorch likes.")] = 1,
) -> None:
    """Join a run and train until it ends.

    Run it again with the same folder after whatever stopped it: it catches up and comes back. Stop it with Ctrl-C; the others
    go on. If everyone stopped, the run goes on as soon as enough are back. At the end the folder holds model.safetensors, and
    model.json with the signatures over it.
    """
    typer.echo("Starting …", err=True)
    import torch

    from troth.cli.fields import as_options
    from troth.cli.key import load_identity
    from troth.network.manifest.manifest import Manifest
    from troth.network.node.node import Node
    from troth.network.node.options import NodeOptions
    from troth.network.transport.registry import DEFAULT_TRANSPORT, TRANSPORTS

    if threads:
        torch.set_num_threads(threads)
    run = Manifest.load(manifest)
    me = load_identity(identity)
    addresses = _addresses(address or [], {one.name: one.key for one in run.founders})
    libp2p_options = {
        "initial_peers": tuple(initial_peer or ()),
        "relays": tuple(relay or ()),
        "announce": tuple(announce or ()),
        "serves_relay": serve_relay,
    }
    transport = TRANSPORTS["libp2p"](**libp2p_options) if libp2p else TRANSPORTS[DEFAULT_TRANSPORT]()
    founder = run.founder(me.peer)
    endpoint = founder.endpoint if founder is not None else None
    place = folder or Path("runs") / f"{run.name}-{me.peer.hex()[:8]}"
    options = NodeOptions(
        place,
        listen=listen or transport.listen_address(endpoint[1] if endpoint is not None else None),
        addresses=addresses,
        founding_s=founding_s,
        restart_with=restart_with,
        bytes_per_second=None if bandwidth is None else bandwidth * 1e6,
        metrics_port=metrics_port,
        tensorboard=tensorboard,
        transport=transport,
    )
    screen = _Screen()
    with _naming_folder(), as_options({"metrics_port", "tensorboard"}):
        node = Node(run, me, options, screen)
    typer.echo(
        f"Run {run.run.id.hex()[:16]} “{run.name}”, as {run.name_of(me.peer)}; everything goes to {place}", err=True
    )
    _live(node, screen, place)
    typer.echo(f"The run is over. Model: {place / 'model.safetensors'}; signatures over it: {place / 'model.json'}")


def _live(node: "Node", screen: "_Screen", place: Path) -> None:
    """Train to the end, or exit with what people need to know."""
    from troth.network.node.node import BannedError
    from troth.protocol.recovery.ledger import ForkedError
    from troth.protocol.recovery.member import RemovedError

    screen.watch(node)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        with _naming_folder():
            node.live()
    except KeyboardInterrupt:
        typer.echo(f"stopped; the others go on, and the same command comes back (everything is in {place})", err=True)
        sys.exit(130)
    except ForkedError as why:
        typer.echo(f"{why} (this peer's is in {place}/journal)", err=True)
        raise typer.Exit(1) from why
    except (BannedError, RemovedError) as why:
        typer.echo(f"{why}: see {place}/journal for what the others say", err=True)
        raise typer.Exit(1) from why
    finally:
        screen.stop()


@contextmanager
def _naming_folder() -> Iterator[None]:
    """Add the option that chooses another folder, where that is the way out."""
    from troth.network.disk.errors import DiskError

    try:
        yield
    except DiskError as error:
        if not error.wrong_folder:
            raise
        raise OperatorError(f"{error} with --folder") from error


def _addresses(given: list[str], names: "dict[str, PeerId]") -> "dict[PeerId, str]":
    found = {}
    for item in given:
        name, equals, where = item.partition("=")
        if not equals or name not in names:
            raise OperatorError(f"--address {item}: write name=host:port with one of {', '.join(sorted(names))}")
        found[names[name]] = where
    return found


class _Screen:
    """Lines on standard error: one for each step while steps are slow, now and then while they are fast."""

    def __init__(self) -> None:
        self._last_step = self._last_line = time.monotonic()
        self._over = threading.Event()
        self._metrics = ""

    def watch(self, node: "Node") -> None:
        """Say from now on for whom the node waits, whenever nothing happens."""
        threading.Thread(target=self._tell_waits, args=(node,), daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def note(self, text: str) -> None:
        typer.echo(f"  {text}", err=True)

    def stepped(self, event: "StepEvent", record: "StepRecord") -> None:
        now = time.monotonic()
        for sentence in event.sentences():
            self.note(sentence)
        self._metrics = event.metrics_in_words() or self._metrics
        if now >= self._last_line + 2.0 or event.step == event.of:
            self._last_line = now
            traffic = f"{(event.control_bytes + event.bulk_bytes) / 1e6:.1f} MB in, {event.sent_bytes / 1e6:.1f} MB out"
            typer.echo(f"{event.line(self._metrics)}  {traffic}", err=True)
        self._last_step = now

    def _tell_waits(self, node: "Node") -> None:
        while not self._over.wait(1.0):
            now = time.monotonic()
            if now >= max(self._last_step, self._last_line) + _QUIET_S:
                waiting = node.waits_for()
                if waiting is not None:
                    hint = " (people may agree on fewer: --restart-with)" if waiting.for_restart else ""
                    self.note(waiting.text + hint)
                    self._last_line = now
