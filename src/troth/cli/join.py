"""`troth join`: one peer of a run, from the first step to the last, or from where it was stopped."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from troth.cli.fields import Threads, Trust, agree
from troth.cli.progress import telling
from troth.cli.watch import HOST, Page, PageHost, PageOptions, PagePort
from troth.errors import OperatorError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from troth.events.kinds import Stepped
    from troth.network.manifest.manifest import Manifest
    from troth.network.node.node import Node
    from troth.protocol.core.records import StepRecord


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
    at: Annotated[
        str,
        typer.Option(
            help="host:port where the others can dial you, if you are none of the founders. By default what you listen on, if "
            "that names a host; else you dial them."
        ),
    ] = "",
    invitation: Annotated[
        str,
        typer.Option(
            help="What 'troth invite' printed for somebody of this run whom you trust: you follow that history and no other. For "
            "those who are none of the founders."
        ),
    ] = "",
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
        typer.Option("--libp2p", help="Find and reach the others through libp2p (the extra 'libp2p'); all have to."),
    ] = False,
    initial_peer: Annotated[
        list[str] | None,
        typer.Option(
            help="libp2p: address of a peer that anyone can dial, to find the others by; by default the founders that have one. "
            "Repeatable."
        ),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            help="libp2p: a founder that serves as a relay, or a relay's address, if nobody can dial you. Repeatable."
        ),
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
    threads: Threads = 1,
    trust: Trust = None,
    page: Page = False,
    page_port: PagePort = None,
    page_host: PageHost = HOST,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show news only; log.txt has every step.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every step.")] = False,
) -> None:
    """Join a run and train until it ends.

    Whoever is none of the founders may join too, if the run's door is open (troth new --probation): it follows the run, gets a
    place on probation by some seconds of work, fetches the model, and is a member after so many audited steps.

    Run it again with the same folder after whatever stopped it: it catches up and comes back. Stop it with Ctrl-C or SIGTERM:
    it saves its state, and the others go on. If everyone stopped, the run goes on as soon as enough are back. At the end the
    folder holds model.safetensors, and model.json with the signatures over it. 'troth export' writes the model on the way.

    A task that is not part of Troth is a program of whoever wrote the manifest: you are asked before it is run at first.

    The folder's log.txt has everything that is said here, and every step, with the time (UTC).

    Exit codes: 0 the run is over; 1 this peer is out of the run; 2 a mistake that the message names; 130 stopped by Ctrl-C,
    143 by SIGTERM: everything is saved then, and a second signal waits for that.
    """
    typer.echo("Starting …", err=True)
    with telling("loading PyTorch"):
        from troth.api.member import join as join_run
        from troth.network.manifest.manifest import Manifest
        from troth.network.node.metrics import check_extra
        from troth.network.transport.registry import DEFAULT_TRANSPORT, TRANSPORTS
        from troth.training.weights import how_to_load

    check_extra(metrics_port, tensorboard=tensorboard)
    run = Manifest.load(manifest)
    agree(run, trust)
    addresses = _addresses(address or [], [one.name for one in run.founders])
    libp2p_options = {
        "initial_peers": tuple(initial_peer or ()),
        "relays": tuple(_relay_address(one, run, addresses) for one in relay or ()),
        "announce": tuple(announce or ()),
        "serves_relay": serve_relay,
    }
    transport = TRANSPORTS["libp2p"](**libp2p_options) if libp2p else TRANSPORTS[DEFAULT_TRANSPORT]()
    joined = join_run(
        manifest,
        identity,
        folder=folder,
        listen=listen,
        addresses=addresses,
        at=at,
        invitation=invitation,
        founding_s=founding_s,
        restart_with=restart_with,
        bytes_per_second=None if bandwidth is None else bandwidth * 1e6,
        metrics_port=metrics_port,
        tensorboard=tensorboard,
        transport=transport,
        threads=threads,
    )
    run, place = joined.manifest, joined.folder
    if not joined.is_founder:
        say_now("checking this machine: task, data, hardware, disk and port, against the manifest")
    drawn = not quiet and not verbose and is_drawable()
    screen = _Screen(every_s=float("inf") if quiet or drawn else 0.0 if verbose else 2.0)
    preparing = telling("preparing the task, its data, the first model and a gradient of it")
    with preparing:
        node = joined.node(screen)
    node.note(f"run {run.run.id.hex()[:16]} “{run.name}”, as {joined.me}; everything goes to {place}")
    if run.continues is not None:
        node.note(f"it continues run {run.continues.hex()[:16]}: the signatures over its first state are right")
    with PageOptions(page, page_host, page_port).of(place), screen.drawing(place, drawn):
        _live(node, place, screen)
    typer.echo(f"The run is over. Model: {place / 'model.safetensors'}; signatures over it: {place / 'model.json'}")
    typer.echo(f"Load it: {how_to_load(place / 'model.safetensors')}")


def _live(node: "Node", place: Path, screen: "_Screen") -> None:
    """Train to the end, or exit with what people need to know."""
    from troth.api.member import naming_folder
    from troth.network.mesh import StoppedError
    from troth.protocol.core.run import CannotGoOnError
    from troth.protocol.recovery.ledger import ForkedError
    from troth.protocol.recovery.member import RemovedError

    stop = _Stop(node, say=screen.say)
    try:
        with stop, naming_folder():
            node.live()
    except (KeyboardInterrupt, StoppedError):
        node.note(f"stopped; {node.farewell()}. The same command comes back (everything is in {place})")
        sys.exit(stop.exit_code)
    except CannotGoOnError as why:
        more = ""
        if isinstance(why, ForkedError):
            more = f" (this peer's is in {place}/journal)"
        elif isinstance(why, RemovedError):
            more = f". It may not come back into this run; {place}/log.txt names the connections that were missing"
        node.note(f"{why}{more}")
        raise typer.Exit(1) from why
    except Exception as error:
        kind = "" if isinstance(error, OperatorError) else f"{type(error).__name__}: "
        node.log(f"ended by an error: {kind}{error}")
        raise


class _Stop:
    """Ctrl-C and SIGTERM, while a peer lives: the first one lets it stop when it next waits for others, so that none of them has
    half of a message; later ones must not cut off the saving of its state."""

    def __init__(
        self, node: "Node", patience_s: float = 30.0, say: Callable[[str], None] = lambda text: say_now(text)
    ) -> None:
        self.exit_code = 0
        self._say = say
        self._node = node
        self._patience_s = patience_s
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _frame: object) -> None:
        if not self.exit_code:
            self.exit_code, self._since = 128 + number, time.monotonic()
            self._node.stop()
        elif time.monotonic() < self._since + self._patience_s:
            self._say("ends its computation and saves; a moment, please")
        else:
            self._since = time.monotonic()
            raise KeyboardInterrupt


def _addresses(given: list[str], names: list[str]) -> dict[str, str]:
    found = {}
    for item in given:
        name, equals, where = item.partition("=")
        if not equals or name not in names:
            raise OperatorError(f"--address {item}: write name=host:port with one of {', '.join(sorted(names))}")
        found[name] = where
    return found


def _relay_address(given: str, run: "Manifest", addresses: Mapping[str, str]) -> str:
    """The address of a relay that is given by a founder's name, or as it is."""
    from troth.network.transport.registry import libp2p_address

    founder = next((one for one in run.founders if one.name == given), None)
    if founder is None:
        return given
    found = libp2p_address(addresses.get(founder.name, founder.address), founder.key)
    if found is None:
        raise OperatorError(f"--relay {given}: the manifest has no address of {given}; add --address {given}=host:port")
    return found


def is_drawable() -> bool:
    """Whether standard error is a terminal on which lines can be drawn anew."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


class _Screen:
    """Lines on standard error, each with the local time: news at once, the state of the run every few seconds, or below them as
    a picture."""

    def __init__(self, every_s: float) -> None:
        from troth.network.node.telling import Narrator

        self._narrator = Narrator(self.say, every_s=every_s, traffic=True, lively=every_s < float("inf"))
        self._console: Console | None = None  # above whose picture lines are printed

    def say(self, text: str) -> None:
        if self._console is None:
            say_now(text)
            return
        from rich.text import Text

        self._console.print(Text(_stamped(text)), soft_wrap=True)

    @contextmanager
    def drawing(self, place: Path, wanted: bool) -> Iterator[None]:
        """Draw the run of a folder below the lines, while inside."""
        if not wanted:
            yield
            return
        from rich.console import Console

        from troth.watch.folder import RunFolder
        from troth.watch.terminal import drawn_below

        console = Console(stderr=True)
        with drawn_below(RunFolder(place), console):
            self._console = console
            try:
                yield
            finally:
                self._console = None

    def note(self, text: str) -> None:
        self._narrator.note(text)

    def stepped(self, event: "Stepped", record: "StepRecord") -> None:
        self._narrator.stepped(event)


def say_now(text: str) -> None:
    """A line on standard error, with the local time."""
    typer.echo(_stamped(text), err=True)


def _stamped(text: str) -> str:
    return f"{time.strftime('%H:%M:%S')}  {printable(text)}"
