"""Errors of attacks that an operator asked for."""

from troth.errors import OperatorError


class AttackError(OperatorError):
    """An attack that makes no sense for this task, these numbers of peers or this schedule."""
