"""Round trips as the kernel measures them: nothing has to be sent for it."""

import socket
import struct
import sys
from typing import Any

_ROUND_TRIP = struct.Struct("=68xI")  # `tcpi_rtt` in Linux's `struct tcp_info`, in microseconds


def round_trip_s(connected: Any) -> float | None:
    """Of the socket of an asyncio transport; None where the system does not say, and for what is no TCP socket."""
    if sys.platform != "linux" or connected is None:
        return None
    try:
        told = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP.size)
    except (OSError, AttributeError):  # it was closed meanwhile, or is a stream of another kind
        return None
    return None if len(told) < _ROUND_TRIP.size else float(_ROUND_TRIP.unpack(told)[0]) / 1e6
