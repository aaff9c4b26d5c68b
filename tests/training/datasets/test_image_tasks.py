"""`cnn` and `resnet18` on tiny data: models, batches, augmentation, files, and one run of the protocol."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.datasets.written import cifar_arrays, mnist_arrays, write_cifar_binary, write_idx, write_npz
from troth.crypto import derive, stream
from troth.specs import SpecError
from troth.training import Problem, TaskError, check_pure, make_task
from troth.training.fingerprint import data_digest
from troth.training.tasks.resnet import ResNet18, cropped, gathered
from troth.workshop.simulation import ProtocolSimulation, Scenario

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    write_cifar_binary(tmp_path, cifar_arrays())
    return tmp_path


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    write_idx(tmp_path, mnist_arrays(), ".gz")
    return tmp_path


def test_resnet18_has_the_papers_size() -> None:
    with torch.device("meta"):
        model = ResNet18(Path()).model()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 20


@pytest.mark.long
def test_other_activations_and_norms_have_the_same_parameters(cifar: Path) -> None:
    """Names and shapes of what is trained do not depend on the options; BatchNorm has the names it always had."""
    tasks = [
        ResNet18(cifar, width=3, activation=a, norm=n) for a in ("relu", "tanh", "gelu") for n in ("batch", "group")
    ]
    shapes = [{name: p.shape for name, p in task.model().named_parameters()} for task in tasks]
    assert all(one == shapes[0] for one in shapes)
    assert {"bn1.weight", "blocks.7.bn2.bias", "blocks.2.shortcut.1.weight"} <= shapes[0].keys()
    assert {"bn1.running_mean", "blocks.7.bn2.running_var"} <= ResNet18(cifar, width=3).model().state_dict().keys()
    outputs = [Problem(task).gradient(Problem(task).initial(0), Problem(task).batch(derive(1)))[1] for task in tasks]
    assert len({tuple(gradient_D.tolist()) for gradient_D in outputs}) == len(tasks), "each computes something else"


@pytest.mark.parametrize(("width", "groups"), [(64, 32), (4, 4), (12, 4), (3, 1)])
def test_group_norm_has_32_groups_or_as_many_as_divide_the_channels(cifar: Path, width: int, groups: int) -> None:
    with torch.device("meta"):
        model = ResNet18(cifar, width=width, norm="group").model()
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 20
    assert norms[0].num_groups == groups
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_with_group_norm_images_do_not_see_each_other(cifar: Path) -> None:
    images = ResNet18(cifar).batch(stream(1, "batch"))["images"]
    for norm, apart in (("batch", False), ("group", True)):
        model = ResNet18(cifar, width=2, norm=norm, activation="gelu").model().train()
        assert torch.allclose(model(images)[:2], model(images[:2]), atol=1e-5) is apart


def test_channels_last_is_the_same_function(cifar: Path) -> None:
    """Other bits, and gradients one by one: it is for a GPU, where they are computed so anyway."""
    plain, last = (Problem(ResNet18(cifar, width=4, channels_last=order)) for order in (False, True))
    flat_D, batch = plain.initial(0), plain.batch(derive(1))
    (loss, gradient_D), (other, other_D) = plain.gradient(flat_D, batch), last.gradient(flat_D, batch)
    assert loss == pytest.approx(other, rel=1e-5)
    assert float((gradient_D - other_D).norm()) < 1e-4 * float(gradient_D.norm())
    assert plain.why_one_by_one == ""
    assert last.why_one_by_one != ""


def test_both_are_pure_and_declare_their_files(cifar: Path, mnist: Path) -> None:
    for spec in (
        f"resnet18:data={cifar},width=2,batch_size=3",
        f"resnet18:data={cifar},width=2,batch_size=3,activation=gelu,norm=group",
        f"cnn:data={mnist},channels=2",
    ):
        task = make_task(spec)
        problem = Problem(task)
        check_pure(task, problem)
        assert problem.why_one_by_one == ""
        assert all(file.is_file() for file in task.data_files())
        assert problem.evaluate(problem.initial(0)).keys() == {"accuracy", "loss"}


def test_all_files_are_declared(cifar: Path, mnist: Path) -> None:
    assert [file.name for file in make_task(f"resnet18:data={cifar}").data_files()] == [
        *(f"data_batch_{k}.bin" for k in range(1, 6)),
        "test_batch.bin",
    ]
    assert len(make_task(f"cnn:data={mnist}").data_files()) == 4


def test_every_form_of_the_data_gives_the_same_batches(cifar: Path, tmp_path: Path) -> None:
    write_npz(tmp_path / "other.npz", cifar_arrays())
    seed = stream(1, "batch"), stream(1, "batch")
    binary, npz = (ResNet18(data).batch(draw) for data, draw in zip((cifar, tmp_path / "other.npz"), seed, strict=True))
    assert torch.equal(binary["images"], npz["images"])
    assert torch.equal(binary["labels"], npz["labels"])


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_has_the_same_bytes_on_every_device(cifar: Path, device: str) -> None:
    task = ResNet18(cifar)
    here, there = task.batch(stream(3, "batch")), task.batch_on(torch.device(device), stream(3, "batch"))
    assert here["images"].dtype == here["labels"].dtype == torch.uint8
    for name in here:
        assert there[name].device.type == device
        assert torch.equal(here[name], there[name].cpu())


def plainly_cropped(image: Tensor, top: int, left: int, turned: bool) -> Tensor:
    bordered = torch.zeros(3, 40, 40, dtype=torch.uint8)
    bordered[:, 4:36, 4:36] = image
    window = bordered[:, top : top + 32, left : left + 32]
    return window.flip(2) if turned else window


@pytest.mark.parametrize("crop", [cropped, gathered])
@pytest.mark.parametrize("device", DEVICES)
def test_crop_and_flip(device: str, crop: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    images = torch.from_numpy(cifar_arrays()["x_train"][:18]).permute(0, 3, 1, 2).contiguous()
    draw = stream(5, "crop")
    shifts_2B, turned_B = draw.integers(9, 36).reshape(2, 18), draw.integers(2, 18)
    assert {*shifts_2B.flatten().tolist()} == set(range(9)), "every shift is tried"
    found = crop(images.to(device), torch.from_numpy(shifts_2B), torch.from_numpy(turned_B)).cpu()
    for k, image in enumerate(images):
        top, left = shifts_2B[:, k].tolist()
        assert torch.equal(found[k], plainly_cropped(image, top, left, bool(turned_B[k])))


def test_the_model_normalises(cifar: Path) -> None:
    model = ResNet18(cifar, width=1).model()
    pixels = torch.tensor([[0, 128, 255]], dtype=torch.uint8).T[:, :, None].expand(3, 2, 2)[None]
    wanted = (pixels.double() / 255 - torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]) / torch.tensor(
        [0.2470, 0.2435, 0.2616]
    )[:, None, None]
    torch.testing.assert_close(model.get_submodule("normalise")(pixels).double(), wanted, rtol=1e-5, atol=1e-6)


def test_the_digest_tells_other_data_apart(mnist: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    arrays = mnist_arrays()
    write_idx(other, {**arrays, "y_test": (arrays["y_test"] + 1) % np.uint8(10)}, ".gz")
    one, same, two = (data_digest(make_task(f"cnn:data={folder}")) for folder in (mnist, mnist, other))
    assert one == same != two


def test_a_manifests_data_lies_beside_it(mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    task = make_task(f"cnn:data={mnist.name}", mnist.parent)
    assert len(task.data_files()) == 4
    with pytest.raises(TaskError, match=r"no MNIST in .*: looked for train-images"):
        make_task(f"cnn:data={mnist.name}").data_files()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet18", "'resnet18' needs a value for its option 'data': write data=…"),
        ("resnet18:data=x,activation=swish", "activation is one of relu, tanh, gelu, got 'swish'"),
        ("resnet18:data=x,norm=layer", "norm is one of batch, group, got 'layer'"),
        ("cnn:data=x,set=emnist", "set is one of mnist, fashion, got 'emnist'"),
        ("cnn:data=x,batch_size=0", "batch_size must be at least 1 and at most 65536, got 0"),
    ],
)
def test_mistakes(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_task(spec)


def test_a_run_of_the_protocol(mnist: Path) -> None:
    run = ProtocolSimulation(Scenario(task=f"cnn:data={mnist},channels=1,batch_size=2", peers=4, steps=2, byzantine=0))
    assert [report.step for report in run.steps()] == [1, 2]


def test_mixed_precision(mnist: Path) -> None:
    assert Problem(make_task(f"cnn:data={mnist},channels=1,autocast=bfloat16")).why_one_by_one.startswith(
        "mixed precision"
    )
    assert make_task(f"cnn:data={mnist}").autocast is None


def test_gradients_are_clipped(mnist: Path) -> None:
    free, clipped = (Problem(make_task(f"cnn:data={mnist},channels=1{more}")) for more in ("", ",clip_norm=0.5"))
    flat_D, batch = free.initial(0), free.batch(derive(0, "clip"))
    long_D, short_D = free.gradient(flat_D, batch)[1], clipped.gradient(flat_D, batch)[1]
    assert long_D.norm() > 0.5
    torch.testing.assert_close(short_D, long_D * (0.5 / long_D.norm()))
