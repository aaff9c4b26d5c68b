"""The metric of `benchmarks.slow_lines`: loss on held-out text, on the same batches for every model."""

from troth.crypto import stream
from troth.training.task import Model
from troth.training.tasks.text import CharTransformer


def held_out(task: CharTransformer, model: Model, batches: int = 64) -> float:
    drawn = (task.held_out_batch(stream(0, "held out", k)) for k in range(batches))
    return sum(float(task.loss(model, batch)) for batch in drawn) / batches
