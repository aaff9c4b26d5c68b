"""Relays: peers that nobody can dial are reached through them. Most relays of the world pass on too little to train with."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from troth.crypto.identity import Identity
from troth.network.transport.base import Limits, ListenError
from troth.network.transport.libp2p.addresses import own_addresses
from troth.network.transport.libp2p.bindings import Hivemind
from troth.network.transport.libp2p.control import Control, DaemonError
from troth.network.transport.libp2p.daemon import CIRCUIT_BYTES, Daemon, DaemonOptions
from troth.network.transport.libp2p.multiaddr import id_of_name, libp2p_id
from troth.network.transport.libp2p.peer_record import worth_telling

_PROBE_S = 5.0
_RELAY_STARTS = 12


def relay_name(address: str) -> str:
    """The name at the end of a relay's address."""
    return address.rpartition("/")[2]


def circuits(relays: Sequence[str], daemon: Daemon) -> list[str]:
    """Our addresses through the relays that have taken us."""
    return [f"{relay}/p2p-circuit" for relay in relays if relay_name(relay) in daemon.relays]


async def check_relays(relays: Sequence[str], daemon: Daemon, control: Control, limits: Limits) -> None:
    """Raises ListenError if a relay passes on so little that it serves for an introduction only."""
    for relay in relays:
        if (name := relay_name(relay)) in daemon.relays:
            most = None
            with suppress(TimeoutError, OSError, EOFError, DaemonError):  # then its limit stays unknown
                async with asyncio.timeout(limits.handshake_s):
                    most = await control.relay_limit(id_of_name(name), limits.handshake_s)
            if most and most < limits.most_bulk_bytes + limits.most_control_bytes:
                raise ListenError(
                    f"the relay {relay} passes on only {most} bytes for each connection, which is less than one message: "
                    "use a peer of this run that serves as a relay"
                )


async def start_daemon(hivemind: Hivemind, identity: Identity, options: DaemonOptions) -> Daemon:
    """Start a daemon, again until it relays as much as it should, if it is to serve as a relay. Raises ListenError.

    Of the daemon's two relay services the one that starts last serves, and only one of them has our limits: the other
    passes on 128 KiB for each connection. With one processor ours usually starts last (`p2pd`), but not always.
    """
    for _ in range(_RELAY_STARTS):
        daemon = await Daemon.start(identity, options)
        try:
            if not options.serves_relay or await _relays_enough(hivemind, identity, daemon, options.most_connections):
                return daemon
        except BaseException:
            await daemon.stop()
            raise
        await daemon.stop()
    raise ListenError("the libp2p daemon does not relay as it should; try again, or do without serving as a relay")


async def _relays_enough(hivemind: Hivemind, identity: Identity, daemon: Daemon, most_connections: int) -> bool:
    """Ask our own daemon for a reservation, as a guest would."""
    own = worth_telling(await own_addresses(hivemind, Control(daemon)))
    guest = await Daemon.start(Identity.generate(), DaemonOptions((), (), (), False, most_connections))
    try:
        control, me = Control(guest), libp2p_id(identity.peer)
        async with asyncio.timeout(_PROBE_S):
            await control.connect(me, own, _PROBE_S)
            return await control.relay_limit(me, _PROBE_S) == CIRCUIT_BYTES
    except (TimeoutError, OSError, EOFError, DaemonError):
        return False
    finally:
        await guest.stop()
