"""What can be wrong with a task."""

from troth.errors import OperatorError


class TaskError(OperatorError):
    """A task that cannot be trained on together; the message says what in it to change."""
