"""What can be wrong with an attack that somebody asked for."""

from troth.errors import OperatorError


class AttackError(OperatorError):
    """An attack that makes no sense for this task, these numbers of peers or this schedule."""
