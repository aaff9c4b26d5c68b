"""`troth join`: mistakes that are told before anything is sent, in the words of the command line."""

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Troth
from troth.cli.fields import as_options
from troth.cli.join import _Stop
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
        Path("folder/model.json").touch()
    done = troth("join", str(manifest), "--identity", "me.key", "--folder", "folder", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith(f"troth: {message}")


def test_fields_become_options_at_the_beginning_of_an_error_only() -> None:
    with pytest.raises(SwarmError, match=r"^--metrics-port: peers") as rephrased, as_options({"metrics_port", "peers"}):
        raise SwarmError("metrics_port: peers")
    assert isinstance(rephrased.value.__cause__, SwarmError)
    with pytest.raises(OperatorError, match=r"^too many peers$"), as_options({"peers"}):
        raise OperatorError("too many peers")


def stopped_while_saving(stop: _Stop, first: signal.Signals, later: list[signal.Signals]) -> list[signal.Signals]:
    """Stop with a signal, and go on with others while the state is saved; those that the saving survived."""
    survived = []
    try:
        with stop:
            try:
                signal.raise_signal(first)
            finally:
                for number in later:
                    signal.raise_signal(number)
                    survived.append(number)
    except KeyboardInterrupt:
        return survived
    raise AssertionError("nothing stopped")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_and_a_second_one_does_not_cut_off_the_saving(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stop, later = _Stop(), [signal.SIGINT, signal.SIGTERM]
    assert stopped_while_saving(stop, number, later) == later
    assert stop.exit_code == code
    assert capsys.readouterr().err.count("saving; a moment, please") == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_finds_the_saving_hanging_ends_it() -> None:
    assert stopped_while_saving(_Stop(patience_s=0.0), signal.SIGTERM, [signal.SIGTERM]) == []
