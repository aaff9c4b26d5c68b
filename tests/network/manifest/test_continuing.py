"""A run that goes on from the state of another, which that one's members signed."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import troth
from tests.audit.folders import witnessed
from troth.api.new import NewRunError
from troth.cli import main
from troth.crypto import Identity
from troth.network.disk import chunks
from troth.network.disk.lock import DiskError
from troth.network.manifest.builder import Origin, build_manifest, differences, options_from
from troth.network.manifest.files import initial_state_file, origin_file
from troth.network.manifest.manifest import Founder, Manifest, description
from troth.protocol.wire.frames import CertifiedRecord
from troth.protocol.wire.primitives import Primitives
from troth.training import initial_state
from troth.training.initial_state import InitialStateError
from troth.training.work import Training
from troth.workshop.simulation import Scenario

TASK = "quadratic:dimension=24"
FOUNDERS = [Founder(f"p{k}", Identity.generate().peer, "") for k in range(3)]
OLD = Path("old/run.toml")
FOLDER = Path("old/peer")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """A closed run of four members, and the folder of one of them."""
    monkeypatch.chdir(tmp_path)
    witnessed(FOLDER, Scenario(task=TASK, peers=4, steps=4, seed=5))
    return Manifest.load(OLD)


def first_of(manifest: Manifest) -> Training:
    work = manifest.work(manifest.problem(manifest.make_task()), Primitives())
    return manifest.first_state(work).training


def continued(name: str = "new.toml", optimizer: str | None = None) -> Manifest:
    troth.new(name, TASK, FOUNDERS, steps=3, optimizer=optimizer, initial_state=FOLDER, continues=OLD)
    return Manifest.load(Path(name))


def newest() -> Path:
    return max(FOLDER.glob("checkpoints/step-*.safetensors"))


def test_the_signed_state_goes_on_with_its_optimizer_or_another(old: Manifest) -> None:
    """[E4] Whoever joins checks the signatures of the old run's members."""
    for optimizer in (None, "adamw"):
        new = continued(f"{optimizer}.toml", optimizer)
        assert new.continues == old.run.id
        assert torch.equal(first_of(new).parameters_D, load_file(newest())["parameters"])
        assert new.run.id != dataclasses.replace(new, continues=None).run.id, "members agree on it"


@pytest.mark.usefixtures("old")
def test_a_run_goes_on_with_local_steps_and_its_own_rate() -> None:
    """[R2, E4] The state that members signed holds none, or that of their schedule."""
    troth.new("new.toml", TASK, FOUNDERS, steps=3, local_steps=4, rate=0.25, initial_state=FOLDER, continues=OLD)
    first, signed = first_of(Manifest.load(Path("new.toml"))), load_file(newest())
    assert torch.equal(first.optimizer["momentum"], signed["optimizer.momentum"])
    assert first.optimizer["rate"].tolist() == [0.25]
    assert "optimizer.rate" not in signed


@pytest.mark.usefixtures("old")
def test_a_state_on_the_way_goes_on_too_if_members_signed_it() -> None:
    """The newest one that enough have signed, where the last record has no signatures yet."""
    journal = max(FOLDER.glob("journal/steps-*.jsonl"))
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))  # the closing record's signatures
    assert first_of(continued()).parameters_D.isfinite().all()
    journal.write_bytes(b"".join(line for line in lines if b'"signatures"' not in line))
    with pytest.raises(DiskError, match="the chain is broken here"):
        continued("none.toml")


@pytest.mark.usefixtures("old")
def test_signatures_that_are_missing_or_do_not_fit_stop_whoever_joins() -> None:
    """[E4]"""
    new = continued()
    assert new.initial_state is not None
    proof = origin_file(Path(), new.initial_state)
    text = proof.read_text()
    for wrong in (text[:-2], text.replace('"closed": true', '"closed": false'), "", "\x00"):
        proof.write_text(wrong)
        with pytest.raises(InitialStateError, match="does not prove"):
            first_of(new)
    proof.unlink()
    with pytest.raises(InitialStateError, match="put it beside it"):
        first_of(new)
    proof.write_text(text)
    with pytest.raises(InitialStateError, match="is about run"):
        first_of(dataclasses.replace(new, continues=new.run.id))


@pytest.mark.usefixtures("old")
def test_other_parameters_than_the_signed_ones_are_refused() -> None:
    """[E4] Though the manifest names their digest: whoever wrote it lies about where they come from."""
    new = continued()
    work = new.work(new.problem(new.make_task()), Primitives())
    assert new.initial_state is not None
    state = first_of(new)
    other = Training(state.parameters_D + 1, state.optimizer)
    lie = dataclasses.replace(new, initial_state=work.digest(other))
    assert lie.initial_state is not None
    initial_state_file(Path(), lie.initial_state).write_bytes(work.pack(other))
    origin_file(Path(), lie.initial_state).write_text(origin_file(Path(), new.initial_state).read_text())
    with pytest.raises(InitialStateError, match="other parameters"):
        first_of(lie)


@pytest.mark.usefixtures("old")
def test_a_checkpoint_that_was_changed_is_not_taken() -> None:
    """An earlier one is, whose bits are those that members signed."""
    tensors = load_file(newest())
    save_file({**tensors, "parameters": tensors["parameters"] + 1}, newest())
    before = sorted(FOLDER.glob("checkpoints/step-*.safetensors"))[-2]
    assert torch.equal(first_of(continued()).parameters_D, load_file(before)["parameters"])


def test_mistakes_name_the_way_out(old: Manifest) -> None:
    with pytest.raises(NewRunError, match="folder of a member"):
        troth.new("new.toml", TASK, FOUNDERS, continues=OLD)
    continued("again.toml")
    with pytest.raises(DiskError, match="belongs to another run"):
        troth.new("new.toml", TASK, FOUNDERS, initial_state=FOLDER, continues=Path("again.toml"))
    assert b"continues" not in description(old), "runs that continue none have the id that they had"


def test_a_peer_that_trains_may_delete_what_is_read(old: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes older checkpoints with every step, and reading its journal takes longer than that."""
    certified = chunks._certified

    def slowly(folder: Path) -> Iterator[CertifiedRecord]:
        for path in folder.glob("checkpoints/*"):
            path.unlink()
        return certified(folder)

    parameters_D = load_file(newest())["parameters"]
    monkeypatch.setattr(chunks, "_certified", slowly)
    assert torch.equal(first_of(continued()).parameters_D, parameters_D)
    assert Manifest.load(Path("new.toml")).continues == old.run.id


@pytest.mark.usefixtures("old")
def test_a_checkpoint_that_is_deleted_before_it_is_read_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    last_in, gone = initial_state._last_in, newest()

    def late(folder: Path) -> Path:
        found = last_in(folder)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(initial_state, "_last_in", late)
    made = troth.new("new.toml", TASK, FOUNDERS, initial_state=FOLDER)
    assert torch.equal(first_of(made).parameters_D, load_file(newest())["parameters"])


def test_what_is_not_given_is_as_it_was(old: Manifest) -> None:
    was = dataclasses.replace(
        old,
        schedule="linear",
        warmup=2,
        rate=0.03,
        parameters=dataclasses.replace(
            old.parameters, byzantine=1, tau=0.7, tau_auto=0.4, probation=40, slots=2, tau_most=9.0
        ),
        timeouts=dataclasses.replace(old.timeouts, delta=3.0, compute=77.0),
    )
    again = build_manifest(TASK, was.founders, options_from(was, {}, 4), origin=Origin(was, b"", "")).manifest
    assert differences(was, again) == []
    assert (again.parameters, again.timeouts) == (was.parameters, was.timeouts)

    given = {"rate": 0.5, "tau": 2.0, "steps": None}
    other = build_manifest(TASK, FOUNDERS, options_from(was, given, 3), origin=Origin(was, b"", "")).manifest
    assert differences(was, other) == [
        "training.rate: 0.5, was 0.03",
        "protocol.tau: 2.0, was 0.7",
        "protocol.byzantine: 0, was 1",
        "protocol.tau_auto: not set, was 0.4",
        f"founders: without {', '.join(sorted(one.name for one in was.founders))}",
        "founders: with p0, p1, p2",
    ]
    named = troth.new("new.toml", None, FOUNDERS, initial_state=FOLDER, continues=OLD)
    assert named.task == old.task


def test_only_what_was_typed_differs(old: Manifest, capsys: pytest.CaptureFixture[str]) -> None:
    """Defaults of the command are not asked for."""
    founders = [part for one in FOUNDERS for part in ("--founder", f"{one.name}={one.key.hex()}")]
    with pytest.raises(SystemExit):
        main(["new", "new.toml", "--from", str(FOLDER), "--continues", str(OLD), "--schedule", "linear", *founders])
    told = capsys.readouterr().out.split("As in that run's manifest, but for:\n")[1].splitlines()
    assert old.seed != 0, "the option's default"
    assert told[0] == "    training.schedule: linear, was cosine"
    assert told[1].startswith("    founders: without ")
    assert told[2] == "    founders: with p0, p1, p2"
    assert told[3].startswith("The schedule begins anew: a learning rate of ")
