"""Four friends on this machine: four keys, a manifest, four processes, and what came of it.

python four_friends.py [folder]
"""

import hashlib
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import troth

NAMES = ("alice", "bob", "carol", "dave")
PROGRAM = Path(__file__).resolve().with_name("embedding.py")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    founders = []
    for name, port in zip(NAMES, free_ports(), strict=True):
        identity = troth.Identity.generate()
        identity.save(folder / f"{name}.key")  # everybody makes their own, and sends the public half
        founders.append(troth.Founder(name, identity.peer, f"127.0.0.1:{port}"))
    troth.new(folder / "run.toml", "digits", founders, steps=20)
    peers = [subprocess.Popen([sys.executable, PROGRAM, "run.toml", f"{name}.key"], cwd=folder) for name in NAMES]
    assert [peer.wait() for peer in peers] == [0] * 4
    models = {hashlib.sha256((folder / f"{name}.safetensors").read_bytes()).hexdigest() for name in NAMES}
    print(f"{len(peers)} friends trained, and hold {len(models)} model between them.")


def free_ports() -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in NAMES]
        return [one.getsockname()[1] for one in held]


if __name__ == "__main__":
    main(Path(*sys.argv[1:2] or ["friends"]))
