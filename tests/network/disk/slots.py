"""Slots of one run, for tests of files."""

from troth.crypto import Digest, Slot
from troth.protocol.wire.messages import Phase

RUN = Digest(bytes(range(32)))


def slot(step: int, phase: Phase = Phase.COMMIT, attempt: int = 0) -> Slot:
    return Slot(RUN, step, phase, attempt)
