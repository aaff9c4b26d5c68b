"""Tasks out of models of other libraries, where those are installed."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from troth.crypto import derive, stream
from troth.training import Problem, Task, TaskError, check_pure, huggingface, lightning

ROWS = torch.from_numpy(stream(0, "text").integers(11, 8 * 6)).view(8, 6)
ITEMS = [{"input_ids": row} for row in ROWS]


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )


def audited(task: Task) -> None:
    """A gradient recomputed by another problem is the same, bit for bit, alone and among others."""
    for options in ({"one_by_one": True}, {"lanes_for": 4}):
        contributor, auditor = Problem(task, **options), Problem(task, **options)
        flat_D, seeds = contributor.initial(1), [derive(9, k) for k in range(4)]
        _, gradients_PD = contributor.gradients(flat_D, [contributor.batch(seed) for seed in seeds])
        for seed, gradient_D in zip(seeds, gradients_PD, strict=True):
            assert torch.equal(auditor.gradients(flat_D, [auditor.batch(seed)])[1][0], gradient_D)


class TestHuggingFace:
    def test_a_language_model_with_dropout_from_its_configuration(self) -> None:
        task = huggingface.task(gpt2(), data=ITEMS, batch_size=2, evaluate=ITEMS)
        check_pure(task)
        audited(task)
        problem = Problem(task)
        assert problem.why_one_by_one == ""
        flat_D = problem.initial(0)
        problem.gradient(flat_D, problem.batch(derive(0)))
        assert problem.drawn["dropout"] > 0
        module = problem.module(flat_D)
        with torch.no_grad():
            assert task.evaluate(module) == problem.evaluate(flat_D)
        state = problem.state_dict(flat_D)
        assert torch.equal(state["lm_head.weight"], state["transformer.wte.weight"])
        task.model().load_state_dict(state, strict=True)

    def test_a_model_that_is_there_already_is_the_start(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(4)
        pretrained = transformers.GPT2LMHeadModel(gpt2())
        pretrained.transformer.wte.requires_grad_(False)
        task = huggingface.task(pretrained, data=ITEMS, batch_size=2)
        problem = Problem(task)
        check_pure(task, problem)
        assert problem.frozen == 11 * 8
        assert torch.equal(problem.initial(1), problem.initial(2))
        state = problem.state_dict(problem.initial(0))
        assert all(torch.equal(state[name], tensor) for name, tensor in pretrained.state_dict().items())

    def test_without_the_library_the_error_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(TaskError, match=r"transformers is not installed: .*pip install"):
            huggingface.task(object(), data=ITEMS)


class TestLightning:
    @pytest.mark.long
    def test_a_training_step(self) -> None:
        pytorch = pytest.importorskip("lightning.pytorch")

        class Module(pytorch.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

            def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
                x, y = batch
                loss = F.mse_loss(self.layer(x), y)
                self.log("loss", loss)
                return {"loss": loss}

        x = torch.from_numpy(stream(0, "x").normal(30)).float().view(10, 3)
        task = lightning.task(Module, data=list(zip(x, x.sum(1, keepdim=True), strict=True)), batch_size=4)
        check_pure(task)
        audited(task)
        problem = Problem(task)
        flat_D = problem.initial(0)
        with torch.no_grad():
            assert task.evaluate(problem.module(flat_D)) == problem.evaluate(flat_D)
