"""A wrong clock does not matter.

Deadlines are differences of `time.monotonic`, which nobody can set; nothing that is signed holds a date; and certificates are
valid from 1970 to 9999, so that TLS accepts them on whatever date the machine believes in.
"""

import ast
import subprocess
from pathlib import Path

import pytest

import troth.network
import troth.protocol
from tests.nettest.company import Company, on_loopback
from troth.crypto import Identity
from troth.network.manifest.options import ManifestOptions
from troth.network.transport import tcp

# Python reads this file first: from then on `time.time` is wrong, and runs backwards.
_WRONG_CLOCK = """
import time
_began = time.monotonic()
time.time = lambda: {epoch} - 100 * (time.monotonic() - _began)
"""


def test_peers_in_1970_and_2096_train_with_the_others(tmp_path: Path) -> None:
    with Company(tmp_path, on_loopback(4), ManifestOptions(steps=10, delta_s=1.0, compute_s=1.0)) as company:
        for peer, epoch in ((company.peers[0], 86_400.0), (company.peers[1], 4e9)):
            folder = tmp_path / f"clock-of-{peer.name}"
            folder.mkdir()
            (folder / "sitecustomize.py").write_text(_WRONG_CLOCK.format(epoch=epoch))
            peer.environment = {"PYTHONPATH": str(folder)}
        company.start()
        company.until_all_have_ended(100)
        company.check_end()
        assert not company.seen_as("left")


@pytest.mark.parametrize("when", ["1", "86400", "2147483648", "4102444800", "253402300798"])
def test_certificates_hold_on_any_date(tmp_path: Path, when: str) -> None:
    """As OpenSSL itself judges, which both sides of a handshake ask."""
    (tmp_path / "authority.pem").write_bytes(tcp._authority_certificate())
    (tmp_path / "leaf.pem").write_bytes(tcp.leaf_certificate(Identity.generate().peer))
    command = ["openssl", "verify", "-attime", when, "-CAfile", "authority.pem", "leaf.pem"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nobody_asks_for_the_date() -> None:
    """Except where libp2p does: what its DHT stores has an expiry date, so whoever wants to be found there needs a clock; and
    where people read it, in a log, or who holds a folder since when."""
    asked = []
    for package in (troth.network, troth.protocol):
        assert package.__file__ is not None
        for file in sorted(Path(package.__file__).parent.rglob("*.py")):
            if file.parent.name == "libp2p" or file.name in ("lock.py", "log.py"):
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in {"time", "now", "today", "utcnow", "time_ns"}:
                    text = ast.unparse(node)
                    if text in {"time.time", "time.time_ns"} or text.startswith(("datetime.", "date.")):
                        asked.append(f"{file.name}: {text}")
    assert not asked
