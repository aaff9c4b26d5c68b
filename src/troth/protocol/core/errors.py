"""Reasons why a peer cannot finish a step: states of the world, neither bugs nor lies."""


class CannotGoOnError(Exception):
    """This peer cannot finish the step: a state of the world, neither a bug nor a lie."""


class LeftOutError(CannotGoOnError):
    """The others went on without this peer: it has to catch up and come back."""


class StalledError(CannotGoOnError):
    """No quorum is left, and the rest must not decide for the others (SPEC N4)."""


class UncertifiedError(StalledError):
    """No quorum signed the last record: nobody can prove it, so all members go back to the state before it (SPEC U2)."""
