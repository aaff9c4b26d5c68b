"""Choices of the person who runs a peer; everything that all members agree on is in the manifest."""

from dataclasses import dataclass, field
from pathlib import Path

from troth.crypto import PeerId
from troth.files import safe_name
from troth.network.manifest.manifest import Manifest
from troth.network.node.metrics import check_extra
from troth.network.transport.base import TransportOptions
from troth.network.transport.registry import DEFAULT_TRANSPORT, TRANSPORTS
from troth.protocol.recovery.following import Invitation


def default_folder(manifest: Manifest, peer: PeerId) -> Path:
    """Where a peer keeps a run. The run's name is a stranger's text, so it may not lead anywhere else."""
    return Path("runs") / f"{safe_name(manifest.name)}-{peer.hex()[:8]}"


@dataclass(frozen=True)
class NodeOptions:
    """How one peer runs."""

    folder: Path
    listen: str  # host:port
    addresses: dict[PeerId, str] = field(default_factory=dict)  # where they differ from the manifest's
    at: str = ""  # host:port where members find a peer that is no founder; empty: it dials
    invitation: Invitation | None = None  # of a peer that is no founder, into the history that it follows
    first_record_key: Path | None = None  # the file of the key that the manifest names for this founder's first records
    founding_s: float = 120.0  # after this time enough members begin, or restart the run, without the rest
    restart_with: int | None = None  # members that are enough for that; None: so many that no certified record is lost
    evaluate_every: int = 10
    bytes_per_second: float | None = None
    keep_checkpoints: int = 3
    metrics_port: int | None = None  # for Prometheus, on this machine only
    tensorboard: bool = False
    manifest_file: str = ""  # where the manifest lies, for those who check what this peer tells
    transport: TransportOptions = field(default_factory=lambda: TRANSPORTS[DEFAULT_TRANSPORT]())

    def __post_init__(self) -> None:
        check_extra(self.metrics_port, tensorboard=self.tensorboard)  # before the task and its data are loaded
