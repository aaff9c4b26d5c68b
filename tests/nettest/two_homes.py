"""A small internet made of network namespaces: a public host, and two homes behind routers that translate addresses.

    home a ── router a ── hub ── router b ── home b        the routers let nobody in; the hub passes nothing on

Nothing of it reaches the real network. Needs root, `ip` and `nft`.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_COMMAND_S = 10.0
_ROUTER_RULES = """
table ip router {
  chain out { type nat hook postrouting priority srcnat; oifname "wan" masquerade; }
  chain through { type filter hook forward priority filter; policy drop;
    ct state established,related accept; iifname "lan" accept; }
  chain in { type filter hook input priority filter;
    ct state established,related accept; iifname "wan" drop; }
}
"""


@dataclass(frozen=True)
class World:
    hub: str  # names of namespaces
    homes: tuple[str, str]
    public: str = "11.77.0.1"  # the hub's address, which everybody reaches


@contextmanager
def two_homes(delay_s: float = 0.0) -> Iterator[World]:
    """`delay_s`: on the way between a router and the hub, each way."""
    tag = f"troth-{os.getpid()}-{secrets.token_hex(3)}"  # as in world.py, which removes the namespaces of a killed test
    hub, routers, homes = f"{tag}-hub", (f"{tag}-routerA", f"{tag}-routerB"), (f"{tag}-homeA", f"{tag}-homeB")
    everything = (hub, *routers, *homes)
    cabling: subprocess.Popen[str] | None = None
    try:
        for name in everything:
            _run("ip", "netns", "add", name)
            _inside(name, "ip", "link", "set", "lo", "up")
        _inside(hub, "ip", "address", "add", "11.77.0.1/32", "dev", "lo")
        _inside(hub, "sysctl", "-qw", "net.ipv4.ip_forward=0")
        if delay_s:
            cabling = _lay_cables(
                [((hub, f"to{number}"), (router, "wan")) for number, router in enumerate(routers, 1)], delay_s
            )
        for number, (router, home) in enumerate(zip(routers, homes, strict=True), 1):
            if not delay_s:
                _wire(hub, f"to{number}", router, "wan")
            _wire(router, "lan", home, "eth")
            _name(hub, f"to{number}", f"11.77.{number}.1/24")
            _name(router, "wan", f"11.77.{number}.2/24")
            _name(router, "lan", f"192.168.{number}.1/24")
            _name(home, "eth", f"192.168.{number}.2/24")
            _inside(router, "ip", "route", "add", "default", "via", f"11.77.{number}.1")
            _inside(home, "ip", "route", "add", "default", "via", f"192.168.{number}.1")
            _inside(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            _run("ip", "netns", "exec", router, "nft", "-f", "-", given=_ROUTER_RULES)
        yield World(hub, homes)
    finally:
        if cabling is not None:
            cabling.kill()
            cabling.communicate()
        for name in everything:
            _clear(name)


def reaches(namespace: str, address: str) -> bool:
    """Whether a machine answers at that address, if only that nobody listens."""
    attempt = f"""
import socket
try:
    socket.create_connection(({address!r}, 9), 1).close()
except ConnectionRefusedError:
    pass
"""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", attempt]
    return subprocess.run(command, capture_output=True, timeout=_COMMAND_S).returncode == 0


def _wire(one: str, name: str, other: str, other_name: str) -> None:
    _run("ip", "link", "add", name, "netns", one, "type", "veth", "peer", "name", other_name, "netns", other)


def _lay_cables(ends: Sequence[tuple[tuple[str, str], tuple[str, str]]], delay_s: float) -> "subprocess.Popen[str]":
    """Wires between these devices of namespaces on which everything takes its time."""
    cables = json.dumps([{"ends": pair, "delay_s": delay_s, "jitter_s": 0.0} for pair in ends])
    command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.nettest.cable", cables]
    cabling = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert cabling.stdout is not None
    assert cabling.stdout.readline() == "ready\n", "no cables; see the error above"
    return cabling


def _name(namespace: str, link: str, address: str) -> None:
    _inside(namespace, "ip", "address", "add", address, "dev", link)
    _inside(namespace, "ip", "link", "set", link, "up")


def _inside(namespace: str, *command: str) -> None:
    _run("ip", "netns", "exec", namespace, *command)


def _run(*command: str, given: str = "") -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_COMMAND_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _clear(namespace: str) -> None:
    """Remove a namespace and the processes in it: we started them."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=_COMMAND_S)
    for pid in listed.stdout.split() if listed.returncode == 0 else ():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=_COMMAND_S)
