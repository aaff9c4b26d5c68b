"""`troth join`: one peer of a run, from the first step to the last, or from wherever it was stopped."""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from troth.crypto import PeerId
    from troth.network.node.events import StepEvent
    from troth.network.node.node import Node

_QUIET_S = 5.0  # without a step: then say what is waited for


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
        float, typer.Option(help="Seconds after which enough members begin, or begin anew, without the rest.")
    ] = 120.0,
    restart_with: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Begin, or begin anew, with so many members, if you all agree that the rest is gone; never fewer than a quorum.",
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
        bool, typer.Option("--serve-relay", help="libp2p: be a relay for those whom nobody can dial.")
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

    from troth.cli.key import load_identity
    from troth.network.manifest.manifest import Manifest
    from troth.network.node.node import BannedError, Libp2pOptions, Node, Options
    from troth.protocol.recovery.member import ForkedError, RemovedError

    if threads:
        torch.set_num_threads(threads)
    run = Manifest.load(manifest)
    me = load_identity(identity)
    founder = run.founder(me.peer)
    elsewhere = _addresses(address or [], {one.name: one.key for one in run.founders})
    if not listen:
        where = founder.endpoint if founder is not None else None
        listen = f"0.0.0.0:{where[1] if where else 0}" if where or not libp2p else ""
    place = folder or Path("runs") / f"{run.name}-{me.peer.hex()[:8]}"
    options = Options(
        place,
        listen=listen,
        addresses=elsewhere,
        founding_s=founding_s,
        restart_with=restart_with,
        bytes_per_second=None if bandwidth is None else bandwidth * 1e6,
        metrics_port=metrics_port,
        libp2p=Libp2pOptions(tuple(initial_peer or ()), tuple(relay or ()), tuple(announce or ()), serve_relay)
        if libp2p
        else None,
        tensorboard=tensorboard,
    )
    screen = _Screen()
    node = Node(run, me, options, screen)
    screen.node = node
    typer.echo(
        f"Run {run.run.id.hex()[:16]} “{run.name}”, as {run.name_of(me.peer)}; everything goes to {place}", err=True
    )
    screen.watch()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
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
    typer.echo(f"The run is over. Model: {place / 'model.safetensors'}; signatures over it: {place / 'model.json'}")


def _addresses(given: list[str], names: "dict[str, PeerId]") -> "dict[PeerId, str]":
    from troth.errors import OperatorError

    found = {}
    for item in given:
        name, equals, where = item.partition("=")
        if not equals or name not in names:
            raise OperatorError(f"--address {item}: write name=host:port with one of {', '.join(sorted(names))}")
        found[names[name]] = where
    return found


class _Screen:
    """Lines on standard error: a step each while it goes slowly, now and then while it goes fast."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self._last_step = self._last_line = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._grumble, daemon=True)
        self._metrics = ""

    def watch(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def note(self, text: str) -> None:
        typer.echo(f"  {text}", err=True)

    def stepped(self, event: "StepEvent") -> None:
        now = time.monotonic()
        for sentence in event.sentences():
            self.note(sentence)
        self._metrics = event.metrics_in_words() or self._metrics
        if now >= self._last_line + 2.0 or event.step == event.of:
            self._last_line = now
            traffic = f"{(event.control_bytes + event.bulk_bytes) / 1e6:.1f} MB in, {event.sent_bytes / 1e6:.1f} MB out"
            typer.echo(f"{event.line(self._metrics)}  {traffic}", err=True)
        self._last_step = now

    def _grumble(self) -> None:
        """When nothing happens: what is waited for, and for whom."""
        while not self._over.wait(1.0):
            now = time.monotonic()
            if now >= max(self._last_step, self._last_line) + _QUIET_S and self.node is not None:
                waits = self.node.waits_for()
                if waits is not None:
                    self.note(waits)
                    self._last_line = now
