"""The command line as a whole: help, version, mistakes that belong to no command."""

import subprocess
import sys

import pytest

import troth as package
from tests.cli.conftest import Troth

COMMANDS = (
    "demo",
    "simulate",
    "key",
    "new",
    "join",
    "swarm",
    "verify",
    "attacks",
    "defences",
    "tasks",
    "doctor",
    "chaos",
)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command(troth: Troth, option: str) -> None:
    done = troth(option)
    assert done.code == 0
    assert done.err == ""
    assert all(f"\n  {command} " in done.out for command in COMMANDS)
    assert "Start with: troth demo" in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(troth: Troth, command: str) -> None:
    done = troth(command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: troth {command}")


@pytest.mark.parametrize("arguments", [(), ("key", "new"), ("join",), ("status",)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "troth", *arguments, "--help"]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.startswith("Usage: troth")
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "troth" in imported
    assert imported.isdisjoint({"torch", "numpy", "sklearn", "matplotlib", "rich"})


def test_version(troth: Troth) -> None:
    assert troth("--version") == (0, f"troth {package.__version__}\n", "")


def test_unknown_command(troth: Troth) -> None:
    done = troth("simulat")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("troth: No such command 'simulat'.")
    assert done.err.count("\n") == 1


def test_unknown_option(troth: Troth) -> None:
    done = troth("--colour")
    assert done.code == 2
    assert done.err.startswith("troth: No such option: --colour")
    assert done.err.count("\n") == 1


def test_our_own_bugs_are_not_disguised(troth: Troth, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_spec: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("troth.training.make_task", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        troth("tasks", "--check", "digits")


@pytest.mark.long
def test_a_member_imports_nothing_that_lies_simulates_or_measures() -> None:
    program = "import sys, troth.cli.join, troth.api.member; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    rooms = ("workshop", "training.tasks.", "training.datasets", "training.measurement")
    assert "troth.network.node.node" in done.stdout
    assert not [name for name in done.stdout.split() if name.startswith(tuple(f"troth.{room}" for room in rooms))]
