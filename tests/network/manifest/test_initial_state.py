"""A run that begins where another one ended."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from troth.crypto import Identity, Seed, derive
from troth.network.manifest.builder import build_manifest
from troth.network.manifest.files import initial_state_file
from troth.network.manifest.manifest import Founder, Manifest
from troth.network.manifest.options import ManifestOptions
from troth.protocol.wire.primitives import Primitives
from troth.training.initial_state import InitialStateError
from troth.training.work import Training, TrainingWork

FOUNDERS = tuple(Founder(f"p{k}", Identity.from_secret(Seed(derive(0, "start", k))).peer, "") for k in range(3))
TASK = "quadratic:dimension=40"


def begin(folder: Path, start: Path | None = None, optimizer: str = "sgd") -> Manifest:
    """As `troth new` does."""
    built = build_manifest(TASK, FOUNDERS, ManifestOptions(steps=5, optimizer=optimizer, initial_state=start), folder)
    if built.initial_state is not None and built.manifest.initial_state is not None:
        initial_state_file(folder, built.manifest.initial_state).write_bytes(built.initial_state)
    return built.manifest


def work_of(manifest: Manifest) -> TrainingWork:
    return manifest.work(manifest.problem(manifest.make_task()), Primitives())


def trained(manifest: Manifest) -> Training:
    """A few steps by hand."""
    work = work_of(manifest)
    training = work.first(0)
    for step in range(3):
        training = work.update(training, work.gradient_now(training, derive(step)), step)
    return training


def first_of(manifest: Manifest) -> Training:
    return manifest.first_state(work_of(manifest)).training


def test_a_checkpoint_goes_on_with_its_optimizer(tmp_path: Path) -> None:
    old = begin(tmp_path)
    state = trained(old)
    folder = tmp_path / "peer0" / "checkpoints"
    folder.mkdir(parents=True)
    for step in (2, 3):
        (folder / f"step-{step:09}.safetensors").write_bytes(work_of(old).pack(state))
    for start in (tmp_path / "peer0", folder, folder / "step-000000003.safetensors"):
        new = begin(tmp_path, start)
        assert new.run.id != old.run.id
        assert torch.equal(first_of(new).parameters_D, state.parameters_D)
        assert torch.equal(first_of(new).optimizer["momentum"], state.optimizer["momentum"])
        again = Manifest.from_bytes(new.to_toml().encode(), tmp_path)
        assert (again.initial_state, again.run.id) == (new.initial_state, new.run.id)


def test_another_optimizer_or_a_mere_model_starts_afresh(tmp_path: Path) -> None:
    old = begin(tmp_path)
    state, work = trained(old), work_of(old)
    (tmp_path / "state.safetensors").write_bytes(work.pack(state))
    views = work.problem.layout.views(state.parameters_D)
    save_file({name: piece.clone() for name, piece in views.items()}, tmp_path / "model.safetensors")
    for file, optimizer in (("state.safetensors", "adamw"), ("model.safetensors", "sgd")):
        first = first_of(begin(tmp_path, tmp_path / file, optimizer))
        assert torch.equal(first.parameters_D, state.parameters_D)
        assert not any(piece.any() for name, piece in first.optimizer.items() if name not in ("powers", "factor"))


def test_the_state_is_the_one_agreed_on(tmp_path: Path) -> None:
    old = begin(tmp_path)
    (tmp_path / "state.safetensors").write_bytes(work_of(old).pack(trained(old)))
    new = begin(tmp_path, tmp_path / "state.safetensors")
    assert new.initial_state is not None
    file = initial_state_file(tmp_path, new.initial_state)
    named = load_file(file)
    named["parameters"][0] += 1
    for raw in (save(named), file.read_bytes()[:-4], file.read_bytes() + bytes(1 << 21), b""):
        file.write_bytes(raw)
        with pytest.raises(InitialStateError, match="not the state that was agreed on"):
            first_of(new)
    file.unlink()
    with pytest.raises(InitialStateError, match=f"get {file.name} from whoever sent the manifest"):
        first_of(new)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nonsense", "is no safetensors file"),
        (save({"parameters": torch.zeros(41)}), "holds 41 parameters, and the task's model has 40"),
        (save({"parameters": torch.zeros(40, dtype=torch.int64)}), "no vector of float32 parameters"),
        (save({"parameters": torch.full((40,), float("nan"))}), "not a number"),
        (
            save({"weight": torch.zeros(40)}),
            "these weights do not fit the model: 'x' is missing; 'weight' is not in the model",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "some.safetensors").write_bytes(content)
    with pytest.raises(InitialStateError, match=message):
        begin(tmp_path, tmp_path / "some.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["some.safetensors"]
    with pytest.raises(InitialStateError, match="holds no checkpoint"):
        begin(tmp_path, tmp_path)
    with pytest.raises(InitialStateError, match="cannot read"):
        begin(tmp_path, tmp_path / "nothing")
