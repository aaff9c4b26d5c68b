"""`troth join`: mistakes that are told before anything is sent, in the words of the command line."""

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from troth.cli.fields import as_options
from troth.crypto import Identity
from troth.errors import OperatorError
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.founder import Founder
from troth.swarm.plan import SwarmError


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """run.toml of one founder, whose key is me.key, in the current folder."""
    monkeypatch.chdir(tmp_path)
    identity = Identity.generate()
    identity.save(Path("me.key"))
    built = build_manifest("quadratic:dimension=40", [Founder("me", identity.peer, "127.0.0.1:1")])
    Path("run.toml").write_text(built.manifest.to_toml())
    return Path("run.toml")


@pytest.mark.parametrize(
    ("mark", "arguments", "message"),
    [
        ("00" * 32, (), "folder belongs to another run: choose another with --folder"),
        (None, ("--metrics-port", "-1"), "--metrics-port needs"),
        (None, ("--address", "eve=h:1"), "--address eve=h:1: write name=host:port with one of me"),
        (None, ("--libp2p", "--relay", "h:1"), "'h:1' is no address of a relay: write /ip4/"),
    ],
)
def test_a_mistake_ends_in_one_line_that_names_the_option(
    troth: Troth,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    mark: str | None,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    Path("folder").mkdir()
    if mark is not None:
        Path("folder/run").write_text(mark + "\n")
    done = troth("join", str(manifest), "--identity", "me.key", "--folder", "folder", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith(f"troth: {message}")


def test_fields_become_options_at_the_beginning_of_an_error_only() -> None:
    with pytest.raises(SwarmError, match=r"^--metrics-port: peers") as rephrased, as_options({"metrics_port", "peers"}):
        raise SwarmError("metrics_port: peers")
    assert isinstance(rephrased.value.__cause__, SwarmError)
    with pytest.raises(OperatorError, match=r"^too many peers$"), as_options({"peers"}):
        raise OperatorError("too many peers")
