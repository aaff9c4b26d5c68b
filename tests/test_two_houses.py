"""Whoever joins or verifies runs the first house alone: what lies, simulates and measures is never imported."""

import subprocess
import sys
from pathlib import Path

import pytest

JOIN = """
import sys, troth
with troth.join("run.toml", "me.key", folder="mine", listen="127.0.0.1:0") as run:
    steps = [step.number for step in run]
assert steps[-1] == 3, steps
"""
VERIFY = """
import sys, troth
try:
    troth.verify("nothing.json", run="run.toml")
except troth.OperatorError:
    pass
"""
SIMULATE = """
import sys, troth
troth.simulate("quadratic", peers=4, steps=1).run()
"""
TELL = """
print(*sorted(name for name in sys.modules if name.startswith("troth.workshop") or name in ("troth.attacks", "troth.rules")))
"""


def workshop_of(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program + TELL], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one founder."""
    place = tmp_path_factory.mktemp("alone")
    make = """
import troth
me = troth.Identity.generate()
me.save("me.key")
troth.new("run.toml", "quadratic:dimension=20", [f"me={me.peer.hex()}"], steps=3)
"""
    subprocess.run([sys.executable, "-c", make], cwd=place, check=True)
    return place


@pytest.mark.long
@pytest.mark.parametrize("program", [JOIN, VERIFY], ids=["join", "verify"])
def test_a_peer_and_a_judge_import_nothing_of_the_workshop(folder: Path, program: str) -> None:
    assert workshop_of(program, folder) == []


@pytest.mark.long
def test_a_simulation_does(folder: Path) -> None:
    assert "troth.workshop.simulation" in workshop_of(SIMULATE, folder)
