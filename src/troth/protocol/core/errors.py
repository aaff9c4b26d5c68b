"""Reasons why a peer cannot finish a step: states of the world, neither bugs nor lies."""


class CannotGoOnError(Exception):
    """This peer cannot finish the step: a state of the world, neither a bug nor a lie."""


class LeftOutError(CannotGoOnError):
    """The others went on without this peer: it has to catch up and come back."""


class StalledError(CannotGoOnError):
    """No quorum is left, and the rest must not decide for the others (SPEC N4)."""


class AlarmError(CannotGoOnError):
    """More members are banned than the run withstands liars: it has ended, and people have to see to it (SPEC G4)."""

    def __init__(self, step: int, bans: int, liars: int) -> None:
        super().__init__(
            f"the run ended in step {step}: {bans} of its members are banned, and it withstands {liars} "
            f"liar{'' if liars == 1 else 's'}, so that an honest one may be among them. Look at the evidence of each ban with "
            "those you trust, and begin a new run from this model: troth new --from FOLDER"
        )


class UncertifiedError(StalledError):
    """No quorum signed the last record: nobody can prove it, so all members go back to the state before it (SPEC U2)."""
