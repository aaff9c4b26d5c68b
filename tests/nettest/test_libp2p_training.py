"""Two peers behind NATs and one that anyone can dial train together: found through the DHT, met through its relay."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.nettest.two_homes import reaches, two_homes
from troth.crypto import Identity
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder
from troth.network.manifest.options import ManifestOptions
from troth.network.transport.libp2p_addresses import libp2p_name

_WITHIN_S = 150.0
_STEPS = 8
_LATE_S = 12.0  # the relay starts after those who need it


def test_peers_that_meet_only_through_a_relay_train_together(tmp_path: Path) -> None:
    names = ("hub", "anna", "berta")
    identities = {name: Identity.generate() for name in names}
    with ExitStack() as stack:
        world = stack.enter_context(two_homes())
        assert not reaches(world.homes[0], "192.168.2.2"), "the homes must not see each other, or this proves nothing"
        founders = [
            Founder(name, identity.peer, f"{world.public}:4001" if name == "hub" else "")
            for name, identity in identities.items()
        ]
        options = ManifestOptions(steps=_STEPS, delta_s=2.0)
        manifest = build_manifest("quadratic:dimension=1000", founders, options, tmp_path).manifest
        (tmp_path / "run.toml").write_text(manifest.to_toml())
        relay = f"/ip4/{world.public}/tcp/4001/p2p/{libp2p_name(identities['hub'].peer)}"
        places = dict(zip(names, (world.hub, *world.homes), strict=True))
        arguments = {
            "hub": ["--serve-relay", "--listen", f"{world.public}:4001"],
            **{name: ["--relay", relay, "--initial-peer", relay] for name in names[1:]},
        }
        processes = {}
        for name in reversed(names):
            time.sleep(_LATE_S if name == "hub" else 0.0)
            identities[name].save(tmp_path / f"{name}.key")
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            command = ["timeout", "-k", "2", str(_WITHIN_S), "ip", "netns", "exec", places[name]]
            command += [sys.executable, "-W", "ignore", "-m", "troth", "join", "run.toml", "--identity", f"{name}.key"]
            command += ["--folder", name, "--libp2p", *arguments[name]]
            processes[name] = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        until = time.monotonic() + _WITHIN_S
        codes = {name: process.wait(max(1.0, until - time.monotonic())) for name, process in processes.items()}
        logs = {name: (tmp_path / f"{name}.log").read_text() for name in names}
        assert codes == dict.fromkeys(names, 0), logs
        models = {json.loads((tmp_path / name / "model.json").read_text())["state_digest"] for name in names}
        assert len(models) == 1
        for name in names[1:]:
            assert "/p2p-circuit" in logs[name], "it is reached through the relay"
            told = map(json.loads, (tmp_path / name / "events.jsonl").read_text().splitlines())
            assert [event["members"] for event in told if event["event"] == "step"] == [3] * (
                _STEPS + 1
            )  # and the closing step
