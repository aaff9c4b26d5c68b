"""A small internet on one machine: a network namespace for each peer, a bridge between them, and what goes wrong on the way.

    hub:  br0 ── p0, p1, p2 …                      one cable to each peer
    p0:   eth0 10.77.0.1, p1: eth0 10.77.0.2 …     a real `troth join` in each

Loss and cuts are nftables rules where frames arrive, limits of the rate are `tc tbf`, delay is in the cables (`cable.py`).
Nothing is made in the machine's own namespace, names hold the process's number, and everything is gone when the `with` block
ends, however it ends. What a run left that was killed outright is removed by the next one.
"""

import atexit
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.nettest.company import Company
from tests.nettest.peer import run_here
from troth.network.manifest.options import ManifestOptions

PORT = 7000
_COMMAND_S = 20.0
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "setpriv": "util-linux"}
_OURS = re.compile(r"troth-(\d+)-[0-9a-f]+-\w+")
_HERE = Path(__file__).resolve().parents[2]

# Where frames arrive at a device: some are lost, and peers that are cut off are not heard.
_RULES = """
table netdev wire {
  set cut { type ipv4_addr; }
  chain lossy { }
  chain arriving {
    type filter hook ingress device "DEVICE" priority 0; policy accept;
    ip saddr @cut drop
    jump lossy
  }
}
"""

# A router at home: a peer behind it can dial, and cannot be dialled.
_ROUTER = """
table ip nat {
  chain leaving { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
}
table ip filter {
  chain through {
    type filter hook forward priority 0; policy drop;
    iifname "lan" accept
    ct state established,related accept
  }
}
"""


def what_is_missing() -> str | None:
    """Why there can be no world here, with the way out."""
    if os.geteuid() != 0:
        return (
            "make nettest makes network namespaces, and only root may: run it with sudo, or in a container of your own"
        )
    lacking = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool) is None})
    if lacking:
        return f"make nettest needs {', '.join(_TOOLS)}: apt-get install {' '.join(lacking)}"
    if not Path("/dev/net/tun").exists():
        return "make nettest needs /dev/net/tun: modprobe tun"
    return None


class World(Company):
    """So many peers of one run, p0, p1, …; use it as a context manager."""

    def __init__(
        self,
        home: Path,
        count: int,
        options: ManifestOptions,
        *,
        task: str = "digits",
        delay_s: float = 0.0,  # from every peer to every other
        jitter_s: float = 0.0,
        behind_nat: Collection[int] = (),  # these have no address
        strangers: int = 0,  # the last of them, which the manifest does not name
    ) -> None:
        addresses = ["" if k in behind_nat else f"{_address(k)}:{PORT}" for k in range(count - strangers)]
        super().__init__(home, addresses, options, task, strangers)
        self._cables = (delay_s / 2, jitter_s / 2)  # two cables between any two
        self._behind_nat = frozenset(behind_nat)
        self._name = f"troth-{os.getpid()}-{secrets.token_hex(3)}"
        self._made: list[str] = []
        self._cabling: subprocess.Popen[bytes] | None = None
        for k, peer in enumerate(self.peers):
            peer.inside = ("ip", "netns", "exec", self._space(f"p{k}"))

    def __enter__(self) -> Self:
        if (why := what_is_missing()) is not None:
            raise RuntimeError(why)
        _remove_remains()
        atexit.register(self._remove)  # in case a second Ctrl-C interrupts the first one's clearing up
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        atexit.unregister(self._remove)

    # Building

    def _space(self, name: str) -> str:
        return f"{self._name}-{name}"

    def _build(self) -> None:
        routers = {k: f"r{k}" if k in self._behind_nat else f"p{k}" for k in range(self.count)}
        for name in ["hub", *(f"p{k}" for k in range(self.count)), *sorted(set(routers.values()) - {"hub"})]:
            if self._space(name) not in self._made:
                self._made.append(self._space(name))
                _do("ip", "netns", "add", self._space(name))
                self._in(name, "ip", "link", "set", "lo", "up")
        self._in("hub", "ip", "link", "add", "br0", "type", "bridge")
        self._in("hub", "ip", "link", "set", "br0", "up")
        self._lay_cables(routers)
        for k, end in routers.items():
            self._in("hub", "ip", "link", "set", f"p{k}", "master", "br0", "up")
            self._in(end, "ip", "address", "add", f"{_address(k)}/24", "dev", "eth0")
            self._in(end, "ip", "link", "set", "eth0", "up")
            self._rules(end, _RULES.replace("DEVICE", "eth0"))
            self._rules("hub", _RULES.replace("DEVICE", f"p{k}").replace("wire", f"wire{k}"))
            if k in self._behind_nat:
                self._build_router(k)

    def _lay_cables(self, ends: dict[int, str]) -> None:
        delay_s, jitter_s = self._cables
        if not delay_s and not jitter_s:
            for k, end in ends.items():
                self._in("hub", "ip", "link", "add", f"p{k}", "type", "veth", "peer", "eth0", "netns", self._space(end))
            return
        cables = [
            {
                "ends": [[self._space(end), "eth0"], [self._space("hub"), f"p{k}"]],
                "delay_s": delay_s,
                "jitter_s": jitter_s,
            }
            for k, end in ends.items()
        ]
        log = self.home / "cables.log"
        command = [sys.executable, "-m", "tests.nettest.cable", json.dumps(cables)]
        self._cabling = run_here(command, _HERE, log)
        until = time.monotonic() + _COMMAND_S
        while "ready" not in log.read_text():
            if self._cabling.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no cables: {log.read_text()}")
            time.sleep(0.01)

    def _build_router(self, k: int) -> None:
        router, peer = f"r{k}", f"p{k}"
        self._in(router, "ip", "link", "add", "lan", "type", "veth", "peer", "eth0", "netns", self._space(peer))
        for name, device, address in ((router, "lan", "192.168.7.1/24"), (peer, "eth0", "192.168.7.2/24")):
            self._in(name, "ip", "address", "add", address, "dev", device)
            self._in(name, "ip", "link", "set", device, "up")
        self._in(peer, "ip", "route", "add", "default", "via", "192.168.7.1")
        self._in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._rules(router, _ROUTER)

    def _in(self, name: str, *command: str) -> None:
        _do("ip", "netns", "exec", self._space(name), *command)

    def _rules(self, name: str, rules: str) -> None:
        _do("ip", "netns", "exec", self._space(name), "nft", "-f", "-", given=rules)

    def _remove(self) -> None:
        """Whatever is there of it; safe to call twice."""
        self.kill()
        if self._cabling is not None:
            self._cabling.kill()
            self._cabling.wait()
        while self._made:
            with suppress(RuntimeError):
                _do("ip", "netns", "delete", self._made[-1])
            self._made.pop()

    # What goes wrong

    def lose(self, k: int, share: float) -> None:
        """So much of what peer k sends, and of what is sent to it, from now on."""
        rule = f"numgen random mod 1000 < {round(1000 * share)} drop" if share else ""
        for name, table in ((self._end(k), "wire"), ("hub", f"wire{k}")):
            added = f"add rule netdev {table} lossy {rule}" if rule else ""
            self._rules(name, f"flush chain netdev {table} lossy\n{added}\n")

    def limit(self, k: int, bits_per_second: int) -> None:
        """Both of what peer k sends and of what it gets."""
        for name, device in ((self._end(k), "eth0"), ("hub", f"p{k}")):
            rate = ("rate", f"{bits_per_second}bit", "burst", "8kb", "latency", "500ms")
            self._in(name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def cut_off(self, group: Collection[int]) -> None:
        """These hear nobody else, and nobody else hears them."""
        for k in range(self.count):
            others = [other for other in range(self.count) if (other in group) != (k in group)]
            cut = ", ".join(_address(other) for other in others)
            self._rules(self._end(k), f"flush set netdev wire cut\nadd element netdev wire cut {{ {cut} }}\n")

    def heal(self) -> None:
        for k in range(self.count):
            self._rules(self._end(k), "flush set netdev wire cut\n")

    def _end(self, k: int) -> str:
        return f"r{k}" if k in self._behind_nat else f"p{k}"

    def reaches(self, k: int, address: str) -> bool:
        """Whether a connection from peer k to there comes about."""
        host, _, port = address.rpartition(":")
        attempt = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
        command = ["ip", "netns", "exec", self._space(f"p{k}"), sys.executable, "-c", attempt]
        return subprocess.run(command, capture_output=True, timeout=_COMMAND_S, check=False).returncode == 0


def _address(k: int) -> str:
    return f"10.77.0.{k + 1}"


def _do(*command: str, given: str = "") -> str:
    """A command of the set-up, which must succeed."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}{given}")
    return done.stdout


def _remove_remains() -> None:
    """Namespaces of tests that were killed before they could clear up, and what still runs in them."""
    for line in _do("ip", "netns", "list").splitlines():
        name = line.split(" ")[0]
        ours = _OURS.fullmatch(name)
        if ours is None or Path(f"/proc/{ours[1]}").exists():
            continue
        for process in _do("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        _do("ip", "netns", "delete", name)
