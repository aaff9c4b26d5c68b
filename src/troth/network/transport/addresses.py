"""`host:port` as people write it, and sockets that listen there."""

import asyncio
import errno
import ipaddress
import socket

from troth.network.transport.base import ListenError

_BACKLOG = 256
_MOST_ADDRESSES = 4  # of one host name that are tried

Resolved = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def split_address(address: str) -> tuple[str, int]:
    """Host and port; an IPv6 address stands in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError(f"'{address}' is no address: write host:port, or [host]:port for IPv6")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"'{address}' has no port from 0 to 65535 behind its last colon")
    return host[1:-1] if bracketed else host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def source_of(host: str) -> str:
    """The source to count an address for: IPv6 customers own at least a /64, so single addresses there are free."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


async def resolve(host: str, port: int) -> list[Resolved]:
    """The addresses of a host. Raises OSError."""
    kind = {"type": socket.SOCK_STREAM, "proto": socket.IPPROTO_TCP}
    try:
        found = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, **kind)  # asks nobody, so it cannot block
    except (socket.gaierror, UnicodeError):
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, **kind)
        except UnicodeError as error:  # a label that is empty or too long
            raise socket.gaierror(socket.EAI_NONAME, "no name of a host") from error
    return [(family, where) for family, _, _, _, where in found[:_MOST_ADDRESSES]]  # type: ignore[misc]


async def listening_socket(address: str) -> socket.socket:
    """A socket that listens there. Raises ListenError."""
    try:
        host, port = split_address(address)
        family, where = (await resolve(host, port))[0]
    except ValueError as error:
        raise ListenError(str(error)) from error
    except OSError as error:
        raise ListenError(f"cannot find out where '{address}' is ({_reason(error)}): use an IP address") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] takes IPv4 as well
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(listening_failed(host, port, error)) from error
    return listener


def listening_failed(host: str, port: int, error: OSError) -> str:
    """Why listening failed, with the way out."""
    where = join_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is taken; choose another one, or 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: not an address of this machine; 0.0.0.0:{port} means all of its own"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"cannot listen on {where}: no permission; choose a port above 1023"
    return f"cannot listen on {where}: {_reason(error)}; try 0.0.0.0:{port}"


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
