"""`troth export`: a checkpoint's model for its users, from a folder that may be in use."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.audit.folders import witnessed
from tests.cli.conftest import Troth
from tests.network.disk.slots import RUN
from tests.network.disk.test_roster_changes import certified
from troth.crypto import Identity
from troth.network.disk.checkpoints import Checkpoints
from troth.network.disk.journal import Journal
from troth.network.disk.lock import lock_folder
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.manifest import Founder, Manifest
from troth.protocol.recovery.following import Invitation
from troth.protocol.wire.primitives import Primitives
from troth.workshop.simulation import Scenario


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """run.toml of one founder, and its folder `peer` with the checkpoints of three steps."""
    monkeypatch.chdir(tmp_path)
    manifest = build_manifest("digits", [Founder("me", Identity.generate().peer, "127.0.0.1:1")]).manifest
    Path("run.toml").write_text(manifest.to_toml())
    work = manifest.work(manifest.problem(manifest.make_task()), Primitives())
    checkpoints = Checkpoints(Path("peer/checkpoints"), manifest.run.id, work)
    first = manifest.first_state(work)
    for step in range(3):
        training = dataclasses.replace(first.training, parameters_D=first.training.parameters_D * (1 + step))
        checkpoints.save(dataclasses.replace(first, step=step, training=training, model=work.digest(training)))
    return manifest


def test_the_newest_model_loads_strictly_into_the_tasks_own_module(troth: Troth, manifest: Manifest) -> None:
    held = lock_folder(Path("peer"))  # as if the peer were training
    done = troth("export", "peer", "--run", "run.toml", "--evaluate")
    held.release()
    assert (done.code, done.err) == (0, "")
    assert "Wrote model.safetensors: the model in step-000000002.safetensors, before step 2\naccuracy " in done.out
    assert 'Load it: model.load_state_dict(safetensors.torch.load_file("model.safetensors"))' in done.out
    model = manifest.make_task().model()
    model.load_state_dict(load_file("model.safetensors"), strict=True)
    problem = manifest.problem(manifest.make_task())
    flat_D = problem.layout.flatten({name: p.detach() for name, p in model.named_parameters()})
    assert flat_D.equal(3 * problem.initial(manifest.model_seed))


@pytest.mark.usefixtures("manifest")
def test_a_named_checkpoint_and_one_that_is_damaged(troth: Troth) -> None:
    one = "peer/checkpoints/step-000000001.safetensors"
    done = troth("export", one, "--run", "run.toml", "--out", "one.safetensors")
    assert "the model in step-000000001.safetensors, before step 1" in done.out
    newest = Path("peer/checkpoints/step-000000002.safetensors")
    raw = bytearray(newest.read_bytes())
    raw[-1] ^= 1
    newest.write_bytes(raw)
    done = troth("export", "peer", "--run", "run.toml", "--out", "two.safetensors")
    assert (done.code, done.out) == (2, ""), "an older model is for people to ask for"
    assert done.err == (
        f"troth: {newest} is damaged: name another member's folder; or in place of peer the newest that is whole, {one}\n"
    )
    assert not Path("two.safetensors").exists()
    done = troth("export", str(newest), "--run", "run.toml", "--out", "three.safetensors")
    assert done.code == 2
    assert "is no checkpoint of this run, or is damaged" in done.err
    for path in Path("peer/checkpoints").glob("*.safetensors"):
        path.write_bytes(raw[:-9])
    done = troth("export", "peer", "--run", "run.toml", "--out", "two.safetensors")
    assert done.err == f"troth: {newest} is damaged, and no older model here is whole: name another member's folder\n"


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("harm", ["flipped", "cut", "empty", "deeply nested"])
def test_a_damaged_file_beside_the_newest_model_is_named(troth: Troth, harm: str) -> None:
    beside = Path("peer/checkpoints/step-000000002.json")
    raw = beside.read_bytes()
    flipped = raw.replace(b'"randomness": "', b'"randomness": "/', 1)
    harmed = {"flipped": flipped, "cut": raw[:-9], "empty": b"", "deeply nested": b'{"x":' + b"[" * 100_000}
    beside.write_bytes(harmed[harm])
    done = troth("export", "peer", "--run", "run.toml", "--out", "two.safetensors")
    assert (done.code, done.out) == (2, "")
    assert f"{beside.with_suffix('.safetensors')} is damaged" in done.err


@pytest.mark.usefixtures("manifest")
def test_a_checkpoint_that_is_being_written_is_passed_over(troth: Troth) -> None:
    """The file beside a model is written last: without it the model was never whole, and the run goes on."""
    Path("peer/checkpoints/step-000000002.json").unlink()
    done = troth("export", "peer", "--run", "run.toml")
    assert (done.code, done.err) == (0, "")
    assert "the model in step-000000001.safetensors, before step 1" in done.out


def test_mistakes_name_the_way_out(troth: Troth, manifest: Manifest) -> None:
    Path("there").touch()
    Path("empty").mkdir()
    mark = Path("peer/checkpoints/step-000000002.json")
    for arguments, message in (
        (("none",), "none is not there: name a peer's folder"),
        (("empty",), "empty holds no checkpoint: name a peer's folder"),
        (("peer", "--out", "there"), "there exists already: choose another --out, or --overwrite"),
        (("peer", "--out", "none/model"), "cannot write none/model: No such file or directory; choose another --out"),
        (("there",), "there is no checkpoint of this run"),
    ):
        done = troth("export", *arguments, "--run", "run.toml")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"troth: {message}")
    other = dataclasses.replace(manifest, nonce=bytes(32))
    Path("other.toml").write_text(other.to_toml())
    done = troth("export", "peer", "--run", "other.toml")
    assert done.code == 2
    assert "belongs to another run" in done.err
    assert json.loads(mark.read_text())["step"] == 2


def test_the_model_of_a_closed_run_comes_with_its_certificate(troth: Troth, tmp_path: Path) -> None:
    """[E4] Anyone checks offline that the exported file came out of that run; one from the way there has no certificate."""
    scenario = Scenario(task="quadratic:dimension=24", peers=4, steps=4, seed=5)
    witnessed(tmp_path / "closed" / "peer", scenario)
    run = ("--run", "closed/run.toml")
    done = troth("export", "closed/peer", *run, "--out", "mine.safetensors")
    assert done.code == 0
    assert "Wrote mine.json: the members' signatures over it; troth verify mine.json --run closed/run.toml" in done.out
    done = troth("verify", "mine.json", *run)
    assert done.code == 0
    assert "mine.json: proved: 4 of 4 members signed the state" in done.out
    assert "mine.safetensors holds its weights" in done.out
    done = troth("export", "closed/peer", *run, "--out", "mine.safetensors", "--overwrite")
    assert done.code == 0
    raw = bytearray(Path("mine.safetensors").read_bytes())
    raw[-2] ^= 1
    Path("mine.safetensors").write_bytes(raw)
    assert troth("verify", "mine.json", *run).code == 1
    earlier = sorted(Path("closed/peer/checkpoints").glob("*.safetensors"))[0]
    done = troth("export", str(earlier), *run, "--out", "earlier.safetensors")
    assert done.code == 0
    assert "signatures" not in done.out
    assert not Path("earlier.json").exists()
    for path in sorted(Path("closed/peer/checkpoints").glob("step-*"))[-4:]:
        path.unlink()  # the closing step has a checkpoint too
    done = troth("export", "closed/peer", *run, "--out", "end.safetensors")
    assert (done.code, done.out) == (2, "")
    assert "is older than the end of the run" in done.err
    shutil.rmtree("closed")
    witnessed(tmp_path / "closed" / "peer", scenario)
    Path("there.json").touch()
    done = troth("export", "closed/peer", *run, "--out", "there.safetensors")
    assert (done.code, done.out) == (2, "")
    assert "there.json exists already" in done.err
    done = troth("export", "closed/peer", *run, "--out", "weights.bin")
    assert "with an --out that ends in .safetensors they are" in done.out


def test_people_get_an_invitation_to_send(troth: Troth, tmp_path: Path) -> None:
    """[J9]"""
    (tmp_path / "run").write_text(RUN.hex())
    journal = Journal(tmp_path / "journal", RUN)
    journal.recorded([certified(0)])
    done = troth("invite", str(tmp_path))
    journal.close()
    assert done.code == 0
    assert f"--invitation {Invitation.to(RUN, 0, [])}" in done.out
    wrong = troth("invite", str(tmp_path / "nowhere"))
    assert wrong.code == 2
    assert "troth join" in wrong.err
    unread = troth("join", "run.toml", "--identity", "a.key", "--invitation", "7")
    assert unread.code == 2
