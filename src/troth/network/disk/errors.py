"""Errors about the files that a peer keeps."""

from troth.errors import OperatorError


class DiskError(OperatorError):
    """A file that cannot be used; the message names the way out.

    `wrong_folder`: another folder is the way out, and the message ends with asking for one. The command line adds the option.
    """

    def __init__(self, message: str, *, wrong_folder: bool = False) -> None:
        super().__init__(message)
        self.wrong_folder = wrong_folder
