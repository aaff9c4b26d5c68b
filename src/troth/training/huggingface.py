"""A task out of a Hugging Face model, or its configuration, and a dataset of tokenised items (extra `huggingface`).

    from transformers import GPT2Config
    from troth.training import huggingface

    task = huggingface.task(GPT2Config(n_layer=2, n_head=2, n_embd=64), data=items, batch_size=8)

Dropout, tied weights and the model's own initialisation work as they are. The loss is the model's own: `model(**batch).loss`.
"""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from troth.errors import how_to_install
from troth.training import dataset_task
from troth.training.task import Task, TaskError


def task(model: Any, *, data: Any, auto: str = "AutoModelForCausalLM", **options: Any) -> Task:
    """Make a task from a configuration, a function that builds a model, or a (pretrained) model, which is copied.

    Items are dicts with `input_ids` and what else the model's `forward` takes. Without `labels` among them, a model is
    asked to predict its `input_ids`. `auto` names the class of `transformers` that turns a configuration into a model;
    further options are those of `troth.training.dataset_task.task`.
    """
    return dataset_task.task(model=_builder(model, auto), data=data, loss=_loss, **{"name": "huggingface", **options})


def _builder(model: Any, auto: str) -> Callable[[], nn.Module]:
    try:
        import transformers
    except ImportError as error:
        raise TaskError(f"Hugging Face's transformers is not installed: {how_to_install('huggingface')}") from error

    def build() -> nn.Module:
        if isinstance(model, nn.Module):
            built: Any = copy.deepcopy(model)
        elif callable(model):
            built = model()
        else:
            built = getattr(transformers, auto).from_config(copy.deepcopy(model))
        built.config.use_cache = False  # for generating text; in training it only costs memory
        if getattr(built, "loss_type", "") is None:
            built.loss_type = "ForCausalLM"  # its default, which it would warn about
        assert isinstance(built, nn.Module)
        return built

    return build


def _loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    inputs = batch if "labels" in batch or "input_ids" not in batch else {**batch, "labels": batch["input_ids"]}
    loss = model(**inputs).loss
    if not isinstance(loss, Tensor):
        raise TaskError("the model returns no loss for these items: give them 'labels', as its forward() takes them")
    return loss
