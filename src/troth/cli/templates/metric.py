"""A metric of your own, beside those that the task has.

troth simulate --byzantine 3 --metric my_metric.py
troth simulate --byzantine 3 --metric my_metric.py:worst_class:least=20
"""

from troth.training import Model, Task


def worst_class(task: Task, model: Model, least: int = 1) -> float:
    """the accuracy on the class that the model knows least

    `task.examples()` holds labelled test examples, where the task has them; `model` is called as the module would be, and is
    ready for evaluation. Further parameters are options. It must give one number, and the same for the same model.
    """
    examples = task.examples()
    if examples is None:
        return float("nan")
    right = model(examples["images"]).argmax(dim=1) == examples["labels"]
    of_class = [right[examples["labels"] == label] for label in range(task.classes or 0)]
    return min(float(some.float().mean()) for some in of_class if len(some) >= least)
