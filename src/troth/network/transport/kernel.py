"""The kernel's side of a TCP socket: what it measures, what it buffers, and whether the other side is still there."""

import socket
import struct
import sys
from contextlib import suppress
from typing import Any

_LINUX = sys.platform == "linux"
_STATE = struct.Struct("=B")  # `tcpi_state`, the first field of Linux's `struct tcp_info` …
_ROUND_TRIP = struct.Struct("=68xI")  # … and `tcpi_rtt` in it, in microseconds
_ESTABLISHED = 1
_BUF_LOCK, _NO_LOCK = 72, 0  # Linux 5.14: whether a size of a buffer was set by hand, and may not grow by itself
_NARROW_BYTES = 32 * 1024  # unread, from a peer that nobody knows; Linux doubles it for its own bookkeeping
_UNSENT_BYTES = 256 * 1024  # handed to the kernel but not on the wire: control cannot overtake what is there


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def narrow(sock: socket.socket) -> None:
    """Keep little of what a peer sends unread: else the system would hold up to 32 MiB of each stranger that floods [M4]. Only
    where `widen` can undo it."""
    if _LINUX:
        with suppress(OSError):
            sock.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)


def widen(connected: Any) -> None:
    """Let the buffer of an asyncio transport's socket grow again with the delay and speed of its line."""
    if _LINUX and connected is not None:
        with suppress(OSError, AttributeError):
            connected.setsockopt(socket.SOL_SOCKET, _BUF_LOCK, _NO_LOCK)


def has_ended(connected: Any) -> bool:
    """Whether the other side of an asyncio transport's socket has hung up; nobody needs to read for that. False where the system
    does not say."""
    told = _tcp_info(connected, _STATE.size)
    return len(told) == _STATE.size and _STATE.unpack(told)[0] != _ESTABLISHED


def round_trip_s(connected: Any) -> float | None:
    """Of the socket of an asyncio transport; None where the system does not say, and for what is no TCP socket."""
    told = _tcp_info(connected, _ROUND_TRIP.size)
    return None if len(told) < _ROUND_TRIP.size else float(_ROUND_TRIP.unpack(told)[0]) / 1e6


def _tcp_info(connected: Any, size: int) -> bytes:
    if not _LINUX or connected is None:
        return b""
    try:
        told: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except (OSError, AttributeError):  # it was closed meanwhile, or is a stream of another kind
        return b""
    return told
