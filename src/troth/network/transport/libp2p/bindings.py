"""The parts of hivemind that Troth uses, imported on demand: it takes seconds, and most peers do without it."""

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from troth.errors import OperatorError
from troth.extras import how_to_install


@dataclass(frozen=True)
class Hivemind:
    """Classes of hivemind, which has no types of its own."""

    P2P: Any
    PeerID: Any
    Multiaddr: Any
    DHTNode: Any
    daemon_error: type[Exception]


def load_hivemind() -> Hivemind:
    """Raises OperatorError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            p2p = import_module("hivemind.p2p")
            node = import_module("hivemind.dht.node")
            multiaddr = import_module("hivemind.utils.multiaddr")
    except ImportError as error:
        raise OperatorError(f"libp2p needs hivemind ({error}): {how_to_install('libp2p')}") from error
    return Hivemind(p2p.P2P, p2p.PeerID, multiaddr.Multiaddr, node.DHTNode, p2p.P2PDaemonError)
