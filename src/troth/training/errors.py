"""The error for tasks that cannot be trained."""

from troth.errors import OperatorError


class TaskError(OperatorError):
    """A task that cannot be trained on together; the message says what in it to change."""
