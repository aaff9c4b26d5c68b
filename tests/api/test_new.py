"""`troth.new` and key files: a run made from Python."""

import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import troth
from troth.api.new import NewOptions
from troth.network.manifest.options import ManifestOptions


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the keys alice.key and alice.pub, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    alice = troth.Identity.generate()
    alice.save("alice.key")
    Path("alice.pub").write_text(alice.peer.hex() + "\n")


def test_a_manifest_is_written_and_reads_back() -> None:
    bob = troth.Identity.generate()
    founders: list[str | troth.Founder] = [
        "alice=alice.pub@10.0.0.1:7001",
        troth.Founder("bob", bob.peer, ""),
        f"carol={'ab' * 32}",
    ]
    made = troth.new("run.toml", "quadratic:dimension=40", founders, steps=7, name="together", delta_s=1.0)
    assert troth.Manifest.load("run.toml") == made
    assert (made.name, made.steps, made.timeouts.delta) == ("together", 7, 1.0)
    assert {one.name: one.address for one in made.founders} == {"alice": "10.0.0.1:7001", "bob": "", "carol": ""}
    assert made.founder(troth.Identity.load("alice.key").peer) is not None


@pytest.mark.parametrize(
    ("founder", "message"),
    [
        ("alice", "`founder` takes NAME=KEY@HOST:PORT, got 'alice'"),
        ("alice=alice.pub@", "`founder` alice: no HOST:PORT after the @"),
        ("alice=alice.key@h:1", "`founder` alice: alice.key is a private key, which stays at home; use its .pub file"),
        ("alice=no.pub@h:1", "`founder` alice: 'no.pub' is neither a public key"),
        ("alice=run.toml@h:1", "`founder` alice: run.toml holds no public key"),
    ],
)
def test_mistakes_about_founders_name_the_way_out(founder: str, message: str) -> None:
    Path("run.toml").write_text("")
    with pytest.raises(troth.OperatorError, match=message):
        troth.new("other.toml", "digits", [founder])
    assert not Path("other.toml").exists()


def test_values_of_another_kind_are_refused_by_name() -> None:
    founders: Any = ["alice=alice.pub"]
    with pytest.raises(troth.OperatorError, match=r"`steps` takes a whole number or none, got 5\.5"):
        troth.new("other.toml", "quadratic:dimension=40", founders, steps=5.5)  # type: ignore[arg-type]
    task: Any = troth.task(
        model=lambda: torch.nn.Linear(2, 1), data=[torch.ones(2)], loss=lambda model, x: model(x).mean()
    )
    with pytest.raises(
        troth.OperatorError, match=r"`task` is a name, since all members need the same code: save .* in a file"
    ):
        troth.new("other.toml", task, founders)
    assert not Path("other.toml").exists()


def test_a_manifest_is_never_overwritten_by_accident() -> None:
    founders: Any = ["alice=alice.pub"]
    first = troth.new("run.toml", "quadratic:dimension=40", founders)
    with pytest.raises(troth.OperatorError, match=r"run\.toml exists already: choose another name, or `overwrite`"):
        troth.new("run.toml", "quadratic:dimension=40", founders)
    assert troth.new("run.toml", "quadratic:dimension=40", founders, overwrite=True) != first
    with pytest.raises(troth.OperatorError, match="name a file in a folder that exists"):
        troth.new("no/run.toml", "quadratic:dimension=40", founders)


def test_the_wrong_half_of_a_key_is_told() -> None:
    made = troth.new("run.toml", "quadratic:dimension=40", ["alice=alice.pub"])
    with pytest.raises(troth.IdentityError, match=r"alice\.pub is a public key: name the private one"):
        troth.join(made, "alice.pub")
    with pytest.raises(troth.IdentityError, match=r"run\.toml holds no key"):
        troth.join(made, "run.toml")
    Path("alice.key").chmod(0o644)
    with pytest.raises(troth.IdentityError, match="can be read by others"):
        troth.join(made, "alice.key")


def test_every_option_of_a_manifest_can_be_given() -> None:
    assert typing.get_type_hints(NewOptions) == {
        one.name: typing.get_type_hints(ManifestOptions)[one.name] for one in fields(ManifestOptions)
    }
