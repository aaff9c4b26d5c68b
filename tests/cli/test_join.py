"""`troth join`: mistakes that are told before anything is sent, in the words of the command line."""

import re
import signal
import socket
import sys
from pathlib import Path
from typing import cast

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Troth
from tests.watch.made_events import whole_run, write
from troth.cli.fields import with_options
from troth.cli.join import _Screen, _Stop, is_drawable
from troth.crypto import Identity
from troth.errors import how_to_install
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.network.node.node import Node
from troth.protocol.core.state import Outcome
from troth.training import make_task
from troth.training.work import Training


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
        (
            None,
            ("--libp2p", "--address", "me=", "--relay", "me"),
            "--relay me: the manifest has no address of me; add --address",
        ),
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


def test_a_missing_extra_is_told_before_the_task_is_loaded(
    troth: Troth, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading may take a minute, and the data gigabytes."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setattr(Manifest, "make_task", lambda _: pytest.fail("the task is loaded"))
    done = troth("join", str(manifest), "--identity", "me.key", "--metrics-port", "9100")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == f"troth: --metrics-port needs prometheus-client: {how_to_install('metrics')}"


def test_a_long_beginning_gives_signs_of_life(troth: Troth, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troth.cli.progress._PATIENCE_S", 0.0)
    monkeypatch.setattr("troth.cli.progress._AGAIN_S", 0.001)
    Path("folder").mkdir()
    Path("folder/run").write_text("00" * 32 + "\n")
    Path("folder/model.json").touch()
    said = troth("join", str(manifest), "--identity", "me.key", "--folder", "folder").err
    assert "loading PyTorch … 0 s\n" in said
    assert "preparing the task, its data, the first model and a gradient of it … 0 s\n" in said


def test_errors_name_options_where_the_library_names_fields() -> None:
    shown = {"metrics_port": "--metrics-port", "peers": "--peers"}
    assert with_options("`metrics_port`: peers, `peers`, `troth`", shown) == "--metrics-port: peers, --peers, `troth`"


class StoppableNode:
    """Counts how often it was asked to stop."""

    asked = 0

    def stop(self) -> None:
        self.asked += 1


def survived(stop: _Stop, numbers: list[signal.Signals]) -> int:
    """How many signals a peer survives that computes, or saves its state."""
    count = 0
    try:
        with stop:
            for number in numbers:
                signal.raise_signal(number)
                count += 1
    except KeyboardInterrupt:
        pass
    return count


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_asks_to_stop_and_later_ones_do_not_cut_off_the_saving(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    node, before = StoppableNode(), signal.getsignal(signal.SIGINT)
    stop = _Stop(cast(Node, node))
    assert survived(stop, [number, signal.SIGINT, signal.SIGTERM]) == 3
    assert (stop.exit_code, node.asked) == (code, 1)
    assert capsys.readouterr().err.count("a moment, please") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_finds_the_peer_hanging_ends_it() -> None:
    assert survived(_Stop(cast(Node, StoppableNode()), patience_s=0.0), [signal.SIGTERM, signal.SIGTERM]) == 1


@pytest.fixture
def alone(manifest: Path) -> Path:
    """A run of six steps that one founder can make by itself."""
    key = Identity.load(Path("me.key")).peer
    options = ManifestOptions(steps=6, compute_s=1.0, bulk_s=0.5, delta_s=0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    built = build_manifest("quadratic:dimension=40", [Founder("me", key, f"127.0.0.1:{port}")], options)
    manifest.write_text(built.manifest.to_toml())
    return manifest


def test_a_run_to_its_end_with_log_screen_and_model(troth: Troth, alone: Path) -> None:
    done = troth("join", str(alone), "--identity", "me.key", "--folder", "folder", "--verbose")
    assert done.code == 0, done.err
    screen = done.err.splitlines()[1:]
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in screen)
    assert "as me; everything goes to folder" in screen[0]
    steps = [line[10:].split("  ")[0] for line in screen if "batch loss" in line]
    assert steps == [f"step {step}/6" for step in range(1, 7)]
    log = Path("folder/log.txt").read_text().splitlines()
    assert [line[10:].partition("  0.")[0].split(" s a step")[0] for line in screen if "/6" not in line] == [
        line[21:] for line in log if "/6" not in line
    ], "the same sentences"
    assert done.out.splitlines()[1] == (
        'Load it: model.load_state_dict(safetensors.torch.load_file("folder/model.safetensors"))'
    )
    make_task("quadratic:dimension=40").model().load_state_dict(load_file("folder/model.safetensors"))
    quiet = troth("export", "folder", "--run", str(alone), "--evaluate")
    assert "test loss" in quiet.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_peer_that_is_stopped_saves_says_so_and_comes_back(
    troth: Troth, alone: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    command = ("join", str(alone), "--identity", "me.key", "--folder", "folder", "--quiet")

    def stopping(node: Node, outcome: Outcome[Training], seconds: float) -> None:
        tell(node, outcome, seconds)
        if outcome.record.step == 2:
            signal.raise_signal(number)

    tell = Node._tell
    with monkeypatch.context() as patched:
        patched.setattr(Node, "_tell", stopping)
        done = troth(*command)
    assert done.code == code
    last = done.err.splitlines()[-1]
    assert "stopped; " in last
    assert last.endswith("The same command comes back (everything is in folder)")
    assert Path("folder/log.txt").read_text().splitlines()[-1].endswith(last[10:])
    assert Path("folder/checkpoints/step-000000003.safetensors").exists()
    again = troth(*command)
    assert again.code == 0, again.err
    assert Path("folder/model.safetensors").exists()


def test_news_are_readable_above_the_picture_and_plain_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    write(tmp_path, *whole_run(3))
    screen = _Screen(every_s=float("inf"))
    with screen.drawing(tmp_path, wanted=False):
        screen.note("plain")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  plain\n", capsys.readouterr().err)
    with screen.drawing(tmp_path, wanted=True):
        screen.note("mallory \x1b[2J is banned: [red]" + "x" * 200)
    drawn = capsys.readouterr().err
    assert "mallory ?[2J is banned: [red]" + "x" * 200 in drawn, "neither steered nor cut"
    screen.note("plain again")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  plain again\n", capsys.readouterr().err)


def test_a_pipe_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert not is_drawable()
