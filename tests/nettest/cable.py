"""Cables that take their time: frames between two namespaces, each handed over a while after it was sent.

The kernel's own `netem` and `tbf` are missing on many machines, so delay and rate are made here, frame by frame: handshakes,
acknowledgements and retransmissions are as late as data, which a forwarder of TCP connections would hide. Each cable is a pair
of TAP devices, made by this process and gone with it. `World` runs it:

    python -m tests.nettest.cable '[{"ends": [["ns1", "eth0"], ["hub", "p0"]], "delay_s": 0.1, "jitter_s": 0.0}]'

With a `"rate"`, bytes a second, each direction carries one frame after the other, and those that come meanwhile queue. It prints
a line when all devices are there.
"""

import ctypes
import fcntl
import json
import math
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_MOST_BYTES = 1 << 16
_MOST_UNDER_WAY = 10_000  # frames on one cable in one direction; then it loses them, as a full queue does
_MOST_QUEUED_S = 0.5  # that a frame may wait for a line with a rate; then it is lost, as in a router at home


@dataclass
class Direction:
    """Frames that were sent and have not arrived."""

    source: int
    sink: int
    delay_s: float
    jitter_s: float = 0.0
    rate: float = math.inf  # bytes a second
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    carried: float = 0.0  # when the line has carried all that it was given

    def take(self, frame: bytes, now: float) -> None:
        start = max(now, self.carried)
        if len(self.under_way) >= _MOST_UNDER_WAY or start > now + _MOST_QUEUED_S:
            return
        self.carried = start + len(frame) / self.rate
        due = self.carried + self.delay_s + random.uniform(0.0, self.jitter_s)
        self.under_way.append((max(due, self.under_way[-1][0]) if self.under_way else due, frame))  # in order

    def deliver(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            try:
                os.write(self.sink, self.under_way.popleft()[1])
            except OSError:  # the device is down: so is the cable
                continue


def _tap(namespace: str, device: str) -> int:
    """A new TAP device there. This process ends up in that namespace, which does not matter to what it has open."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(handle)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def _read_all(direction: Direction) -> None:
    try:
        while True:
            direction.take(os.read(direction.source, _MOST_BYTES), time.monotonic())
    except OSError:  # nothing more for now, or the device is down
        return


def main(cables: str) -> None:
    directions: dict[int, Direction] = {}
    for cable in json.loads(cables):
        one, other = (_tap(*end) for end in cable["ends"])
        for source, sink in ((one, other), (other, one)):
            rate = cable.get("rate", math.inf)
            directions[source] = Direction(source, sink, cable["delay_s"], cable["jitter_s"], rate)
    print("ready", flush=True)
    poll = select.poll()
    for source in directions:
        poll.register(source, select.POLLIN)
    while True:
        next_due = min((one.under_way[0][0] for one in directions.values() if one.under_way), default=None)
        wait_s = 1.0 if next_due is None else max(0.0, next_due - time.monotonic())
        for source, _ in poll.poll(wait_s * 1000):
            _read_all(directions[source])
        for direction in directions.values():
            direction.deliver(time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1])
