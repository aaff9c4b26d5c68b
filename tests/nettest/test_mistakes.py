"""Mistakes of people who join: each is told in one line what to do. Over loopback, without a world."""

import dataclasses
import socket
import subprocess
from pathlib import Path

import pytest

from tests.nettest.company import Company, on_loopback
from tests.nettest.peer import TROTH
from troth.crypto import Identity
from troth.network.manifest.manifest import Manifest
from troth.network.manifest.options import ManifestOptions

OPTIONS = ManifestOptions(steps=5, delta_s=0.5, compute_s=0.5, bulk_s=0.5)


def refusal(home: Path, *options: str) -> str:
    """The complaint of `troth join`, which exits with 2: one line, no traceback."""
    command = [str(TROTH), "join", "run.toml", "--folder", "folder", *options]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("troth: ")]
    assert len(said) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == said[0]
    assert "Traceback" not in done.stderr
    return said[0]


@pytest.fixture
def company(tmp_path: Path) -> Company:
    return Company(tmp_path, on_loopback(4), OPTIONS)


def test_another_rate_is_named_on_both_sides_and_refused(company: Company) -> None:
    """Three agree on one rate, the fourth edited its copy: it ends, the others train without it, and everyone knows why."""
    other = dataclasses.replace(company.manifest, rate=2 * company.manifest.rate)
    assert isinstance(other, Manifest)
    (company.home / "edited.toml").write_text(other.to_toml(), encoding="utf-8")
    odd, others = company.peers[3], company.peers[:3]
    odd.manifest = "edited.toml"
    for peer in others:
        peer.options = ("--founding-s", "5")
    reason = "the manifests differ in training options"
    with company:
        company.start()
        company.until(lambda: odd.code == 2 and reason in odd.log, 40, "it being told", wrong=[odd])
        company.until(lambda: all(reason in peer.log for peer in others), 40, "the others being told", wrong=[odd])
        company.until(lambda: all(peer.code == 0 for peer in others), 60, "the run of the others", wrong=[odd])
        assert odd.step == 0
        assert len({peer.model for peer in others}) == 1
        assert not company.seen_as("banned", others)


def test_unreachable_peers_are_named_with_the_reason(company: Company) -> None:
    """They may still be on their way, so it waits; and says for whom, and why."""
    with company:
        company.peers[0].start()
        company.until(lambda: "1 of 4 founders are here" in company.peers[0].log, 30, "what it waits for")
        line = next(line for line in company.peers[0].log.splitlines() if "founders are here" in line)
        for peer in company.peers[1:]:
            assert peer.name in line
        assert "Connection refused" in line
        company.peers[0].interrupt()
        assert company.peers[0].process is not None
        assert company.peers[0].process.wait(20) == 130


def test_a_port_that_is_taken(company: Company) -> None:
    address = company.manifest.founder(Identity.load(company.home / "p0.key").peer)
    assert address is not None
    assert address.endpoint is not None
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", address.endpoint[1]))
        taken.listen()
        said = refusal(company.home, "--identity", "p0.key")
    assert "the port is taken" in said
    assert "choose another" in said


def test_a_key_that_is_not_in_the_manifest(company: Company) -> None:
    Identity.generate().save(company.home / "stranger.key")
    said = refusal(company.home, "--identity", "stranger.key")
    assert "is not among the founders of this run" in said
    assert "troth key show" in said


def test_no_key_and_no_manifest(company: Company) -> None:
    assert "make one with 'troth key new nobody.key'" in refusal(company.home, "--identity", "nobody.key")
    (company.home / "run.toml").rename(company.home / "moved.toml")
    assert "cannot read the manifest run.toml" in refusal(company.home, "--identity", "p0.key")


def test_a_folder_of_another_run(company: Company) -> None:
    (company.home / "folder").mkdir()
    (company.home / "folder" / "run").write_text("00" * 32 + "\n")
    said = refusal(company.home, "--identity", "p0.key")
    assert "belongs to another run: choose another with --folder" in said
