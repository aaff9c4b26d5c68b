"""Tasks, as users write them, and reproducible training on them."""

from troth.training.optimizers import (
    LAMB,
    OPTIMIZERS,
    SCHEDULES,
    SGD,
    AdamW,
    Optimizer,
    Schedule,
    State,
    make_optimizer,
    rate_at,
    warmed_up,
)
from troth.training.problem import Problem
from troth.training.purity import check_pure
from troth.training.task import Batch, Model, Task, TaskError
from troth.training.tasks import TASKS, make_task
from troth.training.weights import Layout

__all__ = [
    "LAMB",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "TASKS",
    "AdamW",
    "Batch",
    "Layout",
    "Model",
    "Optimizer",
    "Problem",
    "Schedule",
    "State",
    "Task",
    "TaskError",
    "check_pure",
    "make_optimizer",
    "make_task",
    "rate_at",
    "warmed_up",
]
