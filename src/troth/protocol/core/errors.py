"""Why a peer cannot finish a step: states of the world, not bugs, and nobody's lie."""


class CannotGoOnError(Exception):
    """This peer cannot finish the step, through nobody's lie: a state of the world, not a bug."""


class LeftOutError(CannotGoOnError):
    """The others went on without this peer: it has to catch up and come back."""


class StalledError(CannotGoOnError):
    """No quorum is left: whoever is must not decide for the others (SPEC N4)."""


class UncertifiedError(StalledError):
    """No quorum signed the last record: nobody can prove it, so everyone goes back to the state before it (SPEC U2)."""
