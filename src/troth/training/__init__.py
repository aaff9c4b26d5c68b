"""Tasks, as users write them, and reproducible training on them."""

from troth.training.errors import TaskError
from troth.training.layout import Layout
from troth.training.optimizers import LAMB, OPTIMIZERS, SGD, AdamW, Optimizer, State
from troth.training.problem import Problem
from troth.training.purity import check_pure
from troth.training.schedules import SCHEDULES, Schedule, rate_at, warmed_up
from troth.training.task import Batch, Model, Task
from troth.training.tasks import TASKS, make_task

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
    "make_task",
    "rate_at",
    "warmed_up",
]
