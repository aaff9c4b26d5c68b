"""`mnist-cnn` and `resnet20`, the models and data of prior work, on tiny data."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.datasets.written import cifar_arrays, drawn, write_idx, write_npz
from troth.crypto import derive, stream
from troth.specs import SpecError
from troth.training import Problem, check_pure, make_task
from troth.training.tasks.resnet import ResNet20
from troth.training.tasks.small_images import FixedDropout, MnistCNN, MnistShard

HONEST = [0, 2, 3]  # of four peers; peer 1 lies


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    write_idx(tmp_path, drawn("mnist", 60, 12, (28, 28)))
    return tmp_path


def shards(data: Path) -> list[MnistShard]:
    found = [MnistCNN(data, split="sorted").shard(peer, 4, HONEST) for peer in HONEST]
    assert all(isinstance(one, MnistShard) for one in found)
    return [one for one in found if isinstance(one, MnistShard)]


def rows(task: MnistCNN) -> set[int]:
    """All images that a peer ever draws."""
    return {row for k in range(40) for row in task.rows(stream(k, "rows")).tolist()}


class TestShards:
    def test_they_are_disjoint_and_hold_every_image(self, mnist: Path) -> None:
        found = [rows(one) for one in shards(mnist)]
        assert [len(one) for one in found] == [20, 20, 20]
        assert set().union(*found) == set(range(60))

    def test_they_are_sorted_by_class(self, mnist: Path) -> None:
        labels = drawn("mnist", 60, 12, (28, 28))["y_train"]
        found = [[int(labels[row]) for row in rows(one)] for one in shards(mnist)]
        for earlier, later in pairwise(found):
            assert max(earlier) <= min(later)
        assert np.ptp(found[0]) < 9, "not all classes in one"

    def test_liars_and_iid_peers_draw_from_everything(self, mnist: Path) -> None:
        apart, together = MnistCNN(mnist, split="sorted"), MnistCNN(mnist)
        assert apart.shard(1, 4, HONEST) is apart
        assert together.shard(0, 4, HONEST) is together
        assert len(rows(apart)) == 60

    def test_images_that_cannot_be_dealt_evenly_go_round(self, mnist: Path) -> None:
        honest = range(7)  # 9 images each, 3 of them twice
        found = [MnistCNN(mnist, split="sorted").shard(peer, 7, honest) for peer in honest]
        held = [rows(one) for one in found if isinstance(one, MnistShard)]
        assert [len(one) for one in held] == [9] * 7
        assert len(held[-1] & held[0]) == 3

    def test_other_tasks_have_none(self) -> None:
        task = make_task("digits")
        assert task.shard(0, 4, HONEST) is task


class TestModels:
    def test_parameters_are_as_many_as_in_the_authors_models(self) -> None:
        with torch.device("meta"):
            counts = [
                sum(parameter.numel() for parameter in task.model().parameters())
                for task in (MnistCNN(Path()), MnistCNN(Path(), dropout="fixed"), ResNet20(Path()))
            ]
        assert counts == [1_199_882, 1_199_882, 272_474]

    def test_resnet20_has_its_layers(self) -> None:
        model = ResNet20(Path()).model()
        assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 19 + 2  # and two shortcuts
        assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 19 + 2
        last = model.get_submodule("blocks.8.conv2")
        assert isinstance(last, nn.Conv2d)
        assert abs(float(last.weight.detach().std()) - (2 / (64 * 9)) ** 0.5) < 0.002

    @pytest.mark.parametrize("dropout", ["fresh", "fixed"])
    def test_together_and_one_by_one_agree(self, mnist: Path, dropout: str) -> None:
        task = make_task(f"mnist-cnn:data={mnist},batch_size=4,dropout={dropout}")
        problem = Problem(task)
        assert problem.why_one_by_one == ""
        check_pure(task, problem)
        flat_D, batches = problem.initial(0), [problem.batch(derive(0, "agree", k)) for k in range(2)]
        together_PD = problem.gradients(flat_D, batches)[1]
        for gradient_D, batch in zip(together_PD, batches, strict=True):
            torch.testing.assert_close(gradient_D, problem.gradient(flat_D, batch)[1], rtol=1e-4, atol=1e-6)

    def test_resnet20_goes_through_vmap(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "cifar10.npz", cifar_arrays())
        task = make_task(f"resnet20:data={tmp_path},width=2,batch_size=3")
        problem = Problem(task)
        assert problem.why_one_by_one == ""
        assert problem.evaluate(problem.initial(0)).keys() == {"accuracy", "loss"}

    def test_fresh_dropout_differs_from_batch_to_batch_and_fixed_does_not(self, mnist: Path) -> None:
        same = {"images": torch.zeros(4, 1, 28, 28, dtype=torch.uint8), "labels": torch.arange(4)}
        for dropout, equal in (("fresh", False), ("fixed", True)):
            problem = Problem(make_task(f"mnist-cnn:data={mnist},batch_size=4,dropout={dropout}"))
            flat_D = problem.initial(0)
            one, two = (problem.batch(derive(0, k)) | same for k in range(2))
            assert torch.equal(problem.gradient(flat_D, one)[1], problem.gradient(flat_D, two)[1]) == equal

    def test_fixed_dropout_keeps_the_mean_and_does_nothing_in_evaluation(self) -> None:
        layer = FixedDropout(0.25, (64, 128))
        ones: Tensor = torch.ones(64, 128)
        assert abs(float(layer(ones).mean()) - 1) < 0.05
        assert {*layer.keep.flatten().tolist()} == {0.0, float(torch.tensor(1.0) / 0.75)}
        assert torch.equal(layer.eval()(ones), ones)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("split=random", "split is one of iid, sorted, got 'random'"),
            ("dropout=none", "dropout is one of fresh, fixed, got 'none'"),
        ],
    )
    def test_mistakes(self, options: str, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            make_task(f"mnist-cnn:data=x,{options}")
