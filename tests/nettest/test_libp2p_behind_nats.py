"""Two peers behind routers of their own, which nobody can dial: they find each other in the DHT and meet through a relay."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.nettest.two_homes import reaches, two_homes
from troth.crypto.identity import Identity

_WITHIN_S = 120.0


@contextmanager
def process(namespace: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = ["timeout", "-k", "2", str(_WITHIN_S), "ip", "netns", "exec", namespace]
    started = subprocess.Popen(
        [*command, sys.executable, "-m", "tests.nettest.libp2p_peer", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            assert started.stdin is not None
            started.stdin.close()
            try:
                started.wait(10.0)
            except subprocess.TimeoutExpired:
                started.kill()


def hears(started: "subprocess.Popen[str]") -> dict[str, Any]:
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line, "it ended without a word; see its standard error"
    return json.loads(line)  # type: ignore[no-any-return]


def test_two_peers_behind_nats_meet_through_a_relay() -> None:
    secrets = [bytes([n]) * 32 for n in (1, 2, 3)]
    listener = Identity.from_secret(secrets[1])
    with ExitStack() as stack:
        world = stack.enter_context(two_homes())
        a, b = world.homes
        assert reaches(a, world.public)
        assert reaches(b, world.public)
        for elsewhere in ("11.77.2.2", "192.168.2.1", "192.168.2.2"):
            assert not reaches(a, elsewhere), "the homes must not see each other, or this proves nothing"
        relay = stack.enter_context(process(world.hub, "relay", secrets[0].hex(), f"{world.public}:4001"))
        public = hears(relay)["address"]
        assert public.startswith(f"/ip4/{world.public}/tcp/4001/p2p/")
        serving = stack.enter_context(process(b, "serve", secrets[1].hex(), public))
        assert hears(serving)["address"].startswith(f"{public}/p2p-circuit/p2p/")
        dialling = stack.enter_context(process(a, "dial", secrets[2].hex(), public, listener.peer.hex()))
        hears(dialling)
        met = hears(dialling)
        assert met["peer"] == listener.peer.hex()
        assert any("/p2p-circuit" in line for line in met["lines"])
        print(met)
